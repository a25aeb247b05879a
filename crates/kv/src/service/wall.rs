//! Between the times of day that clients say and are told, and the time that a partition is told.

use dunlin_store::{Item, Moment, Put};

use crate::wire::Operation;

/// An operation with its expiry as the partition counts time.
#[cold]
pub(super) fn in_partition_time(operation: Operation<'_>, moment: Moment) -> Operation<'_> {
    let from_wall = |at: Option<u32>| at.map(|at| moment.from_wall(at));
    match operation {
        Operation::Read { key, touch } => Operation::Read { key, touch: touch.map(from_wall) },
        Operation::Put { key, value, put } => {
            Operation::Put { key, value, put: Put { expires: from_wall(put.expires), ..put } }
        }
        Operation::Touch { key, expires } => Operation::Touch { key, expires: from_wall(expires) },
        other => other,
    }
}

/// An item with its times as the wall clock shows them.
pub(super) fn in_wall_time<'a>(item: &Item<'a>, moment: Moment) -> Item<'a> {
    let to_wall = |at| moment.to_wall(at);
    Item { expires: item.expires.map(to_wall), last_access: to_wall(item.last_access), ..*item }
}
