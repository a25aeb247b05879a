//! Converts between the clients' times of day and the partition's time.

use dunlin_store::{Item, Moment, UnixSeconds};

/// An expiry as the partition counts time. Nothing else of an operation is a time, and most have none.
#[inline]
pub(super) fn in_partition_time(expires: Option<UnixSeconds>, moment: Moment) -> Option<UnixSeconds> {
    expires.map(|at| moment.from_wall(at))
}

/// Returns an item with its times in wall-clock time.
pub(super) fn in_wall_time<'a>(item: &Item<'a>, moment: Moment) -> Item<'a> {
    let to_wall = |at| moment.to_wall(at);
    Item { expires: item.expires.map(to_wall), last_access: to_wall(item.last_access), ..*item }
}
