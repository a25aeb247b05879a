//! What a core stores its items in, and its origin in a snapshot.

use std::path::Path;

use dunlin_store::snapshot::{Origin, SnapshotError, origin_of};
use dunlin_store::{Partition, PartitionConfig, PartitionError, Shape};

use super::error::ServerError;

/// Creates the partition of a core; with a shape, if that is known.
pub(super) type MakePartition<P> = dyn Fn(PartitionConfig, Option<&Shape>) -> Result<P, PartitionError> + Send + Sync;

/// Creates the partition that servers use.
pub(super) fn make(config: PartitionConfig, shape: Option<&Shape>) -> Result<Partition, PartitionError> {
    match shape {
        Some(shape) => Partition::with_shape(config, shape),
        None => Partition::new(config),
    }
}

/// Returns whether a snapshot exists, and its origin, if that is recorded.
pub(super) fn look_at(snapshot: Option<&Path>) -> Result<(bool, Option<Origin>), ServerError> {
    let Some(path) = snapshot else { return Ok((false, None)) };
    let cannot_load = |source| ServerError::Load { path: path.to_owned(), source };
    // Only a file that certainly does not exist means "nothing yet": one that cannot be examined would be lost at the
    // next save.
    let is_there = path.try_exists();
    if !is_there.map_err(|source| cannot_load(SnapshotError::Open { path: path.to_owned(), source }))? {
        return Ok((false, None));
    }
    Ok((true, origin_of(path).map_err(cannot_load)?))
}

/// Returns the seed that divided the keys when the snapshot was taken; zeros mean none.
pub(super) fn seed_of(origin: Option<&Origin>) -> Option<[u8; 16]> {
    origin.map(|origin| origin.routing).filter(|seed| *seed != [0; 16])
}
