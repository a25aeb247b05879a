//! Settings of a server.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::EndpointConfig;

use crate::interrupt::Interrupt;

/// What turns the endpoint of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventLoop {
    /// Its own event loop, which sleeps in its transport: the fastest way.
    #[default]
    Endpoint,
    /// A tokio runtime of one thread with a `LocalSet`, for cores that use tokio's sockets and timers. See
    /// [`crate::drive`].
    Tokio,
}

/// Longest time from the moment a core has hung for too long until that is noticed.
const LOOKING_MAX: Duration = Duration::from_secs(2);

/// Settings of a server. Start from [`ServeConfig::named`], which listens at no address.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Name of its threads: `NAME-0`, `NAME-1` and so on. Linux shows 15 bytes of it.
    pub name: String,
    /// Addresses of core 0: one `shm:` address, one `udp:` address, or one of each. Core `i` listens at `shm:NAME.i`,
    /// and at the UDP port that is `i` higher, or at one of the system's choice if that is in use.
    pub listen: Vec<Addr>,
    /// If `listen` is empty, an address that the cores must be able to reach: each core then gets an address of the
    /// system's choice.
    pub peer: Option<Addr>,
    /// Cores: 1 to [`ServeConfig::CORES_MAX`]. Default 1.
    pub cores: u16,
    /// Processors to pin the cores to, one for each; empty to leave them to the system.
    pub pin: Vec<usize>,
    /// Settings of each endpoint.
    pub endpoint: EndpointConfig,
    /// What turns each endpoint.
    pub event_loop: EventLoop,
    /// How long requests in progress have to end at shutdown. Default 2 s.
    pub patience: Duration,
    /// How long all cores have to drain. A core that takes longer ends with its requests unanswered. Default 16 s.
    pub drain_max: Duration,
    /// How long a core may take to answer, or to end, before it counts as hung, which is a failure: much longer than
    /// any of its tasks runs at a time. All cores are asked once a second. Time in which the process as a whole stands
    /// still does not count. Default 10 s.
    pub answer_max: Duration,
    /// How long a core may do announced long work ([`crate::long_work`]) before it counts as hung. Default 10 minutes.
    /// A server that has drained waits for such work no longer than for other work.
    pub long_work_max: Duration,
    /// Letters that wait in one mailbox; further senders wait. Default 1024.
    pub letters_max: usize,
    /// Rung when a core fails, so that a thread that waits for it checks the server.
    pub interrupt: Interrupt,
}

impl ServeConfig {
    /// Most cores of one server.
    pub const CORES_MAX: u16 = 1024;

    /// How long a server takes to stop at most: [`drain_max`](Self::drain_max), [`answer_max`](Self::answer_max) for
    /// cores that hang then, and the same again for their threads, plus 2 s for checking them. The time that the
    /// service takes at its end ([`crate::Service::finish`]) is added to that. By default 38 s; a service manager that
    /// kills the server earlier cuts that short.
    pub fn stop_max(&self) -> Duration {
        self.drain_max.saturating_add(self.answer_max.saturating_mul(2)).saturating_add(LOOKING_MAX)
    }

    /// The defaults, with a name for the threads.
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
