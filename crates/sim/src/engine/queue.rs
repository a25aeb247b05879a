//! The queue of events, ordered by time; events of one time come in the order in which they were pushed.
//!
//! A radix heap with 64 slots to a level, which is a hierarchical timing wheel whose slots need no fixed width. An
//! event's level is the highest 6-bit digit in which its time differs from the start of the open slot, and its slot
//! there is that digit. When the open slot is used up, the next occupied slot of the lowest occupied level is opened: a
//! small one is sorted and becomes the open slot, a large one is spread over the level below. So an event is moved two
//! or three times, whether events are picoseconds or seconds apart, and is never compared with events that are far
//! away.

use super::event::{Event, Packed};
use super::time::Picos;

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 64_usize.div_ceil(DIGIT_BITS as usize);
/// A slot with at most this many events is sorted rather than spread.
const SORTED_MAX: usize = 64;
/// An open slot with this many events is spread when one more comes.
const OPEN_MAX: usize = 256;

#[derive(Debug, Clone, Copy)]
struct Entry {
    time: Picos,
    event: Packed,
}

#[derive(Debug)]
pub(crate) struct EventQueue {
    /// The open slot, latest first.
    open: Vec<Entry>,
    /// The first time that the open slot covers: not after the last event popped, nor the last limit.
    start: Picos,
    /// The last time that the open slot covers. Every event in the levels comes after it.
    end: Picos,
    /// The time of the last event popped.
    popped: Picos,
    /// `LEVELS * SLOTS` slots.
    slots: Vec<Vec<Entry>>,
    /// By level, a bit for each slot that is not empty.
    occupied: [u64; LEVELS],
}

impl EventQueue {
    pub fn new() -> Self {
        let slots = (0..LEVELS * SLOTS).map(|_| Vec::new()).collect();
        EventQueue { open: Vec::new(), start: 0, end: 0, popped: 0, slots, occupied: [0; LEVELS] }
    }

    /// Adds an event. Its time must not be before that of the last event popped, nor before a limit at which
    /// `pop_until` found none.
    #[inline]
    pub fn push(&mut self, time: Picos, event: Event) {
        debug_assert!(time >= self.start, "an event at {time}, before {}", self.start);
        let entry = Entry { time, event: event.pack() };
        if time > self.end {
            return self.place(entry);
        }
        if self.open.len() >= OPEN_MAX && self.end > self.start {
            self.close();
            return self.push(time, event);
        }
        let place = self.open.partition_point(|other| other.time > time);
        self.open.insert(place, entry);
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.occupied.iter().all(|bits| *bits == 0)
    }

    /// Takes the next event out, if its time is at most `limit`.
    #[inline]
    pub fn pop_until(&mut self, limit: Picos) -> Option<(Picos, Event)> {
        if self.open.is_empty() {
            self.open_next(limit);
        }
        let Entry { time, event } = *self.open.last().filter(|entry| entry.time <= limit)?;
        self.open.pop();
        self.popped = time;
        Some((time, event.unpack()))
    }

    /// Puts an event after the open slot into a level.
    #[inline]
    fn place(&mut self, entry: Entry) {
        let level = (u64::BITS - 1 - (entry.time ^ self.start).leading_zeros()) / DIGIT_BITS;
        let slot = (entry.time >> (level * DIGIT_BITS)) as usize % SLOTS;
        self.occupied[level as usize] |= 1 << slot;
        self.slots[level as usize * SLOTS + slot].push(entry);
    }

    /// Opens the first slot that holds events, unless it begins after `limit`.
    fn open_next(&mut self, limit: Picos) {
        while let Some(level) = self.occupied.iter().position(|bits| *bits != 0) {
            let slot = self.occupied[level].trailing_zeros() as usize;
            let shift = level as u32 * DIGIT_BITS;
            // The range of the slot: the digits above are those of the start, those below are free.
            let above = self.start.checked_shr(shift + DIGIT_BITS).map_or(0, |high| high << (shift + DIGIT_BITS));
            let start = above | (slot as u64) << shift;
            if start > limit {
                return;
            }
            self.start = start;
            self.occupied[level] &= !(1 << slot);
            let index = level * SLOTS + slot;
            if level == 0 || self.slots[index].len() <= SORTED_MAX {
                self.end = start | ((1_u64 << shift) - 1);
                std::mem::swap(&mut self.open, &mut self.slots[index]);
                // Stable, after reversing: of equal times, the event that was pushed first ends up last.
                self.open.reverse();
                self.open.sort_by_key(|entry| std::cmp::Reverse(entry.time));
                return;
            }
            let mut entries = std::mem::take(&mut self.slots[index]);
            self.spread(entries.drain(..));
            self.slots[index] = entries;
            if !self.open.is_empty() {
                return;
            }
        }
    }

    /// Spreads the open slot over the levels: it covers a long time, and more events came than its first ones
    /// suggested.
    #[cold]
    fn close(&mut self) {
        self.start = self.start.max(self.popped);
        let mut entries = std::mem::take(&mut self.open);
        self.spread(entries.drain(..).rev());
    }

    /// Puts entries, in the order in which they were pushed, into slots below the one they were in. The open slot,
    /// which is empty, shrinks to the instant at its start.
    fn spread(&mut self, entries: impl Iterator<Item = Entry>) {
        self.end = self.start;
        for entry in entries {
            if entry.time == self.start {
                self.open.push(entry);
            } else {
                self.place(entry);
            }
        }
        self.open.reverse();
    }
}

#[cfg(test)]
mod tests {
    use dunlin_net::random::Random;

    use super::*;

    fn event(id: usize) -> Event {
        Event::Run { thread: id as u32 }
    }

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Entry>(), 24);
    }

    #[test]
    fn events_of_one_time_keep_their_order_and_limits_hold() {
        let mut queue = EventQueue::new();
        for id in 0..1000 {
            queue.push(if id % 2 == 0 { 7_000_000 } else { 5_000_000 }, event(id));
        }
        assert_eq!(queue.pop_until(4_999_999), None);
        for id in (1..1000).step_by(2) {
            assert_eq!(queue.pop_until(5_000_000), Some((5_000_000, event(id))));
        }
        assert_eq!(queue.pop_until(6_999_999), None);
        for id in (0..1000).step_by(2) {
            assert_eq!(queue.pop_until(u64::MAX), Some((7_000_000, event(id))));
        }
        assert_eq!(queue.pop_until(u64::MAX), None);
    }

    /// More events of one instant than fit a sorted slot, at the very start of a slot.
    #[test]
    fn many_events_at_the_start_of_a_slot_keep_their_order() {
        let mut queue = EventQueue::new();
        (0..1000).for_each(|id| queue.push(1 << 30, event(id)));
        queue.push((1 << 30) + 1, event(1000));
        for id in 0..1000 {
            assert_eq!(queue.pop_until(u64::MAX), Some((1 << 30, event(id))));
        }
        assert_eq!(queue.pop_until(u64::MAX), Some(((1 << 30) + 1, event(1000))));
    }

    /// A sparse queue opens a wide slot; then many events come inside it.
    #[test]
    fn a_wide_open_slot_is_spread() {
        let mut queue = EventQueue::new();
        let mut random = Random::new(1);
        queue.push(1 << 40, event(0));
        assert_eq!(queue.pop_until(u64::MAX), Some((1 << 40, event(0))));
        let mut expected: Vec<_> = (1..5000).map(|id| ((1 << 40) + random.below(1 << 34), id)).collect();
        for (time, id) in &expected {
            queue.push(*time, event(*id));
            assert!(queue.open.len() <= OPEN_MAX);
        }
        expected.sort();
        for (time, id) in expected {
            assert_eq!(queue.pop_until(u64::MAX), Some((time, event(id))));
        }
    }

    /// Against a sorted list, with times from picoseconds to hours apart.
    #[test]
    fn random_events_come_in_order() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let (mut queue, mut expected) = (EventQueue::new(), std::collections::BTreeMap::new());
            let mut now = 0;
            for id in 0..3000 {
                let ahead = random.between(0, 44);
                let time = now + random.below(1 << ahead);
                queue.push(time, event(id));
                expected.insert((time, id), ());
                if random.chance(0.45) || id > 2000 {
                    let ahead = random.between(0, 50);
                    let limit = now + random.below(1 << ahead);
                    let first = expected.first_key_value().map(|(key, ())| *key).filter(|key| key.0 <= limit);
                    assert_eq!(queue.pop_until(limit), first.map(|(time, id)| (time, event(id))), "seed {seed}");
                    expected.retain(|key, ()| Some(*key) != first);
                    now = first.map_or(limit, |key| key.0);
                }
            }
            while let Some(((time, id), ())) = expected.pop_first() {
                assert_eq!(queue.pop_until(u64::MAX), Some((time, event(id))), "seed {seed}");
            }
            assert_eq!(queue.pop_until(u64::MAX), None);
        }
    }
}
