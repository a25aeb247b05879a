//! Makes at most one attempt at a time to reach the server, shared by all operations that wait for it. Sessions that
//! were not used recently are first probed with a request: if an operation were sent on a session that has ended, it
//! would be unknown whether it was executed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dunlin_net::random::Random;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::Endpoint;
use dunlin_serve::Joint;
use dunlin_serve::channel::UNUSED_NANOS_MAX;
use dunlin_serve::channel::connection::Connection as Shared;

use super::config::ClientConfig;
use super::error::KvError;
use super::links::Links;

/// How long to wait after a busy core pushed back an operation, times a random factor from 0.5 to 1.5; doubled with
/// each further attempt,
const BUSY_PAUSE_NANOS: u64 = 1_000_000;
/// up to this many times.
const BUSY_DOUBLINGS_MAX: u32 = 6;

/// The sessions with a server, or the attempt to open them.
pub(super) struct Connection<T: Transport> {
    pub endpoint: Rc<Endpoint<T>>,
    pub server: Addr,
    config: ClientConfig,
    links: Shared<Links, KvError>,
    /// The attempt to open them, polled by every operation that waits for it.
    opening: Joint<Result<Rc<Links>, KvError>>,
    /// The source of random pauses.
    random: RefCell<Random>,
    /// The only incarnation of the server that operations may be sent to, if that is not any.
    pinned: Cell<Option<u64>>,
}

impl<T: Transport + 'static> Connection<T> {
    pub fn new(endpoint: Rc<Endpoint<T>>, server: Addr, config: ClientConfig) -> Connection<T> {
        let random = RefCell::new(Random::new(endpoint.now()));
        Connection {
            endpoint,
            server,
            config,
            links: Shared::new(UNUSED_NANOS_MAX),
            opening: Joint::new(),
            random,
            pinned: Cell::new(None),
        }
    }

    /// Returns the sessions, if they exist and were in use until `now`.
    #[inline]
    pub fn current(&self, now: u64) -> Option<Rc<Links>> {
        let links = self.links.current(now)?;
        // The caller that begins an operation need not turn the endpoint.
        self.used(&links);
        Some(links)
    }

    /// Records that these sessions were in use until the endpoint's last turn.
    #[inline]
    pub fn used(&self, links: &Rc<Links>) {
        self.links.used(links, self.endpoint.loop_time());
    }

    /// Returns the sessions; probes or opens them, together with the other operations that wait for them. Any of these
    /// may stand still or be dropped meanwhile.
    pub async fn links(self: &Rc<Self>) -> Result<Rc<Links>, KvError> {
        match self.current(self.endpoint.now()) {
            Some(links) => Ok(links),
            // Boxed, so that the future of an operation is small: most operations find sessions.
            None => Box::pin(self.opening.get(|| self.clone().open(), drop)).await,
        }
    }

    async fn open(self: Rc<Self>) -> Result<Rc<Links>, KvError> {
        let open = async |unused: Option<Rc<Links>>| {
            if let Some(links) = unused {
                if !links.is_over(&self.config).await {
                    return Ok(links);
                }
                self.leave(&links);
            }
            let links = Links::open(&self.endpoint, &self.server, &self.config).await?;
            match self.pinned.get() {
                Some(pinned) if pinned != links.map.incarnation => {
                    Err(KvError::Restarted { server: self.server.clone() })
                }
                _ => Ok(Rc::new(links)),
            }
        };
        let links = self.links.get(|| self.endpoint.now(), open).await?;
        self.used(&links);
        Ok(links)
    }

    /// Waits before an operation is retried that a busy core pushed back, longer with each attempt. Returns whether
    /// there is time for another attempt before `deadline`.
    pub async fn wait_for_busy_core(&self, times: u32, deadline: Option<u64>) -> bool {
        let middle = BUSY_PAUSE_NANOS << times.min(BUSY_DOUBLINGS_MAX);
        let pause = middle / 2 + self.random.borrow_mut().below(middle);
        let until = self.endpoint.now().saturating_add(pause);
        if deadline.is_some_and(|deadline| until >= deadline) {
            return false;
        }
        self.endpoint.timers().sleep_until(until).await;
        // The sleep may have taken longer.
        deadline.is_none_or(|deadline| self.endpoint.now() < deadline)
    }

    /// Leaves these sessions, some of which have ended, to the operations in progress on the others: the next operation
    /// opens new ones. Does nothing if another task has already done so.
    pub fn leave(&self, links: &Rc<Links>) {
        self.links.detach(links);
    }

    /// Has all later operations fail once the server has another incarnation than this.
    pub fn pin(&self, incarnation: u64) {
        self.pinned.set(Some(incarnation));
    }

    /// Closes the sessions and forgets them.
    pub fn forget(&self) {
        self.links.forget();
    }
}
