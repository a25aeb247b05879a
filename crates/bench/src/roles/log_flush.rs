//! The log of a replicated node on this machine's disk, beside bare flushes of a file.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dunlin_smr::wal::{Directory, Disk, DiskFile, Entry, WalConfig, open};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::measure::Measured;
use crate::peer::{Control, Role};

/// Payload of an entry.
pub const ENTRY_BYTES: usize = 100;
/// What the log adds to it, and to a batch, to within a few bytes.
const ENTRY_MORE: usize = 24;
const BATCH_MORE: usize = 40;
/// Bytes of the file that is flushed bare; then it is written again from its start.
const FILE_BYTES: u64 = 64 << 20;
/// The floor is taken for this share of a run.
const FLOOR_SHARE: f64 = 0.5;

/// Appends entries, so many at a time, each time when those before are durable.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogFlush {
    /// Entries at a time.
    pub window: usize,
    /// Length of the measured run.
    pub run: Duration,
}

/// Where the files are: made for one run, and removed after it.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        Place(std::env::temp_dir().join(format!("dunlin-log-flush-{}", std::process::id())))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left over is in the directory for what may be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn wrong(doing: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BenchError {
    BenchError::io(doing)(std::io::Error::other(error))
}

impl Role for LogFlush {
    const NAME: &'static str = "appending to a log on disk";
    type Ready = ();
    /// Entries per second; the floor is what the flushes of a bare file, with as many bytes, would allow.
    type Output = (f64, f64);

    fn run(self, _control: &Control<Self>) -> Result<(f64, f64), BenchError> {
        let Measured { ours, floor } = self.measure()?;
        Ok((ours, floor))
    }
}

impl LogFlush {
    fn measure(&self) -> Result<Measured<f64>, BenchError> {
        let place = Place::new();
        let directory = Directory::open(&place.0).map_err(|error| wrong("open a directory for a log", error))?;
        let floor = self.flushes(&directory).map_err(BenchError::io("flush a file"))? * self.window as f64;
        let ours = self.entries(directory)?;
        Ok(Measured { ours, floor })
    }

    /// Bare flushes per second.
    fn flushes(&self, directory: &Directory) -> std::io::Result<f64> {
        let bytes = vec![7; BATCH_MORE + self.window * (ENTRY_BYTES + ENTRY_MORE)];
        let file = directory.create("bare", FILE_BYTES)?;
        file.flush()?;
        let (start, mut flushes, mut at) = (Instant::now(), 0u64, 0);
        while start.elapsed() < self.run.mul_f64(FLOOR_SHARE) {
            if at + bytes.len() as u64 > FILE_BYTES {
                at = 0;
            }
            file.write_at(at, &bytes)?;
            file.flush()?;
            at += bytes.len() as u64;
            flushes += 1;
        }
        let rate = flushes as f64 / start.elapsed().as_secs_f64();
        directory.remove("bare")?;
        Ok(rate)
    }

    /// Entries per second of the log.
    fn entries(&self, directory: Directory) -> Result<f64, BenchError> {
        let doing = "append to a log";
        let (mut wal, _) = open(directory, WalConfig::new(1)).map_err(|error| wrong(doing, error))?;
        let (start, mut index) = (Instant::now(), 0);
        while start.elapsed() < self.run {
            for _ in 0..self.window {
                index += 1;
                let entry = Entry { index, term: 1, kind: 0, payload: &[7; ENTRY_BYTES] };
                wal.append(entry).map_err(|error| wrong(doing, error))?;
            }
            wal.submit();
            wal.wait().map_err(|error| wrong(doing, error))?;
        }
        Ok(index as f64 / start.elapsed().as_secs_f64())
    }
}
