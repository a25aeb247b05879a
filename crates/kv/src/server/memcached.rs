//! The memcached side of a core: its backend, and on core 0 the sockets that are listened at.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_store::{Partition, Store as _, UnixSeconds};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use super::clock::unix_seconds;
use super::config::ServerConfig;
use super::error::ServerError;
use super::mail::{Mail, Mailboxes};
use crate::memcached::{
    Acceptor, Backend, Batch, ConnectionLimit, CoreState, Count, Inquiry, Listen, Report, Service, Settings, Socket,
    Unavailable,
};
use crate::metrics::{ConnectionCounts, CoreMetrics, CoreStats, Operation, Outcome};
use crate::routing::Core;
use crate::shard::Shard;

/// One core, as its memcached connections see it.
pub(super) struct CoreBackend {
    shard: Rc<Shard<Partition>>,
    mailboxes: Mailboxes,
    state: CoreState,
    /// When everything is to be deleted.
    flush_at: Cell<Option<UnixSeconds>>,
}

impl CoreBackend {
    /// Adds its memcached connections to the statistics of the core. Their operations are counted with those of other clients.
    pub fn add_stats(&self, stats: &mut CoreStats) {
        let counts = self.state.counters.snapshot();
        let get = |count| counts.get(count);
        let mut connections = ConnectionCounts::default();
        connections.open = self.state.connections.len() as u64;
        connections.accepted = get(Count::TotalConnections);
        connections.rejected = get(Count::RejectedConnections);
        connections.timed_out = get(Count::IdleKicks);
        connections.read_bytes = get(Count::BytesRead);
        connections.written_bytes = get(Count::BytesWritten);
        stats.connections.add(&connections);
    }

    /// Deletes everything when the time has come.
    fn flush_if_due(&self) {
        if self.flush_at.get().is_some_and(|at| at <= self.shard.now()) {
            self.flush_at.set(None);
            self.shard.store.borrow_mut().flush();
            self.shard.metrics.borrow_mut().count(Operation::Flush, Outcome::Hit);
        }
    }

    fn plan_flush(self: &Rc<Self>, at: UnixSeconds) {
        self.flush_at.set(Some(at));
        self.flush_if_due();
        if self.flush_at.get().is_some() {
            let backend = Rc::downgrade(self);
            spawn_local(async move {
                let wait = at.saturating_sub(unix_seconds());
                tokio::time::sleep(Duration::from_secs(wait.into())).await;
                // The partition's time may be a tick behind.
                if let Some(backend) = backend.upgrade().filter(|backend| backend.flush_at.get() == Some(at)) {
                    backend.shard.set_now(unix_seconds().max(at));
                    backend.flush_if_due();
                }
            });
        }
    }
}

impl Backend for CoreBackend {
    type Store = Partition;

    fn elsewhere(&self, key: &[u8]) -> Option<Core> {
        let owner = self.shard.routing().owner(key);
        (owner != self.shard.core()).then_some(owner)
    }

    fn owns_all(&self) -> bool {
        self.shard.routing().cores() == 1
    }

    fn with_store<R>(&self, run: impl FnOnce(&mut Partition) -> R) -> R {
        run(&mut self.shard.store.borrow_mut())
    }

    fn now(&self) -> UnixSeconds {
        self.shard.now()
    }

    fn state(&self) -> &CoreState {
        &self.state
    }

    fn metrics(&self) -> &RefCell<CoreMetrics> {
        &self.shard.metrics
    }

    async fn forward(&self, core: Core, batch: Box<Batch>) -> Result<Box<Batch>, Unavailable> {
        let (answer, answered) = oneshot::channel();
        self.mailboxes.of(core).send(Mail::Run(batch, answer)).await.map_err(|_| Unavailable)?;
        answered.await.map_err(|_| Unavailable)
    }

    async fn flush(&self, at: UnixSeconds) {
        self.mailboxes.ask_all(|answer| Mail::Flush(at, answer)).await;
    }

    async fn ask(&self, inquiry: Inquiry) -> Vec<Report> {
        self.mailboxes.ask_all(|answer| Mail::Ask(inquiry, answer)).await
    }
}

/// The memcached side of a core.
#[derive(Default)]
pub(super) struct Memcached {
    acceptors: Vec<Acceptor>,
    limit: Option<ConnectionLimit>,
    core: Option<(Rc<CoreBackend>, Rc<Service<CoreBackend>>)>,
    accepting: Vec<tokio::task::AbortHandle>,
}

impl Memcached {
    /// Listens.
    pub fn bind(config: &ServerConfig) -> Result<Memcached, ServerError> {
        let limit = ConnectionLimit::new(config.connections_max);
        let bind = |listen: &Listen| {
            let failed = |why| ServerError::Memcached { listen: listen.clone(), why };
            Acceptor::bind(listen, limit.clone()).map_err(failed)
        };
        let acceptors = config.memcached.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        Ok(Memcached { acceptors, limit: Some(limit), ..Memcached::default() })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<String> {
        self.acceptors.iter().map(|acceptor| acceptor.listen().to_string()).collect()
    }

    /// Begins to serve, and on core 0 to accept: connections are dealt to the cores in turn.
    pub fn begin(&mut self, shard: &Rc<Shard<Partition>>, config: &Arc<ServerConfig>, mailboxes: &Mailboxes) {
        let backend = Rc::new(CoreBackend {
            shard: shard.clone(),
            mailboxes: mailboxes.clone(),
            state: CoreState::default(),
            flush_at: Cell::new(None),
        });
        let idle = config.idle_max.map(|idle| idle.as_secs().try_into().unwrap_or(UnixSeconds::MAX));
        let limit = self.limit.get_or_insert_with(|| ConnectionLimit::new(config.connections_max)).clone();
        let mut settings = Settings::new(limit, idle, unix_seconds(), config.memcached.clone());
        settings.look = config.look;
        self.core = Some((backend.clone(), Service::start(backend, settings)));
        let next = Rc::new(Cell::new(0));
        for acceptor in self.acceptors.drain(..) {
            let (mailboxes, next) = (mailboxes.clone(), next.clone());
            let accepting = spawn_local(async move {
                loop {
                    let socket = acceptor.accept().await;
                    let core = next.get();
                    next.set((core + 1) % mailboxes.len());
                    // A core that is gone takes its server with it.
                    if mailboxes.of(core).send(Mail::Adopt(socket)).await.is_err() {
                        return;
                    }
                }
            });
            self.accepting.push(accepting.abort_handle());
        }
    }

    /// What adds this core's memcached side to its statistics.
    pub fn stats(&self) -> impl Fn(&mut CoreStats) + 'static + use<> {
        let backend = self.core.as_ref().map(|(backend, _)| backend.clone());
        move |stats| {
            if let Some(backend) = &backend {
                backend.add_stats(stats);
            }
        }
    }

    /// Serves a connection.
    pub fn adopt(&self, socket: Socket) {
        if let Some((_, service)) = &self.core {
            service.adopt(socket);
        }
    }

    /// Runs commands of another core's connections.
    pub fn run(&self, mut batch: Box<Batch>) -> Box<Batch> {
        if let Some((backend, _)) = &self.core {
            batch.run(&**backend);
        }
        batch
    }

    /// Deletes everything at a time.
    pub fn flush(&self, at: UnixSeconds) {
        if let Some((backend, _)) = &self.core {
            backend.plan_flush(at);
        }
    }

    /// Tells what is counted.
    pub fn report(&self, inquiry: Inquiry) -> Option<Report> {
        let (backend, _) = self.core.as_ref()?;
        Some(backend.state.report(inquiry, &*backend.shard.store.borrow(), backend.shard.now()))
    }

    /// Accepts nothing more, and ends the connections.
    pub fn stop(&mut self, patience: Duration) -> impl Future<Output = ()> + use<> {
        self.accepting.drain(..).for_each(|accepting| accepting.abort());
        let service = self.core.as_ref().map(|(_, service)| service.clone());
        async move {
            if let Some(service) = service {
                service.stop(patience).await;
            }
        }
    }
}
