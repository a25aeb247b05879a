//! The memcached side of one core: adopts connections, and serves them until it is told to stop.

use std::cell::{Cell, RefCell, RefMut};
use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;
use std::time::Duration;

use dunlin_serve::guarded;
use dunlin_store::{Store as _, UnixSeconds, VALUE_BYTES_MAX};
use tokio::sync::Notify;
use tokio::task::spawn_local;

use super::backend::Backend;
use super::budget::HOLD_SECONDS_MAX;
use super::buffers::Buffers;
use super::connection::Connection;
use super::connections::Ending;
use super::counters::Count;
use super::lookout::{LOOK_DEFAULT, Lookout};
use super::socket::{ConnectionLimit, Listen, Socket, Stream};

/// How often to look for connections that are idle, or that hold memory for too long.
const SWEEP: Duration = Duration::from_secs(1);

/// Settings that all cores of a server share.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Maximum number of the server's connections.
    pub connections_max: usize,
    /// Seconds without a command after which a connection is closed; `None` if never.
    pub idle_seconds_max: Option<UnixSeconds>,
    /// How long a core polls its sockets before it sleeps, while clients answer within that time; zero to never poll.
    pub look: Duration,
    /// When the server started.
    pub started: UnixSeconds,
    /// The addresses it listens at.
    pub listens: Vec<Listen>,
    /// Numbers the clients, by the same secret on all cores.
    pub(crate) clients: RandomState,
    limit: ConnectionLimit,
}

impl Settings {
    /// Creates the settings of a server that starts at `started` and listens at `listens`, with its acceptors'
    /// connection limit. Cores poll for [`LOOK_DEFAULT`].
    pub fn new(
        limit: ConnectionLimit,
        idle_seconds_max: Option<UnixSeconds>,
        started: UnixSeconds,
        listens: Vec<Listen>,
    ) -> Settings {
        Settings {
            connections_max: limit.max(),
            idle_seconds_max,
            look: LOOK_DEFAULT,
            started,
            listens,
            clients: RandomState::new(),
            limit,
        }
    }

    pub(super) fn rejected(&self) -> u64 {
        self.limit.rejected()
    }
}

/// The memcached side of one core. Lives on its thread, in a tokio `LocalSet`.
#[derive(Debug)]
pub struct Service<B> {
    backend: Rc<B>,
    settings: Settings,
    value_bytes_max: usize,
    buffers: RefCell<Buffers>,
    lookout: Rc<Lookout>,
    /// Whether it adopts no connection any more.
    is_ending: Cell<bool>,
    /// Notified when a connection ends.
    ended: Notify,
}

impl<B: Backend> Service<B> {
    /// Starts a core without connections. Once a second it looks for connections that are idle, if there is a limit,
    /// and for those that hold memory for too long.
    ///
    /// # Panics
    /// Outside a `LocalSet`.
    pub fn start(backend: Rc<B>, settings: Settings) -> Rc<Service<B>> {
        let of_store = backend.with_store(|store| store.stats().value_bytes_max);
        let value_bytes_max = usize::try_from(of_store).unwrap_or(VALUE_BYTES_MAX).min(VALUE_BYTES_MAX);
        let idle_seconds_max = settings.idle_seconds_max;
        let lookout = Rc::new(Lookout::new(settings.look));
        if lookout.is_on() {
            let (lookout, backend) = (lookout.clone(), backend.clone());
            spawn_local(async move { guarded(lookout.run(), |why| backend.panicked(why)).await });
        }
        let service = Rc::new(Service {
            backend,
            settings,
            value_bytes_max,
            buffers: RefCell::default(),
            lookout,
            is_ending: Cell::new(false),
            ended: Notify::new(),
        });
        {
            let backend = service.backend.clone();
            let service = Rc::downgrade(&service);
            let sweeping = async move {
                loop {
                    tokio::time::sleep(SWEEP).await;
                    let Some(service) = service.upgrade() else { return };
                    let state = service.backend.state();
                    let now = service.backend.now();
                    if let Some(max) = idle_seconds_max {
                        state.counters.add_many(Count::IdleKicks, state.connections.end_idle(now, max));
                    }
                    if state.budget.is_wanted() {
                        let count = state.connections.end_holders(now, HOLD_SECONDS_MAX);
                        state.counters.add_many(Count::MemoryKicks, count);
                    }
                }
            };
            spawn_local(async move { guarded(sweeping, |why| backend.panicked(why)).await });
        }
        service
    }

    /// Serves a connection, in a task of its own. If the core ends its connections, closes it: a snapshot may be under
    /// way that would miss what it changes.
    ///
    /// # Panics
    /// Outside a `LocalSet`.
    pub fn adopt(self: &Rc<Self>, socket: Socket) {
        if self.is_ending.get() {
            return;
        }
        let Socket { stream, is_unix, peer, host: name, permit } = socket;
        let stream = match Stream::new(stream, is_unix) {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%peer, %error, "cannot serve a memcached connection"),
        };
        let state = self.backend.state();
        state.counters.add(Count::TotalConnections);
        let (place, shared) = state.connections.add(peer, self.backend.now());
        let host = state.budget.hosts.join(name, &state.budget);
        let connection = Connection::new(self.clone(), shared, stream, &host, self.settings.clients.hash_one(name));
        let service = self.clone();
        spawn_local(async move {
            guarded(connection.run(), |why| service.backend.panicked(why)).await;
            let state = service.backend.state();
            state.connections.remove(place);
            state.budget.hosts.leave(name, host);
            drop(permit);
            service.ended.notify_waiters();
        });
    }

    /// Ends all connections at once: none executes another command.
    pub fn end_all_now(&self) {
        self.end_all(Ending::Now);
    }

    fn end_all(&self, ending: Ending) {
        self.is_ending.set(true);
        self.backend.state().connections.end_all(ending);
    }

    /// Stops gracefully: answers what was read from each connection, and what has arrived if there is memory to read
    /// it, then closes the connection. Data that a client sends meanwhile may be lost, as with any close, and so may a
    /// command that waits in line. Connections that take longer than `grace` are closed at once. Returns when none is
    /// left, or after twice `grace` if some wait for a core that does not answer.
    pub async fn stop(&self, grace: Duration) {
        let connections = &self.backend.state().connections;
        self.end_all(Ending::Stop);
        if tokio::time::timeout(grace, self.none_left()).await.is_err() {
            self.end_all(Ending::Now);
            if tokio::time::timeout(grace, self.none_left()).await.is_err() {
                tracing::warn!(connections = connections.len(), "memcached connections did not end in time");
            }
        }
    }

    async fn none_left(&self) {
        loop {
            let ended = self.ended.notified();
            if self.backend.state().connections.is_empty() {
                return;
            }
            ended.await;
        }
    }

    pub(super) fn backend(&self) -> &B {
        &self.backend
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn lookout(&self) -> &Lookout {
        &self.lookout
    }

    pub(super) fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    pub(super) fn buffers(&self) -> RefMut<'_, Buffers> {
        self.buffers.borrow_mut()
    }
}
