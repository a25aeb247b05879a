//! A replica: the library, a log, a state machine and an endpoint, joined. A process may have one replica of each of
//! many groups.
//!
//! All work is done where it arises: in the handler of a burst of requests, in the continuation of a call, on a tick,
//! or when the log has become durable. Each of these enters the host, touches groups, lets their libraries do what is
//! due, sends the resulting messages, and leaves.
//!
//! | File | What it holds |
//! |---|---|
//! | `host` | all replicas of a process, for its program |
//! | `shared` | all groups of a process, and what they share |
//! | `replica` | the handle of a replica within this crate |
//! | `envelopes` | messages of other processes, in their requests and in responses to ours |
//! | `founding` | how a replica learns the number of its cluster |
//! | `foreign` | replicas of other clusters |
//! | `core` | the state of a replica, and the loop that carries out what the library asks for |
//! | `receive` | messages of other replicas |
//! | `possible` | which of these messages can be true |
//! | `conflict` | where a follower's log diverges from the leader's |
//! | `doubt` | claims that only their sender can confirm: that this replica has lost its log, and terms far ahead |
//! | `link` | the link to another process: sessions, requests, responses |
//! | `clients` | requests of clients, and which client waits for which entry |
//! | `gather` | which commands are flushed together |
//! | `reads` | reads, by read index and by lease |
//! | `backup` | pieces of the state for backups |
//! | `kept` | questions that are kept until there is an answer |
//! | `members` | membership changes |
//! | `changes` | notification of changes |
//! | `clock` | the ticks of a process, which sleeps through idle ones |
//! | `election` | the ticks of a group, and when it stands for election |
//! | `rest` | idle groups |
//! | `disk` | hung disks |
//! | `later` | work that can wait until messages are sent |
//! | `snapshots` | snapshots of the own state |
//! | `transfer` | snapshots being sent and received |
//! | `restore` | restoring states from snapshots |
//! | `settings`, `status` | the library's settings; a replica's status |

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
mod replica;
mod rest;
mod restore;
mod settings;
mod shared;
mod snapshots;
mod status;
mod transfer;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Connecting, Endpoint, Timers};

pub use self::host::Host;
use self::replica::Replica;
use crate::config::{NodeConfig, NodeError};
use crate::log::LogStore;
use crate::machine::StateMachine;
use crate::wire;
use crate::wire::response::Status;

/// How a replica with an empty log begins. A replica whose log is not empty continues from there.
///
/// A lost log looks like one that never existed. If a replica begins anew under an id that it had before, it may vote
/// twice in a term, and acknowledged writes are lost: the operator must know that this is its first start. `dunlin raft
/// serve` has `--new` and `--join` for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    /// As one of the first members of a new cluster, all of which get the same list: id and address of each. The one
    /// with the lowest id draws the number of the cluster; the others take part in nothing until they have learned it.
    First(Vec<(u64, Addr)>),
    /// As a member to be added to a cluster: it waits for a snapshot from the cluster's leader.
    Join,
}

/// Counters of a replica.
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
    /// Of these, as a follower that had asked its leader.
    pub follower_reads: u64,
    /// A follower's questions to its leader for the commit index, each for all waiting reads.
    pub index_questions: u64,
    /// Questions that are kept now until there is an answer.
    pub kept_questions: u64,
    /// Kept questions that were answered.
    pub kept_answered: u64,
    /// Kept questions examined by sweeps for abandoned ones.
    pub kept_swept: u64,
    /// Times it became leader.
    pub elected: u64,
    /// Requests that it answered with `Busy`.
    pub pushed_back: u64,
    /// Envelopes that it sent, as requests or in responses.
    pub envelopes: u64,
    /// Raft messages in them.
    pub messages: u64,
    /// Messages that were malformed, or that contradict what it knows.
    pub bad: u64,
    /// Messages of other clusters, in requests and in responses; none was acted on.
    pub foreign: u64,
    /// Snapshots of its own state that it took.
    pub snapshots_taken: u64,
    /// Snapshots that other replicas got from it.
    pub snapshots_sent: u64,
    /// Snapshots that it restored its state from.
    pub snapshots_restored: u64,
    /// Completely received snapshots that it could not restore its state from: it went on as before.
    pub snapshots_rejected: u64,
    /// Times that its disk hung.
    pub disk_hangs: u64,
    /// Requests of other replicas left unread, or read without their entries, because the disk is slow or full.
    pub left_unread: u64,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;
/// Begins to open a session, while the endpoint exists.
type Connector = dyn Fn(&Addr) -> Option<Connecting>;

/// What a replica uses of its endpoint, independent of the transport.
struct Net {
    connect: Box<Connector>,
    spawn: Box<dyn Fn(Task)>,
    timers: Timers,
    /// The timeout of questions and short requests to other replicas.
    patience: Duration,
}

impl Net {
    /// Returns the parts of this endpoint that replicas use.
    fn of<T: Transport + 'static>(endpoint: &Rc<Endpoint<T>>, config: &NodeConfig) -> Net {
        let (connector, spawner) = (Rc::downgrade(endpoint), Rc::downgrade(endpoint));
        Net {
            connect: Box::new(move |addr: &Addr| connector.upgrade().map(|endpoint| endpoint.connect(addr))),
            spawn: Box::new(move |task| {
                if let Some(endpoint) = spawner.upgrade() {
                    endpoint.spawn(task);
                }
            }),
            timers: endpoint.timers(),
            patience: config.tick * config.election_ticks,
        }
    }
}

/// A handle of a replica. Clones are handles of the same replica; it lives as long as its endpoint.
pub struct Node<M, L: LogStore> {
    replica: Replica,
    types: PhantomData<fn() -> (M, L)>,
}

impl<M, L: LogStore> Clone for Node<M, L> {
    fn clone(&self) -> Self {
        Node { replica: self.replica.clone(), types: PhantomData }
    }
}

impl<M: StateMachine + 'static, L: LogStore + 'static> Node<M, L> {
    /// Makes the handle of a replica with a machine and a log of these types.
    fn of(replica: Replica) -> Node<M, L> {
        Node { replica, types: PhantomData }
    }

    /// Starts the replica of the only group of a process on an endpoint ([`Host::start`] has several). From then on it
    /// serves clients and other replicas, with request types [`wire::PEER`], [`wire::CHUNK`] and [`wire::CLIENT`].
    /// `machine` must be in its initial state; the log's entries are executed again. The state of the log's snapshot is
    /// restored in pieces of [`NodeConfig::snapshot_step_bytes`]. This call restores one piece, so the state may be
    /// incomplete when it returns. The endpoint propagates panics from then on ([`Endpoint::propagate_panics`]): a
    /// replica that a panic left half changed must not vote.
    ///
    /// # Errors
    /// [`NodeError`]: invalid settings or first members, a log that cannot be written, or handlers that are already
    /// registered.
    pub fn start<T: Transport + 'static>(
        endpoint: &Rc<Endpoint<T>>,
        config: NodeConfig,
        log: L,
        machine: M,
        beginning: Beginning,
    ) -> Result<Node<M, L>, NodeError> {
        let host = Host::start(endpoint, config, vec![(log, machine)], beginning)?;
        Ok(host.nodes().next().expect("the host was started with one group"))
    }

    /// Returns the number of its group.
    pub fn group(&self) -> u16 {
        self.replica.group
    }

    /// Whether it rests ([`NodeConfig::idle_ticks`]).
    pub fn is_resting(&self) -> bool {
        self.replica.core().is_resting()
    }

    /// Asks another replica to lead, if this one does. The transfer has begun when this returns, and [`Node::status`]
    /// says when it is done. Returns the id of the replica that it asked; `None` if this replica does not lead, or is
    /// alone.
    pub fn hand_over(&self) -> Option<u64> {
        self.replica.hand_over()
    }

    /// Stops the replica cleanly, which takes the time of two flushes. It serves nobody from now on, and its log is
    /// marked as complete, so that damage at its end can be told from an unfinished write when it is opened again. A
    /// replica that just exits is like one that crashed, which is safe as well.
    ///
    /// All groups of the process share the log, so all their replicas end with it.
    ///
    /// # Errors
    /// Why it had stopped before, or why its log could not be closed; [`NodeError::Closed`] the second time.
    pub fn close(&self) -> Result<(), NodeError> {
        self.replica.shared.close()
    }

    /// Returns its status.
    pub fn status(&self) -> Status {
        self.replica.core().status()
    }

    /// Returns its counters. Envelopes and messages are counted for all groups of the process.
    pub fn counters(&self) -> Counters {
        self.replica.counters()
    }

    /// Returns why it has stopped, if it has.
    pub fn failure(&self) -> Option<NodeError> {
        self.replica.core().failure.clone()
    }

    /// Lends the state machine as it is now, which may be behind the leader's: it is empty while the log's state is
    /// restored at the start, and after a snapshot from a leader it is a [new](StateMachine::fresh) machine.
    pub fn with_machine<R>(&self, look: impl FnOnce(&M) -> R) -> R {
        let core = self.replica.core();
        let machine: &dyn Any = &*core.state.machine;
        look(machine.downcast_ref().expect("the replica was started with a machine of this type"))
    }

    /// Lends the log.
    pub fn with_log<R>(&self, look: impl FnOnce(&L) -> R) -> R {
        let core = self.replica.core();
        look(core.raft.store().as_any().downcast_ref().expect("the replica was started with a log of this type"))
    }
}

/// The first members of a cluster, by id.
fn first_members(members: &[(u64, Addr)], own: u64) -> Result<BTreeMap<u64, String>, NodeError> {
    let wrong = |why: String| NodeError::Members { why };
    let by_id: BTreeMap<u64, String> = members.iter().map(|(id, addr)| (*id, addr.to_string())).collect();
    if by_id.len() != members.len() || by_id.contains_key(&0) {
        return Err(wrong("ids must be unique and above 0".into()));
    }
    if by_id.values().collect::<BTreeSet<_>>().len() != by_id.len() {
        return Err(wrong("two have the same address".into()));
    }
    if by_id.len() > wire::members::MEMBERS_MAX {
        return Err(wrong(format!("there are {}, and at most {} can be", by_id.len(), wire::members::MEMBERS_MAX)));
    }
    if !by_id.contains_key(&own) {
        return Err(wrong(format!("this replica, {own}, is not among them")));
    }
    Ok(by_id)
}
