//! Makes room of expired items: a sweep over the lines of the index finds them.
//!
//! Each new item makes the sweep examine a few others, and so does each call of [`crate::Store::expire_some`]. Before a
//! store rejects an item, the sweep looks further. All of this costs nothing before the earliest time at which an item
//! can expire, which each pass over the index determines anew.

use super::Partition;
use super::find::Place;
use crate::entry::read_entry;
use crate::item::UnixSeconds;
use crate::line::{Kind, POINTERS, Pointer};
use crate::record::Fields;
use crate::table::WORD_LINES;

/// Items examined with each new one: eight passes in the time in which the memory is refilled.
const ITEMS_WITH_NEW: usize = 8;
/// Items examined in one call from outside.
const ITEMS_AT_ONCE: usize = 1024;
/// Calls from outside during one pass, one in each tenth of a second.
const CALLS_PER_PASS: usize = 10 * PASS_SECONDS as usize;
/// Most calls from outside in a tenth of a second, so that a sweep uses a small part of a core.
const CALLS_MAX: usize = 64;
/// Items examined each time an item has no room.
const ITEMS_FOR_ROOM: usize = 4096;
/// Items examined for lack of room, however many items have none, until the next call from outside: about a
/// millisecond.
const SEARCH_MAX: usize = 4 * ITEMS_FOR_ROOM;
/// Additional items that may be examined for each expired one found: so a search never ends where at least one in this
/// many has expired.
const SEARCH_FOR_FOUND: usize = 64;
/// Lines that count as much in a sweep as one item: most of them may be free.
const LINES_OF_ITEM: usize = 8;
/// A pass may miss an item that moves between lines meanwhile. So the next pass begins after this many seconds at the
/// latest.
const PASS_SECONDS: u32 = 60;

/// The progress of the sweep.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sweeper {
    /// The next line.
    hand: usize,
    /// Nothing expires before this time; `UnixSeconds::MAX` if no item ever had an expiry.
    soonest: UnixSeconds,
    /// The same, for the lines that this pass has examined and the items stored since it began.
    soonest_of_pass: UnixSeconds,
    /// Some item had an expiry.
    is_needed: bool,
    /// Items that may still be examined for lack of room.
    search_left: usize,
}

impl Default for Sweeper {
    fn default() -> Sweeper {
        let never = UnixSeconds::MAX;
        Sweeper { hand: 0, soonest: never, soonest_of_pass: never, is_needed: false, search_left: SEARCH_MAX }
    }
}

impl Sweeper {
    /// Other tasks had their turn: a store may search for room again.
    pub(super) fn allow_search(&mut self) {
        self.search_left = SEARCH_MAX;
    }

    /// Notes the expiry of an item being stored.
    #[inline]
    pub(super) fn note(&mut self, expires: UnixSeconds) {
        if expires != 0 {
            self.soonest = self.soonest.min(expires);
            self.soonest_of_pass = self.soonest_of_pass.min(expires);
            self.is_needed = true;
        }
    }
}

impl Partition {
    /// Whether anything may have expired.
    #[inline]
    pub(super) fn may_have_expired(&self) -> bool {
        self.sweeper.is_needed && self.sweeper.soonest <= self.clock.now
    }

    /// Examines a few items before a new one is stored.
    #[inline]
    pub(super) fn expire_along(&mut self) {
        if self.may_have_expired() {
            self.sweep(ITEMS_WITH_NEW);
        }
    }

    /// Does the work of one call from outside. Returns how many such calls are due per tenth of a second.
    pub(super) fn expire_at_once(&mut self) -> u32 {
        self.sweeper.allow_search();
        if !self.may_have_expired() {
            return 0;
        }
        self.sweep(ITEMS_AT_ONCE);
        let efforts = self.table.geometry.lines_next + self.counters.items as usize * LINES_OF_ITEM;
        efforts.div_ceil(ITEMS_AT_ONCE * LINES_OF_ITEM * CALLS_PER_PASS).min(CALLS_MAX) as u32
    }

    /// Searches for room, unless too many recent searches failed: a burst of items without room must not search that
    /// far each time. True if anything was dropped.
    #[cold]
    pub(super) fn expire_for_room(&mut self) -> bool {
        let items = self.sweeper.search_left.min(ITEMS_FOR_ROOM);
        if items == 0 || !self.may_have_expired() {
            return false;
        }
        let found = self.sweep(items);
        self.sweeper.search_left = (self.sweeper.search_left - items + found * SEARCH_FOR_FOUND).min(SEARCH_MAX);
        found > 0
    }

    /// Drops the expired items in the lines of a home's page, so that its chain can use these lines.
    pub(super) fn expire_near(&mut self, home: usize) {
        if !self.may_have_expired() {
            return;
        }
        let first = home / WORD_LINES * WORD_LINES;
        for line in first..first + WORD_LINES {
            // A later line of the chain may move into this line.
            while let Some(place) = self.expired_in_line(line) {
                self.expire(place);
            }
        }
    }

    fn expired_in_line(&self, line: usize) -> Option<Place> {
        let cell = self.table.line(&self.memory, line);
        let is_expired = cell.kind() == Kind::Item && cell.record().fields.has_expired(self.clock.now);
        is_expired.then(|| Place::Line { home: self.table.home_of(&self.memory, &self.hasher, line), line })
    }

    /// Examines about this many items, starting at the hand; returns how many it dropped.
    fn sweep(&mut self, items: usize) -> usize {
        let mut effort = items * LINES_OF_ITEM;
        let before = self.counters.expired;
        while effort > 0 && self.may_have_expired() {
            if self.sweeper.hand >= self.table.geometry.lines_next {
                self.end_pass();
                continue;
            }
            let line = self.sweeper.hand;
            if self.table.is_cleared(line / WORD_LINES) {
                let looked_at = self.sweep_line(line);
                self.counters.swept += looked_at as u64;
                effort = effort.saturating_sub(1 + looked_at * LINES_OF_ITEM);
                self.sweeper.hand += 1;
            } else {
                // Lines that are not cleared yet, in the middle of a growing index.
                self.sweeper.hand = (line / WORD_LINES + 1) * WORD_LINES;
                effort -= 1;
            }
        }
        (self.counters.expired - before) as usize
    }

    fn end_pass(&mut self) {
        let next_pass = self.clock.now.saturating_add(PASS_SECONDS);
        self.sweeper = Sweeper {
            hand: 0,
            soonest: self.sweeper.soonest_of_pass.min(next_pass),
            soonest_of_pass: UnixSeconds::MAX,
            is_needed: true,
            ..self.sweeper
        };
    }

    /// Drops the expired items of a line. Returns how many items it examined.
    fn sweep_line(&mut self, line: usize) -> usize {
        let mut looked_at = 0;
        loop {
            let (mut expired, mut soonest) = (None, UnixSeconds::MAX);
            let mut look = |fields: &Fields, slot: usize, at: usize| {
                looked_at += 1;
                if fields.has_expired(self.clock.now) {
                    expired = Some((slot, at));
                } else if fields.expires != 0 {
                    soonest = soonest.min(fields.expires);
                }
            };
            let cell = self.table.line(&self.memory, line);
            let kind = cell.kind();
            match kind {
                Kind::Free => {}
                Kind::Item => look(&cell.record().fields, 0, 0),
                Kind::Pointers => {
                    for slot in (0..POINTERS).filter(|&slot| cell.pointer(slot) != Pointer::NONE) {
                        let at = cell.pointer(slot).at();
                        look(&read_entry(&self.memory.bytes()[at..]).fields, slot, at);
                    }
                }
            }
            self.sweeper.soonest_of_pass = self.sweeper.soonest_of_pass.min(soonest);
            let Some((slot, at)) = expired else { return looked_at };
            let home = self.table.home_of(&self.memory, &self.hasher, line);
            self.expire(if kind == Kind::Item {
                Place::Line { home, line }
            } else {
                Place::Log { home, line, slot, at }
            });
        }
    }

    /// Drops an expired item.
    #[cold]
    pub(super) fn expire(&mut self, place: Place) {
        self.counters.expired += 1;
        self.counters.expired_unfetched += u64::from(!self.record(place).fields.marks.is_fetched);
        self.drop_item(place);
    }

    /// Drops an item to make room. False if it had expired, so that it does not count as evicted.
    pub(super) fn evict(&mut self, place: Place) -> bool {
        let fields = self.record(place).fields;
        if fields.has_expired(self.clock.now) {
            self.expire(place);
            return false;
        }
        self.evicting(place);
        if let Some(mut tier) = self.tier.take() {
            let record = self.record(place);
            tier.evicted(self.hasher.hash(record.key), record.key, &record.item(&self.clock));
            self.tier = Some(tier);
        }
        let counters = &mut self.counters;
        counters.evicted_unfetched += u64::from(!fields.marks.is_fetched);
        counters.evicted_expiring += u64::from(fields.expires != 0);
        counters.evicted_idle_seconds = self.clock.minutes().saturating_sub(fields.minutes).saturating_mul(60);
        self.drop_item(place);
        true
    }
}
