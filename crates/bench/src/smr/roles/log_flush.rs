//! The log of a replicated node on this machine's disk, beside bare flushes of a file.

use std::time::{Duration, Instant};

use dunlin_lab::measure::{Measured, Scratch};
use dunlin_lab::peer::{Control, Role};
use dunlin_smr::wal::{Directory, Entry, WalConfig, open};
use serde::{Deserialize, Serialize};

use super::flushes::{bare_flushes, batch_bytes, wrong};
use crate::BenchError;

/// Payload of an entry.
pub const ENTRY_BYTES: usize = 100;
/// The floor is measured for this share of a run.
const FLOOR_SHARE: f64 = 0.5;

/// Appends entries, a window at a time, each time after the previous ones are durable.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogFlush {
    /// Entries at a time.
    pub window: usize,
    /// Length of the measured run.
    pub run: Duration,
}

impl Role for LogFlush {
    const NAME: &'static str = "appending to a log on disk";
    type Ready = ();
    /// Entries per second; the floor is the rate that bare flushes of as many bytes would allow.
    type Output = (f64, f64);
    type Error = BenchError;

    fn run(self, _control: &Control<Self>) -> Result<(f64, f64), BenchError> {
        let Measured { ours, floor } = self.measure()?;
        Ok((ours, floor))
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
