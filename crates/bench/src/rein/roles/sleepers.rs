//! The floor of a cluster whose reads wait: threads that only wait.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_lab::peer::{Control, Role};
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// As many threads as all devices together do reads at a time, each of which sleeps for the time of a read, again and
/// again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sleepers {
    /// Threads.
    pub threads: u32,
    /// The time of a read.
    pub delay: Duration,
    /// Length of the run.
    pub run: Duration,
}

impl Role for Sleepers {
    const NAME: &'static str = "threads that sleep";
    type Ready = ();
    /// Sleeps per second of all threads.
    type Output = f64;
    type Error = BenchError;

    fn run(self, _: &Control<Self>) -> Result<f64, BenchError> {
        let (begin, over) = (Barrier::new(self.threads as usize + 1), AtomicBool::new(false));
        let sleep = || {
            begin.wait();
            let mut sleeps = 0u64;
            while !over.load(Ordering::Relaxed) {
                thread::sleep(self.delay);
                sleeps += 1;
            }
            sleeps
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(sleep)).collect();
            begin.wait();
            let begun = Instant::now();
            thread::sleep(self.run);
            over.store(true, Ordering::Relaxed);
            let sleeps: u64 = threads.into_iter().map(|thread| thread.join().expect("sleeping does not panic")).sum();
            Ok(sleeps as f64 / begun.elapsed().as_secs_f64())
        })
    }
}
