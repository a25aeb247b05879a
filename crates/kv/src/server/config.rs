//! What a server is to be.

use std::path::PathBuf;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_serve::Interrupt;
use dunlin_store::{KeyFunction, Mode};

use crate::memcached::{CONNECTION_BYTES_DEFAULT, LOOK_DEFAULT, Listen};

/// Connections that memcached clients may have with a server unless it is told otherwise: memcached's default is 1024, which ten thousand idle
/// clients pass.
pub const CONNECTIONS_MAX_DEFAULT: usize = 16_384;

/// Time without a command after which a memcached connection is closed unless the server is told otherwise. Clients that keep connections for
/// later connect again.
pub const IDLE_MAX_DEFAULT: Duration = Duration::from_secs(3600);

/// How long a core may take to answer, or to end, before it counts as hung, unless the server is told otherwise: far longer than any of its tasks
/// runs at once.
pub const HANG_MAX_DEFAULT: Duration = Duration::from_secs(10);

/// How often a server tells its partitions the time unless it is told otherwise.
pub const TICK_DEFAULT: Duration = Duration::from_millis(100);

/// Settings of a server. Start from `ServerConfig::default()`, which listens nowhere.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Where core 0 is reached by Dunlin clients; at least one address. Core `i` is reached at `shm:NAME.i`, and at the UDP port that is `i` higher,
    /// or one of the system's choice if that is taken.
    pub listen: Vec<Addr>,
    /// Where memcached clients connect.
    pub memcached: Vec<Listen>,
    /// Connections that memcached clients may have together.
    pub connections_max: usize,
    /// Bytes of memory that memcached connections of all cores may hold together, beside `memory_bytes`: for commands that have not come whole,
    /// and for answers that are not read. At least [`crate::memcached::CORE_BYTES_MIN`] for each core. A connection that needs
    /// more than there is waits, and is not read from. Each connection has up to 8 KiB beside that, for small commands.
    pub connection_memory_bytes: usize,
    /// Time without a command after which a memcached connection is closed; `None` for never.
    pub idle_max: Option<Duration>,
    /// How long a core goes on looking at its memcached connections before it sleeps, while they have something within that time again
    /// and again; zero for never. To be woken up costs more.
    pub look: Duration,
    /// Bytes of memory for items, index and waste included, of all cores together.
    pub memory_bytes: usize,
    /// Cores, each a thread with a partition of its own: 1 to [`crate::routing::CORES_MAX`].
    pub cores: u16,
    /// Whether items may be lost when the memory is full.
    pub mode: Mode,
    /// What each core hashes its keys with, under a secret of its own.
    pub key_function: KeyFunction,
    /// Loaded at the start if it is there, and saved to at the end and when asked. Locked against other servers meanwhile, by a file of
    /// the same name with `.lock` behind.
    pub snapshot: Option<PathBuf>,
    /// Processors to pin the threads to, one for each core; empty to leave them to the system.
    pub pin: Vec<usize>,
    /// How long operations in progress have at the end.
    pub patience: Duration,
    /// How long a core may take to answer, or to end, before it counts as hung and the server ends without its items. A process that is stopped for
    /// so long does not count: cores are asked again.
    pub hang_max: Duration,
    /// How often partitions are told the time, drop what has expired, and are flushed if a time for that has come. Above zero.
    pub tick: Duration,
    /// Rung when a core fails, so that whoever waits for it looks at the server.
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
            memory_bytes: 1 << 30,
            cores: 1,
            mode: Mode::Cache,
            key_function: KeyFunction::default(),
            snapshot: None,
            pin: Vec::new(),
            patience: Duration::from_secs(2),
            hang_max: HANG_MAX_DEFAULT,
            tick: TICK_DEFAULT,
            interrupt: Interrupt::default(),
        }
    }
}
