//! Room in the log: segments fill one after the other, and used ones are cleaned so that they can be filled again.
//!
//! A store cleans the segment with the fewest live bytes and moves what is alive to the end of the log. So does a cache, if three eighths of that
//! segment are dead. Else it cleans the oldest one. The items of that one are evicted, but for two kinds, which are moved: some of those that
//! were read since they were written (a second chance), and as many bytes of others as what is dead makes up for. Cleaning goes on bit by
//! bit with what is appended, so that a segment is clean when the next is needed; a whole segment is cleaned in one go only where the index
//! takes it.

use super::Partition;
use super::find::Place;
use crate::config::Mode;
use crate::entry::{Sizes, cool_entry, read_entry};
use crate::error::Refused;
use crate::line::Pointer;
use crate::log::{Rescue, Victim};

/// Bytes looked at beside what an append calls for: small items get there too.
const CLEANED_BYTES_MIN: usize = 128;
/// A segment of which less than this part is alive is cleaned at most this many times as fast as the log grows.
const PACE_MAX: usize = 16;
/// A cache moves what is alive in a segment, as a store does, if that is so many eighths of it or fewer: dead and expired items are room.
const SPARSE_EIGHTHS: usize = 5;
/// A cache looks at so many times the bytes that it appends: then what it moves of a segment fits with what is appended until that is clean.
const PACE_CACHE: usize = 3;
/// The part of a segment that second chances may fill again: a half, so that the log gets on.
const ALLOWANCE_DIVISOR: usize = 2;

/// Segments that one append opens or cleans at most. Where that is not enough, items are so large that what is alive packs badly; to go on
/// would clean the whole log for one item.
const ROUNDS_MAX: usize = 64;

/// Who wants room in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claimant {
    NewItem,
    Cleaning,
}

impl Partition {
    /// Free segments that are kept to clean into.
    fn reserve(&self) -> usize {
        match self.mode {
            Mode::Store if !self.is_loading => 1,
            _ => 0,
        }
    }

    /// Refuses bytes that would make more live ones than a store takes.
    pub(super) fn admit(&self, bytes: usize, released: usize) -> Result<(), Refused> {
        let is_admitted = self.mode == Mode::Cache
            || self.is_loading
            || bytes <= released
            || self.log.live + bytes - released <= self.log.live_max(self.log.count);
        if is_admitted { Ok(()) } else { Err(Refused::Full) }
    }

    /// Takes bytes at the end of the log. Items of the log may be moved or evicted, and lines of pointers freed.
    pub(super) fn claim(&mut self, bytes: usize) -> Result<usize, Refused> {
        self.clean_along(bytes);
        if self.is_loading
            && let Some(at) = self.claim_planned(bytes)
        {
            return Ok(at);
        }
        // Each round opens a segment or cleans one.
        for _ in 0..ROUNDS_MAX {
            if let Some(at) = self.bump(bytes, Claimant::NewItem) {
                return Ok(at);
            }
            if self.is_loading && self.log.reopen(bytes) {
                continue;
            }
            if self.log.free > self.reserve() {
                self.log.seal();
                self.log.open(self.counters.stored);
            } else if !self.clean_one() {
                if self.is_loading {
                    // The next item may fit at its end.
                    self.log.victim = None;
                }
                return Err(Refused::Full);
            }
        }
        Err(Refused::Full)
    }

    fn bump(&mut self, bytes: usize, claimant: Claimant) -> Option<usize> {
        // The last free segment is being cleaned into: leave room for what is still to come.
        if claimant == Claimant::NewItem && self.mode == Mode::Store && !self.is_loading && self.log.free == 0 {
            let to_come = self.log.victim.map_or(0, |victim| self.log.segment(victim.segment).live);
            if self.log.room() < bytes + to_come {
                return None;
            }
        }
        if let Some(at) = self.log.bump(bytes) {
            return Some(at);
        }
        if claimant == Claimant::Cleaning && self.log.free > 0 {
            self.log.seal();
            self.log.open(self.counters.stored);
            return self.log.bump(bytes);
        }
        None
    }

    /// Cleans as much as an append of this size calls for. Not while a snapshot is loaded: nothing is dead then, and a segment that waits to be
    /// cleaned takes room that the items need.
    fn clean_along(&mut self, bytes: usize) {
        if self.is_loading {
            return;
        }
        if self.log.victim.is_none() && self.log.free <= self.reserve() {
            self.choose_victim();
        }
        let Some(victim) = self.log.victim else { return };
        let segment = self.log.segment(victim.segment);
        let pace = match victim.rescue {
            Rescue::Some { .. } => PACE_CACHE,
            Rescue::All => (self.log.segment_bytes / (self.log.segment_bytes - segment.live).max(1) + 1).min(PACE_MAX),
        };
        let until = victim.done + bytes * pace + CLEANED_BYTES_MIN;
        while self.log.victim.is_some_and(|victim| victim.done < until) {
            if !self.clean_next() {
                return;
            }
        }
    }

    /// Cleans a whole segment, the one begun or the best. False if there is none, or nothing would be gained.
    fn clean_one(&mut self) -> bool {
        if self.log.victim.is_none() {
            self.choose_victim();
        }
        while self.log.victim.is_some() {
            if !self.clean_next() {
                return false;
            }
            if self.log.victim.is_none() {
                return true;
            }
        }
        false
    }

    fn choose_victim(&mut self) {
        let live_max = match self.mode {
            Mode::Cache => self.log.segment_bytes / 8 * SPARSE_EIGHTHS,
            Mode::Store => self.log.segment_bytes - 1,
        };
        let sparse = self.log.emptiest().filter(|&segment| self.log.segment(segment).live <= live_max);
        let oldest = if self.mode == Mode::Cache { self.log.oldest() } else { None };
        self.log.victim = match (sparse, oldest) {
            (Some(segment), _) => Some(Victim { segment, done: 0, rescue: Rescue::All }),
            (None, Some(segment)) => Some(Victim { segment, done: 0, rescue: self.second_chances() }),
            (None, None) => None,
        };
    }

    /// What a cache saves of a segment that is mostly alive.
    fn second_chances(&self) -> Rescue {
        Rescue::Some { hot: self.log.segment_bytes / ALLOWANCE_DIVISOR, any: 0 }
    }

    /// Empties a segment in one go so that the index can have it. False if a store has no room for what it holds.
    pub(super) fn evacuate(&mut self, segment: usize) -> bool {
        if self.log.active == Some(segment) {
            self.log.seal();
        }
        // Cleaning begins anew: what was cleaned of the victim is dead, and costs only another look.
        // Where there is room, nothing is evicted.
        let rescue = if self.mode == Mode::Store || self.log.free > 0 { Rescue::All } else { self.second_chances() };
        self.log.victim = Some(Victim { segment, done: 0, rescue });
        self.clean_one()
    }

    /// Cleans one item of the victim, and frees the segment behind the last. False if there is no room to move it to.
    fn clean_next(&mut self) -> bool {
        let Some(victim) = self.log.victim else { return false };
        if victim.done >= self.log.segment(victim.segment).fill || self.log.segment(victim.segment).live == 0 {
            self.log.release(victim.segment);
            return true;
        }
        let at = victim.segment * self.log.segment_bytes + victim.done;
        let sizes = Sizes::of(&self.memory.bytes()[at..]);
        if !sizes.is_dead && !self.clean_item(at, sizes.bytes()) {
            return false;
        }
        self.count_dead(sizes);
        if let Some(victim) = &mut self.log.victim {
            victim.done += sizes.bytes();
        }
        true
    }

    /// What is dead in the victim of a cache gives what is alive behind it a place.
    fn count_dead(&mut self, sizes: Sizes) {
        if let Some(Victim { rescue: Rescue::Some { any, .. }, .. }) = &mut self.log.victim
            && sizes.is_dead
        {
            *any += sizes.bytes() * SPARSE_EIGHTHS / (8 - SPARSE_EIGHTHS);
        }
    }

    /// Moves, evicts or drops a live item of the victim. False if there is no room to move it to.
    fn clean_item(&mut self, at: usize, bytes: usize) -> bool {
        let record = read_entry(&self.memory.bytes()[at..]);
        let (hash, fields) = (self.hasher.hash(record.key), record.fields);
        let place = self.find_pointer(hash.0, at).expect("a live item of the log has its pointer");
        if fields.has_expired(self.clock.now) {
            self.expire(place);
            self.count_dead(Sizes::of(&self.memory.bytes()[at..]));
            return true;
        }
        let is_saved = match self.log.victim.map(|victim| victim.rescue) {
            Some(Rescue::All) => true,
            Some(Rescue::Some { hot, any }) => bytes <= any || fields.is_hot && bytes <= hot,
            None => false,
        };
        let new = if is_saved { self.bump(bytes, Claimant::Cleaning) } else { None };
        if new.is_none() && self.mode == Mode::Store {
            return false;
        }
        match new {
            Some(new) => self.move_item(place, hash.0, new, bytes),
            None => self.counters.evicted_log += u64::from(self.evict(place)),
        }
        true
    }

    fn move_item(&mut self, place: Place, hash: u64, new: usize, bytes: usize) {
        let Place::Log { line, slot, at, .. } = place else { unreachable!("an item of the log has a place in the log") };
        self.memory.bytes_mut().copy_within(at..at + bytes, new);
        cool_entry(&mut self.memory.bytes_mut()[new..new + bytes]);
        self.kill(at, bytes);
        self.table.line_mut(&mut self.memory, line).set_pointer(slot, Pointer::new(hash, new));
        if let Some(Victim { rescue: Rescue::Some { hot, any }, .. }) = &mut self.log.victim {
            let left = if *any >= bytes { any } else { hot };
            *left = left.saturating_sub(bytes);
        }
    }
}
