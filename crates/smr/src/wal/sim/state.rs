//! The files and names of a simulated disk, what of them is flushed, and which operations fail.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use dunlin_net::clock::nanos;
use dunlin_net::random::Random;

use super::file::FileImage;
use super::{Crash, SimDiskConfig};

/// An unflushed change of names.
#[derive(Debug)]
enum Change {
    Create { name: String, file: usize },
    Rename { from: String, to: String },
    Remove { name: String },
}

impl Change {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            Change::Create { name, file } => drop(names.insert(name, file)),
            Change::Rename { from, to } => {
                // If the file itself is not stored, neither is its new name.
                if let Some(file) = names.remove(&from) {
                    names.insert(to, file);
                }
            }
            Change::Remove { name } => drop(names.remove(&name)),
        }
    }
}

/// The whole disk.
#[derive(Debug)]
pub struct State {
    config: SimDiskConfig,
    random: Random,
    /// Files by number; numbers are never reused.
    files: Vec<FileImage>,
    names: BTreeMap<String, usize>,
    stored_names: BTreeMap<String, usize>,
    changes_of_names: Vec<Change>,
    /// Rises with each crash.
    life: u64,
    changes: u64,
    faults: u64,
    stop_at: Option<u64>,
    fail_flush_in: Option<u64>,
    hangs_until: u64,
}

impl State {
    pub fn new(seed: u64, config: SimDiskConfig) -> State {
        State {
            config,
            random: Random::new(seed),
            files: Vec::new(),
            names: BTreeMap::new(),
            stored_names: BTreeMap::new(),
            changes_of_names: Vec::new(),
            life: 0,
            changes: 0,
            faults: 0,
            stop_at: None,
            fail_flush_in: None,
            hangs_until: 0,
        }
    }

    pub fn life(&self) -> u64 {
        self.life
    }

    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn faults(&self) -> u64 {
        self.faults
    }

    pub fn random(&mut self) -> u64 {
        self.random.next()
    }

    pub fn configure(&mut self, config: SimDiskConfig) {
        self.config = config;
    }

    pub fn stop_after(&mut self, changes: u64) {
        self.stop_at = Some(self.changes + changes);
    }

    pub fn fail_flush_after(&mut self, flushes: u64) {
        self.fail_flush_in = Some(flushes);
    }

    pub fn hang_until(&mut self, nanos: u64) {
        self.hangs_until = nanos;
    }

    pub fn hangs_until(&self) -> u64 {
        self.hangs_until
    }

    pub fn flush_time(&mut self) -> Duration {
        let (min, max) = self.config.flush_time;
        let spread = nanos(max.saturating_sub(min));
        min + Duration::from_nanos(self.random.below(spread + 1))
    }

    pub fn crash(&mut self, crash: Crash) {
        self.life += 1;
        self.stop_at = None;
        if crash == Crash::Process {
            return;
        }
        let random = &mut self.random;
        self.files.iter_mut().for_each(|file| file.lose_power(random));
        for change in std::mem::take(&mut self.changes_of_names) {
            if self.random.below(2) == 0 {
                change.apply(&mut self.stored_names);
            }
        }
        self.names = self.stored_names.clone();
        // Files without a name are gone.
        for (number, file) in self.files.iter_mut().enumerate() {
            if !self.names.values().any(|named| *named == number) {
                *file = FileImage::default();
            }
        }
    }

    /// Counts a change. Decides whether it is done, and whether the caller may learn of it.
    fn change(&mut self) -> io::Result<()> {
        if self.stop_at.is_some_and(|at| self.changes >= at) {
            self.faults += 1;
            return Err(io::Error::other("the disk does not answer"));
        }
        self.changes += 1;
        Ok(())
    }

    pub fn list(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    pub fn file(&self, file: usize) -> &FileImage {
        &self.files[file]
    }

    /// Checks that files may grow by this many bytes.
    fn check_space(&mut self, more: usize) -> io::Result<()> {
        let used: usize = self.names.values().map(|file| self.files[*file].read().len()).sum();
        if (used + more) as u64 > self.config.capacity_bytes {
            self.faults += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    pub fn create(&mut self, name: &str, len: usize) -> io::Result<usize> {
        self.change()?;
        self.check_space(len)?;
        let file = self.files.len();
        self.files.push(FileImage::zeros(len));
        self.names.insert(name.to_owned(), file);
        self.changes_of_names.push(Change::Create { name: name.to_owned(), file });
        Ok(file)
    }

    pub fn open(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.change()?;
        let file = self.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        self.names.insert(to.to_owned(), file);
        self.changes_of_names.push(Change::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    pub fn remove(&mut self, name: &str) -> io::Result<()> {
        self.change()?;
        self.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        self.changes_of_names.push(Change::Remove { name: name.to_owned() });
        Ok(())
    }

    pub fn flush_directory(&mut self) -> io::Result<()> {
        self.change()?;
        if self.is_flush_to_fail() {
            return Err(io::Error::other("the disk cannot flush"));
        }
        self.changes_of_names.clear();
        self.stored_names = self.names.clone();
        Ok(())
    }

    pub fn write(&mut self, file: usize, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.change()?;
        let more = (offset + bytes.len()).saturating_sub(self.files[file].read().len());
        if more > 0 {
            self.check_space(more)?;
        }
        self.files[file].write(offset, bytes);
        Ok(())
    }

    pub fn flush(&mut self, file: usize) -> io::Result<()> {
        self.change()?;
        if self.is_flush_to_fail() {
            self.files[file].fail_flush(&mut self.random);
            return Err(io::Error::other("the disk cannot flush"));
        }
        self.files[file].flush();
        Ok(())
    }

    fn is_flush_to_fail(&mut self) -> bool {
        match &mut self.fail_flush_in {
            Some(0) => {
                self.fail_flush_in = None;
                self.faults += 1;
                return true;
            }
            Some(left) => *left -= 1,
            None => {}
        }
        let fails = self.config.flush_failures > 0.0 && self.random.chance(self.config.flush_failures);
        self.faults += u64::from(fails);
        fails
    }

    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        Some(self.files[*self.names.get(name)?].read().to_vec())
    }

    pub fn put(&mut self, name: &str, contents: Vec<u8>) {
        let number = self.files.len();
        self.files.push(FileImage::stored(contents));
        self.names.insert(name.to_owned(), number);
        self.stored_names.insert(name.to_owned(), number);
    }
}
