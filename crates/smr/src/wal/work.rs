//! What waits to be written: frames one after the other in memory, and what is to be done between them.

use super::format::{FRAME_HEADER_BYTES, FrameHeader, Place, SegmentHeader};

/// Something to do, in order.
#[derive(Debug)]
pub enum Task {
    /// A frame goes to a place in the current segment.
    Frame {
        /// Where its space for the header begins in [`Work::bytes`].
        start: usize,
        /// Its place in the segment.
        offset: u32,
        sequence: u64,
        payload_bytes: u32,
        payload_checksum: u32,
    },
    /// A new segment becomes the current one. The next task is its first frame.
    Roll(SegmentHeader),
    /// When all before is flushed, these files are needed no more.
    Remove(Vec<String>),
}

/// Frames and tasks.
#[derive(Debug, Default)]
pub struct Work {
    /// The frames, each with space for its header, and padded.
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

/// Writes the header of a frame, now that it is known with which others it is flushed.
pub fn put_header(bytes: &mut [u8], header: &FrameHeader, place: Place) {
    bytes[..FRAME_HEADER_BYTES].copy_from_slice(&header.to_bytes(place));
}
