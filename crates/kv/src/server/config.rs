//! Settings of a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_serve::Interrupt;
use dunlin_store::{KeyFunction, Mode};

use crate::cluster::Description;
use crate::memcached::{CONNECTION_BYTES_DEFAULT, LOOK_DEFAULT, Listen};
use crate::service::{Fence, Replica};
use crate::tier::{Schedule, TierSettings};
use crate::wire::ReplicaState;

/// Default maximum number of memcached connections. memcached's own default is 1024, which ten thousand idle clients
/// exceed.
pub const CONNECTIONS_MAX_DEFAULT: usize = 16_384;

/// Default time without a command after which a memcached connection is closed. Clients with pooled connections
/// reconnect.
pub const IDLE_MAX_DEFAULT: Duration = Duration::from_secs(3600);

/// Default memory of each core for what Dunlin clients make it hold: 128 of the longest answers for one host.
const HELD_BYTES_DEFAULT: u64 = 1 << 30;

/// Default time that a core may take to answer, or to end, before it counts as hung: far longer than any of its tasks
/// runs without yielding.
pub const HANG_MAX_DEFAULT: Duration = Duration::from_secs(10);

/// Default interval at which a server updates its partitions' time.
pub const TICK_DEFAULT: Duration = Duration::from_millis(100);

/// What a server is in a cluster.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Its name in the description.
    pub server: String,
    /// The cluster.
    pub cluster: Description,
    /// Decides in which epoch it may serve, if there is a cluster manager.
    pub fence: Option<Arc<dyn Fence>>,
    /// Whether it may be read from the start: only if the cluster is new.
    pub state: ReplicaState,
}

impl ReplicaConfig {
    /// Returns the state of a core.
    pub(super) fn of_core(&self) -> Replica {
        let replica = Replica::new(&self.server, self.cluster.fingerprint(), self.cluster.partitions());
        let replica = replica.in_state(self.state);
        match &self.fence {
            Some(fence) => replica.fenced(fence.clone()),
            None => replica,
        }
    }
}

/// Settings of a server. Start from `ServerConfig::default()`, which listens nowhere.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The addresses of core 0 for Dunlin clients; at least one. Core `i` has the address `shm:NAME.i`, or the UDP port
    /// that is `i` higher, or one that the system chooses if that is taken.
    pub listen: Vec<Addr>,
    /// The addresses for memcached clients.
    pub memcached: Vec<Listen>,
    /// Maximum number of memcached connections.
    pub connections_max: usize,
    /// Bytes of memory that memcached connections of all cores may hold together, beyond `memory_bytes`: for incomplete
    /// commands, and for answers that are not read. At least [`crate::memcached::CORE_BYTES_MIN`] for each core. A
    /// connection that needs more than is available waits, and is not read from. Each connection has up to 8 KiB beyond
    /// that, for small commands.
    pub connection_memory_bytes: usize,
    /// Time without a command after which a memcached connection is closed; `None` if never.
    pub idle_max: Option<Duration>,
    /// How long a core polls its memcached connections before it sleeps, if they repeatedly have data within that time;
    /// zero to never poll. Being woken costs more.
    pub look: Duration,
    /// Bytes that Dunlin clients may make each core hold, in requests that arrive and in answers that they have not
    /// received: [`dunlin_rpc::EndpointConfig::held_bytes_max`], which has the minimum. Requests beyond it are pushed
    /// back; an answer for which there is no room any more fails.
    pub held_bytes_max: u64,
    /// Bytes of memory for items of all cores together, including index and waste.
    pub memory_bytes: usize,
    /// Cores, each a thread with a partition of its own: 1 to [`crate::routing::CORES_MAX`].
    pub cores: u16,
    /// Whether items may be evicted when the memory is full.
    pub mode: Mode,
    /// The hash function of keys; each core has a secret of its own.
    pub key_function: KeyFunction,
    /// The snapshot file: loaded at the start if it exists, and saved at the end and on request. It is locked against
    /// other servers meanwhile, by a file of the same name with the suffix `.lock`.
    pub snapshot: Option<PathBuf>,
    /// Where a cache puts what it evicts; `None` to lose it.
    pub tier: Option<TierSettings>,
    /// The order in which operations that wait for the tier are served, and multi-gets that wait for their turn.
    pub schedule: Schedule,
    /// Processors to pin the threads to, one for each core; empty to leave that to the system.
    pub pin: Vec<usize>,
    /// The time that operations in progress have to finish at the end.
    pub patience: Duration,
    /// How long a core may take to answer, or to end, before it counts as hung and the server ends without its items.
    /// If the whole process was stopped for that long, this does not count: cores are asked again.
    pub hang_max: Duration,
    /// The interval at which partitions get the time, drop expired items, and are flushed if a scheduled time has come.
    /// Above zero.
    pub tick: Duration,
    /// What it is in a cluster. Such a server has no snapshot and no memcached clients of its own.
    pub replica: Option<ReplicaConfig>,
    /// Rung when a core fails, so that a waiting thread checks the server.
    pub interrupt: Interrupt,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            listen: Vec::new(),
            memcached: Vec::new(),
            connections_max: CONNECTIONS_MAX_DEFAULT,
            connection_memory_bytes: CONNECTION_BYTES_DEFAULT,
            idle_max: Some(IDLE_MAX_DEFAULT),
            look: LOOK_DEFAULT,
            held_bytes_max: HELD_BYTES_DEFAULT,
            memory_bytes: 1 << 30,
            cores: 1,
            mode: Mode::Cache,
            key_function: KeyFunction::default(),
            snapshot: None,
            tier: None,
            schedule: Schedule::default(),
            pin: Vec::new(),
            patience: Duration::from_secs(2),
            hang_max: HANG_MAX_DEFAULT,
            tick: TICK_DEFAULT,
            replica: None,
            interrupt: Interrupt::default(),
        }
    }
}
