//! All groups of a process on one endpoint: they share links, ticks, the log and its flushes.
//!
//! Each entry into the event loop is a visit. It touches groups, and each touched group then lets its library do what
//! is due. At the end of the visit, all outgoing messages are sent together. `docs/replication-groups.md` is the
//! design.

use std::cell::{Cell, Ref, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{CallOptions, Completion, ConnectError, Endpoint, RequestBurst, Session};

use super::clock::Ticks;
use super::core::{Claim, Common, Core, Job};
use super::founding::{self, Begin};
use super::link::Sending;
use super::replica::{Replica, WeakReplica};
use super::{Beginning, Net, Task, doubt, reads, transfer};
use crate::cluster_id::{ClusterId, bits};
use crate::config::{NodeConfig, NodeError};
use crate::erased::{AnyLog, Machine};
use crate::probe::Stage;
use crate::state::Origin;
use crate::wire::message::Sender;
use crate::wire::response::Response;
use crate::wire::{self, group_of};

/// Groups that a process may have.
pub(super) const GROUPS_MAX: usize = u16::MAX as usize;
/// Groups that are founded in one turn of the event loop, at most.
const FOUNDED_AT_ONCE: usize = 256;
/// If a process gets more visits per tick than this, averaged since its timer last fired, it sleeps for one tick only.
/// While it sleeps for several, each visit reads the clock, for 90 ns on some machines: with up to ten visits for each
/// write, that was a tenth of a write's latency.
const BUSY_VISITS: u32 = 16;

/// The log and the machine of a group.
type Group = (AnyLog, Box<dyn Machine>);

/// The state of a process: its groups, and what they share.
pub(super) struct Shared {
    pub cores: Box<[RefCell<Core>]>,
    pub common: Common,
    pub net: Net,
    pub config: NodeConfig,
    continuation: Cell<Option<dunlin_rpc::ContinuationId>>,
    /// Groups that were touched and have not worked since.
    touched: RefCell<VecDeque<u16>>,
    /// Groups that wait for the disk.
    unsettled: RefCell<Vec<u16>>,
    /// The groups of all envelopes of a burst, one envelope after the other; kept for its memory.
    pub envelope_groups: RefCell<Vec<u16>>,
    jobs: RefCell<Vec<(u16, Job)>>,
    /// The waker to wake when more is durable.
    waker: RefCell<Option<Waker>>,
    /// A visit is under way, or one panicked.
    is_entered: Cell<bool>,
    is_stopped: Cell<bool>,
    ticks: Ticks,
    /// Visits since the tick timer last fired.
    visits: Cell<u32>,
}

impl Shared {
    pub fn new(net: Net, config: NodeConfig, groups: Vec<Group>, beginning: Beginning) -> Result<Shared, NodeError> {
        if groups.is_empty() || groups.len() > GROUPS_MAX {
            return Err(NodeError::Groups { groups: groups.len() });
        }
        let common = Common::new(config.id, groups.len() as u16);
        let ticks = Ticks::new(config.tick, (config.clock)());
        let mut origin = known_origin(&groups)?;
        let mut cores = Vec::with_capacity(groups.len());
        for (group, (log, machine)) in (0..=u16::MAX).zip(groups) {
            let begin = begin(&beginning, group, origin.as_ref(), config.id)?;
            let core = Core::new(config.clone(), group, common.clone(), log, machine, begin)?;
            origin = origin.or_else(|| core.state.origin.clone());
            cores.push(RefCell::new(core));
        }
        Ok(Shared {
            cores: cores.into(),
            common,
            net,
            config,
            continuation: Cell::default(),
            touched: RefCell::default(),
            unsettled: RefCell::default(),
            envelope_groups: RefCell::default(),
            jobs: RefCell::default(),
            waker: RefCell::default(),
            is_entered: Cell::default(),
            is_stopped: Cell::default(),
            ticks,
            visits: Cell::new(0),
        })
    }

    /// Registers the handlers of requests and of responses.
    pub fn register<T: Transport>(self: &Rc<Self>, endpoint: &Endpoint<T>) -> Result<(), NodeError> {
        endpoint.propagate_panics();
        for kind in [wire::PEER, wire::CHUNK, wire::CLIENT] {
            let shared = self.clone();
            endpoint.register_burst(kind, move |burst| shared.on_requests(kind, burst))?;
        }
        // The handlers own the replicas; a weak reference is enough for the continuation.
        let weak = Rc::downgrade(self);
        let take = move |completion| Shared::on_completion(&weak, completion);
        self.continuation.set(Some(endpoint.register_continuation(take)));
        Ok(())
    }

    fn on_requests(self: &Rc<Self>, kind: u8, burst: &mut RequestBurst<'_>) {
        self.enter(|visit| match kind {
            wire::PEER => visit.on_envelopes(burst),
            wire::CHUNK => visit.on_chunks(burst),
            _ => visit.on_clients(burst),
        });
    }

    fn on_completion(shared: &Weak<Shared>, completion: Completion) {
        if let Some(shared) = shared.upgrade() {
            shared.enter(|visit| visit.on_answer(completion));
        }
    }

    /// Starts the tasks, and has each group do what is due.
    pub fn run(self: &Rc<Self>) {
        self.spawn_tasks();
        self.enter(|visit| (0..visit.len()).for_each(|group| visit.touch(group)));
    }

    /// Spawns the tasks of the process and of each group.
    fn spawn_tasks(self: &Rc<Self>) {
        let (weak, timers) = (Rc::downgrade(self), self.net.timers.clone());
        (self.net.spawn)(Box::pin(async move {
            let mut planned = 1;
            loop {
                let Some(left) = weak.upgrade().map(|shared| shared.ticks.left((shared.config.clock)())) else {
                    return;
                };
                timers.sleep(left).await;
                let Some(shared) = weak.upgrade() else { return };
                shared.enter(|visit| {
                    visit.pass_ticks();
                    let is_busy = visit.visits.take() > BUSY_VISITS.saturating_mul(planned);
                    planned = if is_busy { 1 } else { visit.ticks_to_sleep() };
                    visit.ticks.plan(planned);
                });
            }
        }));
        let weak = Rc::downgrade(self);
        (self.net.spawn)(Box::pin(poll_fn(move |context| {
            let Some(shared) = weak.upgrade() else { return Poll::Ready(()) };
            shared.enter(|visit| visit.on_durable(context));
            Poll::Pending
        })));
        let weak = Rc::downgrade(self);
        (self.net.spawn)(Box::pin(poll_fn(move |context| {
            let Some(shared) = weak.upgrade() else { return Poll::Ready(()) };
            let next = shared.common.turns.borrow_mut().next(context);
            if let Some(group) = next {
                shared.enter(|visit| _ = visit.visit(group, Core::take_turn));
            }
            Poll::Pending
        })));
        for group in 0..self.len() {
            self.replica(group).spawn_task();
        }
    }

    /// Returns a handle of a group's replica.
    pub fn replica(self: &Rc<Self>, group: u16) -> Replica {
        Replica { shared: self.clone(), group }
    }

    pub fn core(&self, group: u16) -> Ref<'_, Core> {
        self.cores[usize::from(group)].borrow()
    }

    pub fn len(&self) -> u16 {
        self.cores.len() as u16
    }

    /// Runs `act` on the groups, then everything that follows from it.
    pub fn enter(self: &Rc<Self>, act: impl FnOnce(&Self)) {
        // An earlier visit panicked halfway. The endpoint, which is ending, still reports the calls that end with it.
        if self.is_entered.replace(true) {
            return;
        }
        self.begin(Stage::Visit);
        self.visits.set(self.visits.get().saturating_add(1));
        if self.ticks.are_skipped() {
            self.pass_ticks();
        }
        act(self);
        self.work_touched();
        self.flush();
        self.end(Stage::Visit);
        self.is_entered.set(false);
        if !self.jobs.borrow().is_empty() {
            self.jobs.take().into_iter().for_each(|(group, job)| self.start(group, job));
        }
    }

    pub fn begin(&self, stage: Stage) {
        if let Some(probe) = &self.config.probe {
            probe.begin(stage);
        }
    }

    pub fn end(&self, stage: Stage) {
        if let Some(probe) = &self.config.probe {
            probe.end(stage);
        }
    }

    /// Runs `act` on a group, which works after that; `None` if there is no such group.
    pub fn visit<R>(&self, group: u16, act: impl FnOnce(&mut Core) -> R) -> Option<R> {
        let mut core = self.cores.get(usize::from(group))?.borrow_mut();
        if !std::mem::replace(&mut core.is_touched, true) {
            self.touched.borrow_mut().push_back(group);
        }
        Some(act(&mut core))
    }

    fn touch(&self, group: u16) {
        self.visit(group, |_| ());
    }

    /// Lets all touched groups do what is due.
    pub fn work_touched(&self) {
        loop {
            let Some(group) = self.touched.borrow_mut().pop_front() else {
                if self.make_memory() {
                    continue;
                }
                return self.pass_turn();
            };
            self.work(group);
        }
    }

    fn work(&self, group: u16) {
        let mut core = self.cores[usize::from(group)].borrow_mut();
        core.work();
        (core.is_touched, core.room) = (false, None);
        if !core.jobs.is_empty() {
            self.jobs.borrow_mut().extend(core.jobs.drain(..).map(|job| (group, job)));
        }
        if core.waits_for_disk() && !std::mem::replace(&mut core.is_unsettled, true) {
            self.unsettled.borrow_mut().push(group);
        }
        let failure = core.failure.clone();
        drop(core);
        if let Some(failure) = failure {
            self.stop_all(failure);
        }
        if group == 0 && self.len() > 1 {
            self.found_further();
        }
    }

    /// If no group is taking a snapshot, reserves the next turn for the one that has waited longest.
    fn pass_turn(&self) {
        while self.common.taking.get().is_none() {
            let Some(group) = self.common.next_taking.borrow_mut().pop_front() else { return };
            self.cores[usize::from(group)].borrow_mut().reserve_taking();
        }
        let keeps = |group| self.core(group).keeps_taking() || self.core(group).failure.is_some();
        debug_assert!(self.common.taking.get().is_some_and(keeps), "no group would take a snapshot any more");
    }

    /// If a group lacks the memory for a snapshot, has all groups give up those that they keep for copies. If it is one
    /// that a member sends, they also give up those that have come in part of anybody else; and if it is one of its own
    /// state, those of members, too. Returns whether there were any. Copies and transfers can begin again, but only
    /// an own snapshot makes room in the log.
    #[inline]
    fn make_memory(&self) -> bool {
        let lacks_memory = self.common.starved.get().is_some() || self.common.crowded.get().is_some();
        lacks_memory && self.make_memory_now()
    }

    #[cold]
    fn make_memory_now(&self) -> bool {
        let (starved, crowded) = (self.common.starved.take(), self.common.crowded.take());
        let Some(claim) = starved.map(|_| Claim::Own).or(crowded) else { return false };
        let mut is_more = false;
        for group in 0..self.len() {
            if self.core(group).has_memory_to_leave(claim) {
                self.visit(group, |core| core.leave_memory(claim));
                is_more = true;
            }
        }
        if is_more && let Some(starved) = starved {
            self.visit(starved, Core::compact_now);
        }
        is_more
    }

    /// A failure of one group stops all groups: they share the log and the process.
    fn stop_all(&self, why: NodeError) {
        if self.is_stopped.replace(true) {
            return;
        }
        for core in &self.cores {
            let mut core = core.borrow_mut();
            if core.failure.is_none() {
                core.stop(why.clone());
            }
        }
        self.common.links.borrow_mut().stop();
    }

    /// The first group knows the number of the cluster: the groups that wait for it begin.
    fn found_further(&self) {
        if self.len() == 1 {
            return;
        }
        let Some(cluster) = self.core(0).cluster else { return };
        let is_waiting = |core: &RefCell<Core>| matches!(core.borrow().waiting, Some(founding::Waiting::FirstGroup(_)));
        // They are founded in order.
        if !self.cores.last().is_some_and(is_waiting) {
            return;
        }
        let waiting = (1..self.len()).filter(|group| is_waiting(&self.cores[usize::from(*group)]));
        for group in waiting.take(FOUNDED_AT_ONCE) {
            self.visit(group, |core| core.found(cluster));
        }
    }

    /// Returns the number of the cluster, if any group knows it.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.common.cluster.get()
    }

    /// Returns how this process identifies itself.
    pub fn sender(&self) -> Sender {
        Sender { cluster: bits(self.cluster()), id: self.config.id }
    }

    /// Sends the waiting messages.
    fn flush(&self) {
        if self.is_stopped.get() {
            return;
        }
        let Some(continuation) = self.continuation.get() else { return };
        self.begin(Stage::Send);
        let mut links = self.common.links.borrow_mut();
        let sender = self.sender();
        links.answer(sender, |group| self.core(group).last_persisted);
        let (timeout, now) = (self.net.patience, links.now());
        let unreachable = links.send(Sending { sender, continuation, timeout, now });
        drop(links);
        self.end(Stage::Send);
        for id in unreachable {
            self.cores.iter().for_each(|core| core.borrow_mut().raft.report_unreachable(id));
        }
    }

    /// Counts the ticks that have passed.
    fn pass_ticks(&self) {
        let now = (self.config.clock)();
        for _ in 0..self.ticks.pass(now) {
            if !self.is_stopped.get() {
                self.common.links.borrow_mut().set_now(now);
                self.tick();
            }
        }
    }

    /// Returns the ticks until there is work that no incoming message announces: at most a heartbeat.
    fn ticks_to_sleep(&self) -> u32 {
        let all_rest = self.all_rest();
        let of_groups = self.cores.iter().filter(|_| !all_rest).map(|core| core.borrow().ticks_to_sleep()).min();
        let of_links =
            self.common.links.borrow().ticks_to_sleep(self.config.heartbeat_ticks, self.config.election_ticks);
        of_links.min(of_groups.unwrap_or(u32::MAX)).min(self.config.heartbeat_ticks)
    }

    /// Returns the number of groups that this process leads.
    pub fn led(&self) -> usize {
        self.cores.iter().filter(|core| core.borrow().is_leader()).count()
    }

    /// Whether all groups rest, and nothing is in flight to one.
    fn all_rest(&self) -> bool {
        self.resting() == self.cores.len() && self.common.snapshot_bytes.get() == 0
    }

    /// Returns the number of groups that rest.
    pub fn resting(&self) -> usize {
        self.common.links.borrow().resting
    }

    /// A tick has passed.
    fn tick(&self) {
        let awake = if self.all_rest() { 0 } else { self.len() };
        for group in 0..awake {
            let core = self.core(group);
            let (rests, holds_memory) = (core.is_resting(), core.incoming.is_some() || core.copies.are_made());
            drop(core);
            match (rests, holds_memory) {
                (false, _) => _ = self.visit(group, Core::tick),
                // It uses memory of all groups, so it expires even while its own group rests.
                (true, true) => {
                    self.visit(group, |core| {
                        core.expire_incoming();
                        core.expire_copy();
                    });
                }
                (true, false) => {}
            }
        }
        let missed = self.common.links.borrow_mut().tick(self.config.heartbeat_ticks, self.config.election_ticks);
        for (id, ticks) in missed {
            self.cores.iter().for_each(|core| core.borrow_mut().wake_without(id, ticks));
        }
        self.found_further();
        let holder = self.core(0).raft.store().held_by();
        if let Some(holder) = holder {
            self.visit(holder, Core::make_room_in_log);
        }
        let unconnected = self.common.links.borrow_mut().unconnected();
        let connects = unconnected.into_iter().map(|(link, addr)| (0, Job::Connect { link, addr }));
        self.jobs.borrow_mut().extend(connects);
    }

    /// More is durable, or may be.
    fn on_durable(&self, context: &Context<'_>) {
        let waker = context.waker();
        // The waker must be set before the visit checks what is durable, so that no completion is missed.
        if !self.waker.borrow().as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.waker.replace(Some(waker.clone()));
            self.cores.iter().for_each(|core| core.borrow_mut().wake_when_durable(waker));
        }
        for group in self.unsettled.take() {
            self.visit(group, |core| core.is_unsettled = false);
        }
    }

    /// Handles requests of clients, each for a group.
    fn on_clients(&self, burst: &mut RequestBurst<'_>) {
        for i in 0..burst.len() {
            let group = group_of(burst.payload(i)).unwrap_or(0);
            if self.visit(group, |core| core.on_client_request(burst, i)).is_none() {
                let response = Response::NoGroup { groups: self.cores.len() as u32 };
                burst.respond_written(i, response.encoded_len(), |out| response.encode(out));
            }
        }
    }

    /// Handles pieces of snapshots, each of a group.
    fn on_chunks(&self, burst: &mut RequestBurst<'_>) {
        for i in 0..burst.len() {
            let group = group_of(burst.payload(i)).unwrap_or(0);
            match self.visit(group, |core| core.on_piece(burst, i)) {
                None => _ = self.visit(0, |core| core.counters.bad += 1),
                // Now, since before the member tries again strangers might have taken the memory once more.
                Some(true) if self.make_memory() => _ = self.visit(group, |core| core.on_piece(burst, i)),
                Some(_) => {}
            }
        }
    }

    /// Closes all replicas: the log is closed once for all of them.
    pub fn close(self: &Rc<Self>) -> Result<(), NodeError> {
        let mut closed = Err(NodeError::Closed);
        self.enter(|visit| {
            if let Some(result) = visit.visit(0, Core::close) {
                closed = result;
            }
        });
        closed
    }

    /// Begins longer work, as a task.
    fn start(self: &Rc<Self>, group: u16, job: Job) {
        let net = &self.net;
        let weak = WeakReplica { shared: Rc::downgrade(self), group };
        let task: Task = match job {
            Job::Connect { link, addr } => {
                let Some(connecting) = (net.connect)(&addr) else { return };
                Box::pin(connect(weak.shared, link, addr, connecting))
            }
            Job::Gather(time) => {
                let sleep = net.timers.sleep(time);
                Box::pin(async move {
                    sleep.await;
                    if let Some(node) = weak.upgrade() {
                        node.enter(|core| core.gather.looked());
                    }
                })
            }
            Job::AskForNumber(question) => {
                let Some(connecting) = (net.connect)(&question.addr) else { return };
                Box::pin(founding::ask(weak, question, connecting, CallOptions::timeout(net.patience)))
            }
            Job::Resolve(doubt) => Box::pin(doubt::resolve(weak, doubt, CallOptions::timeout(net.patience))),
            Job::AskIndex { session, number } => {
                Box::pin(reads::ask_index(weak, session, number, CallOptions::timeout(net.patience)))
            }
            Job::SendSnapshots { to } => Box::pin(transfer::send_all(weak.shared, to, net.timers.clone())),
        };
        (net.spawn)(task);
    }
}

/// Opens a session for a link.
async fn connect(
    shared: Weak<Shared>,
    link: u32,
    addr: Addr,
    connecting: impl Future<Output = Result<Session, ConnectError>>,
) {
    let result = connecting.await;
    if let Some(shared) = shared.upgrade() {
        shared.enter(|visit| visit.common.links.borrow_mut().on_connected(link, &addr, result));
    }
}

/// Returns the cluster that the logs belong to, if one of them has begun.
fn known_origin(groups: &[Group]) -> Result<Option<Origin>, NodeError> {
    let begun = groups.iter().map(|(log, _)| log.base()).find(|base| base.get_metadata().index > 0);
    Ok(begun.map(|base| Origin::of_snapshot(&base.data)).transpose()?)
}

/// Decides how a group with an empty log begins.
fn begin(beginning: &Beginning, group: u16, origin: Option<&Origin>, own: u64) -> Result<Begin, NodeError> {
    Ok(match (origin, beginning) {
        // The process ended before all groups were founded, or it learned of the first one just now.
        (Some(origin), _) if origin.founders.contains_key(&own) => Begin::Told(origin.clone()),
        (Some(_), _) | (None, Beginning::Join) => Begin::Join,
        (None, Beginning::First(members)) if group == 0 => Begin::First(members.clone()),
        (None, Beginning::First(members)) => Begin::WithTheFirst(super::first_members(members, own)?),
    })
}
