//! A disk in memory that fails and crashes on command and by a seed, for simulations and tests.
//!
//! | Fault | What happens |
//! |---|---|
//! | the power fails ([`Crash::Power`]) | of unflushed data any sectors of 512 bytes survive, and any name changes |
//! | the process ends ([`Crash::Process`]) | all written data survives; what of it was flushed is unknown |
//! | a flush fails | any of its sectors are stored. The others read as written until the power fails, and the next flush succeeds without them, as on Linux |
//! | the disk is full | files cannot be created or extended |
//! | the disk hangs ([`SimDisk::hang_until`]) | no flush ends before a virtual time; then everything continues |
//! | bit rot | on command: a bit of a file flips |
//!
//! After a failed flush, names remain to be flushed: file systems keep them in a journal, and stop all writing when
//! that fails.

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
    /// The machine loses power.
    Power,
}

/// The behaviour of a disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimDiskConfig {
    /// The limit of all files together.
    pub capacity_bytes: u64,
    /// The shortest and longest time of a flush, uniformly distributed.
    pub flush_time: (Duration, Duration),
    /// The probability that a flush fails, from 0 to 1.
    pub flush_failures: f64,
}

impl Default for SimDiskConfig {
    /// Returns a disk of 1 GiB that never fails, with flushes of 20 to 100 us.
    fn default() -> SimDiskConfig {
        SimDiskConfig {
            capacity_bytes: 1 << 30,
            flush_time: (Duration::from_micros(20), Duration::from_micros(100)),
            flush_failures: 0.0,
        }
    }
}

/// A disk in memory, as one process sees it. After [`SimDisk::crash`], this handle, its clones and their files return
/// errors; the next process uses the handle that the crash returned.
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
    /// Creates an empty disk. All random choices follow from the seed.
    pub fn new(seed: u64, config: SimDiskConfig) -> SimDisk {
        SimDisk { state: Arc::new(Mutex::new(State::new(seed, config))), life: 0 }
    }

    /// Ends the process that uses the disk, or the whole machine. Returns the disk as the next process finds it.
    pub fn crash(&self, crash: Crash) -> SimDisk {
        let mut state = self.any_life();
        state.crash(crash);
        SimDisk { state: self.state.clone(), life: state.life() }
    }

    /// Changes the disk's behaviour from now on.
    pub fn configure(&self, config: SimDiskConfig) {
        self.any_life().configure(config);
    }

    /// Makes everything fail after this many more changes of the disk: writes, flushes, new names. The change at which
    /// it happens may be done or not. A [`SimDisk::crash`] ends it.
    pub fn stop_after(&self, changes: u64) {
        self.any_life().stop_after(changes);
    }

    /// Returns the number of changes of the disk so far.
    pub fn changes(&self) -> u64 {
        self.any_life().changes()
    }

    /// Returns the number of injected errors so far: stopped, full, or a failed flush. Any other error is a bug of the
    /// caller.
    pub fn faults(&self) -> u64 {
        self.any_life().faults()
    }

    /// Makes one flush fail, after this many others.
    pub fn fail_flush_after(&self, flushes: u64) {
        self.any_life().fail_flush_after(flushes);
    }

    /// Lets no flush end before this virtual time, in nanoseconds, including the current one. A later call replaces the
    /// time; an earlier time ends the hang. A crash does not end it.
    pub fn hang_until(&self, nanos: u64) {
        self.any_life().hang_until(nanos);
    }

    /// Returns the contents of a file as a reader finds them, flushed or not; `None` if there is no such file.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        self.any_life().contents(name)
    }

    /// Sets the contents of a file, stored on the disk: to simulate rot, truncation or a file put there by hand.
    pub fn put(&self, name: &str, contents: Vec<u8>) {
        self.any_life().put(name, contents);
    }

    fn any_life(&self) -> MutexGuard<'_, State> {
        // A test that panicked while it held the lock has already reported that.
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
