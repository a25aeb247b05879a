//! Makes room in the log: segments are filled one after the other, and used ones are cleaned so that they can be filled
//! again.
//!
//! A store cleans the segment with the fewest live bytes, and moves the live items to the end of the log. A cache does
//! the same if at least three eighths of that segment are dead. Otherwise it cleans the oldest segment and evicts its
//! items, except two kinds, which it moves: some of those that were read since they were written (a second chance), and
//! others for as many bytes as the dead items free. Cleaning is incremental, driven by appends, so that a segment is
//! clean when the next one is needed; a whole segment is cleaned at once only when the index takes it.

use super::Partition;
use super::find::Place;
use crate::config::Mode;
use crate::entry::{Sizes, cool_entry, read_entry};
use crate::error::Refused;
use crate::line::Pointer;
use crate::log::{Rescue, Victim};

/// Bytes examined on top of what an append calls for, so that small items also make progress.
const CLEANED_BYTES_MIN: usize = 128;
/// Cleaning runs at most this many times as fast as the log grows, even if less than one part in this many of a segment
/// is dead.
const PACE_MAX: usize = 16;
/// If at most this many eighths of a segment are live, a cache moves its live items, as a store does: dead and expired
/// items make room.
const SPARSE_EIGHTHS: usize = 5;
/// A cache examines this many times the bytes that it appends: then what it moves from a segment, plus what is appended
/// until that is clean, fits.
const PACE_CACHE: usize = 3;
/// The fraction of a segment that second chances may fill again: a half, so that the log makes progress.
const ALLOWANCE_DIVISOR: usize = 2;

/// Segments that one append opens or cleans at most. If that is not enough, the items are so large that live ones pack
/// badly; continuing would clean the whole log for one item.
const ROUNDS_MAX: usize = 64;

/// What needs room in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claimant {
    NewItem,
    Cleaning,
}

impl Partition {
    /// Returns the number of free segments that are kept to clean into.
    fn reserve(&self) -> usize {
        match self.mode {
            Mode::Store if !self.is_loading => 1,
            _ => 0,
        }
    }

    /// Rejects bytes that would exceed the live bytes that a store accepts.
    pub(super) fn admit(&self, bytes: usize, released: usize) -> Result<(), Refused> {
        let is_admitted = self.mode == Mode::Cache
            || self.is_loading
            || bytes <= released
            || self.log.live + bytes - released <= self.log.live_max(self.log.count);
        if is_admitted { Ok(()) } else { Err(Refused::Full) }
    }

    /// Takes bytes at the end of the log. May move or evict items of the log, and free lines of pointers.
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
        // The last free segment is being cleaned into: leave room for the live items still to be moved.
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

    /// Cleans as much as an append of this size calls for. Not while a snapshot is loaded: nothing is dead then, and a
    /// segment waiting to be cleaned would use room that the items need.
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

    /// Cleans a whole segment: the one already begun, or the best one. False if there is none, or if there is no room
    /// to move its items to.
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

    /// What a cache keeps of a mostly live segment.
    fn second_chances(&self) -> Rescue {
        Rescue::Some { hot: self.log.segment_bytes / ALLOWANCE_DIVISOR, any: 0 }
    }

    /// Empties a segment at once so that the index can have it. False if a store has no room for its items.
    pub(super) fn evacuate(&mut self, segment: usize) -> bool {
        if self.log.active == Some(segment) {
            self.log.seal();
        }
        // Cleaning starts over: the cleaned part of the victim is dead, and costs only another look. If there is room,
        // nothing is evicted.
        let rescue = if self.mode == Mode::Store || self.log.free > 0 { Rescue::All } else { self.second_chances() };
        self.log.victim = Some(Victim { segment, done: 0, rescue });
        self.clean_one()
    }

    /// Cleans one item of the victim, and frees the segment after the last one. False if there is no room to move the
    /// item to.
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

    /// Dead items in a cache's victim make room for live ones after them.
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
        let Place::Log { line, slot, at, .. } = place else {
            unreachable!("an item of the log has a place in the log")
        };
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
