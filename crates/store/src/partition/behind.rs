//! Items in the tier behind a cache: they are read there, and return to memory when they are read again or changed.

use super::Partition;
use super::find::Place;
use crate::item::{Item, UnixSeconds};
use crate::key::Key;
use crate::record::Fields;
use crate::tier::Recalled;

impl Partition {
    /// Reads an item that memory does not have. One that is read for the second time returns to memory, unless it would
    /// have to wait for a snapshot's disk: reads do not wait.
    #[cold]
    pub(super) fn get_behind(&mut self, key: &Key<'_>) -> Option<Item<'_>> {
        let now = self.clock.now;
        let tier = self.tier.as_mut()?;
        let marks = tier.find(key, now)?.marks;
        if tier.note_read(key)
            && self.may_recall(key.hash())
            && let Some(recalled) = self.tier.as_mut()?.recall(key, now)
            && let Some(place) = self.put_back(key, &recalled)
        {
            return Some(self.record(place).item(&self.clock));
        }
        self.tier.as_ref()?.find(key, now).map(|item| Item { marks, ..item })
    }

    /// As [`Partition::find_live`], and brings the item back to memory if only the tier has it.
    #[inline]
    pub(super) fn find_or_recall(&mut self, key: &Key<'_>) -> Option<Place> {
        let place = self.find_live(key);
        if place.is_none() && self.tier.is_some() { self.recall(key) } else { place }
    }

    /// Brings an item back to memory that memory does not have, for a change.
    #[cold]
    pub(super) fn recall(&mut self, key: &Key<'_>) -> Option<Place> {
        let now = self.clock.now;
        let recalled = self.tier.as_mut()?.recall(key, now)?;
        self.changing(key.hash());
        self.put_back(key, &recalled)
    }

    /// Stores an item that was taken out of the tier, with its token, expiry and marks.
    fn put_back(&mut self, key: &Key<'_>, recalled: &Recalled) -> Option<Place> {
        let item = recalled.item();
        let fields = Fields {
            flags: item.flags,
            expires: item.expires.unwrap_or(0),
            cas: item.cas,
            minutes: self.clock.minutes(),
            marks: item.marks,
            // It was wanted again.
            is_hot: true,
        };
        // If there is no room, it is evicted for good.
        self.store(key, item.value, &fields, None).ok()?;
        self.find(key)
    }

    /// Drops the record of a key that has no item in memory, since it was stored anew or deleted. Returns whether there
    /// was a live one.
    #[cold]
    pub(super) fn drop_behind(&mut self, key: &Key<'_>, now: UnixSeconds) -> bool {
        self.tier.as_mut().is_some_and(|tier| tier.remove(key.hash(), now))
    }
}
