//! Group commit: batches submitted during one flush are flushed together by the next. The pieces of a snapshot
//! alternate with these groups, so that no batch waits for more than one piece, and few wait at all ([`Pacing`]).
//!
//! On a real disk a thread writes and flushes. In virtual time a [`Stepper`] does the same turns, when they are due.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dunlin_net::clock::nanos;

use super::disk::Disk;
use super::error::{Failure, WalError};
use super::job::{Job, Source};
use super::pacing::Pacing;
use super::work::Work;
use super::writer::Writer;

/// State shared by the log and its writer.
#[derive(Debug, Default)]
pub struct Shared {
    queue: Mutex<Queue>,
    /// There is work, or the writer is to end.
    wanted: Condvar,
    /// More is durable, or never will be.
    advanced: Condvar,
    /// The last durable frame.
    durable: AtomicU64,
    flushes: AtomicU64,
    /// Begins and ends of turns, counted: odd during a turn.
    turns: AtomicU64,
    /// Number of snapshots handed over that are durable.
    snapshots: AtomicU64,
    /// The log accepts nothing more until a snapshot makes room.
    is_full: AtomicBool,
    failure: OnceLock<Failure>,
    waker: Mutex<Option<Waker>>,
    /// Wakes the driver of the steps, if there is no thread.
    stepper: Mutex<Option<Waker>>,
}

#[derive(Debug, Default)]
struct Queue {
    work: Work,
    /// Snapshots that the writer has not begun: at most one of each group.
    snapshots: VecDeque<Source>,
    /// Snapshots that no record refers to, now or later: they are removed before the next one is written.
    orphans: Vec<String>,
    /// Bytes that the writer has taken and that are not durable.
    in_flight: usize,
    /// Whether the writer's thread sleeps: waking it is a system call.
    is_asleep: bool,
    is_ending: bool,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The protected data is valid between any two statements that may panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(durable: u64) -> Shared {
        Shared { durable: AtomicU64::new(durable), ..Shared::default() }
    }

    pub fn durable(&self) -> u64 {
        // A reader that sees the number also sees all earlier writes.
        self.durable.load(Ordering::Acquire)
    }

    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Returns the number of the current turn, if there is one.
    pub fn under_way(&self) -> Option<u64> {
        let turns = self.turns.load(Ordering::Relaxed);
        (turns % 2 == 1).then_some(turns)
    }

    /// A turn begins or ends. Only the writer calls this.
    fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    pub fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    pub fn set_waker(&self, waker: Option<Waker>) {
        *lock(&self.waker) = waker;
    }

    /// Returns the number of snapshots handed over that are durable.
    pub fn snapshots(&self) -> u64 {
        self.snapshots.load(Ordering::Acquire)
    }

    /// Records whether the log is at its length limit: then snapshots have priority.
    pub fn note_full(&self, is_full: bool) {
        if self.is_full.swap(is_full, Ordering::Relaxed) != is_full && is_full {
            // The writer may be sleeping until the snapshot's turn.
            self.wake(lock(&self.queue));
        }
    }

    /// Adds work.
    pub fn add(&self, add: impl FnOnce(&mut Work)) {
        let mut queue = lock(&self.queue);
        add(&mut queue.work);
        self.wake(queue);
    }

    /// Hands over a snapshot, which is written after the earlier ones are durable.
    pub fn add_snapshot(&self, source: Source) {
        let mut queue = lock(&self.queue);
        queue.snapshots.push_back(source);
        self.wake(queue);
    }

    /// Has an unreferenced snapshot removed.
    pub fn add_orphan(&self, name: String) {
        lock(&self.queue).orphans.push(name);
    }

    /// Wakes the writer if it sleeps.
    fn wake(&self, mut queue: MutexGuard<'_, Queue>) {
        if std::mem::take(&mut queue.is_asleep) {
            drop(queue);
            self.wanted.notify_one();
            let stepper = lock(&self.stepper).clone();
            if let Some(stepper) = stepper {
                stepper.wake();
            }
        }
    }

    /// Returns the bytes that wait for the disk.
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
        // The first failure is the cause of the others.
        let _ = self.failure.set(failure);
        self.notify();
    }

    fn notify(&self) {
        // Taking the lock ensures that no waiter has checked already and is about to sleep.
        drop(lock(&self.queue));
        self.advanced.notify_all();
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Sleeps until `is_done`; [`Shared::notify`] announces every change.
    pub fn wait(&self, is_done: impl Fn(&Shared) -> bool) -> Result<(), Failure> {
        let mut queue = lock(&self.queue);
        loop {
            if is_done(self) {
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
}

/// The unit of work of one flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// All waiting frames.
    Group,
    /// A piece of a snapshot.
    Snapshot,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The turn that was taken.
    Turn,
    /// Nothing before this time, unless work is submitted.
    NotBefore(u64),
    /// Nothing, unless work is submitted.
    Nothing,
}

/// The turns of writing. Times are nanoseconds from any origin.
#[derive(Debug)]
struct Turns<D: Disk> {
    shared: Arc<Shared>,
    writer: Writer<D>,
    work: Work,
    snapshot: Option<Job<D>>,
    pacing: Pacing,
    orphans: Vec<String>,
    /// The current turn, or the last one.
    turn: Turn,
}

impl<D: Disk> Turns<D> {
    fn new(shared: Arc<Shared>, writer: Writer<D>) -> Turns<D> {
        Turns {
            shared,
            writer,
            work: Work::default(),
            snapshot: None,
            pacing: Pacing::default(),
            orphans: Vec::new(),
            turn: Turn::Snapshot,
        }
    }

    /// Takes the next turn's work.
    fn take(&mut self, queue: &mut Queue, now: u64) -> Next {
        self.orphans.append(&mut queue.orphans);
        if self.snapshot.is_none() {
            let source = queue.snapshots.pop_front();
            self.snapshot = source.map(|source| Job::new(self.writer.disk().clone(), source));
        }
        let is_first = self.shared.is_full.load(Ordering::Relaxed);
        let is_due = self.snapshot.is_some() && (is_first || now >= self.pacing.next_piece());
        if is_due && (queue.work.is_empty() || self.turn == Turn::Group) {
            self.turn = Turn::Snapshot;
            self.pacing.piece_began(now);
        } else if !queue.work.is_empty() {
            self.turn = Turn::Group;
            self.pacing.group_began();
            Shared::take(queue, &mut self.work);
        } else if self.snapshot.is_some() {
            return Next::NotBefore(self.pacing.next_piece());
        } else {
            return Next::Nothing;
        }
        Next::Turn
    }

    /// Writes it.
    fn begin(&mut self) -> Result<(), Failure> {
        self.writer.remove_all(std::mem::take(&mut self.orphans))?;
        match (self.turn, &mut self.snapshot) {
            (Turn::Snapshot, Some(snapshot)) => snapshot.write_piece(),
            _ => self.writer.begin(&mut self.work),
        }
    }

    /// Flushes it, and announces that it is durable. `now` is called after the flush.
    fn finish(&mut self, now: impl FnOnce() -> u64) -> Result<(), Failure> {
        if self.turn == Turn::Snapshot {
            self.finish_piece()?;
            self.pacing.piece_ended(now());
            return Ok(());
        }
        self.writer.finish()?;
        self.shared.publish(self.work.last, self.writer.flushes());
        self.writer.remove()
    }

    fn finish_piece(&mut self) -> Result<(), Failure> {
        let Some(job) = self.snapshot.take() else { return Ok(()) };
        self.snapshot = job.flush_piece()?;
        if self.snapshot.is_none() {
            self.shared.snapshots.fetch_add(1, Ordering::Release);
            self.shared.notify();
        }
        Ok(())
    }

    /// The body of the thread.
    fn run(mut self) {
        let shared = self.shared.clone();
        let _panicking = FailOnPanic { shared: &shared, path: self.writer.disk().place("") };
        let begun = Instant::now();
        let now = || nanos(begun.elapsed());
        loop {
            let mut queue = lock(&shared.queue);
            loop {
                // No record would refer to the snapshot, so finishing it is useless.
                if queue.is_ending && queue.work.is_empty() {
                    return;
                }
                let time = now();
                queue = match self.take(&mut queue, time) {
                    Next::Turn => break,
                    Next::Nothing => {
                        queue.is_asleep = true;
                        shared.wanted.wait(queue).unwrap_or_else(PoisonError::into_inner)
                    }
                    Next::NotBefore(due) => {
                        queue.is_asleep = true;
                        let left = Duration::from_nanos(due.saturating_sub(time));
                        shared.wanted.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
            drop(queue);
            shared.turn();
            if let Err(failure) = self.begin().and_then(|()| self.finish(now)) {
                return shared.fail(failure);
            }
            shared.turn();
        }
    }
}

/// Fails the log if its thread panics, so that nobody waits for it for ever.
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
        let turns = Turns::new(shared.clone(), writer);
        let run = move || turns.run();
        let thread = thread::Builder::new().name("log".to_owned()).spawn(run).map_err(WalError::Thread)?;
        Ok(Threaded { shared, thread: Some(thread) })
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            // The thread reports its own failures, and does not panic.
            let _ = thread.join();
        }
    }
}

/// Writes and flushes in virtual time, for a log without a thread. Clones drive the same writer.
#[derive(Debug, Clone)]
pub struct Stepper<D: Disk>(Arc<Mutex<Stepped<D>>>);

impl<D: Disk> Stepper<D> {
    pub(super) fn new(shared: Arc<Shared>, writer: Writer<D>) -> Stepper<D> {
        Stepper(Arc::new(Mutex::new(Stepped { turns: Turns::new(shared, writer), due: None })))
    }

    /// Does the work that is due at this time, in nanoseconds, and returns when there is more; `None` if not before
    /// more is submitted.
    pub fn step(&self, now: u64) -> Option<u64> {
        lock(&self.0).step(now)
    }

    /// Does all the work, regardless of the time.
    pub(super) fn step_to_the_end(&self) {
        let mut stepped = lock(&self.0);
        stepped.step(u64::MAX);
        // These turns took no virtual time, so they say nothing about when the next piece may be written.
        stepped.turns.pacing = Pacing::default();
    }

    /// Sets the waker to wake when work is submitted while there is none.
    pub fn set_waker(&self, waker: Option<Waker>) {
        let shared = lock(&self.0).turns.shared.clone();
        *lock(&shared.stepper) = waker;
    }
}

#[derive(Debug)]
struct Stepped<D: Disk> {
    turns: Turns<D>,
    /// When the current flush ends, in nanoseconds.
    due: Option<u64>,
}

impl<D: Disk> Stepped<D> {
    /// Returns when a flush ends that was due at `due`.
    fn ends(&self, due: u64) -> u64 {
        due.max(self.turns.writer.disk().hangs_until())
    }

    fn step(&mut self, now: u64) -> Option<u64> {
        let shared = self.turns.shared.clone();
        loop {
            if shared.failure().is_some() {
                return None;
            }
            let done = match self.due {
                Some(due) if self.ends(due) > now => return Some(self.ends(due)),
                Some(_) => {
                    self.due = None;
                    shared.turn();
                    self.turns.finish(|| now)
                }
                None => {
                    let mut queue = lock(&shared.queue);
                    let next = self.turns.take(&mut queue, now);
                    queue.is_asleep = next != Next::Turn;
                    drop(queue);
                    match next {
                        Next::Turn => {}
                        Next::NotBefore(due) => return Some(due),
                        Next::Nothing => return None,
                    }
                    shared.turn();
                    self.due = Some(now.saturating_add(nanos(self.turns.writer.disk().flush_time())));
                    self.turns.begin()
                }
            };
            if let Err(failure) = done {
                shared.fail(failure);
            }
        }
    }
}
