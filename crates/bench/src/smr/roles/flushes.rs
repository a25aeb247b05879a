//! Bare flushes of files: the cost of the disk for any log on it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_lab::measure::{Latencies, Scratch};
use dunlin_lab::peer::{Control, Role};
use dunlin_smr::wal::{Directory, Disk, DiskFile};
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// Bytes that the log adds to the payload of an entry, and to a batch, to within a few bytes.
const ENTRY_MORE: usize = 24;
const BATCH_MORE: usize = 40;
/// Bytes of the file for bare flushes; then it is overwritten from its start.
const FILE_BYTES: u64 = 64 << 20;

pub(super) fn wrong(doing: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BenchError {
    BenchError::io(doing)(std::io::Error::other(error))
}

/// Approximate bytes of a batch of entries in the log.
pub(super) fn batch_bytes(entries: usize, payload: usize) -> usize {
    BATCH_MORE + entries * (payload + ENTRY_MORE)
}

/// Bare flushes of a file per second, each after this many bytes were written.
pub(super) fn bare_flushes(directory: &Directory, name: &str, bytes: usize, run: Duration) -> Result<f64, BenchError> {
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

/// Concurrent bare flushes of several files, like the logs of replicas on one machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BareFlushes {
    /// Files, each with a thread.
    pub files: usize,
    /// Entries per flush.
    pub entries: usize,
    /// Bytes of an entry.
    pub entry_bytes: usize,
    /// Length of the run.
    pub run: Duration,
}

impl Role for BareFlushes {
    const NAME: &'static str = "bare flushes of several files";
    type Ready = ();
    /// Flushes per second of the slowest file.
    type Output = f64;
    type Error = BenchError;

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
        rates.into_iter().reduce(f64::min).ok_or(BenchError::no_samples("flushing no files"))
    }
}

/// Bare flushes of several files, started simultaneously in rounds: one round for each write of a group of replicas on
/// one machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MajorityFlushes {
    /// Files, each with a thread.
    pub files: usize,
    /// Bytes of the entry per flush.
    pub entry_bytes: usize,
    /// Length of the run.
    pub run: Duration,
}

/// State shared by threads that flush together.
#[derive(Default)]
struct Rounds {
    /// The current round; `END` after the last.
    begun: AtomicUsize,
    /// Completed flushes, in all rounds.
    ended: AtomicUsize,
}

impl Rounds {
    const END: usize = usize::MAX;

    /// Waits for the round after this one.
    fn next(&self, after: usize) -> usize {
        loop {
            match self.begun.load(Ordering::Acquire) {
                round if round == after => thread::yield_now(),
                round => return round,
            }
        }
    }
}

impl Role for MajorityFlushes {
    const NAME: &'static str = "bare flushes of several files at a time";
    type Ready = ();
    /// Median time until a majority of the files is durable, in nanoseconds.
    type Output = f64;
    type Error = BenchError;

    fn run(self, _control: &Control<Self>) -> Result<f64, BenchError> {
        let place = Scratch::make("majority-flushes")?;
        let bytes = vec![7; batch_bytes(1, self.entry_bytes)];
        let open = |number: usize| {
            let path = place.path().join(number.to_string());
            let directory = Directory::open(&path).map_err(|error| wrong("open a directory for a log", error))?;
            directory.create("bare", FILE_BYTES).map_err(BenchError::io("make a file"))
        };
        let files = (0..self.files).map(open).collect::<Result<Vec<_>, _>>()?;
        let (rounds, start) = (Rounds::default(), Instant::now());
        let ends: Vec<AtomicU64> = files.iter().map(|_| AtomicU64::default()).collect();
        let mut latencies = Latencies::new();
        thread::scope(|scope| {
            let threads: Vec<_> = files
                .into_iter()
                .zip(&ends)
                .map(|(file, end)| {
                    let (rounds, bytes) = (&rounds, &bytes);
                    scope.spawn(move || {
                        let (mut round, mut failed) = (0, None);
                        loop {
                            round = rounds.next(round);
                            if round == Rounds::END {
                                return failed.map_or(Ok(()), Err);
                            }
                            let at = (round * bytes.len()) as u64 % (FILE_BYTES - bytes.len() as u64);
                            if let Err(error) = file.write_at(at, bytes).and_then(|()| file.flush()) {
                                failed.get_or_insert(error);
                            }
                            end.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                            rounds.ended.fetch_add(1, Ordering::AcqRel);
                        }
                    })
                })
                .collect();
            let mut round = 0;
            while start.elapsed() < self.run {
                round += 1;
                let begin = start.elapsed().as_nanos() as u64;
                rounds.begun.store(round, Ordering::Release);
                while rounds.ended.load(Ordering::Acquire) < round * ends.len() {
                    thread::yield_now();
                }
                let mut times: Vec<u64> =
                    ends.iter().map(|end| end.load(Ordering::Relaxed).saturating_sub(begin)).collect();
                times.sort_unstable();
                latencies.record(times[times.len() / 2]);
            }
            rounds.begun.store(Rounds::END, Ordering::Release);
            threads.into_iter().try_for_each(|thread| thread.join().expect("flushing does not panic"))
        })
        .map_err(BenchError::io("flush a file"))?;
        Ok(latencies.percentiles()?.p50)
    }
}
