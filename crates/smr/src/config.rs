//! Settings of a replica, each with its default and its limits.

use std::rc::Rc;
use std::time::Duration;

use dunlin_net::clock::nanos;

use crate::cluster_id::ClusterId;
use crate::log::LogError;
use crate::machine::RestoreError;
use crate::probe::Probe;

/// How a leader answers reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reads {
    /// It asks a majority whether it still leads: one round trip, shared by all waiting reads. Correct whatever clocks
    /// do (Raft dissertation, section 6.4).
    #[default]
    ReadIndex,
    /// It answers alone while no other leader can have been elected, by its own clock (section 6.4.1): for three
    /// quarters of the election timeout after it sent what a majority acknowledged. Correct as long as no clock runs a
    /// fifth faster than another.
    Lease,
}

/// When a leader writes incoming commands to its log on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Batching {
    /// While other commands are in flight, whose clients may send again soon, it waits: up to one and a half times as
    /// long as a flush takes, and at most 100 ms. Each flush then holds the most commands, so the rate is highest.
    #[default]
    Gathered,
    /// At once, whatever the disk is doing.
    Immediate,
}

/// A clock: nanoseconds from any origin, never going back, read afresh each time, and running while the machine is
/// suspended. Clocks of different machines are never compared.
pub type Clock = Rc<dyn Fn() -> u64>;

/// Returns the operating system's clock that runs while the machine is suspended: the other replicas end a lease
/// ([`Reads::Lease`]) during that time.
pub fn system_clock() -> Clock {
    let begin = dunlin_net::clock::boot_nanos();
    Rc::new(move || dunlin_net::clock::boot_nanos() - begin)
}

/// Settings of a replica. All replicas of a cluster must agree on them, except for `id`, `seed`, `clock` and `probe`.
#[derive(Clone)]
pub struct NodeConfig {
    /// Its id: above 0, unique, and never reused for another replica, nor for this one after it lost its log.
    pub id: u64,
    /// The number of the cluster, if it is known: a replica that waits to be added joins no other cluster, and one
    /// whose log belongs to another cluster does not start. A new cluster draws its own number. Default `None`.
    pub cluster: Option<ClusterId>,
    /// The unit of time. 1 ms to 1 s; default 10 ms.
    pub tick: Duration,
    /// A leader sends heartbeats at least this often, in ticks. Default 5.
    pub heartbeat_ticks: u32,
    /// A replica that hears nothing from a leader for one to two times this long stands for election, in ticks: at
    /// least four heartbeats. Default 50.
    pub election_ticks: u32,
    /// If a write or flush of the log takes longer than this many election timeouts, the disk counts as hung: a leader
    /// steps aside, and such a replica is not elected, until the disk responds again. 1 to 1000; default 3.
    pub flush_elections_max: u32,
    /// A group that is idle for this many ticks rests: it uses neither time nor messages until there is work, and it
    /// misses its leader only when nothing comes from the leader's process any more. `None`: it never rests. Default
    /// `None`.
    pub idle_ticks: Option<u32>,
    /// Which commands are flushed together. Default [`Batching::Gathered`].
    pub batching: Batching,
    /// How reads are answered. Default [`Reads::ReadIndex`].
    pub reads: Reads,
    /// Commands that may wait to be committed; beyond that clients get [`crate::wire::response::Response::Busy`].
    /// Default 4096.
    pub proposals_max: usize,
    /// Total bytes of these commands. Default 64 MiB.
    pub proposal_bytes_max: usize,
    /// Longest command, in bytes. At most 4 MiB; default 2 MiB.
    pub command_bytes_max: usize,
    /// Reads that may wait. The same number again may wait if they are [urgent](crate::StateMachine::is_urgent), and
    /// the same number again of followers' questions for the commit index. Default 4096.
    pub reads_max: usize,
    /// Total bytes of these reads, and the same again for urgent ones. Default 64 MiB.
    pub read_bytes_max: usize,
    /// Queries that may be kept until there is an answer ([`crate::StateMachine::ask`]); at the limit clients get
    /// [`crate::wire::response::Response::Busy`]. Together with the commands and reads that may wait, no more than
    /// [`dunlin_rpc::EndpointConfig::deferred_requests_max`]. Default 4096.
    pub kept_questions_max: usize,
    /// Bytes of entries in one append, unless a single one is longer. Default 256 KiB.
    pub append_bytes_max: u64,
    /// Appends to one replica that may be in flight. Default 64.
    pub appends_in_flight_max: usize,
    /// A snapshot is taken each time this many entries have been executed. The exact entry depends on the id, so that
    /// replicas do not take theirs at the same time. Default 1,000,000.
    pub snapshot_entries: u64,
    /// Bytes of log entries that trigger the next snapshot at the latest; at most half as many are kept before a
    /// snapshot. Default 256 MiB.
    pub snapshot_log_bytes: u64,
    /// Bytes of the state machine that go into a snapshot, or are restored from one, in one turn of the event loop,
    /// approximately, whatever the number of groups; one group may do both in its turn. The sessions are copied in the
    /// first turn, all at once: at most `session_reply_bytes_max` bytes, and 28 for each session. At least 1 byte;
    /// default 32 KiB.
    pub snapshot_step_bytes: usize,
    /// The shortest time between two snapshots taken for copies of the state ([`crate::Client::backup`]); a client that
    /// asks for one earlier waits. Default 1 minute.
    pub copy_snapshot_pause: Duration,
    /// Entries before a snapshot that are kept, so that a replica that is slightly behind needs no snapshot. Default
    /// 10,000.
    pub keep_entries: u64,
    /// Largest snapshot that is accepted, in bytes. Default 4 GiB.
    pub snapshot_bytes_max: u64,
    /// Memory of all snapshots together: the log's, one that is taken or written, one that comes, and older ones that
    /// are sent. At the limit, the replica refuses a leader's snapshot while it receives another (one from no member's
    /// address, as for a replica that joins, while any is under way), gives up one that has come in part when it takes
    /// its own, and delays its own while older ones are sent. One that has come in part from no member's address, or
    /// that comes so slowly that it would take more than 60,000 ticks, is also given up when a member sends one; twice
    /// as many after each of a group that was, up to 64 times, until one has come. A member of any group counts, at its
    /// address. If the log has no more room, all groups stop sending older ones. So
    /// two of the own state are always allowed: the log's, and the next. One that comes may be given up again and again
    /// while other groups take their own. No less than twice `snapshot_bytes_max`; default 12 GiB. The state that is
    /// restored from a leader's snapshot is not counted: it and the present one are both in memory until it is
    /// installed.
    pub snapshot_memory_max: u64,
    /// Bytes of one piece of a snapshot that is sent. At most 4 MiB; default 256 KiB.
    pub chunk_bytes: usize,
    /// Sessions of clients. Opening one more ends the least recently used one, to within about a second. Default
    /// 65,536.
    pub sessions_max: usize,
    /// A session that was unused for this long may be ended when others are opened. Default 10 minutes.
    pub session_idle_max: Duration,
    /// Bytes of the replies that sessions keep, plus 32 for each. Beyond that, the least recently used sessions that
    /// keep replies are ended. Default 64 MiB.
    pub session_reply_bytes_max: u64,
    /// Seed of election timeouts, and of the number of a cluster that this replica founds. For simulations only, since
    /// clusters with the same seed have the same number. With `None`, timeouts derive from the id and the clock, and
    /// the number comes from the operating system.
    pub seed: Option<u64>,
    /// The clock. Default: the operating system's.
    pub clock: Clock,
    /// Receives the stages of the replica's work, for measurements. Default none.
    pub probe: Option<Rc<dyn Probe>>,
}

impl NodeConfig {
    /// Returns the defaults, for this id.
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
            copy_snapshot_pause: Duration::from_secs(60),
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
    /// [`NodeError::Setting`] for the first one out of range.
    pub fn check(&self) -> Result<(), NodeError> {
        let fail = |name, allowed| Err(NodeError::Setting { name, allowed });
        if self.id == 0 {
            return fail("id", "choose 1 or more");
        }
        if self.tick < Duration::from_millis(1) || self.tick > Duration::from_secs(1) {
            return fail("tick", "choose 1 ms to 1 s");
        }
        if self.heartbeat_ticks == 0 || self.election_ticks / 4 < self.heartbeat_ticks || self.election_ticks > 100_000
        {
            return fail(
                "heartbeat_ticks, election_ticks",
                "choose 1 or more, and four times as many, at most 100,000",
            );
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

    /// Returns how long a lease lasts, in nanoseconds, counted from sending what a majority acknowledged. A replica
    /// that acknowledged it votes for no other for `election_ticks`. The first of these ticks may be cut short; none of
    /// the others is shorter than 15/16 of a tick by its own clock.
    pub(crate) fn lease_nanos(&self) -> u64 {
        nanos(self.tick) * u64::from(self.election_ticks - 1) * 3 / 4
    }
}

/// Why a replica could not start, or stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A setting is out of range.
    #[error("setting {name} is out of range: {allowed}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// The values allowed.
        allowed: &'static str,
    },
    /// The list of first members is invalid.
    #[error("these cannot be the first members: {why}")]
    Members {
        /// The reason.
        why: String,
    },
    /// First members were given together with the number of a cluster, which a new cluster draws itself.
    #[error("a new cluster draws its own number: give none")]
    Drawn,
    /// The log belongs to another cluster.
    #[error(
        "the log is of cluster {ours}, not of cluster {asked}: start it without a number, or give the other replica a directory of its own"
    )]
    OtherCluster {
        /// The log's cluster.
        ours: ClusterId,
        /// The expected cluster: as configured, or that of the groups before.
        asked: ClusterId,
    },
    /// The system has no random numbers to draw the number of a new cluster from.
    #[error("the system has no random number for the new cluster: {why}")]
    Random {
        /// The reason.
        why: String,
    },
    /// Writing the log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A leader remembers that this replica acknowledged entries that it does not have, and has confirmed this.
    #[error(
        "replica {id} has lost entries that it had acknowledged; remove it from the cluster, and add it again under a new id, with an empty directory"
    )]
    LogLost {
        /// The replica.
        id: u64,
    },
    /// The replica was closed.
    #[error("this replica was closed")]
    Closed,
    /// A process has at least one group, and no more than can be numbered.
    #[error("{groups} groups cannot be served: choose 1 to 65,535")]
    Groups {
        /// The number of groups given.
        groups: usize,
    },
    /// The members of the cluster have a different number of groups.
    #[error("this process has {ours} groups, and the members of the cluster have {theirs}: start it with that number")]
    OtherGroups {
        /// The number that this process was given.
        ours: u16,
        /// The number that the cluster was founded with.
        theirs: u16,
    },
    /// A snapshot could not be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The Raft library rejected an operation.
    #[error("the Raft library refused it: {why}")]
    Library {
        /// The library's message.
        why: String,
    },
    /// The endpoint already has handlers for these request types.
    #[error(transparent)]
    Register(#[from] dunlin_rpc::RegisterError),
}

impl From<raft::Error> for NodeError {
    fn from(error: raft::Error) -> Self {
        NodeError::Library { why: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use dunlin_net::clock::boot_nanos;

    use super::*;

    #[test]
    fn leases_are_counted_by_the_clock_that_runs_while_the_machine_is_suspended() {
        let config = NodeConfig::new(1);
        let (first, begin) = ((config.clock)(), boot_nanos());
        for _ in 0..10_000 {
            let (before, now, after) = (boot_nanos(), (config.clock)(), boot_nanos());
            assert!(before - begin <= now - first && now <= after, "{before} {now} {after}");
        }
    }
}
