//! A disk in memory that fails and crashes as it is told, and by a seed: for simulations and tests.
//!
//! | Fault | What happens |
//! |---|---|
//! | the power fails ([`Crash::Power`]) | of what was not flushed any sectors of 512 bytes are there, and any changes of names |
//! | the process ends ([`Crash::Process`]) | all that was written is there, flushed or not; nobody knows any more what was flushed |
//! | a flush fails | any of the sectors that it should have brought to the disk are there. They are read as they were written until the power fails, and the next flush succeeds without them, as Linux has it |
//! | the disk is full | files cannot be made or grow |
//! | the disk hangs ([`SimDisk::hang_until`]) | no flush ends before a virtual time; then all goes on |
//! | bits rot | as told: a bit of a file is another one |
//!
//! Names that could not be flushed stay to be flushed: file systems keep them in a journal, and end all writing when that fails.

mod file;
mod state;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::disk::{Disk, DiskFile};
use state::State;

/// Bytes that are written whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed.
    Process,
    /// The machine stops.
    Power,
}

/// How a disk behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimDiskConfig {
    /// What all files may have together.
    pub capacity_bytes: u64,
    /// The shortest and the longest time of a flush; any between them is as likely.
    pub flush_time: (Duration, Duration),
    /// How often a flush fails, from 0 to 1.
    pub flush_failures: f64,
}

impl Default for SimDiskConfig {
    /// A disk of 1 GiB that never fails, with a flush of 20 to 100 us.
    fn default() -> SimDiskConfig {
        SimDiskConfig {
            capacity_bytes: 1 << 30,
            flush_time: (Duration::from_micros(20), Duration::from_micros(100)),
            flush_failures: 0.0,
        }
    }
}

/// A disk in memory, as one process sees it. After [`SimDisk::crash`] this handle, its clones and their files give errors; the process that is
/// started after it has the handle that the crash gave.
#[derive(Debug, Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    life: u64,
}

/// A file of a [`SimDisk`].
#[derive(Debug)]
pub struct SimFile {
    disk: SimDisk,
    file: usize,
}

impl SimDisk {
    /// An empty disk. All that is left to chance follows from the seed.
    pub fn new(seed: u64, config: SimDiskConfig) -> SimDisk {
        SimDisk { state: Arc::new(Mutex::new(State::new(seed, config))), life: 0 }
    }

    /// Ends the process that uses the disk, or all. Gives the disk as the next process finds it.
    pub fn crash(&self, crash: Crash) -> SimDisk {
        let mut state = self.any_life();
        state.crash(crash);
        SimDisk { state: self.state.clone(), life: state.life() }
    }

    /// Lets the disk behave otherwise from now on.
    pub fn configure(&self, config: SimDiskConfig) {
        self.any_life().configure(config);
    }

    /// Lets everything fail after so many more changes of the disk: a write, a flush, a new name. The one at which it happens may or may not be
    /// done. A [`SimDisk::crash`] ends it.
    pub fn stop_after(&self, changes: u64) {
        self.any_life().stop_after(changes);
    }

    /// Changes of the disk so far.
    pub fn changes(&self) -> u64 {
        self.any_life().changes()
    }

    /// Errors so far that the disk gave as it was told to: stopped, full, or a flush that failed. Any other error is one of whoever uses it.
    pub fn faults(&self) -> u64 {
        self.any_life().faults()
    }

    /// Lets the flush fail that comes after so many others.
    pub fn fail_flush_after(&self, flushes: u64) {
        self.any_life().fail_flush_after(flushes);
    }

    /// Lets no flush end before this virtual time, in nanoseconds, not even one that is under way. A later call replaces the time; an earlier time ends
    /// the hang. A crash does not end it.
    pub fn hang_until(&self, nanos: u64) {
        self.any_life().hang_until(nanos);
    }

    /// What a reader finds in a file, whatever was flushed; `None` if there is no such file.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        self.any_life().contents(name)
    }

    /// Lets a file have these contents, all of them on the disk: whatever rots, is cut off or put there by hand.
    pub fn put(&self, name: &str, contents: Vec<u8>) {
        self.any_life().put(name, contents);
    }

    fn any_life(&self) -> MutexGuard<'_, State> {
        // A test that failed while it had the disk has said so.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.any_life();
        if state.life() == self.life { Ok(state) } else { Err(io::Error::other("the process has ended")) }
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state()?.list())
    }

    fn create(&self, name: &str, len: u64) -> io::Result<SimFile> {
        Ok(SimFile { disk: self.clone(), file: self.state()?.create(name, len as usize)? })
    }

    fn open(&self, name: &str) -> io::Result<SimFile> {
        Ok(SimFile { disk: self.clone(), file: self.state()?.open(name)? })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.state()?.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.state()?.remove(name)
    }

    fn flush_directory(&self) -> io::Result<()> {
        self.state()?.flush_directory()
    }

    fn place(&self, name: &str) -> PathBuf {
        PathBuf::from("simulated").join(name)
    }

    fn random(&self) -> io::Result<u64> {
        Ok(self.state()?.random())
    }

    fn flush_time(&self) -> Duration {
        self.any_life().flush_time()
    }

    fn hangs_until(&self) -> u64 {
        self.any_life().hangs_until()
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state()?.file(self.file).read().len() as u64)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.state()?;
        let rest = state.file(self.file).read().get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(bytes.len());
        bytes[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.state()?.write(self.file, offset as usize, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.disk.state()?.flush(self.file)
    }
}
