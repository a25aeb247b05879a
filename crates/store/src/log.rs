//! The log: segments of the memory that are filled from start to end, and their accounting. The items themselves are in
//! the memory.

/// Segments that the log keeps when the index grows: one to fill, one to clean, one to clean into.
pub(crate) const SEGMENTS_MIN: usize = 3;
/// Largest segment unless the configuration sets another: cleaning a whole one, the longest pause possible, takes 2 to
/// 5 ms.
pub(crate) const SEGMENT_BYTES_MAX: usize = 8 << 20;

/// What a segment is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// For the index.
    Index,
    /// For nothing.
    Free,
    /// For items; it may be the active one.
    Used,
}

/// The accounting of one segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub state: State,
    /// Bytes of items, dead or live.
    pub fill: usize,
    /// Bytes of live items.
    pub live: usize,
    /// Bytes that are reserved for planned items.
    pub reserved: usize,
    /// The number of segments opened before it, which gives its age.
    pub order: u64,
    /// The number of items stored when it began to be filled.
    pub began: u64,
}

/// A segment that is being cleaned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Victim {
    pub segment: usize,
    /// Bytes of it that were examined.
    pub done: usize,
    /// Which items are kept.
    pub rescue: Rescue,
}

/// Which live items of a segment move to the end of the log when it is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rescue {
    /// All, as far as there is room.
    All,
    /// Items that were read since they were written, up to `hot` bytes, and other items, up to `any` more bytes. The
    /// rest is evicted.
    Some { hot: usize, any: usize },
}

#[derive(Debug)]
pub(crate) struct Log {
    /// A power of two.
    pub segment_bytes: usize,
    segments: Vec<Segment>,
    /// The segment being filled.
    pub active: Option<usize>,
    pub victim: Option<Victim>,
    /// Free segments.
    pub free: usize,
    /// Segments that do not belong to the index.
    pub count: usize,
    /// Bytes of all live items.
    pub live: usize,
    /// Segments opened so far.
    opened: u64,
}

impl Log {
    /// Creates the log of a memory of this size, whose first segment belongs to the index.
    pub(crate) fn new(memory_bytes: usize, segment_bytes: usize) -> Log {
        let free = Segment { state: State::Free, fill: 0, live: 0, reserved: 0, order: 0, began: 0 };
        let count = memory_bytes / segment_bytes;
        let mut log = Log {
            segment_bytes,
            segments: vec![free; count],
            active: None,
            victim: None,
            free: count - 1,
            count: count - 1,
            live: 0,
            opened: 0,
        };
        log.segments[0].state = State::Index;
        log
    }

    /// Forgets all items; only the first segment belongs to the index again.
    pub(crate) fn reset(&mut self) {
        *self = Log::new(self.segments.len() * self.segment_bytes, self.segment_bytes);
    }

    #[inline]
    pub(crate) fn segment_of(&self, at: usize) -> usize {
        at / self.segment_bytes
    }

    pub(crate) fn segment(&self, segment: usize) -> &Segment {
        &self.segments[segment]
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the bytes left in the segment being filled.
    pub(crate) fn room(&self) -> usize {
        self.active.map_or(0, |active| self.room_in(&self.segments[active]))
    }

    fn room_in(&self, segment: &Segment) -> usize {
        self.segment_bytes - segment.fill - segment.reserved
    }

    /// Reserves bytes of an empty segment.
    pub(crate) fn reserve(&mut self, segment: usize, bytes: usize) {
        debug_assert!(bytes <= self.segment_bytes);
        self.segments[segment].reserved = bytes;
    }

    /// Releases reserved bytes of a segment. False if they are no longer reserved.
    pub(crate) fn release_reserved(&mut self, segment: usize, bytes: usize) -> bool {
        let reserved = &mut self.segments[segment].reserved;
        let is_kept = *reserved >= bytes;
        *reserved -= if is_kept { bytes } else { 0 };
        is_kept
    }

    /// Drops all reservations.
    pub(crate) fn drop_reservations(&mut self) {
        for at in 0..self.segments.len() {
            let segment = &mut self.segments[at];
            if std::mem::take(&mut segment.reserved) > 0 && segment.fill == 0 {
                self.release(at);
            }
        }
    }

    /// Takes bytes at the end of the segment being filled, as live ones.
    pub(crate) fn bump(&mut self, bytes: usize) -> Option<usize> {
        let active = self.active.filter(|_| bytes <= self.room())?;
        let segment = &mut self.segments[active];
        let at = active * self.segment_bytes + segment.fill;
        segment.fill += bytes;
        segment.live += bytes;
        self.live += bytes;
        Some(at)
    }

    /// Opens a free segment when `stored` items have been stored; the highest one, since the index grows from below.
    pub(crate) fn open(&mut self, stored: u64) -> Option<usize> {
        let next = self.segments.iter().rposition(|segment| segment.state == State::Free)?;
        self.segments[next] =
            Segment { state: State::Used, fill: 0, live: 0, reserved: 0, order: self.opened, began: stored };
        self.opened += 1;
        self.free -= 1;
        self.active = Some(next);
        Some(next)
    }

    /// Continues to fill the first full segment with this many bytes left at its end. False if there is none.
    pub(crate) fn reopen(&mut self, bytes: usize) -> bool {
        let has_room = |segment: &Segment| segment.state == State::Used && bytes <= self.room_in(segment);
        let victim = self.victim.map(|victim| victim.segment);
        let found = self.segments.iter().enumerate().position(|(at, segment)| has_room(segment) && victim != Some(at));
        self.active = found.or(self.active);
        found.is_some()
    }

    /// Counts the bytes of an item as dead.
    pub(crate) fn kill(&mut self, at: usize, bytes: usize) {
        let segment = self.segment_of(at);
        debug_assert!(bytes <= self.segments[segment].live && bytes <= self.live, "an item is killed once");
        self.segments[segment].live = self.segments[segment].live.saturating_sub(bytes);
        self.live = self.live.saturating_sub(bytes);
    }

    /// Whether at least half of the log will be refilled before this segment is the oldest.
    pub(crate) fn is_young(&self, segment: usize) -> bool {
        self.opened.saturating_sub(self.segments[segment].order) <= (self.count / 2) as u64
    }

    /// Stops filling the active segment.
    pub(crate) fn seal(&mut self) {
        self.active = None;
    }

    /// Frees a segment without live items.
    pub(crate) fn release(&mut self, segment: usize) {
        assert_eq!(self.segments[segment].live, 0, "a segment with live items cannot be free");
        (self.segments[segment].state, self.segments[segment].reserved) = (State::Free, 0);
        self.free += 1;
        if self.active == Some(segment) {
            self.active = None;
        }
        if self.victim.is_some_and(|victim| victim.segment == segment) {
            self.victim = None;
        }
    }

    /// Returns how many segments the index has: always the first ones.
    pub(crate) fn index_segments(&self) -> usize {
        self.segments.len() - self.count
    }

    /// Gives the index the segment behind its own, if that is free. False if it is not.
    pub(crate) fn give_to_index(&mut self) -> bool {
        let next = self.index_segments();
        let is_free = self.segments.get(next).is_some_and(|segment| segment.state == State::Free);
        if is_free {
            self.segments[next].state = State::Index;
            self.free -= 1;
            self.count -= 1;
        }
        is_free
    }

    /// Takes all but the first `kept` segments back from the index, which must not use them.
    pub(crate) fn take_from_index(&mut self, kept: usize) {
        while self.index_segments() > kept {
            let last = self.index_segments() - 1;
            self.segments[last].state = State::Free;
            self.free += 1;
            self.count += 1;
        }
    }

    fn sealed(&self) -> impl Iterator<Item = (usize, &Segment)> {
        let is_sealed = move |&(at, segment): &(usize, &Segment)| {
            segment.state == State::Used && segment.reserved == 0 && self.active != Some(at)
        };
        self.segments.iter().enumerate().filter(is_sealed)
    }

    /// Returns the full segment that was opened first.
    pub(crate) fn oldest(&self) -> Option<usize> {
        self.sealed().min_by_key(|(_, segment)| segment.order).map(|(at, _)| at)
    }

    /// Returns the full segment with the fewest live bytes.
    pub(crate) fn emptiest(&self) -> Option<usize> {
        self.sealed().min_by_key(|(_, segment)| segment.live).map(|(at, _)| at)
    }

    /// Returns the bytes of live items that a log of this many segments accepts in store mode: seven eighths, without
    /// the segment being filled and the one being cleaned into. So there is always a segment worth cleaning, for items
    /// up to an eighth of a segment.
    pub(crate) fn live_max(&self, segments: usize) -> usize {
        segments.saturating_sub(2) * (self.segment_bytes / 8 * 7)
    }

    /// Returns the bytes of memory that hold items, dead or live.
    pub(crate) fn used_bytes(&self) -> usize {
        self.segments.iter().filter(|segment| segment.state == State::Used).map(|segment| segment.fill).sum()
    }
}
