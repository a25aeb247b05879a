//! What the threads of a cluster do at a time. The main thread decides; they follow, and say when they are done.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::BenchError;

/// How often the main thread looks.
const LOOK: Duration = Duration::from_micros(200);

/// The steps, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Step {
    /// Makes the endpoints.
    Start,
    /// Opens the sessions of the floor, and loads the items.
    Load,
    /// Calls without transactions.
    Floor,
    /// Measures them.
    FloorMeasured,
    /// Ends them.
    FloorEnd,
    /// Transactions.
    Work,
    /// Measures them.
    WorkMeasured,
    /// Ends them.
    WorkEnd,
    /// Waits until all logs are empty.
    Settle,
    /// Checks the items.
    Check,
}

impl Step {
    const ALL: [Step; 10] = [
        Step::Start,
        Step::Load,
        Step::Floor,
        Step::FloorMeasured,
        Step::FloorEnd,
        Step::Work,
        Step::WorkMeasured,
        Step::WorkEnd,
        Step::Settle,
        Step::Check,
    ];
}

/// The current step, and who is done with it.
#[derive(Debug)]
pub(super) struct Stage {
    step: AtomicU8,
    done: AtomicUsize,
    threads: usize,
    failure: Mutex<Option<String>>,
}

impl Stage {
    pub fn new(threads: usize) -> Stage {
        Stage { step: AtomicU8::new(0), done: AtomicUsize::new(0), threads, failure: Mutex::default() }
    }

    /// The current step; `None` if the others have failed.
    pub fn step(&self) -> Option<Step> {
        Step::ALL.get(usize::from(self.step.load(Ordering::Acquire))).copied()
    }

    /// A thread is done with the current step.
    pub fn arrive(&self) {
        self.done.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends all threads.
    pub fn fail(&self, why: &BenchError) {
        if let Ok(mut failure) = self.failure.lock() {
            failure.get_or_insert_with(|| why.to_string());
        }
        self.step.store(u8::MAX, Ordering::Release);
    }

    fn error(&self) -> BenchError {
        let why = self.failure.lock().ok().and_then(|failure| failure.clone());
        BenchError::Transactions(why.unwrap_or_else(|| "a thread ended early".to_owned()))
    }

    /// Enters a step.
    pub fn enter(&self, step: Step) -> Result<(), BenchError> {
        self.done.store(0, Ordering::Release);
        let before = self.step.fetch_max(step as u8, Ordering::AcqRel);
        if before == u8::MAX { Err(self.error()) } else { Ok(()) }
    }

    /// Enters a step, and stays in it for a time and until all threads are done with it.
    pub fn complete(
        &self,
        step: Step,
        (time, limit): (Duration, Duration),
        is_stopped: impl Fn() -> bool,
    ) -> Result<(), BenchError> {
        self.enter(step)?;
        let begun = Instant::now();
        while begun.elapsed() < time || self.done.load(Ordering::Acquire) < self.threads {
            if self.step().is_none() {
                return Err(self.error());
            }
            if is_stopped() || begun.elapsed() > time + limit {
                let error = BenchError::Transactions(format!("the step {step:?} has not ended within {limit:?}"));
                self.fail(&error);
                return Err(error);
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}
