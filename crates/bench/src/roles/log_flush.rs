//! The log of a replicated node on this machine's disk, beside bare flushes of a file.

use std::time::{Duration, Instant};

use dunlin_smr::wal::{Directory, Disk, DiskFile, Entry, WalConfig, open};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::measure::{Measured, Scratch};
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

/// Bytes of a batch of entries in the log, about.
fn batch_bytes(entries: usize, payload: usize) -> usize {
    BATCH_MORE + entries * (payload + ENTRY_MORE)
}

/// Bare flushes of a file per second, each after so many bytes were written.
fn bare_flushes(directory: &Directory, name: &str, bytes: usize, run: Duration) -> Result<f64, BenchError> {
    let flush = || {
        let bytes = vec![7; bytes];
        let file = directory.create(name, FILE_BYTES)?;
        file.flush()?;
        let (start, mut flushes, mut at) = (Instant::now(), 0u64, 0);
        while start.elapsed() < run {
            if at + bytes.len() as u64 > FILE_BYTES {
                at = 0;
            }
            file.write_at(at, &bytes)?;
            file.flush()?;
            at += bytes.len() as u64;
            flushes += 1;
        }
        let rate = flushes as f64 / start.elapsed().as_secs_f64();
        directory.remove(name)?;
        Ok(rate)
    };
    flush().map_err(BenchError::io("flush a file"))
}

/// Bare flushes of several files at once, as the logs of replicas on one machine make them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BareFlushes {
    /// Files, each with a thread.
    pub files: usize,
    /// Entries that a flush is for, and bytes of each.
    pub entries: usize,
    /// Bytes of an entry.
    pub entry_bytes: usize,
    /// How long.
    pub run: Duration,
}

impl Role for BareFlushes {
    const NAME: &'static str = "bare flushes of several files";
    type Ready = ();
    /// Flushes per second of the slowest file.
    type Output = f64;

    fn run(self, _control: &Control<Self>) -> Result<f64, BenchError> {
        let place = Scratch::make("flushes")?;
        let bytes = batch_bytes(self.entries, self.entry_bytes);
        let one = |number: usize| {
            let path = place.path().join(number.to_string());
            let directory = Directory::open(&path).map_err(|error| wrong("open a directory for a log", error))?;
            bare_flushes(&directory, "bare", bytes, self.run)
        };
        let rates: Vec<f64> = std::thread::scope(|scope| {
            let one = &one;
            let threads: Vec<_> = (0..self.files).map(|number| scope.spawn(move || one(number))).collect();
            let ended = threads.into_iter().map(|thread| thread.join().expect("flushing does not panic"));
            ended.collect::<Result<_, BenchError>>()
        })?;
        rates.into_iter().reduce(f64::min).ok_or(BenchError::NoSamples { what: "flushing no files" })
    }
}

impl LogFlush {
    fn measure(&self) -> Result<Measured<f64>, BenchError> {
        let place = Scratch::make("log-flush")?;
        let directory = Directory::open(place.path()).map_err(|error| wrong("open a directory for a log", error))?;
        let bytes = batch_bytes(self.window, ENTRY_BYTES);
        let floor = bare_flushes(&directory, "bare", bytes, self.run.mul_f64(FLOOR_SHARE))? * self.window as f64;
        let ours = self.entries(directory)?;
        Ok(Measured { ours, floor })
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
