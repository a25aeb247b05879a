//! Settings of a server.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::EndpointConfig;

use crate::interrupt::Interrupt;

/// What turns the endpoint of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventLoop {
    /// Its own event loop, which sleeps in its transport: the shortest way.
    #[default]
    Endpoint,
    /// A tokio runtime of one thread with a `LocalSet`, for cores that use sockets and timers of tokio. See
    /// [`crate::drive`].
    Tokio,
}

/// Settings of a server. Start from [`ServeConfig::named`], which listens nowhere.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// What its threads are called: `NAME-0`, `NAME-1` and so on. Linux shows 15 bytes of it.
    pub name: String,
    /// Where core 0 is reached: one `shm:` address, one `udp:` address, or one of each. Core `i` is reached at
    /// `shm:NAME.i`, and at the UDP port that is `i` higher, or one of the system's choice if that is taken.
    pub listen: Vec<Addr>,
    /// Where no address is listened at, an address that is to be reached: each core has an address of the system's
    /// choice then.
    pub peer: Option<Addr>,
    /// Cores: 1 to [`ServeConfig::CORES_MAX`]. Default 1.
    pub cores: u16,
    /// Processors to pin the cores to, one for each; empty to leave them to the system.
    pub pin: Vec<usize>,
    /// Settings of each endpoint.
    pub endpoint: EndpointConfig,
    /// What turns each endpoint.
    pub event_loop: EventLoop,
    /// How long requests in progress have at the end. Default 2 s.
    pub patience: Duration,
    /// How long all cores have to drain. A core that takes longer ends with its requests unanswered. Default 16 s.
    pub drain_max: Duration,
    /// How long a core may take to answer, or to end, before it counts as hung, which is a failure: far longer than any of
    /// its tasks runs at once. All cores are asked once a second. A process that stands still as a whole does not count.
    /// Default 10 s.
    pub answer_max: Duration,
    /// How long a core may be at work that it has announced ([`crate::long_work`]) before it counts as hung. Default 10
    /// minutes.
    pub long_work_max: Duration,
    /// Letters that wait in one mailbox; whoever sends more waits. Default 1024.
    pub letters_max: usize,
    /// Rung when a core fails, so that whoever waits for it looks at the server.
    pub interrupt: Interrupt,
}

impl ServeConfig {
    /// Most cores of one server.
    pub const CORES_MAX: u16 = 1024;

    /// The defaults, and a name for the threads.
    pub fn named(name: &str) -> ServeConfig {
        ServeConfig {
            name: name.to_owned(),
            listen: Vec::new(),
            peer: None,
            cores: 1,
            pin: Vec::new(),
            endpoint: EndpointConfig::default(),
            event_loop: EventLoop::default(),
            patience: Duration::from_secs(2),
            drain_max: Duration::from_secs(16),
            answer_max: Duration::from_secs(10),
            long_work_max: Duration::from_secs(600),
            letters_max: 1024,
            interrupt: Interrupt::default(),
        }
    }
}
