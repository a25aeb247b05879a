//! Multi-gets that are not answered in the turn in which they came.
//!
//! In each turn of its event loop a core serves a receive burst, memcached's commands within their budget, and so many
//! keys of multi-gets: a [`Quantum`]. The multi-gets above that wait in a queue of `dunlin_schedule`. A task serves one
//! quantum of them in each turn, in the order of the server's schedule. A multi-get that is longer than a quantum goes
//! back to the queue, and is resumed where it stopped. Most multi-gets never come here.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;

use dunlin_net::Clock;
use dunlin_rpc::DeferredRequest;
use dunlin_schedule::{ConfigError, Full, QueueConfig, RequestQueue, Tag};
use dunlin_store::Store;
use tokio::sync::Notify;

use super::collecting::{Collecting, Quantum};
use super::late::{is_over, split_deferred};
use super::multiget::{awaits, head_bytes, read_first, refusal};
use super::postponed::next_iteration;
use crate::memcached::HostName;
use crate::metrics::{LatencyHistogram, Operation, QueueSnapshot, rank_class};
use crate::shard::Shard;
use crate::tier::{Hold, Reserved, Schedule};
use crate::wire::{Mark, MultiGet, Waited};

/// Memory of unfinished responses above which a multi-get is finished when its turn comes, in bytes.
const BEGUN_BYTES_MAX: usize = 16 << 20;
/// Multi-gets that may wait. Beyond that, clients above their shares make room: an endpoint keeps more requests than that,
/// and others need places, too.
const WAITING_MAX: usize = 4096;
/// Multi-gets that nobody waits for and that are dropped in a turn.
const DROPS_MAX: usize = 256;

/// The line of one core.
pub(crate) struct Line {
    schedule: Schedule,
    queue: RefCell<RequestQueue<Long>>,
    /// The time of the turn in which a multi-get came last, and what is left of its quantum.
    turn: Cell<(u64, Quantum)>,
    /// Numbers the clients: nobody can choose the number of another one.
    hosts: RandomState,
    /// Memory of unfinished responses.
    begun: Rc<Cell<usize>>,
    is_entered: Notify,
    clock: Clock,
    stats: RefCell<Stats>,
}

#[derive(Default)]
struct Stats {
    served: u64,
    refused: u64,
    abandoned: u64,
    waits: Vec<LatencyHistogram>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("length", &self.queue.borrow().len()).finish_non_exhaustive()
    }
}

impl Default for Line {
    fn default() -> Self {
        // Tests of dunlin-schedule build a queue of it.
        Line::new(Schedule::default()).expect("the default schedule is valid")
    }
}

impl Line {
    /// Creates a line that is served in this order.
    pub fn new(schedule: Schedule) -> Result<Line, ConfigError> {
        let limit = schedule.queue.limit.min(WAITING_MAX);
        let queue = RequestQueue::new(&QueueConfig { limit, ..schedule.queue.clone() })?;
        Ok(Line {
            queue: RefCell::new(queue),
            schedule,
            turn: Cell::new((0, Quantum::TURN)),
            hosts: RandomState::new(),
            begun: Rc::default(),
            is_entered: Notify::new(),
            clock: Clock::new(),
            stats: RefCell::default(),
        })
    }

    /// The beginning of a multi-get that comes now.
    pub(super) fn arrival(&self) -> Passed {
        Passed { since: self.clock.now(), queued: 0 }
    }

    /// Whether a multi-get of the turn at this time need not wait: none waits, and the turn has something left.
    pub fn is_free(&self, turn: u64) -> bool {
        let (last, left) = self.turn.get();
        (last != turn || left.is_any()) && self.queue.borrow().is_empty()
    }

    /// Notes what a multi-get has left of its quantum.
    pub(super) fn spend(&self, turn: u64, left: Quantum) {
        let (last, before) = self.turn.get();
        let before = if last == turn { before } else { Quantum::TURN };
        self.turn.set((turn, before.less(Quantum::TURN.less(left))));
    }

    /// Lets a multi-get wait.
    pub fn push(&self, long: Long) {
        let tag = long.tag();
        let pushed = self.queue.borrow_mut().push(tag, Long { entered: self.clock.now(), ..long });
        let refused = match pushed {
            Ok(displaced) => displaced,
            Err(Full { item, .. }) => Some(item),
        };
        if let Some(long) = refused {
            self.refuse();
            // It has changed nothing.
            long.request.push_back();
        }
        self.is_entered.notify_one();
    }

    /// Counts a multi-get that cannot wait.
    pub(super) fn refuse(&self) {
        self.stats.borrow_mut().refused += 1;
    }

    /// Takes the multi-get that is next, and drops those before it for which nobody waits, while there are `drops` left.
    fn next(&self, drops: &mut usize) -> Option<Long> {
        let before = *drops;
        let next = self.queue.borrow_mut().pop_unless(|long| {
            let is_over = *drops > 0 && is_over(&long.request);
            *drops -= usize::from(is_over);
            is_over
        });
        self.stats.borrow_mut().abandoned += (before - *drops) as u64;
        next
    }

    /// Returns counters, and what waits; `None` if nothing ever did.
    pub fn stats(&self) -> Option<QueueSnapshot> {
        let (stats, queue) = (self.stats.borrow(), self.queue.borrow());
        let Stats { served, refused, abandoned, .. } = *stats;
        let has_waited = served + refused + abandoned > 0 || !queue.is_empty();
        has_waited.then(|| QueueSnapshot {
            served,
            refused,
            abandoned,
            lengths: queue.lengths().into_iter().map(|length| length as u64).collect(),
            waits: stats.waits.clone(),
        })
    }

    fn note(&self, rank: u64, nanos: u64) {
        let (mut stats, class) = (self.stats.borrow_mut(), rank_class(rank));
        stats.served += 1;
        if stats.waits.len() <= class {
            stats.waits.resize_with(class + 1, LatencyHistogram::default);
        }
        stats.waits[class].record(nanos, 1);
    }
}

/// Drops what waits when the task ends that serves it: requests keep their endpoint.
struct Closing<S>(Rc<Shard<S>>);

impl<S> Drop for Closing<S> {
    fn drop(&mut self) {
        let queue = &self.0.line.queue;
        let dropped: Vec<Long> = std::iter::from_fn(|| queue.borrow_mut().pop()).collect();
        drop(dropped);
    }
}

/// Serves the line of a shard for ever, a quantum in each turn of the event loop in which something waits.
pub(super) async fn serve<S: Store + 'static>(shard: Rc<Shard<S>>) {
    let closing = Closing(shard);
    let line = &closing.0.line;
    loop {
        line.is_entered.notified().await;
        while !line.queue.borrow().is_empty() {
            next_iteration().await;
            serve_turn(&closing.0);
        }
    }
}

fn serve_turn<S: Store + 'static>(shard: &Rc<Shard<S>>) {
    let (line, mut left, mut drops) = (&shard.line, Quantum::TURN, DROPS_MAX);
    while left.is_any() && drops > 0 {
        let Some(long) = line.next(&mut drops) else { return };
        if let Some(rest) = long.serve(shard, &mut left) {
            line.push(rest);
        }
    }
}

/// What a multi-get has behind it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    /// When it came.
    since: u64,
    /// How long it has waited in the line, in nanoseconds.
    queued: u64,
}

/// A multi-get that waits.
pub(crate) struct Long {
    request: DeferredRequest,
    /// What is left of its keys.
    mark: Mark,
    keys: usize,
    rank: u64,
    client: u64,
    /// What its last quantum cost, or its first one may.
    cost: u32,
    passed: Passed,
    /// When it entered the line last.
    entered: u64,
    /// How long it waited for the tier before.
    waited: Waited,
    /// It is known that the tier need not be read for it, or that was done.
    is_looked_at: bool,
    begun: Option<Begun>,
    /// Records of the tier that it reads.
    _kept: Option<(Vec<Hold>, Reserved)>,
}

/// A response that is not finished.
struct Begun {
    collecting: Collecting,
    memory: Counted,
}

/// Memory that is counted among that of all as long as this lives.
struct Counted {
    bytes: usize,
    all: Rc<Cell<usize>>,
}

impl Counted {
    fn set(&mut self, bytes: usize) {
        self.all.set(self.all.get() - self.bytes + bytes);
        self.bytes = bytes;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Begun {
    fn new(line: &Line, collecting: Collecting) -> Begun {
        let mut memory = Counted { bytes: 0, all: line.begun.clone() };
        memory.set(collecting.bytes());
        Begun { collecting, memory }
    }
}

impl Long {
    /// A multi-get of which so many keys are left. `None` if it is malformed.
    pub fn new(line: &Line, request: DeferredRequest, keys: usize, mark: Mark) -> Option<Long> {
        let (ranked, _) = split_deferred(&request)?;
        let rank = line.schedule.rank(ranked, keys);
        let client = request.request().context().peer().map_or(0, |peer| line.hosts.hash_one(HostName::from(peer)));
        let (passed, cost) = (line.arrival(), Quantum::of_keys(mark.keys()).cost());
        let (waited, begun) = (Waited::default(), None);
        let (entered, is_looked_at) = (passed.since, false);
        Some(Long {
            request,
            mark,
            keys,
            rank,
            client,
            cost,
            passed,
            entered,
            waited,
            is_looked_at,
            begun,
            _kept: None,
        })
    }

    /// The same, with the beginning of its response.
    pub(super) fn after(self, line: &Line, collecting: Collecting) -> Long {
        Long { begun: Some(Begun::new(line, collecting)), ..self }
    }

    /// The same, having waited for the tier. The records stay in memory until it is answered.
    pub(super) fn with(self, records: Vec<Hold>, reserved: Reserved, waited: Waited, passed: Passed) -> Long {
        Long { _kept: Some((records, reserved)), waited, passed, is_looked_at: true, ..self }
    }

    /// Its claim on the next quantum. What it costs is for the server to say.
    fn tag(&self) -> Tag {
        Tag { rank: self.rank, cost: self.cost, client: self.client }
    }

    /// Serves it until it is answered or waits for the tier, or nothing of the quantum is left; then returns it.
    fn serve<S: Store + 'static>(mut self, shard: &Rc<Shard<S>>, left: &mut Quantum) -> Option<Long> {
        let line = &shard.line;
        if is_over(&self.request) {
            line.stats.borrow_mut().abandoned += 1;
            return None;
        }
        self.passed.queued += line.clock.now().saturating_sub(self.entered);
        // It was parsed before.
        let (ranked, payload) = split_deferred(&self.request)?;
        let head = head_bytes(ranked);
        if let Some(status) = shard.refusal(true) {
            // It must not be read any more, and may have been filled with other items since.
            let _ = self.request.enqueue_response(refusal(head, status));
            return None;
        }
        if self.begun.is_none() && !std::mem::replace(&mut self.is_looked_at, true) {
            // What was in memory when it came may have left it since.
            let (tickets, looked_up) = awaits(shard, MultiGet::resume(payload, self.mark));
            *left = left.less(looked_up);
            if !tickets.is_empty() {
                read_first(shard, self.request, self.keys, &tickets, self.passed);
                return None;
            }
            if !left.is_any() {
                return Some(self);
            }
        }
        if self.begun.is_none() {
            // Without memory for the response, the caller is told that the handler failed.
            let collecting = Collecting::new(self.keys, head).ok()?;
            self.begun = Some(Begun::new(line, collecting));
        }
        let begun = self.begun.as_mut()?;
        let (mut keys, before) = (MultiGet::resume(payload, self.mark), begun.collecting.len());
        let mut metrics = shard.metrics.borrow_mut();
        let is_whole = line.begun.get() > BEGUN_BYTES_MAX;
        let mut quantum = if is_whole { Quantum::ALL } else { *left };
        begun.collecting.go_on(shard, &mut metrics, &mut keys, &mut quantum).ok()?;
        begun.memory.set(begun.collecting.bytes());
        *left = if is_whole { Quantum::NONE } else { quantum };
        let done = Quantum { keys: self.mark.keys() - keys.len(), bytes: begun.collecting.len() - before };
        (self.cost, self.mark) = (done.cost(), keys.mark());
        if self.mark.keys() > 0 {
            return Some(self);
        }
        metrics.latency(Operation::Get, line.clock.now().saturating_sub(self.passed.since), self.keys as u64);
        drop(metrics);
        line.note(self.rank, self.passed.queued);
        self.answer(head);
        None
    }

    fn answer(self, head: usize) {
        let Some(Begun { collecting, .. }) = self.begun else { return };
        let mut response = collecting.finish();
        if head > 0 {
            let queued = u32::try_from(self.passed.queued / 1000).unwrap_or(u32::MAX);
            let queued_micros = self.waited.queued_micros.saturating_add(queued);
            Waited { queued_micros, ..self.waited }.encode(&mut response[..head]);
        }
        // The caller may have given up.
        let _ = self.request.enqueue_response(response);
    }
}

#[cfg(test)]
mod tests;
