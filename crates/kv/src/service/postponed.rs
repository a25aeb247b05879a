//! Changes that wait for a snapshot's disk as a task, so that the core goes on meanwhile.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use dunlin_net::{Addr, Clock, Transport, host_of};
use dunlin_rpc::{DeferredRequest, Endpoint, RequestBurst, Timers};
use dunlin_store::{Store, Visit};

use super::single;
use crate::memcached::STALL_WAIT;
use crate::memcached::limits::STALL_TURN_MAX;
use crate::shard::Shard;
use crate::tier::{Hold, Reserved};

/// How long changes may wait for the disk in a turn of the snapshot before further ones are postponed. It is half of
/// the limit for memcached's commands, so neither protocol takes all of the time.
const STALL_MAX: Duration = Duration::from_millis(STALL_TURN_MAX.as_millis() as u64 / 2);
/// Changes made in one iteration of the event loop: more than a receive burst brings, so that the queue shrinks under
/// any load.
const CHANGES_MAX: u32 = 256;
/// Bytes of their requests, plus one request, for the same reason.
const BYTES_MAX: usize = 1 << 20;

/// What keeps an item staged that was read from the tier, and its bytes counted.
pub(super) type Kept = (Option<Hold>, Reserved);

/// A change, and when it arrived by the endpoint's clock.
struct Change {
    since: u64,
    request: DeferredRequest,
    kept: Option<Kept>,
}

/// Postponed changes: as many as the endpoint lets handlers keep, at most.
#[derive(Default)]
struct Waiting {
    /// Those of each host, in the order in which they came.
    hosts: HashMap<Addr, VecDeque<Change>>,
    /// The hosts, in the order of their turns.
    turns: VecDeque<Addr>,
    /// A task makes them.
    is_made: bool,
    /// How long a caller must still wait when its change is made, so that it hears of it: twice what the changes that
    /// were made together last have waited for the disk.
    least: Duration,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    fn push(&mut self, host: Addr, change: Change) {
        let line = self.hosts.entry(host.clone()).or_default();
        if line.is_empty() {
            self.turns.push_back(host);
        }
        line.push_back(change);
    }

    /// How long a caller must wait from `now` on for a change that joins the line of its host: about as long as the
    /// first one there has waited, and then its answer takes a while.
    fn least(&self, host: &Addr, now: u64) -> Duration {
        let first = self.hosts.get(host).and_then(VecDeque::front);
        Duration::from_nanos(first.map_or(0, |first| now.saturating_sub(first.since))) + self.least
    }

    /// Takes the first change of the host whose turn it is: a host delays another one no longer than a single change of
    /// it would, however many it has.
    fn pop(&mut self) -> Option<Change> {
        let host = self.turns.pop_front()?;
        let line = self.hosts.get_mut(&host)?;
        let change = line.pop_front();
        if line.is_empty() {
            self.hosts.remove(&host);
        } else {
            self.turns.push_back(host);
        }
        change
    }
}

/// What the addresses of all endpoints of a host have in common, as rpc counts hosts.
pub(super) fn host(addr: &Addr) -> Addr {
    match addr {
        Addr::Udp(addr) => Addr::Udp(SocketAddr::new(host_of(addr.ip()), 0)),
        Addr::Sim { host, .. } => Addr::Sim { host: *host, thread: 0 },
        Addr::Shm(_) | Addr::Node(_) => addr.clone(),
    }
}

/// The postponed changes of one core. While there are any, a task makes them: those of each host in the order in which
/// they came, and the hosts in turn. Clones are the same changes.
pub(super) struct Postponed<S, T: Transport> {
    pub shard: Rc<Shard<S>>,
    endpoint: Weak<Endpoint<T>>,
    waiting: Rc<RefCell<Waiting>>,
}

impl<S, T: Transport> Clone for Postponed<S, T> {
    fn clone(&self) -> Self {
        let (shard, endpoint, waiting) = (self.shard.clone(), self.endpoint.clone(), self.waiting.clone());
        Postponed { shard, endpoint, waiting }
    }
}

impl<S: Store + Visit + 'static, T: Transport + 'static> Postponed<S, T> {
    pub fn new(shard: &Rc<Shard<S>>, endpoint: &Rc<Endpoint<T>>) -> Postponed<S, T> {
        Postponed { shard: shard.clone(), endpoint: Rc::downgrade(endpoint), waiting: Rc::default() }
    }

    /// Whether to postpone a change: others are postponed, or have waited long enough for the disk in this turn.
    #[inline]
    pub fn is_due(&self, store: &S) -> bool {
        store.stalled() >= STALL_MAX || !self.waiting.borrow().is_empty()
    }

    /// Takes request `i` away, to be executed later; pushes it back if the handlers keep too many, or if its caller
    /// will not wait for long enough.
    #[cold]
    pub fn push(&self, burst: &mut RequestBurst<'_>, i: usize) {
        // Its own endpoint runs the handler.
        let Some(endpoint) = self.endpoint.upgrade() else { return };
        // A session that has ended has no peer, and nobody waits.
        let Some(host) = burst.context(i).peer().map(host) else { return burst.push_back(i) };
        let now = endpoint.loop_time();
        if burst.time_left(i).is_some_and(|left| left <= self.waiting.borrow().least(&host, now)) {
            return burst.push_back(i);
        }
        let Ok(request) = burst.defer(i) else { return burst.push_back(i) };
        self.enter(&endpoint, host, Change { since: now, request, kept: None });
    }

    /// The same for a request whose item was read from the tier.
    #[cold]
    pub fn push_read(&self, request: DeferredRequest, kept: Kept) {
        let Some(endpoint) = self.endpoint.upgrade() else { return };
        let Some(host) = request.request().context().peer().map(host) else { return request.push_back() };
        let now = endpoint.loop_time();
        if request.request().time_left().is_some_and(|left| left <= self.waiting.borrow().least(&host, now)) {
            return request.push_back();
        }
        self.enter(&endpoint, host, Change { since: now, request, kept: Some(kept) });
    }

    fn enter(&self, endpoint: &Endpoint<T>, host: Addr, change: Change) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.push(host, change);
        // The task may be making the last one, and this come of it.
        if !std::mem::replace(&mut waiting.is_made, true) {
            endpoint.spawn(make(self.clone(), endpoint.timers()));
        }
    }
}

/// Makes changes until none is left.
async fn make<S: Store + Visit + 'static, T: Transport + 'static>(postponed: Postponed<S, T>, timers: Timers) {
    let clock = Clock::new();
    let mut has_stalled = true;
    while !postponed.waiting.borrow().is_empty() {
        if has_stalled {
            // The snapshot and the other tasks of the core have a turn. Even if memcached's commands use that up, some
            // changes are made after it.
            timers.sleep(STALL_WAIT).await;
        } else {
            next_iteration().await;
        }
        has_stalled = make_some(&postponed, timers.now(), &clock);
    }
    postponed.waiting.borrow_mut().is_made = false;
}

/// Makes some changes, at least one unless nobody waits for any. Returns whether they have waited for the disk for long
/// enough.
fn make_some<S: Store + Visit + 'static, T: Transport + 'static>(
    postponed: &Postponed<S, T>,
    now: u64,
    clock: &Clock,
) -> bool {
    let Postponed { shard, waiting, .. } = postponed;
    let stalled = || shard.store.borrow().stalled();
    let (stalled_before, begun, least) = (stalled(), clock.now(), waiting.borrow().least);
    let (mut bytes, mut is_any_made, mut has_stalled) = (0, false, false);
    for _ in 0..CHANGES_MAX {
        let Some(Change { since, request, kept }) = waiting.borrow_mut().pop() else { break };
        bytes += request.request().payload().len();
        let kind = single::operate_late(postponed, request, least);
        drop(kept);
        if let Some(kind) = kind {
            is_any_made = true;
            // The clock of the event loop stands still meanwhile.
            let nanos = now.saturating_sub(since) + (clock.now() - begun);
            shard.metrics.borrow_mut().latency(kind, nanos, 1);
        }
        // The waiting of others, or a snapshot that gets no turn any more, stops nothing.
        let stalled = stalled();
        has_stalled = stalled >= STALL_MAX && stalled > stalled_before;
        if has_stalled || bytes > BYTES_MAX {
            break;
        }
    }
    let mut waiting = waiting.borrow_mut();
    if waiting.is_empty() {
        waiting.least = Duration::ZERO;
    } else if is_any_made {
        waiting.least = 2 * stalled().saturating_sub(stalled_before);
    }
    has_stalled
}

/// Waits for the next iteration of the event loop.
pub(super) async fn next_iteration() {
    let mut is_next = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_next, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
