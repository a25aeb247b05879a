//! Memory for the values of a proxy: reserved before they are read, when nobody knows yet how long they are.

use std::sync::Arc;
use std::time::Duration;

use dunlin_store::VALUE_BYTES_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory is counted in units of this many bytes.
const UNIT: usize = 1 << 10;
/// Units of a value whose length is not known yet.
const VALUE_UNITS: usize = VALUE_BYTES_MAX / UNIT;
/// One retrieval reserves at most this part of what is free, as long as that is enough for one value: so others find
/// some, however many keys it has, and however long its servers take.
const SHARE: usize = 4;
/// How long a retrieval waits for memory. Nobody waits who holds some, but clients may read slowly.
const WAIT: Duration = Duration::from_secs(5);

/// What all connections share.
#[derive(Debug)]
pub(super) struct Room(Arc<Semaphore>);

/// Memory for values that are being read.
#[derive(Debug)]
pub(super) struct Reserved(OwnedSemaphorePermit);

/// Memory for a value that was read, until this is dropped.
#[derive(Debug)]
pub(super) struct OfValue {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Of so many bytes, and of one value in any case.
    pub fn new(bytes: usize) -> Room {
        Room(Arc::new(Semaphore::new((bytes / UNIT).max(VALUE_UNITS))))
    }

    /// Reserves memory for the values of some of so many keys: one at least. `None` if there is none for a long time.
    pub async fn reserve(&self, keys: usize) -> Option<Reserved> {
        let most = self.0.available_permits() / SHARE / VALUE_UNITS;
        let units = VALUE_UNITS * keys.clamp(1, most.max(1));
        let permit = self.0.clone().acquire_many_owned(units.try_into().unwrap_or(u32::MAX));
        tokio::time::timeout(WAIT, permit).await.ok()?.ok().map(Reserved)
    }
}

impl Reserved {
    /// Returns for how many keys it is.
    pub fn keys(&self) -> usize {
        self.0.num_permits() / VALUE_UNITS
    }

    /// Takes out what a value needs. The rest is given back when this is dropped.
    pub fn take(&mut self, bytes: usize) -> OfValue {
        // No server has longer values than were reserved for.
        let units = bytes.div_ceil(UNIT).min(self.0.num_permits());
        OfValue { _permit: self.0.split(units) }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn large_retrievals_leave_room_for_others() {
        let room = Room::new(1 << 30);
        let reserve = |keys| room.reserve(keys).now_or_never().flatten();
        let large: Vec<Reserved> = (0..16).filter_map(|_| reserve(1024)).collect();
        assert_eq!(large.len(), 16);
        assert!(large[0].keys() >= 256 && large[15].keys() >= 2, "{large:?}");
        assert!(reserve(1).is_some());
    }

    #[tokio::test]
    async fn what_values_do_not_need_is_given_back() {
        let room = Room::new(4 * VALUE_BYTES_MAX);
        let mut all: Vec<Reserved> = (0..4).filter_map(|_| room.reserve(9).now_or_never().flatten()).collect();
        assert_eq!(all.iter().map(Reserved::keys).sum::<usize>(), 4);
        assert!(room.reserve(1).now_or_never().is_none());
        let values: Vec<OfValue> = all.iter_mut().map(|reserved| reserved.take(100)).collect();
        drop(all);
        assert_eq!(room.0.available_permits(), 4 * (VALUE_UNITS - 1));
        drop(values);
        assert_eq!(room.0.available_permits(), 4 * VALUE_UNITS);
    }
}
