//! Group commit: all that is submitted while one flush is under way goes to the disk together with the next.
//!
//! On a real disk a thread writes and flushes. In virtual time the same steps are done by a [`Stepper`], when their time has come.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};

use super::disk::Disk;
use super::error::{Failure, WalError};
use super::work::Work;
use super::writer::Writer;

/// What the log and its writer share.
#[derive(Debug, Default)]
pub struct Shared {
    queue: Mutex<Queue>,
    /// There is work, or an end.
    wanted: Condvar,
    /// More is durable, or nothing ever will be.
    advanced: Condvar,
    /// The last frame that is on the disk.
    durable: AtomicU64,
    flushes: AtomicU64,
    failure: OnceLock<Failure>,
    waker: Mutex<Option<Waker>>,
    /// Who does the writer's steps, if it is no thread.
    stepper: Mutex<Option<Waker>>,
}

#[derive(Debug, Default)]
struct Queue {
    work: Work,
    /// Bytes that the writer took and that are not durable.
    in_flight: usize,
    /// Whether the writer's thread sleeps: waking it is a system call.
    is_asleep: bool,
    is_ending: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they protect is valid between any two statements that may panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(durable: u64) -> Shared {
        Shared { durable: AtomicU64::new(durable), ..Shared::default() }
    }

    pub fn durable(&self) -> u64 {
        // What was written before is seen by whoever sees the number.
        self.durable.load(Ordering::Acquire)
    }

    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    pub fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    pub fn set_waker(&self, waker: Option<Waker>) {
        *lock(&self.waker) = waker;
    }

    /// Adds work.
    pub fn add(&self, add: impl FnOnce(&mut Work)) {
        let mut queue = lock(&self.queue);
        add(&mut queue.work);
        if std::mem::take(&mut queue.is_asleep) {
            drop(queue);
            self.wanted.notify_one();
            let stepper = lock(&self.stepper).clone();
            if let Some(stepper) = stepper {
                stepper.wake();
            }
        }
    }

    /// Bytes that wait for the disk.
    pub fn unflushed(&self) -> usize {
        let queue = lock(&self.queue);
        queue.work.bytes.len() + queue.in_flight
    }

    fn take(queue: &mut Queue, work: &mut Work) {
        work.clear();
        std::mem::swap(&mut queue.work, work);
        queue.work.last = work.last;
        queue.in_flight = work.bytes.len();
    }

    fn publish(&self, last: u64, flushes: u64) {
        self.durable.store(last, Ordering::Release);
        self.flushes.store(flushes, Ordering::Relaxed);
        lock(&self.queue).in_flight = 0;
        self.notify();
    }

    fn fail(&self, failure: Failure) {
        // The first is the cause of the others.
        let _ = self.failure.set(failure);
        self.notify();
    }

    fn notify(&self) {
        // With the lock, so that nobody looked before and sleeps after it.
        drop(lock(&self.queue));
        self.advanced.notify_all();
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Sleeps until a frame is durable.
    pub fn wait(&self, sequence: u64) -> Result<(), Failure> {
        let mut queue = lock(&self.queue);
        loop {
            if self.durable() >= sequence {
                return Ok(());
            }
            if let Some(failure) = self.failure() {
                return Err(failure.clone());
            }
            queue = self.advanced.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) {
        lock(&self.queue).is_ending = true;
        self.wanted.notify_one();
    }

    /// What the thread does.
    fn run<D: Disk>(&self, mut writer: Writer<D>) {
        let _panicking = FailOnPanic { shared: self, path: writer.disk().place("") };
        let mut work = Work::default();
        loop {
            let mut queue = lock(&self.queue);
            while queue.work.is_empty() {
                if queue.is_ending {
                    return;
                }
                queue.is_asleep = true;
                queue = self.wanted.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            Shared::take(&mut queue, &mut work);
            drop(queue);
            let last = work.last;
            let done = writer.begin(&mut work).and_then(|()| writer.finish());
            let removed = done.and_then(|()| {
                self.publish(last, writer.flushes());
                writer.remove()
            });
            if let Err(failure) = removed {
                return self.fail(failure);
            }
        }
    }
}

/// Lets nobody wait for ever for a thread that is no more.
struct FailOnPanic<'a> {
    shared: &'a Shared,
    path: PathBuf,
}

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let source = Arc::new(io::Error::other("the thread that writes it has panicked"));
            self.shared.fail(Failure { what: "write the log in", path: self.path.clone(), source });
        }
    }
}

/// A thread that writes and flushes.
#[derive(Debug)]
pub struct Threaded {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Threaded {
    pub fn start<D: Disk>(shared: Arc<Shared>, writer: Writer<D>) -> Result<Threaded, WalError> {
        let theirs = shared.clone();
        let run = move || theirs.run(writer);
        let thread = thread::Builder::new().name("log".to_owned()).spawn(run).map_err(WalError::Thread)?;
        Ok(Threaded { shared, thread: Some(thread) })
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            // It reports its failures itself, and does not panic.
            let _ = thread.join();
        }
    }
}

/// Writes and flushes in virtual time, for a log without a thread. Clones do the same.
#[derive(Debug, Clone)]
pub struct Stepper<D: Disk>(Arc<Mutex<Stepped<D>>>);

impl<D: Disk> Stepper<D> {
    pub(super) fn new(shared: Arc<Shared>, writer: Writer<D>) -> Stepper<D> {
        Stepper(Arc::new(Mutex::new(Stepped { shared, writer, work: Work::default(), due: None })))
    }

    /// Does what is due at this time, in nanoseconds, and says when there is more to do; `None` if that is when something is submitted.
    pub fn step(&self, now: u64) -> Option<u64> {
        lock(&self.0).step(now)
    }

    /// Who is woken when something is submitted while there is nothing to do.
    pub fn set_waker(&self, waker: Option<Waker>) {
        let shared = lock(&self.0).shared.clone();
        *lock(&shared.stepper) = waker;
    }
}

#[derive(Debug)]
struct Stepped<D: Disk> {
    shared: Arc<Shared>,
    writer: Writer<D>,
    work: Work,
    /// When the flush under way is over, in nanoseconds.
    due: Option<u64>,
}

impl<D: Disk> Stepped<D> {
    fn step(&mut self, now: u64) -> Option<u64> {
        loop {
            if self.shared.failure().is_some() {
                return None;
            }
            let done = match self.due {
                Some(due) if due > now => return Some(due),
                Some(_) => self.finish(),
                None => {
                    let mut queue = lock(&self.shared.queue);
                    if queue.work.is_empty() {
                        queue.is_asleep = true;
                        return None;
                    }
                    Shared::take(&mut queue, &mut self.work);
                    drop(queue);
                    self.due = Some(now.saturating_add(self.writer.disk().flush_time().as_nanos() as u64));
                    self.writer.begin(&mut self.work)
                }
            };
            if let Err(failure) = done {
                self.shared.fail(failure);
            }
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.due = None;
        self.writer.finish()?;
        self.shared.publish(self.work.last, self.writer.flushes());
        self.writer.remove()
    }
}
