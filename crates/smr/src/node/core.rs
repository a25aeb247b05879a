//! The state of a replica, and the loop that carries out what the library asks for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use dunlin_net::Addr;
use dunlin_net::clock::nanos;
use dunlin_net::random::Random;
use dunlin_rpc::Session;
use raft::eraftpb::{Message, MessageType, Snapshot};
use raft::{RawNode, Ready, StateRole};

use super::backup::Copies;
use super::changes::Changes;
use super::clients::Waiters;
use super::disk::DiskWatch;
use super::doubt::{self, Doubts};
use super::foreign::Foreigners;
use super::founding::{Asking, Begin, Question, Waiting, draw};
use super::gather::Gather;
use super::kept::KeptQuestions;
use super::later::Later;
use super::link::Links;
use super::reads::PendingReads;
use super::rest::Rest;
use super::restore::{Rejected, Restoring};
use super::settings::library_config;
use super::snapshots::{FIRST, Snapshots, Turns, first_batch};
use super::transfer::{Failures, Incoming, Outgoing, Staging};
use super::{Counters, first_members};
use crate::cluster_id::ClusterId;
use crate::config::{NodeConfig, NodeError, Reads};
use crate::erased::{AnyLog, Machine};
use crate::log::{Batch, LogError, Room, Ticket, Urgency};
use crate::machine::RestoreError;
use crate::mutation::{Mutation, is_planted};
use crate::probe::Stage;
use crate::sessions::Limits;
use crate::state::{Origin, Replicated, members_of_snapshot};
use crate::wire::message::Addressed;
use crate::wire::response::Response;

/// Work that outlives one entry into the event loop, and runs as a task.
pub(super) enum Job {
    /// Opens a session.
    Connect { link: u32, addr: Addr },
    /// Sends the snapshots that wait for a process.
    SendSnapshots { to: u64 },
    /// Checks held commands after this time.
    Gather(Duration),
    /// Asks another first member for the number of the cluster.
    AskForNumber(Question),
    /// Asks a member for its status, and for what it remembers.
    Resolve(doubt::Question),
    /// Asks a leader for the commit index, for the reads with this number.
    AskIndex { session: Session, number: u64 },
}

/// Writes whose messages are held back until they are durable. Beyond that, requests of other replicas are left unread,
/// as if the network had lost them. A working disk never has that many.
const UNPERSISTED_MAX: usize = 4096;

/// Messages that are held back until a write is durable.
struct Unpersisted {
    /// The number of the library's `Ready`.
    ready: u64,
    ticket: Ticket,
    messages: Vec<Message>,
}

/// A snapshot for which there is no memory, while others have some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Somebody sends it in the name of a leader.
    Stranger,
    /// A member sends it.
    Member,
    /// It is one of the own state.
    Own,
}

/// What the groups of a process share, as one of them sees it.
#[derive(Clone)]
pub(super) struct Common {
    /// The number of groups.
    pub groups: u16,
    pub links: Rc<RefCell<Links>>,
    /// The groups that do pieces of snapshots.
    pub turns: Rc<RefCell<Turns>>,
    /// The group that is taking a snapshot of its state, or has the next turn to begin one: one at a time.
    pub taking: Rc<Cell<Option<u16>>>,
    /// Those that are to take one after it, in this order.
    pub next_taking: Rc<RefCell<VecDeque<u16>>>,
    /// Memory of all snapshots in flight, in bytes.
    pub snapshot_bytes: Rc<Cell<u64>>,
    /// The part of these that leaders send.
    pub received_bytes: Rc<Cell<u64>>,
    /// Memory of the snapshots that the logs begin with, in bytes.
    pub base_bytes: Rc<Cell<u64>>,
    /// A group that cannot take a snapshot, since those of other groups use the memory.
    pub starved: Rc<Cell<Option<u16>>>,
    /// There was no memory for a snapshot that a leader sends: this one.
    pub crowded: Rc<Cell<Option<Claim>>>,
    /// The number of the cluster, if any group knows it: all of them are of one.
    pub cluster: Rc<Cell<Option<ClusterId>>>,
    pub changes: Changes,
}

impl Common {
    pub fn new(own: u64, groups: u16) -> Common {
        let links = Rc::new(RefCell::new(Links::new(own)));
        Common {
            groups,
            links,
            turns: Rc::default(),
            taking: Rc::default(),
            next_taking: Rc::default(),
            snapshot_bytes: Rc::default(),
            received_bytes: Rc::default(),
            base_bytes: Rc::default(),
            starved: Rc::default(),
            crowded: Rc::default(),
            cluster: Rc::default(),
            changes: Changes::default(),
        }
    }
}

/// The state of a replica.
pub(super) struct Core {
    pub config: NodeConfig,
    /// The number of its group.
    pub group: u16,
    pub common: Common,
    /// This group's share of `common.snapshot_bytes`.
    pub own_snapshot_bytes: u64,
    /// This group's share of `common.received_bytes`.
    pub own_received_bytes: u64,
    /// This group's share of `common.base_bytes`.
    pub own_base_bytes: u64,
    pub raft: RawNode<AnyLog>,
    pub state: Replicated,
    /// The number of the cluster; `None` while this replica does not take part yet, and `waiting` says what it waits
    /// for.
    pub cluster: Option<ClusterId>,
    pub waiting: Option<Waiting>,
    /// The write that must be durable before others may learn the number drawn here.
    pub founded: Ticket,
    pub foreign: Foreigners,
    pub doubts: Doubts,
    pub applied: u64,
    /// For each replica that answered as a follower: when the latest request that it answered was sent, and in which
    /// term.
    pub heard: BTreeMap<u64, (u64, u64)>,
    pub rest: Rest,
    pub waiters: Waiters,
    pub gather: Gather,
    pub reads: PendingReads,
    pub kept: KeptQuestions,
    pub incoming: Option<Incoming>,
    /// Snapshots of members that were given up since they came slowly, after the last one that came as a whole.
    pub given_up: u32,
    pub staging: Option<Staging>,
    /// The state of the log's own snapshot, while it is being restored. Nothing is executed before that is done.
    pub own_restoring: Option<Restoring>,
    /// The state of a leader's snapshot, from when the library gets the snapshot until it accepts it.
    pub restored: Option<Replicated>,
    pub rejected: Rejected,
    /// Snapshots being sent, each once for every receiver.
    pub sending: Vec<Bytes>,
    /// By member.
    pub failures: BTreeMap<u64, Failures>,
    pub copies: Copies,
    pub later: Later,
    pub snapshots: Snapshots,
    pub counters: Counters,
    /// Why the replica has stopped.
    pub failure: Option<NodeError>,
    /// It was touched in this visit of the host, and has work to do.
    pub is_touched: bool,
    /// The host checks it when more is durable.
    pub is_unsettled: bool,
    pub random: Random,
    pub election: super::election::Election,
    pub disk: DiskWatch,
    /// Whether the log takes entries, as of the present burst; `None` until it is asked.
    pub room: Option<Room>,
    unpersisted: VecDeque<Unpersisted>,
    /// The number of the library's last `Ready`, and of the last one that is persisted.
    pub last_ready: u64,
    pub last_persisted: u64,
    /// The last term that was written, and the number of the `Ready` with which that becomes durable.
    term_written: (u64, u64),
    pub jobs: Vec<Job>,
    role: StateRole,
    leader: u64,
    /// As leader: the cluster's time when it was elected, and its own clock at that time.
    pub time_base: (u64, u64),
}

impl Core {
    pub fn new(
        config: NodeConfig,
        group: u16,
        common: Common,
        mut log: AnyLog,
        machine: Box<dyn Machine>,
        begin: Begin,
    ) -> Result<Self, NodeError> {
        let limits = Limits {
            sessions_max: config.sessions_max,
            idle_max: nanos(config.session_idle_max),
            reply_bytes_max: config.session_reply_bytes_max,
        };
        let mut state = Replicated::new(machine, limits, Default::default());
        let (mut waiting, mut founded) = (None, Ticket::default());
        match (begin, log.base().get_metadata().index) {
            (Begin::First(_), 0) if config.cluster.is_some() => return Err(NodeError::Drawn),
            (Begin::First(members), 0) => {
                let founders = first_members(&members, config.id)?;
                if founders.keys().next() == Some(&config.id) {
                    state.members.clone_from(&founders);
                    state.origin = Some(Origin { cluster: draw(&config)?, groups: common.groups, founders });
                    founded = log.append(first_batch(&state))?;
                } else {
                    waiting = Some(Waiting::Founders(Asking::new(founders)));
                }
            }
            (Begin::Told(origin), 0) => {
                state.members.clone_from(&origin.founders);
                state.origin = Some(origin);
                founded = log.found(first_batch(&state))?;
            }
            (Begin::WithTheFirst(founders), 0) => waiting = Some(Waiting::FirstGroup(founders)),
            (Begin::Join, 0) if log.first_index()? > FIRST => {
                return Err(LogError { why: format!("the first snapshot of group {group} is gone") }.into());
            }
            (Begin::Join, 0) => waiting = Some(Waiting::Leader),
            _ => {}
        }
        let base = log.base().clone();
        let applied = base.get_metadata().index;
        let mut own_restoring = None;
        if applied > 0 {
            // The given machine may hold its first state already.
            own_restoring = Some(Restoring::new(base.data.clone(), state.fresh()));
            state.origin = Some(Origin::of_snapshot(&base.data)?);
            // Until then, the replica needs the members: to know whom to doubt, who leads, and how to reach them.
            state.members = members_of_snapshot(&base.data)?;
        }
        if let Some(origin) = &state.origin {
            origin.check_groups(common.groups)?;
        }
        let cluster = state.origin.as_ref().map(|origin| origin.cluster);
        if let (Some(ours), Some(asked)) = (cluster, common.cluster.get().or(config.cluster))
            && ours != asked
        {
            return Err(NodeError::OtherCluster { ours, asked });
        }
        common.cluster.set(common.cluster.get().or(cluster));
        let hard_state = log.initial_state()?.hard_state;
        let now = (config.clock)();
        // Groups of a process must not all ask for votes at the same time.
        let spread = config.id.wrapping_add(u64::from(group) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let seed = config.seed.map_or(now ^ spread, |seed| seed ^ u64::from(group).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let gather = Gather::new(config.batching, &log);
        let raft = RawNode::new(&library_config(&config, applied), log, &logger)?;
        let was_there_before = (hard_state.term > FIRST || raft.raft.raft_log.last_index() > FIRST)
            && !is_planted(Mutation::VoteForgotten);
        let mut random = Random::new(seed);
        let election = super::election::Election::new(&config, was_there_before, &mut random);
        let disk = DiskWatch::new(&config);
        let mut core = Core {
            group,
            common,
            own_snapshot_bytes: 0,
            own_received_bytes: 0,
            own_base_bytes: 0,
            raft,
            state,
            cluster,
            waiting,
            founded,
            foreign: Foreigners::default(),
            doubts: Doubts::default(),
            applied: 0,
            heard: BTreeMap::new(),
            rest: Rest::default(),
            waiters: Waiters::default(),
            gather,
            reads: PendingReads::default(),
            kept: KeptQuestions::default(),
            incoming: None,
            given_up: 0,
            staging: None,
            own_restoring,
            restored: None,
            rejected: Rejected::default(),
            sending: Vec::new(),
            failures: BTreeMap::new(),
            copies: Copies::default(),
            later: Later::default(),
            snapshots: Snapshots::default(),
            counters: Counters::default(),
            failure: None,
            is_touched: false,
            is_unsettled: false,
            random,
            election,
            disk,
            room: None,
            unpersisted: VecDeque::new(),
            last_ready: 0,
            last_persisted: 0,
            term_written: (0, 0),
            jobs: Vec::new(),
            role: StateRole::Follower,
            leader: 0,
            time_base: (0, now),
            config,
        };
        core.common.links.borrow_mut().follow(core.group, &core.state.members);
        core.note_base();
        core.continue_restore()?;
        core.ask_for_number();
        Ok(core)
    }

    #[inline]
    pub fn begin(&self, stage: Stage) {
        if let Some(probe) = &self.config.probe {
            probe.begin(stage);
        }
    }

    #[inline]
    pub fn end(&self, stage: Stage) {
        if let Some(probe) = &self.config.probe {
            probe.end(stage);
        }
    }

    pub fn now(&self) -> u64 {
        (self.config.clock)()
    }

    pub fn is_leader(&self) -> bool {
        self.raft.raft.state == StateRole::Leader
    }

    pub fn wake_when_durable(&mut self, waker: &Waker) {
        self.raft.mut_store().wake_when_durable(waker);
    }

    /// Stops for good.
    pub fn fail(&mut self, error: NodeError) {
        tracing::error!(id = self.config.id, %error, "a replica stops");
        self.stop(error);
    }

    pub fn stop(&mut self, why: NodeError) {
        self.failure = Some(why);
        self.common.changes.note();
        self.wake();
        self.waiters.fail_all();
        self.reads.fail_all();
        self.end_kept(&Response::Failed);
        self.incoming = None;
        self.give_up_copy();
        self.staging.take().into_iter().for_each(Staging::discard);
        self.own_restoring.take().into_iter().for_each(Restoring::discard);
        self.abandon_snapshot();
    }

    /// Stops cleanly: the log is durable, and marked as complete.
    pub fn close(&mut self) -> Result<(), NodeError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let closed = self.raft.mut_store().close().map_err(NodeError::Log);
        self.stop(closed.clone().err().unwrap_or(NodeError::Closed));
        closed
    }

    /// Carries out everything the library asks for.
    pub fn work(&mut self) {
        if self.config.reads == Reads::Lease {
            self.common.links.borrow_mut().set_now(self.now());
        }
        self.submit();
        self.ask_to_read();
        while self.failure.is_none() {
            if let Err(error) = self.settle() {
                return self.fail(error);
            }
            // Held messages may go once the message that they waited for is answered.
            if !self.raft.has_ready() {
                if self.submit() {
                    continue;
                }
                break;
            }
            self.begin(Stage::Ready);
            let ready = self.raft.ready();
            self.end(Stage::Ready);
            if let Err(error) = self.handle(ready) {
                return self.fail(error);
            }
        }
        if self.failure.is_none() {
            self.answer_reads();
        }
        self.note_snapshots();
    }

    /// Whether the log takes entries, checked once per burst, since that may take a lock.
    pub fn room(&mut self) -> Room {
        *self.room.get_or_insert_with(|| self.raft.store().room())
    }

    /// Whether anything waits for the disk.
    pub fn waits_for_disk(&self) -> bool {
        !self.unpersisted.is_empty() || self.raft.store().is_compacting() || self.staging.is_some()
    }

    /// Whether everything is written and executed, so that this replica's state is up to date with its leader's.
    pub fn has_written_all(&self) -> bool {
        self.unpersisted.is_empty() && self.later.is_empty()
    }

    /// Carries out one `Ready` of the library.
    fn handle(&mut self, mut ready: Ready) -> Result<(), NodeError> {
        self.last_ready = ready.number();
        if let Some(hard_state) = ready.hs().filter(|hard_state| hard_state.term != self.term_written.0) {
            self.term_written = (hard_state.term, ready.number());
        }
        // A leader has none of these.
        let mut held = ready.take_persisted_messages();
        for message in ready.take_messages() {
            // A leader's disk need not be faster than the others' (Raft dissertation, section 10.2.1). But the only
            // voter elects itself before its vote is durable. If others heard of that term and it forgot it, it would
            // lead in the same term again, with other entries. Heartbeats would pile up while the disk hangs.
            let must_wait = self.term_written.1 > self.last_persisted;
            match message.get_msg_type() {
                MessageType::MsgHeartbeat if must_wait => {}
                _ if must_wait => held.push(message),
                _ => self.route(message),
            }
        }
        let role_changed = ready.ss().is_some();
        if !ready.snapshot().is_empty() {
            self.restore(ready.snapshot())?;
        }
        self.reads.granted(ready.take_read_states());
        let committed = ready.take_committed_entries();
        let batch = Batch {
            snapshot: (!ready.snapshot().is_empty()).then(|| ready.snapshot().clone()),
            entries: ready.take_entries(),
            hard_state: ready.hs().cloned(),
            urgency: if ready.must_sync() { Urgency::Urgent } else { Urgency::Lazy },
        };
        self.write(ready.number(), batch, held)?;
        self.commit(committed);
        self.begin(Stage::Ready);
        self.raft.advance_append_async(ready);
        self.report_applied();
        self.end(Stage::Ready);
        if role_changed {
            self.on_role();
        }
        self.compact_if_due();
        Ok(())
    }

    fn write(&mut self, number: u64, batch: Batch, messages: Vec<Message>) -> Result<(), NodeError> {
        if is_planted(Mutation::SaidBeforeDurable) {
            messages.iter().for_each(|message| self.route(message.clone()));
        }
        let (is_empty, urgency) = (batch.is_empty(), batch.urgency);
        let mut ticket = None;
        if !is_empty {
            self.begin(Stage::Log);
            let written = self.raft.mut_store().append(batch);
            self.end(Stage::Log);
            ticket = Some(written?);
        }
        // A lazy write is as durable as it need be when the writes before it are.
        let ticket = ticket.filter(|_| urgency == Urgency::Urgent);
        if ticket.is_some() && self.unpersisted.is_empty() {
            self.flush_began(number);
        }
        let ticket = ticket.unwrap_or_else(|| self.unpersisted.back().map_or(Ticket(0), |before| before.ticket));
        // A leader's heartbeats go on while its disk hangs: those that wait for the same write are merged.
        if let Some(before) = self.unpersisted.back_mut()
            && before.ticket == ticket
            && messages.is_empty()
        {
            before.ready = number;
            return Ok(());
        }
        self.unpersisted.push_back(Unpersisted { ready: number, ticket, messages });
        Ok(())
    }

    /// Continues with writes that have become durable.
    fn settle(&mut self) -> Result<(), NodeError> {
        let is_compacting = self.raft.store().is_compacting();
        if self.unpersisted.is_empty() && !is_compacting && self.staging.is_none() {
            return Ok(());
        }
        let begun = is_compacting.then(|| self.now());
        let durable = self.raft.mut_store().durable()?;
        if let Some(begun) = begun
            && !self.raft.store().is_compacting()
        {
            self.note_pause(begun);
        }
        self.install_staged()?;
        let mut number = None;
        while self.unpersisted.front().is_some_and(|write| write.ticket <= durable) {
            let Some(write) = self.unpersisted.pop_front() else { break };
            number = Some(write.ready);
            if !is_planted(Mutation::SaidBeforeDurable) {
                write.messages.into_iter().for_each(|message| self.route(message));
            }
        }
        if let Some(number) = number {
            self.flush_ended(number);
            self.last_persisted = number;
            self.begin(Stage::Ready);
            self.raft.on_persist_ready(number);
            self.report_applied();
            self.end(Stage::Ready);
        }
        Ok(())
    }

    /// Tells the library which entries are executed. It accepts only durable ones, and a snapshot's state becomes
    /// durable some time after it was restored.
    pub fn report_applied(&mut self) {
        let log = &self.raft.raft.raft_log;
        let applied = self.applied.min(log.persisted);
        if applied > log.applied {
            self.raft.advance_apply_to(applied);
        }
    }

    fn route(&mut self, message: Message) {
        debug_assert_ne!(message.get_msg_type(), MessageType::MsgPropose, "commands are not passed on");
        if message.get_msg_type() == MessageType::MsgTimeoutNow {
            // The receiver may be elected while others still honour this leader's lease.
            self.reads.give_up_lease(self.raft.raft.term);
        }
        let addressed = Addressed { group: self.group, asks_to_rest: false, message };
        if addressed.message.get_msg_type() == MessageType::MsgSnapshot {
            return self.send_snapshot(Outgoing::new(addressed));
        }
        self.common.links.borrow_mut().route(addressed);
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<(), NodeError> {
        self.counters.snapshots_restored += 1;
        self.later.forget();
        self.abandon_snapshot();
        let index = snapshot.get_metadata().index;
        match self.restored.take() {
            Some(state) => self.become_restored(state, index),
            // The first snapshot was made from the state here.
            None if index == FIRST => {
                self.applied = index;
                self.common.links.borrow_mut().follow(self.group, &self.state.members);
            }
            None => return Err(RestoreError::new("no state was restored from it").into()),
        }
        Ok(())
    }

    /// The role, the leader or both have changed.
    fn on_role(&mut self) {
        let (role, leader, term) = (self.raft.raft.state, self.raft.raft.leader_id, self.raft.raft.term);
        if (role, leader) == (self.role, self.leader) {
            return;
        }
        let led = self.role == StateRole::Leader;
        (self.role, self.leader) = (role, leader);
        self.common.changes.note();
        self.election.renew(&mut self.random);
        self.failures.clear();
        if role == StateRole::Leader {
            self.counters.elected += 1;
            // Executing them advances the cluster's time, which the next line reads.
            self.execute_committed();
            self.time_base = (self.state.time, self.now());
            tracing::info!(id = self.config.id, term, "leads");
        } else {
            if led {
                tracing::info!(id = self.config.id, term, leader, "leads no longer");
            }
            let hint = self.leader_hint();
            self.waiters.turn_away(&hint);
            self.reads.turn_away(&hint);
            self.end_kept(&Response::NotLeader { leader: hint });
        }
    }

    /// Returns the leader and its address.
    pub fn leader_hint(&self) -> Option<(u64, String)> {
        let leader = self.raft.raft.leader_id;
        self.state.members.get(&leader).map(|address| (leader, address.clone()))
    }

    /// Returns the cluster's time, as a leader states it.
    pub fn cluster_time(&self) -> u64 {
        let (cluster, own) = self.time_base;
        cluster + (self.now() - own)
    }

    /// Whether answers may be sent now: everything stepped so far is persisted.
    pub fn all_is_persisted(&self) -> bool {
        self.last_persisted == self.last_ready
    }

    /// Whether this replica must not stand for election: its disk hangs, so it could not keep its promises; or the disk
    /// does not have the snapshot yet that the state was restored from, for which the library would panic; or the
    /// replica may have lost acknowledged entries; or its state is not restored or far behind, so it could serve
    /// nobody.
    pub fn is_unfit(&self) -> bool {
        self.has_backlog()
            || self.own_restoring.is_some()
            || self.disk.hangs()
            || self.doubts.exist()
            || self.raft.raft.raft_log.persisted < self.applied
            || self.lacks_flush_alone()
    }

    /// Whether this replica is the only voter, and its log is not durable to the end: it would elect itself at once, for
    /// which the library would panic. With others, its requests for votes wait for the flush.
    fn lacks_flush_alone(&self) -> bool {
        let (log, voters) = (&self.raft.raft.raft_log, self.raft.raft.prs().conf().voters().ids());
        log.persisted < log.last_index() && voters.iter().all(|id| id == self.config.id)
    }

    /// Whether the limit of messages held back for the disk is reached.
    pub fn holds_too_much(&self) -> bool {
        self.unpersisted.len() >= UNPERSISTED_MAX
    }
}
