//! Reads a file sequentially with few reads and bounded memory.

use std::io;

use super::disk::DiskFile;

/// Bytes per read, unless more are asked for.
const WINDOW_BYTES: usize = 256 << 10;

/// The part of a file that was last read.
#[derive(Debug, Default)]
pub struct Window {
    bytes: Vec<u8>,
    start: u64,
}

impl Window {
    /// Returns the `len` bytes of the file from `offset` on, or fewer if the file ends earlier.
    pub fn get(&mut self, file: &impl DiskFile, offset: u64, len: usize) -> io::Result<&[u8]> {
        let at = offset.wrapping_sub(self.start) as usize;
        let is_here = offset >= self.start && at.saturating_add(len) <= self.bytes.len();
        if !is_here {
            self.start = offset;
            self.bytes.resize(len.max(WINDOW_BYTES), 0);
            let read = match file.read_at(offset, &mut self.bytes) {
                Ok(read) => read,
                Err(error) => {
                    self.bytes.clear();
                    return Err(error);
                }
            };
            self.bytes.truncate(read);
        }
        let at = (offset - self.start) as usize;
        Ok(&self.bytes[at..self.bytes.len().min(at + len)])
    }
}
