//! Stores an item: in a line if it fits, otherwise in the log.
//!
//! Room for the pointer and the bytes is made before the old item is given up, so that a rejected item leaves the old
//! one unchanged. Making room may move other lines and items, so any place found before is looked up again.

use super::Partition;
use super::find::Place;
use crate::config::{Layout, Mode};
use crate::entry::{entry_bytes, write_entry};
use crate::error::Refused;
use crate::key::Key;
use crate::line::{self, Kind, Pointer};
use crate::record::Fields;
use crate::table::{REACH_WORDS, REACH_WORDS_LOADING, WORD_LINES};

/// Homes moved at most for one item without a place near its home: a few milliseconds. A cache with room moves them
/// before it evicts an item, a store before it rejects one.
pub(super) const HOMES_FOR_ROOM: usize = 1 << 16;
/// Homes moved before the next search for a line.
const HOMES_AT_ONCE: usize = 1 << 10;
/// Searches for room among expired items, for one item.
const ROOM_TRIES: usize = 4;

impl Partition {
    /// Stores an item in place of the one found under its key, or as a new one.
    #[inline]
    pub(super) fn store(
        &mut self,
        key: &Key<'_>,
        value: &[u8],
        fields: &Fields,
        old: Option<Place>,
    ) -> Result<(), Refused> {
        self.sweeper.note(fields.expires);
        if self.overwrite(key, value, fields, old) { Ok(()) } else { self.store_elsewhere(key, value, fields, old) }
    }

    /// Stores an item where the old one stands, if it fits there. Apart from what follows: this is what most changes
    /// come to.
    #[inline(always)]
    fn overwrite(&mut self, key: &Key<'_>, value: &[u8], fields: &Fields, old: Option<Place>) -> bool {
        let fits_line = self.fits_line(key, value, fields);
        match old {
            Some(Place::Line { line, .. }) if fits_line => {
                let cell = self.table.line_mut(&mut self.memory, line);
                let before = cell.record().value.len();
                // Eviction passes by an item that was rewritten as by one that was read.
                cell.set_record(key.bytes(), value, &Fields { is_hot: true, ..*fields });
                self.counters.item_bytes = self.counters.item_bytes - before as u64 + value.len() as u64;
                true
            }
            Some(place @ Place::Log { at, .. }) if !fits_line => {
                let (before, bytes) = (self.record(place).value.len(), entry_bytes(key.bytes().len(), value.len()));
                // Not in a segment of a cache that is old: it will be cleaned before long.
                let stays = self.mode == Mode::Store || self.log.is_young(self.log.segment_of(at));
                let is_stored = stays && entry_bytes(key.bytes().len(), before) == bytes;
                if is_stored {
                    write_entry(&mut self.memory.bytes_mut()[at..at + bytes], key.bytes(), value, fields);
                    self.counters.item_bytes = self.counters.item_bytes - before as u64 + value.len() as u64;
                }
                is_stored
            }
            _ => false,
        }
    }

    #[inline(always)]
    fn fits_line(&self, key: &Key<'_>, value: &[u8], fields: &Fields) -> bool {
        self.layout == Layout::Inline && line::fits(key.bytes().len(), value.len(), fields)
    }

    /// Stores an item where there is a place for it, and looks for room among what has expired if there is none.
    #[inline(never)]
    fn store_elsewhere(
        &mut self,
        key: &Key<'_>,
        value: &[u8],
        fields: &Fields,
        old: Option<Place>,
    ) -> Result<(), Refused> {
        let result = match self.try_elsewhere(key, value, fields, old) {
            Err(Refused::Full) => self.in_room(|store| {
                let old = old.and_then(|_| store.find(key));
                if store.overwrite(key, value, fields, old) {
                    return Ok(());
                }
                store.try_elsewhere(key, value, fields, old)
            }),
            result => result,
        };
        if self.tier.is_some() && result.is_ok() {
            // The tier may have an earlier item of this key, perhaps since room was made for this one.
            self.drop_behind(key, self.clock.now);
        }
        result
    }

    /// Retries a rejected attempt as long as expired items make room. Lines may have moved since the first attempt. If
    /// searches often fail, none is made (see `expire.rs`).
    #[cold]
    pub(super) fn in_room(&mut self, attempt: impl Fn(&mut Partition) -> Result<(), Refused>) -> Result<(), Refused> {
        for _ in 0..ROOM_TRIES {
            // If nothing nearby has expired, something further on may have.
            if self.expire_for_room() {
                match attempt(self) {
                    Err(Refused::Full) => {}
                    result => return result,
                }
            }
        }
        Err(Refused::Full)
    }

    fn try_elsewhere(
        &mut self,
        key: &Key<'_>,
        value: &[u8],
        fields: &Fields,
        old: Option<Place>,
    ) -> Result<(), Refused> {
        if old.is_none() {
            self.expire_along();
            self.work_on_growth();
        }
        if self.fits_line(key, value, fields) && self.make_line(key.hash().0) {
            self.drop_old(key, old);
            self.put_in_line(key, value, fields);
            return Ok(());
        }
        let released = match old {
            Some(place @ Place::Log { .. }) => entry_bytes(key.bytes().len(), self.record(place).value.len()),
            _ => 0,
        };
        self.store_in_log(key, value, fields, old, released)
    }

    /// Stores an item at the end of the log; `released` bytes are already counted as given back.
    pub(super) fn store_in_log(
        &mut self,
        key: &Key<'_>,
        value: &[u8],
        fields: &Fields,
        old: Option<Place>,
        released: usize,
    ) -> Result<(), Refused> {
        let bytes = entry_bytes(key.bytes().len(), value.len());
        self.admit(bytes, released)?;
        // A replaced item leaves its slot or its line to the new pointer.
        if old.is_none() && !self.make_slot(key.hash().0) {
            return Err(Refused::Full);
        }
        let at = self.claim(bytes)?;
        write_entry(&mut self.memory.bytes_mut()[at..at + bytes], key.bytes(), value, fields);
        self.drop_old(key, old);
        self.put_pointer(key.hash().0, at);
        self.grow_if_crowded(self.table.geometry.home(key.hash().0));
        self.counters.items += 1;
        self.counters.item_bytes += (key.bytes().len() + value.len()) as u64;
        Ok(())
    }

    /// Drops the item found under a key, if it still exists.
    fn drop_old(&mut self, key: &Key<'_>, old: Option<Place>) {
        if let Some(place) = old.and_then(|_| self.find(key)) {
            self.drop_item(place);
        }
    }

    /// Fills a line made by [`Partition::make_line`].
    fn put_in_line(&mut self, key: &Key<'_>, value: &[u8], fields: &Fields) {
        let home = self.table.geometry.home(key.hash().0);
        let line = self.table.open(&mut self.memory, &self.hasher, home).expect("a line was made for it");
        self.table.line_mut(&mut self.memory, line).set_record(key.bytes(), value, fields);
        self.counters.items += 1;
        self.counters.item_bytes += (key.bytes().len() + value.len()) as u64;
    }

    /// Returns a line of pointers in a home's chain with room for one more, and the slot.
    fn slot(&self, home: usize) -> Option<(usize, usize)> {
        self.table.chain(&self.memory, home).find_map(|line| {
            let cell = self.table.line(&self.memory, line);
            (cell.kind() == Kind::Pointers).then(|| cell.free_slot()).flatten().map(|slot| (line, slot))
        })
    }

    /// Stores a pointer that [`Partition::make_slot`] made room for.
    pub(super) fn put_pointer(&mut self, hash: u64, at: usize) {
        let home = self.table.geometry.home(hash);
        let (line, slot) = self.slot(home).unwrap_or_else(|| {
            let line = self.table.open(&mut self.memory, &self.hasher, home).expect("a slot was made for it");
            self.table.line_mut(&mut self.memory, line).clear_pointers();
            (line, 0)
        });
        self.table.line_mut(&mut self.memory, line).set_pointer(slot, Pointer::new(hash, at));
    }

    /// True if a line can be opened for this hash.
    fn has_line(&self, hash: u64) -> bool {
        let home = self.table.geometry.home(hash);
        match self.table.blocked_home(&self.memory, &self.hasher, home) {
            None => true,
            Some(owner) => self.table.free_near(&self.memory, owner).is_some(),
        }
    }

    /// Moves a free line to where the chain of this home can take it. False if there is none within reach.
    pub(super) fn bring_free_line(&mut self, home: usize) -> bool {
        let reach = if self.is_loading { REACH_WORDS_LOADING } else { REACH_WORDS };
        self.table.bring_free_line(&mut self.memory, &self.hasher, home, reach)
    }

    /// Ensures that a line can be opened for this hash: a cache evicts something if necessary. False if that fails.
    fn make_line(&mut self, hash: u64) -> bool {
        let mut homes_left = HOMES_FOR_ROOM;
        loop {
            let home = self.table.geometry.home(hash);
            let Some(crowded) = self.table.blocked_home(&self.memory, &self.hasher, home) else { return true };
            if self.table.free_near(&self.memory, crowded).is_some() || self.bring_free_line(crowded) {
                return true;
            }
            self.expire_near(crowded);
            if self.table.free_near(&self.memory, crowded).is_some() {
                return true;
            }
            if self.mode == Mode::Store {
                return false;
            }
            if self.fold_around(crowded) {
                return true;
            }
            let moved = if self.has_room() { self.grow_by(homes_left.min(HOMES_AT_ONCE)) } else { 0 };
            homes_left -= moved;
            if moved == 0 && !self.evict_around(crowded) {
                return false;
            }
        }
    }

    /// True if the log has unused segments, so that no item need be evicted. A full cache has a freshly cleaned one now
    /// and then.
    fn has_room(&self) -> bool {
        self.log.free > 1
    }

    /// Frees a line for the chain of a home, if the log has room for the items of other chains around it. Seven
    /// pointers replace seven items.
    pub(super) fn fold_around(&mut self, crowded: usize) -> bool {
        let word = crowded / WORD_LINES;
        for line in word.saturating_sub(1) * WORD_LINES..(word + 2) * WORD_LINES {
            if !self.has_room() || self.table.free_near(&self.memory, crowded).is_some() {
                break;
            }
            if self.table.is_cleared(line / WORD_LINES) {
                let cell = self.table.line(&self.memory, line);
                // Only from the second line of a chain on: a chain of one line would just become a line of pointers.
                if cell.kind() == Kind::Item && !cell.is_head() {
                    self.fold(self.table.home_of(&self.memory, &self.hasher, line));
                }
            }
        }
        self.table.free_near(&self.memory, crowded).is_some()
    }

    /// Ensures that a pointer can be stored for this hash. False if there is no place: the store is full.
    fn make_slot(&mut self, hash: u64) -> bool {
        if self.slot(self.table.geometry.home(hash)).is_some() || self.make_line(hash) {
            return true;
        }
        // All items loaded from a snapshot must find a place.
        let mut homes_left = if self.is_loading { usize::MAX } else { HOMES_FOR_ROOM };
        loop {
            let home = self.table.geometry.home(hash);
            let crowded = self.table.blocked_home(&self.memory, &self.hasher, home).unwrap_or(home);
            self.fold(crowded);
            if self.slot(self.table.geometry.home(hash)).is_some() || self.has_line(hash) {
                return true;
            }
            // The index as a whole may have room.
            let moved = if self.mode == Mode::Store { self.grow_now(homes_left) } else { 0 };
            homes_left -= moved;
            if moved == 0 {
                return false;
            }
        }
    }

    /// Moves the items in the lines of a chain to the log, as far as that has room: seven pointers replace seven items.
    pub(super) fn fold(&mut self, home: usize) {
        loop {
            let find_item = |line: &usize| self.table.line(&self.memory, *line).kind() == Kind::Item;
            let Some(line) = self.table.chain(&self.memory, home).find(find_item) else { return };
            let copy = *self.table.line(&self.memory, line);
            let record = copy.record();
            let bytes = entry_bytes(record.key.len(), record.value.len());
            let Ok(at) = self.admit(bytes, 0).and_then(|()| self.claim(bytes)) else { return };
            write_entry(&mut self.memory.bytes_mut()[at..at + bytes], record.key, record.value, &record.fields);
            let key = Key::new(record.key, |key| self.hasher.hash(key)).expect("a key that was stored is a key");
            let Some(Place::Line { line, .. }) = self.find(&key) else {
                unreachable!("cleaning the log leaves items in lines where they are");
            };
            let pointer = Pointer::new(key.hash().0, at);
            if let Some((pointers, slot)) = self.slot(home) {
                self.table.line_mut(&mut self.memory, pointers).set_pointer(slot, pointer);
                self.table.close(&mut self.memory, home, line);
            } else {
                let cell = self.table.line_mut(&mut self.memory, line);
                cell.clear_pointers();
                cell.set_pointer(0, pointer);
            }
        }
    }
}
