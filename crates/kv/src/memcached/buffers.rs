//! Memory that connections borrow while they have work.

use super::limits::{OUTPUT_BYTES_MAX, READ_BYTES, SHORT_BYTES, SPARE_BUFFERS_MAX};

/// Memory for answers that is kept for others, in bytes; a buffer that grew beyond it is given to the system.
pub(super) const SPARE_OUTPUT_BYTES_MAX: usize = 4 * OUTPUT_BYTES_MAX;

/// What was read and not yet consumed.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// All of it initialized, so that a socket can read to it.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// What is in it.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Says that bytes at the front are over with.
    #[inline]
    pub fn advance(&mut self, len: usize) {
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// A buffer of so many bytes, with these at its front. Exactly: the default way of growing would double.
    pub fn of(mut bytes: Vec<u8>, len: usize) -> Input {
        let end = bytes.len();
        bytes.reserve_exact(len.saturating_sub(end));
        bytes.resize(len.max(end), 0);
        Input { bytes, start: 0, end }
    }

    /// Bytes of memory it has.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Room behind what is in it. Moves what is in it to the front, and grows when it is full, to `most` bytes at last but never to more
    /// than twice what came: a client must send what it wants to be remembered. Without room if there are `most` bytes in it.
    pub fn room(&mut self, most: usize) -> &mut [u8] {
        if self.start > 0 && self.bytes.len() - self.end < READ_BYTES / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let len = (2 * self.bytes.len()).min(most).max(self.bytes.len());
            // Exactly: the default way of growing would double.
            self.bytes.reserve_exact(len - self.bytes.len());
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Says how many bytes were read to the room.
    #[inline]
    pub fn fill(&mut self, len: usize) {
        self.end += len;
        debug_assert!(self.end <= self.bytes.len());
    }
}

/// Spare buffers of one core.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    inputs: Vec<Vec<u8>>,
    shorts: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl Buffers {
    /// A buffer with these bytes at its front, of which there are at most [`READ_BYTES`].
    pub fn input(&mut self, carried: &[u8]) -> Input {
        let mut bytes = self.inputs.pop().unwrap_or_else(|| vec![0; READ_BYTES]);
        bytes[..carried.len()].copy_from_slice(carried);
        Input { bytes, start: 0, end: carried.len() }
    }

    /// The same with [`SHORT_BYTES`].
    pub fn short(&mut self, carried: &[u8]) -> Input {
        let mut bytes = self.shorts.pop().unwrap_or_else(|| vec![0; SHORT_BYTES]);
        bytes[..carried.len()].copy_from_slice(carried);
        Input { bytes, start: 0, end: carried.len() }
    }

    /// Takes one back. One of another length is given to the system.
    pub fn put_input(&mut self, input: Input) {
        let spare = match input.bytes.len() {
            READ_BYTES => &mut self.inputs,
            SHORT_BYTES => &mut self.shorts,
            _ => return,
        };
        if spare.len() < SPARE_BUFFERS_MAX {
            spare.push(input.bytes);
        }
    }

    /// An empty buffer for answers.
    pub fn output(&mut self) -> Vec<u8> {
        self.outputs.pop().unwrap_or_default()
    }

    /// Takes one back. One that grew large is given to the system.
    pub fn put_output(&mut self, mut output: Vec<u8>) {
        if output.capacity() <= SPARE_OUTPUT_BYTES_MAX && self.outputs.len() < SPARE_BUFFERS_MAX {
            output.clear();
            self.outputs.push(output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_grows_only_with_what_comes() {
        let mut input = Buffers::default().input(b"abc");
        let mut received = 3;
        while received < 1 << 20 {
            let len = input.room(1 << 20).len();
            assert!(received + len <= (2 * received).max(READ_BYTES), "{received} bytes and room for {len}");
            input.fill(len);
            received += len;
        }
        assert_eq!(received, 1 << 20);
        assert_eq!(&input.filled()[..3], b"abc");
    }

    #[test]
    fn what_is_left_moves_to_the_front() {
        let mut input = Buffers::default().input(b"");
        input.fill(READ_BYTES - 10);
        input.advance(READ_BYTES - 12);
        assert_eq!(input.room(1).len(), READ_BYTES - 2);
        assert_eq!(input.filled().len(), 2);
    }
}
