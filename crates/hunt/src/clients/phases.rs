//! The phases of a run: first clients do random work, then they start nothing new, finally they read every key; and the
//! verdict on all of that.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash};
use std::rc::Rc;

use dunlin_net::Waker;
use dunlin_sim::Datacenter;

use super::history::{End, Entry, History};
use super::judge::{self, Verdict};
use super::object::Object;
use crate::story::Story;
use crate::trace::Trace;

const MILLISECOND: u64 = 1_000_000;
/// All operations end within this time after the network has healed. Each gives up by itself after several tries on
/// several sessions, each of which may take all of its time to be refused. Final reads are retried often.
const OPERATIONS_END_WITHIN: u64 = 300_000 * MILLISECOND;
/// Minimum interval between two checks of everything.
const LOOK_EVERY: u64 = MILLISECOND;
/// Operations that a failure lists.
const TOLD_MAX: usize = 20;

/// The phases of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Random operations.
    Working,
    /// Ending the operations in progress.
    Ending,
    /// Each client reads each key.
    Reading,
}

/// State shared by all clients of a run, and the run itself.
pub struct Clients<O: Object> {
    history: RefCell<History<O>>,
    phase: Cell<Phase>,
    /// By number: the operations of the current client.
    living: RefCell<Vec<Option<Rc<Doings>>>>,
}

/// The operations of a client.
pub struct Doings {
    waker: Waker,
    pub in_progress: Cell<u32>,
    /// Keys that it could not read in the end.
    pub unread: RefCell<Vec<String>>,
    pub has_read: Cell<bool>,
}

impl Doings {
    pub fn new(waker: Waker) -> Doings {
        Doings { waker, in_progress: Cell::new(0), unread: RefCell::default(), has_read: Cell::new(false) }
    }

    /// Whether all its operations have ended, in a phase.
    fn has_ended(&self, phase: Phase) -> bool {
        self.in_progress.get() == 0 && (phase != Phase::Reading || self.has_read.get())
    }
}

impl<O: Object> Clients<O> {
    pub fn new(count: usize) -> Clients<O> {
        let living = RefCell::new((0..count).map(|_| None).collect());
        Clients { history: RefCell::default(), phase: Cell::new(Phase::Working), living }
    }

    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Registers a client, replacing the earlier one with its number.
    pub fn arrived(&self, number: usize, waker: Waker) -> Rc<Doings> {
        let doings = Rc::new(Doings::new(waker));
        self.living.borrow_mut()[number] = Some(doings.clone());
        doings
    }

    /// Records the beginning of an operation; returns its number.
    pub fn begin(&self, key: usize, client: usize, input: O::Input, now: u64) -> usize {
        self.history.borrow_mut().begin(key, client, input, now)
    }

    /// Records the end of an operation.
    pub fn end(&self, number: usize, end: End<O::Output>) {
        self.history.borrow_mut().end(number, end);
    }

    /// The operation that began last.
    pub fn last(&self) -> String {
        self.history.borrow().entries.last().map(ToString::to_string).unwrap_or_default()
    }

    /// Lets clients end their operations and read every key, in a healed network; returns the history.
    /// # Panics
    /// If an operation does not end, or a key cannot be read.
    pub fn end_all(&self, datacenter: &mut Datacenter) -> Vec<Entry<O>> {
        self.live_through(Phase::Ending, datacenter);
        self.live_through(Phase::Reading, datacenter);
        self.history.borrow().entries.clone()
    }

    fn live_through(&self, phase: Phase, datacenter: &mut Datacenter) {
        self.phase.set(phase);
        let start = datacenter.now();
        loop {
            let clients: Vec<_> = self.living.borrow().iter().flatten().cloned().collect();
            clients
                .iter()
                .for_each(|client| assert!(client.unread.borrow().is_empty(), "{:?}", client.unread.borrow()));
            if clients.iter().all(|client| client.has_ended(phase)) {
                return;
            }
            let passed = datacenter.now() - start;
            assert!(
                passed < OPERATIONS_END_WITHIN,
                "{} s after the network healed, operations have not ended:\n{}",
                passed / 1000 / MILLISECOND,
                self.pending()
            );
            clients.iter().for_each(|client| client.waker.wake());
            datacenter.run_until(start + passed + (passed / 4).max(LOOK_EVERY));
        }
    }

    fn pending(&self) -> String {
        let history = self.history.borrow();
        let pending = history.entries.iter().filter(|entry| entry.end == End::Pending);
        pending.take(TOLD_MAX).map(|entry| format!("  key {}: {entry}\n", entry.key)).collect()
    }
}

/// Judges a history over this many keys; returns how many of them stay undecided.
///
/// # Panics
/// If the history of a key is not linearizable.
pub fn judge<O: Object>(keys: usize, history: &[Entry<O>]) -> u64 {
    let verdicts = (0..keys).map(|key| judge::judge(key, history).unwrap_or_else(|why| panic!("{why}")));
    verdicts.filter(|verdict| *verdict == Verdict::Undecided).count() as u64
}

/// Writes a history to a trace, if there is one.
pub fn tell<O: Object>(history: &[Entry<O>], trace: Option<&Trace>) {
    if let Some(trace) = trace {
        history.iter().for_each(|entry| trace.log().borrow_mut().write_line(&format!("key {} {entry}", entry.key)));
    }
}

/// The result of a run that ends now, with this history.
pub fn story<O: Object>(datacenter: &Datacenter, history: &[Entry<O>]) -> Story {
    let mut hasher = DefaultHasher::new();
    history.iter().for_each(|entry| format!("{entry:?}").hash(&mut hasher));
    Story::of(datacenter, hasher, history.len() as u64)
}
