//! What a core keeps its items in.

use dunlin_store::{PartitionConfig, PartitionError};

/// Makes the partition of a core.
pub(super) type MakePartition<P> = dyn Fn(PartitionConfig) -> Result<P, PartitionError> + Send + Sync;
