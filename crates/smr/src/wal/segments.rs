//! The segments of a log, and the place of the next frame in the last of them.

use std::collections::VecDeque;

use super::format::SEGMENT_HEADER_BYTES;

/// The existing segments, and the place of the next frame.
#[derive(Debug)]
pub struct Segments {
    /// Numbers and lengths, oldest first; frames go to the last.
    pub all: VecDeque<(u64, u32)>,
    /// The offset of the free space in the last one.
    pub end: u32,
    /// The length of all of them.
    pub bytes: u64,
}

impl Segments {
    /// Returns number and length of the last one.
    pub fn current(&self) -> (u64, u32) {
        // There is one from the start, and the last one is never removed.
        self.all.back().copied().unwrap_or_default()
    }

    /// Adds a new last segment. Its first frame, which contains the initial state, has this many bytes.
    pub fn roll(&mut self, number: u64, bytes: u32, first_frame: u32) {
        self.all.push_back((number, bytes));
        self.bytes += u64::from(bytes);
        self.end = SEGMENT_HEADER_BYTES as u32 + first_frame;
    }
}
