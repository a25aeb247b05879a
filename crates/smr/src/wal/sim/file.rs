//! The two images of a file: the one that is read, and the one on the disk.

use std::collections::BTreeSet;

use dunlin_net::random::Random;

use super::SECTOR_BYTES;

/// A file, independent of its name.
#[derive(Debug, Default)]
pub struct FileImage {
    /// The written contents: the system's cache.
    cached: Vec<u8>,
    /// The contents that survive a power failure.
    stored: Vec<u8>,
    /// Sectors of the cached image that are not stored yet.
    dirty: BTreeSet<usize>,
}

impl FileImage {
    /// Creates a file of zeros, of which nothing is stored.
    pub fn zeros(len: usize) -> FileImage {
        FileImage { cached: vec![0; len], ..FileImage::default() }
    }

    /// Creates a file that is entirely stored.
    pub fn stored(contents: Vec<u8>) -> FileImage {
        FileImage { cached: contents.clone(), stored: contents, dirty: BTreeSet::new() }
    }

    pub fn read(&self) -> &[u8] {
        &self.cached
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if end > self.cached.len() {
            self.cached.resize(end, 0);
        }
        self.cached[offset..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            self.dirty.extend(offset / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES);
        }
    }

    /// Stores everything.
    pub fn flush(&mut self) {
        self.stored.resize(self.cached.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            self.store(sector);
        }
    }

    /// Stores a part; the system forgets about the rest.
    pub fn fail_flush(&mut self, random: &mut Random) {
        self.store_some(random);
        self.dirty.clear();
    }

    /// Stores a part of what was not flushed; the rest was never written.
    pub fn lose_power(&mut self, random: &mut Random) {
        self.store_some(random);
        self.dirty.clear();
        self.cached = self.stored.clone();
    }

    fn store(&mut self, sector: usize) {
        let start = sector * SECTOR_BYTES;
        let end = (start + SECTOR_BYTES).min(self.cached.len());
        if self.stored.len() < end {
            self.stored.resize(end, 0);
        }
        self.stored[start..end].copy_from_slice(&self.cached[start..end]);
    }

    /// Stores nothing, everything, the first part, the last part, or any part.
    fn store_some(&mut self, random: &mut Random) {
        let dirty: Vec<usize> = self.dirty.iter().copied().collect();
        let cut = random.below(dirty.len() as u64 + 1) as usize;
        let way = random.below(5);
        if way > 0 && random.below(2) == 0 {
            // The length may be stored without the bytes.
            self.stored.resize(self.cached.len().max(self.stored.len()), 0);
        }
        for (at, sector) in dirty.into_iter().enumerate() {
            let is_stored = match way {
                0 => false,
                1 => true,
                2 => at < cut,
                3 => at >= cut,
                _ => random.below(2) == 0,
            };
            if is_stored {
                self.store(sector);
            }
        }
    }
}
