//! Storing an item: in a line if it fits, in the log otherwise.
//!
//! Places for the pointer and the bytes are made before anything that was there is given up, so that an item that is refused leaves the old
//! one as it was. What makes a place may move other lines and items: a place that was found before is looked up again after.

use super::Partition;
use super::find::Place;
use crate::config::{Layout, Mode};
use crate::entry::{entry_bytes, write_entry};
use crate::error::Refused;
use crate::key::Key;
use crate::line::{self, Kind, Pointer};
use crate::record::Fields;
use crate::table::{REACH_WORDS, REACH_WORDS_LOADING, WORD_LINES};

/// Homes that are moved at most for one item that has no place near its home: a few milliseconds. A cache with room moves them before an item
/// has to go, a store before it refuses one.
pub(super) const HOMES_FOR_ROOM: usize = 1 << 16;
/// Homes that it moves before it looks for a line again.
const HOMES_AT_ONCE: usize = 1 << 10;
/// Times that room is looked for among what has expired, for one item.
const ROOM_TRIES: usize = 4;

impl Partition {
    /// Stores an item in place of the one that was found under its key, or as a new one.
    #[inline]
    pub(super) fn store(&mut self, key: &Key<'_>, value: &[u8], fields: &Fields, old: Option<Place>) -> Result<(), Refused> {
        match self.try_store(key, value, fields, old) {
            Err(Refused::Full) => self.in_room(|store| {
                let old = old.and_then(|_| store.find(key));
                store.try_store(key, value, fields, old)
            }),
            result => result,
        }
    }

    /// Tries again what was refused, as often as what has expired gives room. Lines may have moved since the first try. Where it is often in vain
    /// nothing is looked at (see `expire.rs`).
    #[cold]
    pub(super) fn in_room(&mut self, attempt: impl Fn(&mut Partition) -> Result<(), Refused>) -> Result<(), Refused> {
        for _ in 0..ROOM_TRIES {
            // Where nothing has expired, something may have further on.
            if self.expire_for_room() {
                match attempt(self) {
                    Err(Refused::Full) => {}
                    result => return result,
                }
            }
        }
        Err(Refused::Full)
    }

    #[inline]
    fn try_store(&mut self, key: &Key<'_>, value: &[u8], fields: &Fields, old: Option<Place>) -> Result<(), Refused> {
        self.sweeper.note(fields.expires);
        let fits_line = self.layout == Layout::Inline && line::fits(key.bytes().len(), value.len(), fields);
        match old {
            Some(Place::Line { line, .. }) if fits_line => {
                let cell = self.table.line_mut(&mut self.memory, line);
                let before = cell.record().value.len();
                // Eviction passes by an item that was rewritten as by one that was read.
                cell.set_record(key.bytes(), value, &Fields { is_hot: true, ..*fields });
                self.counters.item_bytes = self.counters.item_bytes - before as u64 + value.len() as u64;
                return Ok(());
            }
            Some(place @ Place::Log { at, .. }) if !fits_line => {
                let (before, bytes) = (self.record(place).value.len(), entry_bytes(key.bytes().len(), value.len()));
                // Not in a segment of a cache that is old: it will be cleaned before long.
                let stays = self.mode == Mode::Store || self.log.is_young(self.log.segment_of(at));
                if stays && entry_bytes(key.bytes().len(), before) == bytes {
                    write_entry(&mut self.memory.bytes_mut()[at..at + bytes], key.bytes(), value, fields);
                    self.counters.item_bytes = self.counters.item_bytes - before as u64 + value.len() as u64;
                    return Ok(());
                }
            }
            _ => {}
        }
        if old.is_none() {
            self.expire_along();
            self.work_on_growth();
        }
        if fits_line && self.make_line(key.hash().0) {
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

    /// Stores an item at the end of the log, where so many bytes are counted as given back already.
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
        // An item that is replaced leaves the pointer its slot, or its line.
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

    /// Drops what was found under a key, if it is still there.
    fn drop_old(&mut self, key: &Key<'_>, old: Option<Place>) {
        if let Some(place) = old.and_then(|_| self.find(key)) {
            self.drop_item(place);
        }
    }

    /// Fills a line that [`Partition::make_line`] made.
    fn put_in_line(&mut self, key: &Key<'_>, value: &[u8], fields: &Fields) {
        let home = self.table.geometry.home(key.hash().0);
        let line = self.table.open(&mut self.memory, &self.hasher, home).expect("a line was made for it");
        self.table.line_mut(&mut self.memory, line).set_record(key.bytes(), value, fields);
        self.counters.items += 1;
        self.counters.item_bytes += (key.bytes().len() + value.len()) as u64;
    }

    /// A line of pointers in the chain of a home that has room for one more.
    fn slot(&self, home: usize) -> Option<(usize, usize)> {
        self.table.chain(&self.memory, home).find_map(|line| {
            let cell = self.table.line(&self.memory, line);
            (cell.kind() == Kind::Pointers).then(|| cell.free_slot()).flatten().map(|slot| (line, slot))
        })
    }

    /// Enters a pointer for which [`Partition::make_slot`] made place.
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

    /// Brings a free line to where the chain of this home can take it. False if there is none in reach.
    pub(super) fn bring_free_line(&mut self, home: usize) -> bool {
        let reach = if self.is_loading { REACH_WORDS_LOADING } else { REACH_WORDS };
        self.table.bring_free_line(&mut self.memory, &self.hasher, home, reach)
    }

    /// Sees to it that a line can be opened for this hash: a cache gives something up. False if there is none.
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

    /// True if the log has segments that are not in use: no item need be evicted. A full cache has one that was just cleaned now and then.
    fn has_room(&self) -> bool {
        self.log.free > 1
    }

    /// Frees a line for the chain of a home, if the log has room for the items of other chains around it. Seven pointers take the place of seven
    /// items.
    pub(super) fn fold_around(&mut self, crowded: usize) -> bool {
        let word = crowded / WORD_LINES;
        for line in word.saturating_sub(1) * WORD_LINES..(word + 2) * WORD_LINES {
            if !self.has_room() || self.table.free_near(&self.memory, crowded).is_some() {
                break;
            }
            if self.table.is_cleared(line / WORD_LINES) {
                let cell = self.table.line(&self.memory, line);
                // The second line of a chain: the first alone would only become a line of pointers.
                if cell.kind() == Kind::Item && !cell.is_head() {
                    self.fold(self.table.home_of(&self.memory, &self.hasher, line));
                }
            }
        }
        self.table.free_near(&self.memory, crowded).is_some()
    }

    /// Sees to it that a pointer can be entered for this hash. False if there is no place: the store is full.
    fn make_slot(&mut self, hash: u64) -> bool {
        if self.slot(self.table.geometry.home(hash)).is_some() || self.make_line(hash) {
            return true;
        }
        // Items that are loaded from a snapshot must all find a place.
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

    /// Moves the items that stand in the lines of a chain to the log, as far as that has room: seven pointers take the place of seven items.
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
