//! Memory that connections borrow while they have work.

use super::limits::{OUTPUT_BYTES_MAX, READ_BYTES, SHORT_BYTES, SPARE_BUFFERS_MAX};

/// Largest answer buffer kept for reuse, in bytes; a buffer that grew beyond this is freed.
pub(super) const SPARE_OUTPUT_BYTES_MAX: usize = 4 * OUTPUT_BYTES_MAX;

/// Bytes that were read and not yet consumed.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// Fully initialized, so that a socket can read into it.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// Returns its contents.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Removes consumed bytes from the front.
    #[inline]
    pub fn advance(&mut self, len: usize) {
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Creates a buffer of exactly this many bytes, which starts with these; growing by default would double it.
    pub fn of(mut bytes: Vec<u8>, len: usize) -> Input {
        let end = bytes.len();
        bytes.reserve_exact(len.saturating_sub(end));
        bytes.resize(len.max(end), 0);
        Input { bytes, start: 0, end }
    }

    /// Returns its bytes of memory.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the room after its contents. Moves the contents to the front; if it is full, grows it to at most `most`
    /// bytes, but never to more than twice what was received: a client must send what it makes the server remember.
    /// Returns no room if it has `most` bytes.
    pub fn room(&mut self, most: usize) -> &mut [u8] {
        if self.start > 0 && self.bytes.len() - self.end < READ_BYTES / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let len = (2 * self.bytes.len()).min(most).max(self.bytes.len());
            // Exactly: growing by default would double it.
            self.bytes.reserve_exact(len - self.bytes.len());
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Records how many bytes were read into the room.
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
    /// Returns a buffer that starts with these bytes, at most [`READ_BYTES`].
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

    /// Takes one back. A buffer of another length is freed.
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

    /// Returns an empty buffer for answers.
    pub fn output(&mut self) -> Vec<u8> {
        self.outputs.pop().unwrap_or_default()
    }

    /// Takes one back. A buffer that grew large is freed.
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
