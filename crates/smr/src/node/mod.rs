//! A replica: the library, a log, a state machine and an endpoint, joined. A process may have one of each of many groups.
//!
//! All work is done where its cause is: in the handler of a burst of requests, in the continuation of a call, when a tick has passed, or when the
//! log has become durable. Each of these enters the host, touches groups, lets their libraries do what is due, sends what that gave, and leaves.
//!
//! | File | What it holds |
//! |---|---|
//! | `host` | all groups of a process, and what they share |
//! | `envelopes` | messages of other processes, in requests of theirs and in answers to ours |
//! | `founding` | how it learns the number of its cluster |
//! | `foreign` | replicas of other clusters |
//! | `core` | the state of a replica, and the loop that does what the library says |
//! | `receive` | messages of other replicas |
//! | `possible` | which of them can be true |
//! | `conflict` | where the log of a follower parts from the leader's |
//! | `doubt` | what only its sender can confirm: that this replica has lost its log, and terms far ahead |
//! | `link` | the way to another process: sessions, what is sent, what is answered |
//! | `clients` | requests of clients, and who waits for which entry |
//! | `gather` | which commands go to the disk together |
//! | `reads` | reads, by read index and by lease |
//! | `backup` | pieces of the state for whoever keeps a copy |
//! | `kept` | questions that wait until there is an answer |
//! | `members` | changes of who belongs to the cluster |
//! | `changes` | who is told that something has changed |
//! | `clock` | ticks of a process, of which it sleeps through those in which there is nothing to do |
//! | `election` | ticks of a group, and when it asks for votes |
//! | `rest` | groups that have nothing to do |
//! | `disk` | disks that hang |
//! | `later` | what can wait until messages are on their way |
//! | `snapshots` | snapshots of its own state |
//! | `transfer` | snapshots on their way |
//! | `restore` | states that are restored from snapshots |
//! | `settings`, `status` | how the library is set up; how the replica is |

pub(crate) mod backup;
mod changes;
mod clients;
mod clock;
mod conflict;
mod core;
mod disk;
mod doubt;
mod election;
mod envelopes;
mod foreign;
mod founding;
mod gather;
mod host;
mod kept;
mod later;
mod link;
mod members;
mod possible;
mod reads;
mod receive;
mod rest;
mod restore;
mod settings;
mod snapshots;
mod status;
mod transfer;

use std::cell::{Ref, RefMut};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Connecting, Endpoint, Timers};

use self::core::Core;
pub use self::host::Host;
use self::host::Shared;
use crate::config::{NodeConfig, NodeError};
use crate::log::LogStore;
use crate::machine::StateMachine;
use crate::wire;
use crate::wire::response::Status;

/// With what a replica begins whose log is empty. One whose log is not goes on from there.
///
/// A log that was lost looks like one that never was. A replica that begins anew under an id that it had before may vote twice in a term, and then writes
/// that were acknowledged are lost: whoever starts it must know that this is its first start. `dunlin raft serve` has `--new` and `--join` for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    /// It is one of the first members of a new cluster, all of which are given the same list: id and address of each. The one with the lowest id draws the number of
    /// the cluster, and the others take part in nothing until one of them has told them.
    First(Vec<(u64, Addr)>),
    /// It will be added to a cluster, and waits for its leader, which sends it a snapshot.
    Join,
}

/// What a replica has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands that it appended as leader.
    pub proposed: u64,
    /// Entries that it executed.
    pub applied: u64,
    /// Reads that it answered.
    pub reads: u64,
    /// Of these, by lease.
    pub lease_reads: u64,
    /// Of these, as a follower, which asked its leader.
    pub follower_reads: u64,
    /// Questions of a follower to its leader for how much is committed, each for all reads that waited.
    pub index_questions: u64,
    /// Questions that wait now until there is an answer.
    pub kept_questions: u64,
    /// Those that were kept, and have had their answer.
    pub kept_answered: u64,
    /// Times it became leader.
    pub elected: u64,
    /// Requests that it pushed back.
    pub pushed_back: u64,
    /// Envelopes that it sent, as requests or in responses.
    pub envelopes: u64,
    /// Raft's messages in them.
    pub messages: u64,
    /// Messages that it did not understand, or that contradict what it knows.
    pub bad: u64,
    /// Messages of other clusters, in requests and in responses, none of which it acted on.
    pub foreign: u64,
    /// Snapshots of its own state that it took.
    pub snapshots_taken: u64,
    /// Snapshots that others have from it.
    pub snapshots_sent: u64,
    /// Snapshots that it was restored from.
    pub snapshots_restored: u64,
    /// Snapshots of others that came whole, and that it could not be restored from: it went on as it was.
    pub snapshots_rejected: u64,
    /// Times that its disk hung.
    pub disk_hangs: u64,
    /// Requests of other replicas that it did not look at, since it holds as much as it may for a disk that is behind.
    pub left_unread: u64,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;
/// Begins to open a session, while there is an endpoint.
type Connector = dyn Fn(&Addr) -> Option<Connecting>;

/// What a replica uses of its endpoint, whatever its transport.
struct Net {
    connect: Box<Connector>,
    spawn: Box<dyn Fn(Task)>,
    timers: Timers,
    /// How long another replica may take to answer a question.
    patience: Duration,
}

/// A handle of a replica. Clones are handles of the same one; it lives as long as its endpoint.
pub struct Node<M, L: LogStore> {
    shared: Rc<Shared<M, L>>,
    group: u16,
}

impl<M, L: LogStore> Clone for Node<M, L> {
    fn clone(&self) -> Self {
        Node { shared: self.shared.clone(), group: self.group }
    }
}

/// A handle that keeps nothing alive.
struct WeakNode<M, L: LogStore> {
    shared: Weak<Shared<M, L>>,
    group: u16,
}

impl<M, L: LogStore> WeakNode<M, L> {
    fn upgrade(&self) -> Option<Node<M, L>> {
        self.shared.upgrade().map(|shared| Node { shared, group: self.group })
    }
}

impl<M: StateMachine + 'static, L: LogStore + 'static> Node<M, L> {
    /// Starts the replica of the only group of a process on an endpoint ([`Host::start`] has several). It serves clients and other replicas from then on, with
    /// request types [`wire::PEER`], [`wire::CHUNK`] and [`wire::CLIENT`]. `machine` is in its first state; what the log has is
    /// executed again. The state of the snapshot that the log begins with is restored in pieces of
    /// [`NodeConfig::snapshot_step_bytes`], of which this does one: it may not be there when this returns.
    /// The endpoint propagates panics from then on ([`Endpoint::propagate_panics`]): a replica that one left half changed
    /// must not vote.
    ///
    /// # Errors
    /// [`NodeError`]: settings or first members that cannot be, a log that cannot be written, or handlers that were registered before.
    pub fn start<T: Transport + 'static>(
        endpoint: &Rc<Endpoint<T>>,
        config: NodeConfig,
        log: L,
        machine: M,
        beginning: Beginning,
    ) -> Result<Node<M, L>, NodeError> {
        let host = Host::start(endpoint, config, vec![(log, machine)], beginning)?;
        Ok(Node { shared: host.shared, group: 0 })
    }

    /// Tasks that do what can wait until messages are on their way, and pieces of snapshots.
    fn spawn_tasks(&self) {
        let weak = self.downgrade();
        (self.shared.net.spawn)(Box::pin(poll_fn(move |context| {
            let Some(node) = weak.upgrade() else { return Poll::Ready(()) };
            let is_time = node.core_mut().later.is_time(context);
            if is_time {
                node.enter(|core| {
                    if let Err(error) = core.work_later() {
                        core.fail(error);
                    }
                });
            }
            Poll::Pending
        })));
        let weak = self.downgrade();
        (self.shared.net.spawn)(Box::pin(poll_fn(move |context| {
            let Some(node) = weak.upgrade() else { return Poll::Ready(()) };
            let is_time = node.core_mut().has_pieces(context);
            if is_time {
                node.enter(|core| {
                    if let Err(error) = core.continue_snapshot().and_then(|()| core.continue_restore()) {
                        core.fail(error);
                    }
                });
            }
            Poll::Pending
        })));
    }

    fn downgrade(&self) -> WeakNode<M, L> {
        WeakNode { shared: Rc::downgrade(&self.shared), group: self.group }
    }

    fn core(&self) -> Ref<'_, Core<M, L>> {
        self.shared.core(self.group)
    }

    fn core_mut(&self) -> RefMut<'_, Core<M, L>> {
        self.shared.cores[usize::from(self.group)].borrow_mut()
    }

    /// Does something with the state, then all that follows from it.
    fn enter(&self, act: impl FnOnce(&mut Core<M, L>)) {
        self.shared.enter(|visit| {
            visit.visit(self.group, act);
        });
    }

    /// The number of its group.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// Whether it rests ([`NodeConfig::idle_ticks`]).
    pub fn is_resting(&self) -> bool {
        self.core().is_resting()
    }

    /// Asks another to lead, if this one does: that has begun when this returns, and [`Node::status`] says when it is done. Gives whom; `None` if this
    /// one does not lead, or is alone.
    pub fn hand_over(&self) -> Option<u64> {
        let mut to = None;
        self.enter(|core| to = core.hand_over());
        to
    }

    /// Ends it in order, which takes the time of two flushes: nobody is served from now on, and its log says that nothing is missing at its end. So damage there is told
    /// from what a crash leaves unfinished when it is opened again. A replica that just goes is one that crashed, which is safe as well.
    ///
    /// The log is that of all groups of the process, so all their replicas end with it.
    ///
    /// # Errors
    /// Why it had stopped before, or why its log could not be closed; [`NodeError::Closed`] the second time.
    pub fn close(&self) -> Result<(), NodeError> {
        self.shared.close()
    }

    /// How it is.
    pub fn status(&self) -> Status {
        self.core().status()
    }

    /// What it has counted. Envelopes, and the messages in them, are those of all groups of the process.
    pub fn counters(&self) -> Counters {
        let core = self.core();
        let traffic = core.common.links.borrow().traffic;
        let kept_questions = core.kept.len() as u64;
        Counters { envelopes: traffic.envelopes, messages: traffic.messages, kept_questions, ..core.counters }
    }

    /// Why it has stopped, if it has.
    pub fn failure(&self) -> Option<NodeError> {
        self.core().failure.clone()
    }

    /// Lends the state machine as it is now, which may be behind that of the leader: it is empty while the state of the
    /// log is restored at the start, and after a snapshot from a leader it is [another](StateMachine::fresh) machine.
    pub fn with_machine<R>(&self, look: impl FnOnce(&M) -> R) -> R {
        look(&self.core().state.machine)
    }

    /// Lends the log.
    pub fn with_log<R>(&self, look: impl FnOnce(&L) -> R) -> R {
        look(self.core().raft.store())
    }
}

/// The first members of a cluster, by id.
fn first_members(members: &[(u64, Addr)], own: u64) -> Result<BTreeMap<u64, String>, NodeError> {
    let wrong = |why: String| NodeError::Members { why };
    let by_id: BTreeMap<u64, String> = members.iter().map(|(id, addr)| (*id, addr.to_string())).collect();
    if by_id.len() != members.len() || by_id.contains_key(&0) {
        return Err(wrong("ids must be unique and above 0".into()));
    }
    if by_id.len() > wire::members::MEMBERS_MAX {
        return Err(wrong(format!("there are {}, and at most {} can be", by_id.len(), wire::members::MEMBERS_MAX)));
    }
    if !by_id.contains_key(&own) {
        return Err(wrong(format!("this replica, {own}, is not among them")));
    }
    Ok(by_id)
}
