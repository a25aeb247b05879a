//! Grows the index in place, a few homes with each line that is taken.

use super::Partition;
use crate::config::Mode;
use crate::entry::entry_key;
use crate::key::KeyHash;
use crate::line::{Kind, POINTERS, Pointer};
use crate::log::{SEGMENTS_MIN, State};
use crate::memory::Line;
use crate::table::WORD_LINES;

/// The index grows when less than this fraction of its lines is free.
const FREE_DIVISOR: usize = 12;
/// It grows by this fraction: larger steps leave more lines empty, smaller ones move items more often.
const STEP_DIVISOR: usize = 4;
/// It grows by this fraction if lines have more than one item on average, so that most are lines of pointers: nearly
/// every home has one of those, and a smaller step would free few lines.
const STEP_DIVISOR_POINTERS: usize = 2;
/// Homes moved with each new item. The first homes get more lines last, so few new items may arrive until then: a
/// thirty-second of the lines fills these homes to 95 %.
const HOMES_A_TIME: usize = 32;
/// An index that could gain less than this fraction of its lines does not grow: growing moves all items.
const GAIN_DIVISOR: usize = 32;
/// An index that cannot grow tries again after storing as many items as this fraction of its lines.
const RETRY_DIVISOR: usize = 64;
/// An index of pointers grows when fewer free lines than this are within reach of a home, of 192.
const LINES_NEAR_MIN: usize = 6;
/// Attempts to move one home before growing is given up for now: each attempt makes some room.
const MOVE_TRIES: u32 = 64;
/// Free lines required around a home that items are moved to, beyond those they need.
const LINES_SPARE: usize = 4;

/// Segments emptied at most for one item without a place near its home: up to 5 ms each.
const SEGMENTS_FOR_ROOM: usize = 16;

/// The result of claiming a segment for the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The index has it; it was free.
    Free,
    /// The index has it; it was cleaned first.
    Cleaned,
    /// A later operation must clean it.
    Later,
    /// The log needs it.
    Never,
}

impl Partition {
    /// Continues to grow before a new item is stored, or begins to grow if it is time.
    pub(super) fn work_on_growth(&mut self) {
        if self.is_loading {
            // The index already has as many lines as it had for these items. More would be taken from the log, which
            // needs what it had.
        } else if self.table.geometry.is_growing() {
            for _ in 0..HOMES_A_TIME {
                if !self.table.geometry.is_growing() || !self.move_home() {
                    break;
                }
            }
        } else if self.claim.is_some() {
            self.work_on_claim();
        } else if self.table.free < self.table.geometry.lines / FREE_DIVISOR && self.counters.stored >= self.grow_after
        {
            self.begin_to_grow();
        }
    }

    /// Called when a line of pointers was opened for this home. When nearly every home has one, few lines can be moved
    /// where one is needed: the index must begin to grow while there are free lines everywhere.
    pub(super) fn grow_if_crowded(&mut self, home: usize) {
        let has_pointers = self.counters.items > self.table.geometry.lines as u64;
        let is_idle = !self.is_loading && self.claim.is_none() && !self.table.geometry.is_growing();
        let is_time = has_pointers && is_idle && self.counters.stored >= self.grow_after;
        if is_time && self.table.count_near(&self.memory, home) < LINES_NEAR_MIN {
            self.begin_to_grow();
        }
    }

    /// Continues or begins to grow, for an item without a place although the index has free lines. Moves up to this
    /// many homes, and empties at most [`SEGMENTS_FOR_ROOM`] segments; the next operation continues from there. Returns
    /// the number of homes moved.
    pub(super) fn grow_now(&mut self, homes: usize) -> usize {
        if homes > 0 && !self.table.geometry.is_growing() && self.claim.is_none() {
            self.begin_to_grow();
        }
        let mut segments_left = if self.is_loading { usize::MAX } else { SEGMENTS_FOR_ROOM };
        while self.claim.is_some() && segments_left > 0 {
            self.work_on_claim();
            segments_left -= 1;
        }
        self.grow_by(homes)
    }

    /// Moves up to this many homes, and returns their number. Zero if the index does not grow and will not begin to, or
    /// waits for segments.
    pub(super) fn grow_by(&mut self, homes: usize) -> usize {
        let is_idle = !self.is_loading && self.claim.is_none() && !self.table.geometry.is_growing();
        if is_idle && self.counters.stored >= self.grow_after {
            self.begin_to_grow();
        }
        let (mut moved, mut tries_left) = (0, MOVE_TRIES);
        while moved < homes && tries_left > 0 && self.table.geometry.is_growing() {
            if self.move_home() {
                (moved, tries_left) = (moved + 1, MOVE_TRIES);
            } else {
                tries_left -= 1;
            }
        }
        moved
    }

    /// Claims the segments of the log that the index needs to grow, if the log can spare enough of them.
    fn begin_to_grow(&mut self) {
        let wanted = self.table.offset(self.lines_wanted()).div_ceil(self.log.segment_bytes);
        let owned = self.log.index_segments();
        // This applies to the log as a whole, and is checked once, since there may be many segments.
        let is_log_older = self.is_log_older();
        let claim = owned + (owned..wanted).take_while(|&segment| self.is_spared(segment, is_log_older)).count();
        if self.is_gain(claim) {
            self.claim = Some(claim);
            self.work_on_claim();
        } else {
            self.decline_to_grow();
        }
    }

    fn lines_wanted(&self) -> usize {
        let lines = self.table.geometry.lines;
        let divisor = if self.counters.items > lines as u64 { STEP_DIVISOR_POINTERS } else { STEP_DIVISOR };
        (lines + lines / divisor).next_multiple_of(WORD_LINES)
    }

    /// Returns the number of lines of an index of this many segments, at most as many as it wants.
    fn lines_within(&self, segments: usize) -> usize {
        self.lines_wanted().min(self.table.lines_until(segments * self.log.segment_bytes))
    }

    /// True if growing to this many segments is worth the work.
    fn is_gain(&self, segments: usize) -> bool {
        let lines = self.table.geometry.lines;
        self.lines_within(segments) > lines + lines / GAIN_DIVISOR
    }

    /// Gives up the claim, and tries again later.
    fn decline_to_grow(&mut self) {
        self.claim = None;
        self.log.take_from_index(self.table.end().div_ceil(self.log.segment_bytes));
        self.grow_after = self.counters.stored + (self.table.geometry.lines / RETRY_DIVISOR) as u64;
    }

    /// Takes all free segments of the claim, but cleans at most one. After the last one the index begins to grow. If
    /// the log needs one of them, the index makes do with those before it, or gives them back.
    fn work_on_claim(&mut self) {
        let Some(claim) = self.claim else { return };
        let mut may_clean = true;
        while self.log.index_segments() < claim {
            match self.take_segment(may_clean) {
                Taken::Free => {}
                Taken::Cleaned => may_clean = false,
                Taken::Later => return,
                Taken::Never => break,
            }
        }
        let owned = self.log.index_segments();
        if self.is_gain(owned) {
            self.claim = None;
            self.table.grow(self.lines_within(owned));
        } else {
            self.decline_to_grow();
        }
    }

    /// Takes the segment behind those of the index, if the log can spare it.
    fn take_segment(&mut self, may_clean: bool) -> Taken {
        let segment = self.log.index_segments();
        if self.log.count <= SEGMENTS_MIN || !self.can_log_shrink(1) {
            return Taken::Never;
        }
        let state = self.log.segment(segment).state;
        match state {
            State::Index => Taken::Never,
            State::Free => {
                let is_kept = self.mode == Mode::Store && self.log.free <= 1 && self.log.live > 0;
                if !is_kept && self.log.give_to_index() { Taken::Free } else { Taken::Never }
            }
            State::Used if !may_clean => Taken::Later,
            State::Used if self.evacuate(segment) && self.log.give_to_index() => Taken::Cleaned,
            State::Used => Taken::Never,
        }
    }

    /// Whether the live items of a store's log fit into this many segments fewer.
    fn can_log_shrink(&self, segments: usize) -> bool {
        self.mode == Mode::Cache || self.log.live <= self.log.live_max(self.log.count.saturating_sub(segments))
    }

    /// Whether the log can spare a segment, and all between it and the index. A cache gives up a segment with live
    /// items only if its log is older than its index; in a store, items only move.
    fn is_spared(&self, segment: usize, is_log_older: bool) -> bool {
        let fewer = segment + 1 - self.log.index_segments();
        let is_affordable = self.log.count >= SEGMENTS_MIN + fewer && self.can_log_shrink(fewer);
        is_affordable && (self.mode == Mode::Store || is_log_older || self.log.segment(segment).live == 0)
    }

    /// Whether the log keeps items longer than the index does.
    fn is_log_older(&self) -> bool {
        let began = self.log.oldest().map(|oldest| self.log.segment(oldest).began);
        let age_in_log = began.map_or(0, |began| self.counters.stored.saturating_sub(began));
        let age_in_index = self.table.geometry.lines as u64;
        age_in_log > age_in_index
    }

    /// Moves the items of the home below the frontier to their places in the larger index. False if there is no room
    /// for them yet.
    fn move_home(&mut self) -> bool {
        let old_home = self.table.geometry.frontier - 1;
        self.table.clear_for(&mut self.memory, old_home);
        let mut lines = std::mem::take(&mut self.moving);
        lines.extend(self.table.chain(&self.memory, old_home).map(|line| *self.table.line(&self.memory, line)));
        let crowded = if lines.is_empty() { None } else { self.crowded_home(old_home, lines.len()) };
        match crowded {
            None => {
                for _ in 0..lines.len() {
                    self.table.close(&mut self.memory, old_home, old_home);
                }
                self.table.geometry.advance();
                for line in &lines {
                    self.move_line(line);
                }
            }
            Some(crowded) => self.make_room_for(old_home, crowded),
        }
        lines.clear();
        self.moving = lines;
        crowded.is_none()
    }

    /// Among the homes that an old home's items move to, and those whose lines are there and would have to give way,
    /// finds one without enough free lines around it. Normally there is none (`None`), and the items can move.
    fn crowded_home(&self, old_home: usize, lines: usize) -> Option<usize> {
        let is_crowded = |home: &usize| self.table.count_near(&self.memory, *home) < lines + LINES_SPARE;
        self.table.geometry.homes_next(old_home).find_map(|home| {
            let owner = self.table.blocked_home(&self.memory, &self.hasher, home).filter(|&owner| owner != old_home);
            Some(home).filter(is_crowded).or(owner.filter(is_crowded))
        })
    }

    /// Makes room where an old home is to be moved to and hardly a line is free: a rare accident of hashing.
    fn make_room_for(&mut self, old_home: usize, crowded: usize) {
        if self.bring_free_line(crowded) {
            return;
        }
        match self.mode {
            Mode::Store => self.fold(old_home),
            Mode::Cache => {
                let _ = self.fold_around(crowded) || self.evict_around(crowded);
            }
        }
    }

    fn move_line(&mut self, line: &Line) {
        match line.kind() {
            Kind::Item => {
                let hash = self.hasher.hash(line.key()).0;
                let new = self.open_moved(hash);
                let cell = self.table.line_mut(&mut self.memory, new);
                let (is_head, link) = (cell.is_head(), cell.link());
                cell.copy_from(line, is_head);
                cell.set_link(link);
            }
            Kind::Pointers => {
                for pointer in (0..POINTERS).map(|slot| line.pointer(slot)).filter(|&pointer| pointer != Pointer::NONE)
                {
                    let KeyHash(hash) = self.hasher.hash(entry_key(&self.memory.bytes()[pointer.at()..]));
                    self.put_pointer(hash, pointer.at());
                }
            }
            Kind::Free => {}
        }
    }

    /// Opens a line at the new home of an item that moves. There is one: [`Partition::crowded_home`] found, around each
    /// home that the lines of the old home move to and around each owner of a line that has to give way there, as many
    /// free lines as the old home had, and [`LINES_SPARE`] more. Each line that moves takes one; a line of pointers that
    /// divides between the new homes takes one more for each of them but the first, and there are fewer of those than
    /// are spare. Until all have moved nothing else takes any.
    fn open_moved(&mut self, hash: u64) -> usize {
        let home = self.table.geometry.home(hash);
        debug_assert!(
            (self.table.blocked_home(&self.memory, &self.hasher, home))
                .is_none_or(|owner| self.table.count_near(&self.memory, owner) > 0),
            "home {home} was not found crowded, and no line is free around it"
        );
        self.table.open(&mut self.memory, &self.hasher, home).expect("there is room around the new homes")
    }
}

#[cfg(test)]
mod tests {
    use super::super::insert::HOMES_FOR_ROOM;
    use super::*;
    use crate::{PartitionConfig, Put, Store as _};

    /// A large index does not move all of its homes for one item.
    #[test]
    fn an_operation_moves_a_bounded_number_of_homes() {
        let config = PartitionConfig::new(Mode::Store, 32 << 20);
        let mut partition = Partition::with_secret(config, [1, 2]).unwrap();
        let mut number = 0u64;
        let mut put = |partition: &mut Partition| {
            number += 1;
            let bytes = number.to_be_bytes();
            let key = partition.key(&bytes).unwrap();
            partition.put(&key, b"value", Put::default()).unwrap();
        };
        while partition.table.geometry.lines < 2 * HOMES_FOR_ROOM || partition.table.geometry.is_growing() {
            put(&mut partition);
        }
        let lines = partition.table.geometry.lines;
        assert_eq!(partition.grow_now(HOMES_FOR_ROOM), HOMES_FOR_ROOM);
        assert!(partition.table.geometry.is_growing());
        // The next operations continue with it.
        while partition.table.geometry.is_growing() {
            assert!(partition.grow_now(HOMES_FOR_ROOM) > 0);
        }
        assert!(partition.table.geometry.lines > lines);
        (0..1000).for_each(|_| put(&mut partition));
        for number in 1..=number {
            let bytes = number.to_be_bytes();
            assert!(partition.peek(&partition.key(&bytes).unwrap()).is_some(), "{number}");
        }
    }
}
