//! The log of a replica on a simulated disk: what is written can be read at once, is durable some time later, and of what is not when its host crashes, some
//! is there afterwards and some is not.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use dunlin_sim::ThreadClock;
use dunlin_smr::MemoryLog;
use dunlin_smr::log::{Batch, LogError, LogStore, Ticket, Urgency};
use dunlin_smr::raft::eraftpb::{Entry, Snapshot};
use dunlin_smr::raft::{self, GetEntriesContext, RaftState, Storage};
use dunlin_trial::Random;

/// What nobody waits for is flushed so late, in nanoseconds, unless something else is flushed.
const LAZY_NS: u64 = 50_000_000;

enum Write {
    Append(Batch),
    Compact(Snapshot, u64),
}

/// A disk. It outlives the replica.
pub struct Disk {
    random: Random,
    flush_max_ns: u64,
    /// Flushes until one fails.
    fails_after: Option<u64>,
    has_failed: bool,
    /// What would be there after a crash.
    durable: MemoryLog,
    /// Written since, each with the time at which it is flushed.
    pending: VecDeque<(Ticket, u64, Write)>,
    done: Ticket,
    next: Ticket,
    waker: Option<Waker>,
}

impl Disk {
    pub fn new(random: Random, flush_max_ns: u64, fails_after: Option<u64>) -> Rc<RefCell<Disk>> {
        Rc::new(RefCell::new(Disk {
            random,
            flush_max_ns,
            fails_after,
            has_failed: false,
            durable: MemoryLog::new(),
            pending: VecDeque::new(),
            done: Ticket(0),
            next: Ticket(1),
            waker: None,
        }))
    }

    fn write(&mut self, write: Write, urgency: Urgency, now: u64) -> Ticket {
        let ticket = self.next;
        self.next.0 += 1;
        let time = match urgency {
            Urgency::Lazy => LAZY_NS,
            Urgency::Urgent => self.random.between(0, self.flush_max_ns),
        };
        // One flush after the other.
        let begin = self.pending.iter().map(|(_, at, _)| *at).filter(|at| *at < now + LAZY_NS).max().unwrap_or(0).max(now);
        self.pending.push_back((ticket, begin + time, write));
        ticket
    }

    /// Does what is done by now; says whether that was anything.
    fn advance(&mut self, now: u64) -> bool {
        // A flush takes all that was written before with it.
        let Some(last) = self.pending.iter().rposition(|(_, at, _)| *at <= now) else { return false };
        if let Some(left) = &mut self.fails_after {
            *left = left.saturating_sub(1);
            self.has_failed |= *left == 0;
        }
        if !self.has_failed {
            self.persist(last + 1);
        }
        true
    }

    fn persist(&mut self, count: usize) {
        for (ticket, _, write) in self.pending.drain(..count) {
            self.done = ticket;
            let result = match write {
                Write::Append(batch) => self.durable.append(batch).map(|_| ()),
                Write::Compact(snapshot, keep_from) => self.durable.compact(snapshot, keep_from),
            };
            result.expect("memory is written without errors");
        }
    }

    /// Lets a replica know what is durable by now.
    pub fn poll(&mut self, now: u64) {
        if self.advance(now)
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    /// When something becomes durable next.
    pub fn next_done(&self) -> Option<u64> {
        if self.has_failed { None } else { self.pending.iter().map(|(_, at, _)| *at).min() }
    }

    /// The host crashed.
    fn crash(&mut self, now: u64) {
        self.advance(now);
        if !self.has_failed {
            let kept = self.random.between(0, self.pending.len() as u64) as usize;
            self.persist(kept);
        }
        self.pending.clear();
        // Whoever starts next has another disk controller.
        (self.fails_after, self.has_failed, self.waker) = (None, false, None);
    }
}

/// A log on a disk.
pub struct DiskLog {
    disk: Rc<RefCell<Disk>>,
    view: MemoryLog,
    clock: ThreadClock,
}

impl DiskLog {
    /// What the disk has.
    pub fn open(disk: Rc<RefCell<Disk>>, clock: ThreadClock) -> DiskLog {
        let view = disk.borrow().durable.clone();
        DiskLog { disk, view, clock }
    }

    /// What can be read.
    pub fn view(&self) -> &MemoryLog {
        &self.view
    }
}

impl Drop for DiskLog {
    fn drop(&mut self) {
        self.disk.borrow_mut().crash(self.clock.now());
    }
}

impl Storage for DiskLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        self.view.initial_state()
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        self.view.entries(low, high, max_size, context)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.view.term(index)
    }

    fn first_index(&self) -> raft::Result<u64> {
        self.view.first_index()
    }

    fn last_index(&self) -> raft::Result<u64> {
        self.view.last_index()
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        Storage::snapshot(&self.view, request_index, to)
    }
}

impl LogStore for DiskLog {
    fn append(&mut self, batch: Batch) -> Result<Ticket, LogError> {
        self.view.append(batch.clone())?;
        let urgency = batch.urgency;
        Ok(self.disk.borrow_mut().write(Write::Append(batch), urgency, self.clock.now()))
    }

    fn durable(&mut self) -> Result<Ticket, LogError> {
        let mut disk = self.disk.borrow_mut();
        disk.advance(self.clock.now());
        if disk.has_failed { Err(LogError { why: "a flush failed".into() }) } else { Ok(disk.done) }
    }

    fn wake_when_durable(&mut self, waker: &Waker) {
        self.disk.borrow_mut().waker = Some(waker.clone());
    }

    fn compact(&mut self, snapshot: Snapshot, keep_from: u64) -> Result<(), LogError> {
        self.view.compact(snapshot.clone(), keep_from)?;
        self.disk.borrow_mut().write(Write::Compact(snapshot, keep_from), Urgency::Lazy, self.clock.now());
        Ok(())
    }

    fn base(&self) -> &Snapshot {
        self.view.base()
    }

    fn entry_bytes(&self) -> u64 {
        self.view.entry_bytes()
    }
}
