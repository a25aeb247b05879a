//! Many runs, several in parallel, each on a thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::{Failure, Hunt, Progress};
use dunlin_serve::Interrupt;

/// Limit of processor time, summed over all jobs, for each job that is running; beyond it a run counts as stuck.
/// Wall-clock time would include times when the process was stopped, or when a busy machine delayed it.
const PROCESSOR_TIME_MAX: Duration = Duration::from_secs(120);
/// Interval of progress reports.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// State shared by the jobs of a hunt.
struct State {
    hunt: Hunt,
    interrupt: Interrupt,
    begun: Instant,
    /// Processor time of the process before.
    used_before: Duration,
    /// The seed to run next.
    next: AtomicU64,
    /// One past the last seed.
    end: u64,
    progress: Mutex<Progress>,
    failure: Mutex<Option<Failure>>,
    /// By job: its seed, and the processor time at its start.
    running: Vec<Mutex<Option<(u64, Duration)>>>,
}

impl Hunt {
    /// Runs seeds until one fails, all were run, the time is over, or the user interrupts. Reports progress
    /// periodically.
    ///
    /// A stuck run fails as well; its thread is left behind, so the process should end soon.
    pub fn run(self, interrupt: &Interrupt, mut tell: impl FnMut(&Progress)) -> (Progress, Option<Failure>) {
        let state = Arc::new(State {
            hunt: self,
            interrupt: interrupt.clone(),
            begun: Instant::now(),
            used_before: processor_time(),
            next: AtomicU64::new(self.first),
            end: self.seeds.and_then(|seeds| self.first.checked_add(seeds)).unwrap_or(u64::MAX),
            progress: Mutex::default(),
            failure: Mutex::default(),
            running: (0..self.jobs.max(1)).map(|_| Mutex::default()).collect(),
        });
        let main = std::thread::current();
        let jobs: Vec<_> = (0..state.running.len())
            .map(|job| {
                let (state, main) = (state.clone(), main.clone());
                std::thread::spawn(move || {
                    state.work(job);
                    main.unpark();
                })
            })
            .collect();
        while !jobs.iter().all(|job| job.is_finished()) {
            std::thread::park_timeout(PROGRESS_EVERY);
            tell(&state.progress());
            if let Some(stuck) = state.stuck() {
                return (state.progress(), Some(stuck));
            }
        }
        let failure = lock(&state.failure).take();
        (state.progress(), failure)
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.interrupt.is_set()
            || self.hunt.time.is_some_and(|time| self.begun.elapsed() >= time)
            || lock(&self.failure).is_some()
    }

    /// Runs seeds on this thread.
    fn work(&self, job: usize) {
        while !self.is_over() {
            let next = self.next.fetch_update(Relaxed, Relaxed, |next| (next < self.end).then(|| next + 1));
            let Ok(seed) = next else { break };
            *lock(&self.running[job]) = Some((seed, processor_time()));
            let result = self.hunt.kind.run(seed, None, None);
            *lock(&self.running[job]) = None;
            let mut progress = lock(&self.progress);
            progress.seeds += 1;
            match result {
                Ok(story) => progress.add(seed, &story),
                Err(why) => self.fail(Failure { seed, why }),
            }
        }
    }

    /// If several seeds fail at once, the first one counts.
    fn fail(&self, failure: Failure) {
        let mut first = lock(&self.failure);
        if first.as_ref().is_none_or(|first| failure.seed < first.seed) {
            *first = Some(failure);
        }
    }

    fn progress(&self) -> Progress {
        let processor_time = processor_time().saturating_sub(self.used_before);
        Progress { elapsed: self.begun.elapsed(), processor_time, ..lock(&self.progress).clone() }
    }

    /// A run that takes too long.
    fn stuck(&self) -> Option<Failure> {
        let running: Vec<_> = self.running.iter().filter_map(|job| *lock(job)).collect();
        let (seed, since) = running.iter().copied().min_by_key(|(_, since)| *since)?;
        let taken = processor_time().saturating_sub(since) / running.len() as u32;
        let why = || format!("it gets nowhere: it runs for {} s", taken.as_secs());
        (taken > PROCESSOR_TIME_MAX).then(|| Failure { seed, why: why() })
    }
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// A job panics only inside a run, while it holds no lock: locked data is always consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
