//! What a core keeps its items in, and what a snapshot says of it.

use std::path::Path;

use dunlin_store::snapshot::{Origin, SnapshotError, origin_of};
use dunlin_store::{Partition, PartitionConfig, PartitionError, Shape};

use super::error::ServerError;

/// Makes the partition of a core; of a shape, if that is known.
pub(super) type MakePartition<P> = dyn Fn(PartitionConfig, Option<&Shape>) -> Result<P, PartitionError> + Send + Sync;

/// Makes the partition that servers have.
pub(super) fn make(config: PartitionConfig, shape: Option<&Shape>) -> Result<Partition, PartitionError> {
    match shape {
        Some(shape) => Partition::with_shape(config, shape),
        None => Partition::new(config),
    }
}

/// Whether there is a snapshot, and what it was taken from, if it says so.
pub(super) fn look_at(snapshot: Option<&Path>) -> Result<(bool, Option<Origin>), ServerError> {
    let Some(path) = snapshot else { return Ok((false, None)) };
    let cannot_load = |source| ServerError::Load { path: path.to_owned(), source };
    // Only a file that is known not to be there means "nothing yet": one that cannot be looked at would be lost when the next is saved.
    let is_there = path.try_exists();
    if !is_there.map_err(|source| cannot_load(SnapshotError::Open { path: path.to_owned(), source }))? {
        return Ok((false, None));
    }
    Ok((true, origin_of(path).map_err(cannot_load)?))
}

/// The seed that keys were divided by when the snapshot was taken; zeros say nothing.
pub(super) fn seed_of(origin: Option<&Origin>) -> Option<[u8; 16]> {
    origin.map(|origin| origin.routing).filter(|seed| *seed != [0; 16])
}
