//! The segments of a log, and where in the last of them the next frame goes.

use std::collections::VecDeque;

use super::format::SEGMENT_HEADER_BYTES;

/// Where the next frame goes, and the segments that there are.
#[derive(Debug)]
pub struct Segments {
    /// Numbers and lengths, oldest first; frames go to the last.
    pub all: VecDeque<(u64, u32)>,
    /// Where the last one is free.
    pub end: u32,
    /// Length of them all.
    pub bytes: u64,
}

impl Segments {
    /// Number and length of the last one.
    pub fn current(&self) -> (u64, u32) {
        // There is one from the start, and the last one is never removed.
        self.all.back().copied().unwrap_or_default()
    }

    /// A new segment is the last one. Its first frame, with the state that it begins with, takes so many bytes.
    pub fn roll(&mut self, number: u64, bytes: u32, first_frame: u32) {
        self.all.push_back((number, bytes));
        self.bytes += u64::from(bytes);
        self.end = SEGMENT_HEADER_BYTES as u32 + first_frame;
    }
}
