//! Work that waits to be written: consecutive frames in memory, and what to do between them.

use super::format::{FRAME_HEADER_BYTES, FrameHeader, Place, SegmentHeader};

/// A step to do, in order.
#[derive(Debug)]
pub enum Task {
    /// Write a frame to a place in the current segment.
    Frame {
        /// The offset of its header space in [`Work::bytes`].
        start: usize,
        /// Its place in the segment.
        offset: u32,
        sequence: u64,
        payload_bytes: u32,
        payload_checksum: u32,
    },
    /// Make a new segment the current one. The next task is its first frame.
    Roll(SegmentHeader),
    /// Remove these files, when everything before is flushed.
    Remove(Vec<String>),
}

/// Frames and tasks.
#[derive(Debug, Default)]
pub struct Work {
    /// The frames, each with space for its header, and padding.
    pub bytes: Vec<u8>,
    pub tasks: Vec<Task>,
    /// The sequence number of the last frame.
    pub last: u64,
}

impl Work {
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.tasks.clear();
    }

    /// Adds a frame: space for its header and then its records, in `frame`.
    pub fn push(&mut self, frame: &[u8], offset: u32, sequence: u64) {
        let payload = &frame[FRAME_HEADER_BYTES..];
        let (payload_bytes, payload_checksum) = (payload.len() as u32, crc32c::crc32c(payload));
        self.tasks.push(Task::Frame { start: self.bytes.len(), offset, sequence, payload_bytes, payload_checksum });
        self.bytes.extend_from_slice(frame);
        self.bytes.resize(self.bytes.len().next_multiple_of(super::format::ALIGNMENT), 0);
        self.last = sequence;
    }
}

/// Writes the header of a frame, once the frames that share its flush are known.
pub fn put_header(bytes: &mut [u8], header: &FrameHeader, place: Place) {
    bytes[..FRAME_HEADER_BYTES].copy_from_slice(&header.to_bytes(place));
}
