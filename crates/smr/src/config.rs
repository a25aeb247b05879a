//! Settings of a replica, each with its default and its limits.

use std::rc::Rc;
use std::time::Duration;

use crate::cluster_id::ClusterId;
use crate::log::LogError;
use crate::machine::RestoreError;
use crate::probe::Probe;

/// How a leader answers reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reads {
    /// It asks a majority whether it still leads: a round trip, shared by all reads that wait. Right whatever clocks do (Raft dissertation,
    /// section 6.4).
    #[default]
    ReadIndex,
    /// It answers alone while no other can have been elected, by its own clock (section 6.4.1): for three quarters of the election timeout after it
    /// sent what a majority answered. Right as long as no clock runs a fifth faster than another.
    Lease,
}

/// When a leader whose log is on disk gives it the commands that come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Batching {
    /// While others are on their way, and their clients may come back, it waits: up to one and a half times as long as a flush takes, and 100 ms at
    /// most. Most for a flush then, and so the highest rate.
    #[default]
    Gathered,
    /// At once, whatever the disk is at.
    Immediate,
}

/// A clock: nanoseconds from any beginning, never going back, read afresh each time, and going on while the machine is suspended. Clocks of different machines are never compared.
pub type Clock = Rc<dyn Fn() -> u64>;

/// The clock of the operating system that goes on while the machine is suspended: a lease ([`Reads::Lease`]) ends for others meanwhile.
pub fn system_clock() -> Clock {
    let begin = dunlin_net::clock::boot_nanos();
    Rc::new(move || dunlin_net::clock::boot_nanos() - begin)
}

/// Settings of a replica. Those of one cluster agree in all but `id`, `seed`, `clock` and `probe`.
#[derive(Clone)]
pub struct NodeConfig {
    /// Its name: above 0, unique, and never used again for another, nor for one that lost its log.
    pub id: u64,
    /// The number of the cluster, if it is known before: a replica that waits to be added joins no other, and one whose log is of another does not start. A new cluster
    /// draws its own. Default `None`.
    pub cluster: Option<ClusterId>,
    /// The unit of time. 1 ms to 1 s; default 10 ms.
    pub tick: Duration,
    /// A leader is heard so often at least, in ticks. Default 5.
    pub heartbeat_ticks: u32,
    /// Who hears nothing of a leader for one to two times as long asks to be elected, in ticks: at least four heartbeats. Default 50.
    pub election_ticks: u32,
    /// A write or flush of the log that takes longer than so many election timeouts is of a disk that hangs: a leader then gives way, and no such replica is
    /// elected, until the disk comes back. 1 to 1000; default 3.
    pub flush_elections_max: u32,
    /// A group that had nothing to do for so many ticks rests: it takes neither time nor messages until something comes, and a leader is missed when
    /// nothing comes from its process any more. `None`: it never rests. Default `None`.
    pub idle_ticks: Option<u32>,
    /// Which commands go to the disk together. Default [`Batching::Gathered`].
    pub batching: Batching,
    /// How reads are answered. Default [`Reads::ReadIndex`].
    pub reads: Reads,
    /// Commands that wait to be committed, beyond which clients are told [`crate::wire::response::Response::Busy`]. Default 4096.
    pub proposals_max: usize,
    /// Bytes of these. Default 64 MiB.
    pub proposal_bytes_max: usize,
    /// Bytes of one command. At most 4 MiB; default 2 MiB.
    pub command_bytes_max: usize,
    /// Reads that wait. As many more may if they are [urgent](crate::StateMachine::is_urgent). Default 4096.
    pub reads_max: usize,
    /// Bytes of these, and as many more of urgent ones. Default 64 MiB.
    pub read_bytes_max: usize,
    /// Questions that are kept until there is an answer ([`crate::StateMachine::ask`]); at the limit clients are told
    /// [`crate::wire::response::Response::Busy`]. With the commands and reads that wait, no more than
    /// [`dunlin_rpc::EndpointConfig::deferred_requests_max`]. Default 4096.
    pub kept_questions_max: usize,
    /// Bytes of entries in one append, unless a single one is longer. Default 256 KiB.
    pub append_bytes_max: u64,
    /// Appends to one replica that may be on their way. Default 64.
    pub appends_in_flight_max: usize,
    /// A snapshot is taken each time when so many entries were executed; when, differs by id, so that replicas do not take theirs at the same time. Default
    /// 1,000,000.
    pub snapshot_entries: u64,
    /// Bytes of entries at which the next snapshot is taken at the latest, and twice those that are kept before it. Default 256 MiB.
    pub snapshot_log_bytes: u64,
    /// Bytes of the state machine that go into a snapshot, or are restored from one, in one turn of the event loop,
    /// about. The sessions are copied in the first turn, all at once: as many bytes as `session_reply_bytes_max` at
    /// most, and 28 for each session. 1 byte or more; default 32 KiB.
    pub snapshot_step_bytes: usize,
    /// Entries before a snapshot that are kept, so that a replica that is a little behind needs none. Default 10,000.
    pub keep_entries: u64,
    /// Largest snapshot that is accepted, in bytes. Default 4 GiB.
    pub snapshot_bytes_max: u64,
    /// Memory of all snapshots together: the log's, one that is taken or written, one that comes, and older ones that
    /// are sent. At the limit, the replica refuses a leader's snapshot, gives up one that has come in part when it takes
    /// its own, and delays its own while older ones are sent. If the log has no more room, it stops sending those. So
    /// two of the own state are always allowed: the log's, and the next. No less than twice `snapshot_bytes_max`;
    /// default 12 GiB. The state that is restored from a leader's snapshot is not counted: it and the present one are
    /// both in memory until it is installed.
    pub snapshot_memory_max: u64,
    /// Bytes of a piece in which a snapshot is sent. At most 4 MiB; default 256 KiB.
    pub chunk_bytes: usize,
    /// Sessions of clients. One more ends the one that was used longest ago, to about a second. Default 65,536.
    pub sessions_max: usize,
    /// A session that was not used for so long may end, when others are opened. Default 10 minutes.
    pub session_idle_max: Duration,
    /// Bytes of the replies that sessions keep, each with 32 more. Beyond that those sessions end that were used longest ago, of those that keep some. Default
    /// 64 MiB.
    pub session_reply_bytes_max: u64,
    /// Seed of election timeouts, and of the number of a cluster that this replica founds: for simulations only, since clusters with the same seed have the same number.
    /// `None` takes timeouts from the id and the clock, and the number from the operating system.
    pub seed: Option<u64>,
    /// The clock. Default that of the operating system.
    pub clock: Clock,
    /// Is told what the replica works on, for measurements. Default nobody.
    pub probe: Option<Rc<dyn Probe>>,
}

impl NodeConfig {
    /// Defaults, for this id.
    pub fn new(id: u64) -> NodeConfig {
        NodeConfig {
            id,
            cluster: None,
            tick: Duration::from_millis(10),
            heartbeat_ticks: 5,
            election_ticks: 50,
            flush_elections_max: 3,
            idle_ticks: None,
            batching: Batching::default(),
            reads: Reads::default(),
            proposals_max: 4096,
            proposal_bytes_max: 64 << 20,
            command_bytes_max: 2 << 20,
            reads_max: 4096,
            read_bytes_max: 64 << 20,
            kept_questions_max: 4096,
            append_bytes_max: 256 << 10,
            appends_in_flight_max: 64,
            snapshot_entries: 1_000_000,
            snapshot_log_bytes: 256 << 20,
            snapshot_step_bytes: 32 << 10,
            keep_entries: 10_000,
            snapshot_bytes_max: 4 << 30,
            snapshot_memory_max: 12 << 30,
            chunk_bytes: 256 << 10,
            sessions_max: 65_536,
            session_idle_max: Duration::from_secs(600),
            session_reply_bytes_max: 64 << 20,
            seed: None,
            clock: system_clock(),
            probe: None,
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`NodeError::Setting`], the first one out of range.
    pub fn check(&self) -> Result<(), NodeError> {
        let fail = |name, allowed| Err(NodeError::Setting { name, allowed });
        if self.id == 0 {
            return fail("id", "choose 1 or more");
        }
        if self.tick < Duration::from_millis(1) || self.tick > Duration::from_secs(1) {
            return fail("tick", "choose 1 ms to 1 s");
        }
        if self.heartbeat_ticks == 0 || self.election_ticks / 4 < self.heartbeat_ticks || self.election_ticks > 100_000 {
            return fail("heartbeat_ticks, election_ticks", "choose 1 or more, and four times as many, at most 100,000");
        }
        if !(1..=1000).contains(&self.flush_elections_max) {
            return fail("flush_elections_max", "choose 1 to 1000");
        }
        if self.idle_ticks.is_some_and(|ticks| ticks < self.heartbeat_ticks) {
            return fail("idle_ticks", "choose heartbeat_ticks or more, or none");
        }
        if self.proposals_max == 0 || self.reads_max == 0 || self.sessions_max == 0 || self.appends_in_flight_max == 0 {
            return fail("proposals_max, reads_max, sessions_max, appends_in_flight_max", "choose 1 or more");
        }
        if self.command_bytes_max > 4 << 20 || self.command_bytes_max > self.proposal_bytes_max {
            return fail("command_bytes_max", "choose at most 4 MiB, and no more than proposal_bytes_max");
        }
        if self.append_bytes_max > 4 << 20 {
            return fail("append_bytes_max", "choose at most 4 MiB");
        }
        if self.chunk_bytes == 0 || self.chunk_bytes > 4 << 20 {
            return fail("chunk_bytes", "choose 1 byte to 4 MiB");
        }
        if self.snapshot_entries == 0 || self.snapshot_log_bytes == 0 || self.snapshot_step_bytes == 0 {
            return fail("snapshot_entries, snapshot_log_bytes, snapshot_step_bytes", "choose 1 or more");
        }
        if self.snapshot_memory_max / 2 < self.snapshot_bytes_max {
            return fail("snapshot_memory_max", "choose twice snapshot_bytes_max or more");
        }
        if self.session_reply_bytes_max == 0 || self.read_bytes_max == 0 {
            return fail("session_reply_bytes_max, read_bytes_max", "choose 1 or more");
        }
        Ok(())
    }

    /// How long a lease lasts, counted from the sending of what a majority answered, in nanoseconds. Who answered votes for nobody else for
    /// `election_ticks`, of which the first may be cut short, and none is shorter than 15/16 of a tick by its own clock.
    pub(crate) fn lease_nanos(&self) -> u64 {
        self.tick.as_nanos() as u64 * u64::from(self.election_ticks - 1) * 3 / 4
    }
}

/// Why a replica could not start, or stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A setting is out of range.
    #[error("setting {name} is out of range: {allowed}")]
    Setting {
        /// Which.
        name: &'static str,
        /// What it may be.
        allowed: &'static str,
    },
    /// The first members of a cluster are not such.
    #[error("these cannot be the first members: {why}")]
    Members {
        /// Why.
        why: String,
    },
    /// First members were given the number of a cluster.
    #[error("a new cluster draws its own number: give none")]
    Drawn,
    /// The log is of another cluster.
    #[error(
        "the log is of cluster {ours}, not of cluster {asked}: start it without a number, or give the other replica a directory of its own"
    )]
    OtherCluster {
        /// That of the log.
        ours: ClusterId,
        /// That it should be of: the one that was asked for, or that the groups before are of.
        asked: ClusterId,
    },
    /// There are no random numbers to draw that of a new cluster.
    #[error("the system has no random number for the new cluster: {why}")]
    Random {
        /// Why.
        why: String,
    },
    /// The log was not written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A leader remembers entries of this replica that it does not have, and has confirmed it.
    #[error(
        "replica {id} has lost entries that it had acknowledged; remove it from the cluster, and add it again under a new id, with an empty directory"
    )]
    LogLost {
        /// Which.
        id: u64,
    },
    /// It was closed.
    #[error("this replica was closed")]
    Closed,
    /// A process has one group at least, and no more than can be numbered.
    #[error("{groups} groups cannot be served: choose 1 to 65,535")]
    Groups {
        /// So many were given.
        groups: usize,
    },
    /// The members of the cluster have another number of groups.
    #[error("this process has {ours} groups, and the members of the cluster have {theirs}: start it with that number")]
    OtherGroups {
        /// How many this process was given.
        ours: u16,
        /// How many the cluster was founded with.
        theirs: u16,
    },
    /// A snapshot could not be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The library refused something.
    #[error("the Raft library refused it: {why}")]
    Library {
        /// What it says.
        why: String,
    },
    /// The endpoint has handlers for these request types already.
    #[error(transparent)]
    Register(#[from] dunlin_rpc::RegisterError),
}

impl From<raft::Error> for NodeError {
    fn from(error: raft::Error) -> Self {
        NodeError::Library { why: error.to_string() }
    }
}
