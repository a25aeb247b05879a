//! The memcached side of a core: its backend, and on core 0 the listening sockets.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_serve::{Health, guarded};
use dunlin_store::tier::Ticket;
use dunlin_store::{Sweep, UnixSeconds};
use tokio::sync::{Mutex, oneshot};
use tokio::task::{spawn_local, yield_now};

use super::clock::unix_seconds;
use super::config::ServerConfig;
use super::error::ServerError;
use super::mail::{Mail, Mailboxes};
use crate::memcached::{
    Acceptor, Backend, Batch, ConnectionLimit, CoreState, Count, FlushTime, Inquiry, Listen, Ran, Report, Service,
    Settings, Socket, Unavailable, wait_for_turn,
};
use crate::metrics::{ConnectionCounts, CoreMetrics, CoreStats, Operation, Outcome};
use crate::routing::Core;
use crate::shard::Shard;
use crate::tier::{self, Desk, DeviceHangs, Holds};

/// One core, as its memcached connections see it.
pub(super) struct CoreBackend<P> {
    shard: Rc<Shard<P>>,
    mailboxes: Mailboxes,
    state: CoreState,
    /// When a scheduled flush is due.
    flush_at: Cell<Option<UnixSeconds>>,
    /// Held during a flush: all cores hear of two flushes in the same order, and keep the same one for later.
    flushing: Arc<Mutex<()>>,
    health: Health,
}

impl<P: Sweep + 'static> CoreBackend<P> {
    /// Adds the core's memcached connections to its statistics. Their operations are counted with those of other
    /// clients.
    pub fn add_stats(&self, stats: &mut CoreStats) {
        let counts = self.state.counters.snapshot();
        let get = |count| counts.get(count);
        let mut connections = ConnectionCounts::default();
        connections.open = self.state.connections.len() as u64;
        connections.memory_bytes = self.state.connection_bytes();
        connections.memory_bytes_max = self.state.connection_bytes_max();
        connections.memory_waits = get(Count::MemoryWaits);
        connections.memory_kicks = get(Count::MemoryKicks);
        connections.accepted = get(Count::TotalConnections);
        connections.rejected = get(Count::RejectedConnections);
        connections.timed_out = get(Count::IdleKicks);
        connections.read_bytes = get(Count::BytesRead);
        connections.written_bytes = get(Count::BytesWritten);
        stats.connections.add(&connections);
    }

    fn flush_now(&self) {
        self.flush_at.set(None);
        self.shard.store.borrow_mut().flush();
        self.shard.metrics.borrow_mut().count(Operation::Flush, Outcome::Hit);
    }

    /// Deletes everything when the scheduled time has come. Called with each update of the core's time.
    fn flush_if_due(&self) {
        if self.flush_at.get().is_some_and(|at| at <= self.shard.now()) {
            self.flush_now();
        }
    }

    /// Deletes everything now, or schedules that for one time. The clocks of two cores differ by some milliseconds, so
    /// another core's decision to delete now is not checked against the time here.
    fn plan_flush(&self, at: FlushTime) {
        match at {
            FlushTime::Now => self.flush_now(),
            FlushTime::At(at) => {
                self.flush_at.set(Some(at));
                self.flush_if_due();
            }
        }
    }
}

impl<P: Sweep + 'static> Backend for CoreBackend<P> {
    type Store = P;

    fn elsewhere(&self, key: &[u8]) -> Option<Core> {
        let owner = self.shard.routing().owner(key);
        (owner != self.shard.core()).then_some(owner)
    }

    fn cores(&self) -> Core {
        self.shard.routing().cores()
    }

    #[inline]
    fn with_store<R>(&self, run: impl FnOnce(&mut P) -> R) -> R {
        let store = &mut *self.shard.store.borrow_mut();
        let result = run(store);
        if let Some(desk) = self.shard.desk() {
            // Commands may have evicted items.
            store.tier_mut().into_iter().for_each(|tier| desk.write(tier));
        }
        result
    }

    fn has_tier(&self) -> bool {
        self.shard.desk().is_some()
    }

    fn fetch(&self, tickets: Vec<Ticket>, client: u64) -> impl Future<Output = Result<Holds, DeviceHangs>> {
        tier::fetch(&self.shard, tickets, client)
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
        self.mailboxes.send(core, Mail::Run(batch, answer)).await.map_err(|_| Unavailable)?;
        answered.await.map_err(|_| Unavailable)
    }

    async fn flush(&self, at: FlushTime) -> Result<(), Unavailable> {
        let _turn = self.flushing.lock().await;
        let flushed = self.mailboxes.ask_all(|answer| Mail::Flush(at, answer)).await;
        if flushed.len() == usize::from(self.mailboxes.len()) { Ok(()) } else { Err(Unavailable) }
    }

    fn panicked(&self, why: String) {
        self.health.fail(why);
    }

    async fn ask(&self, inquiry: Inquiry) -> Vec<Report> {
        self.mailboxes.ask_all(|answer| Mail::Ask(inquiry, answer)).await
    }
}

/// A core's backend and its connections, once it serves.
type Serving<P> = (Rc<CoreBackend<P>>, Rc<Service<CoreBackend<P>>>);

/// The memcached side of a core.
pub(super) struct Memcached<P> {
    acceptors: Vec<Acceptor>,
    limit: Option<ConnectionLimit>,
    core: Option<Serving<P>>,
    accepting: Vec<tokio::task::AbortHandle>,
}

impl<P> Default for Memcached<P> {
    fn default() -> Self {
        Memcached { acceptors: Vec::new(), limit: None, core: None, accepting: Vec::new() }
    }
}

impl<P: Sweep + 'static> Memcached<P> {
    /// Listens.
    pub fn bind(config: &ServerConfig) -> Result<Memcached<P>, ServerError> {
        let limit = ConnectionLimit::new(config.connections_max);
        let bind = |listen: &Listen| {
            let failed = |why| ServerError::Memcached { listen: listen.clone(), why };
            Acceptor::bind(listen, limit.clone()).map_err(failed)
        };
        let acceptors = config.memcached.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        Ok(Memcached { acceptors, limit: Some(limit), ..Memcached::default() })
    }

    /// Returns the addresses that it listens at.
    pub fn addresses(&self) -> Vec<String> {
        self.acceptors.iter().map(|acceptor| acceptor.listen().to_string()).collect()
    }

    /// Begins to serve, and on core 0 to accept: connections are distributed to the cores in turn.
    pub fn begin(
        &mut self,
        shard: &Rc<Shard<P>>,
        config: &Arc<ServerConfig>,
        mailboxes: &Mailboxes,
        flushing: &Arc<Mutex<()>>,
        health: &Health,
    ) {
        let backend = Rc::new(CoreBackend {
            shard: shard.clone(),
            mailboxes: mailboxes.clone(),
            state: CoreState::with_connection_bytes(config.connection_memory_bytes / usize::from(config.cores)),
            flush_at: Cell::new(None),
            flushing: flushing.clone(),
            health: health.clone(),
        });
        let idle = config.idle_max.map(|idle| idle.as_secs().try_into().unwrap_or(UnixSeconds::MAX));
        let limit = self.limit.get_or_insert_with(|| ConnectionLimit::new(config.connections_max)).clone();
        let mut settings = Settings::new(limit, idle, unix_seconds(), config.memcached.clone());
        settings.look = config.look;
        settings.clients = shard.desk().map_or(settings.clients, Desk::clients);
        let service = Service::start(backend.clone(), settings);
        let connections = Rc::downgrade(&service);
        health.on_failure(move || connections.upgrade().iter().for_each(|service| service.end_all_now()));
        self.core = Some((backend, service));
        let next = Rc::new(Cell::new(0));
        for acceptor in self.acceptors.drain(..) {
            let (mailboxes, next) = (mailboxes.clone(), next.clone());
            let failing = health.clone();
            let accepting = async move {
                loop {
                    let socket = acceptor.accept().await;
                    // A hung core must not block connections to the others. A core that is gone takes its server with
                    // it.
                    let Ok(core) = mailboxes.send_any(next.get(), Mail::Adopt(socket)).await else { return };
                    next.set((core + 1) % mailboxes.len());
                }
            };
            let accepting =
                spawn_local(async move { guarded(accepting, |why| failing.fail(why)).await }).abort_handle();
            self.accepting.push(accepting.clone());
            health.on_failure(move || accepting.abort());
        }
    }

    /// Returns a function that adds this core's memcached side to its statistics.
    pub fn stats(&self) -> impl Fn(&mut CoreStats) + 'static + use<P> {
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
    pub fn run(&self, batch: &mut Batch) -> Ran {
        let Some((backend, _)) = &self.core else { return Ran::Over };
        batch.run(&**backend)
    }

    /// Runs the rest of a batch in a task, so that other tasks have their turn in between, and returns the batch.
    pub fn run_rest(&self, mut batch: Box<Batch>, answer: oneshot::Sender<Box<Batch>>) {
        let Some((backend, _)) = &self.core else { return };
        let (backend, health) = (backend.clone(), backend.health.clone());
        let rest = async move {
            loop {
                let (awaited, begun) = (batch.take_awaited(), Instant::now());
                // Keeps what was read in memory until the commands have run that wait for it.
                let _holds = if awaited.is_empty() {
                    yield_now().await;
                    Holds::default()
                } else {
                    let Ok(holds) = backend.fetch(awaited, batch.client()).await else {
                        // What ran is answered: else a client would repeat it. The rest is sent again and fails alone.
                        // Without an answer the sender learns that there is none.
                        if batch.got_on() {
                            break;
                        }
                        return;
                    };
                    batch.add_waited(begun.elapsed().as_nanos().try_into().unwrap_or(u64::MAX));
                    holds
                };
                if backend.health.has_failed() {
                    break;
                }
                let mut ran = batch.run(&*backend);
                if ran == Ran::Turn {
                    batch.add_waited(wait_for_turn(&*backend).await);
                    if backend.health.has_failed() {
                        break;
                    }
                    ran = batch.run_in_turn(&*backend);
                }
                if ran == Ran::Over {
                    break;
                }
            }
            if !backend.health.has_failed() {
                // The sender may be gone.
                let _ = answer.send(batch);
            }
        };
        spawn_local(async move { guarded(rest, |why| health.fail(why)).await });
    }

    /// Returns a function that deletes everything when a scheduled time has come.
    pub fn flush_if_due(&self) -> impl Fn() + 'static + use<P> {
        let backend = self.core.as_ref().map(|(backend, _)| backend.clone());
        move || backend.iter().for_each(|backend| backend.flush_if_due())
    }

    /// Deletes everything, now or at a time.
    pub fn flush(&self, at: FlushTime) {
        if let Some((backend, _)) = &self.core {
            backend.plan_flush(at);
        }
    }

    /// Returns the statistics.
    pub fn report(&self, inquiry: Inquiry) -> Option<Report> {
        let (backend, _) = self.core.as_ref()?;
        Some(backend.state.report(inquiry, &*backend.shard.store.borrow(), backend.shard.now()))
    }

    /// Stops accepting, and ends the connections.
    pub fn stop(&mut self, patience: Duration) -> impl Future<Output = ()> + use<P> {
        self.accepting.drain(..).for_each(|accepting| accepting.abort());
        let service = self.core.as_ref().map(|(_, service)| service.clone());
        async move {
            if let Some(service) = service {
                service.stop(patience).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dunlin_serve::{Failure, mailbox};
    use dunlin_store::{Model, Put, Store as _};
    use futures::FutureExt as _;
    use tokio::task::LocalSet;

    use super::*;
    use crate::routing::Routing;
    use crate::tier::{Schedule, desk, tests};

    const NOW: UnixSeconds = 1_800_000_000;

    fn backend(core: Core, mailboxes: &Mailboxes, now: UnixSeconds) -> Rc<CoreBackend<Model>> {
        let routing = Routing::new([1; 16], mailboxes.len()).unwrap();
        let shard = Rc::new(Shard::new(Model::new(), routing, core));
        shard.set_now(now);
        let health = Health::new(core, Failure::default(), mailboxes);
        let (flush_at, flushing, state) = (Cell::new(None), Arc::default(), CoreState::default());
        Rc::new(CoreBackend { shard, mailboxes: mailboxes.clone(), state, flush_at, flushing, health })
    }

    fn store(backend: &CoreBackend<Model>) {
        backend.with_store(|store| {
            let key = store.key(b"bird").unwrap();
            store.put(&key, b"dunlin", Put::default()).unwrap();
        });
    }

    fn items(backend: &CoreBackend<Model>) -> u64 {
        backend.with_store(|store| store.stats().items)
    }

    /// Cores get the time one after the other.
    #[test]
    fn a_flush_is_over_on_all_cores_before_its_answer_whatever_their_clocks_say() {
        let (mailboxes, receivers) = mailbox::mailboxes(2, 8);
        let cores = [backend(0, &mailboxes, NOW + 1), backend(1, &mailboxes, NOW)];
        cores.iter().for_each(|core| store(core));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            for (core, mut mailbox) in cores.iter().cloned().zip(receivers) {
                spawn_local(async move {
                    while let Some(Mail::Flush(at, done)) = mailbox.letter().await {
                        core.plan_flush(at);
                        let _ = done.send(());
                    }
                });
            }
            cores[0].flush(FlushTime::Now).await.unwrap();
        });
        assert_eq!(cores.each_ref().map(|core| items(core)), [0, 0]);
        // Items stored after the answer stay.
        cores.iter().for_each(|core| store(core));
        for core in &cores {
            core.shard.set_now(NOW + 2);
            core.flush_if_due();
        }
        assert_eq!(cores.each_ref().map(|core| items(core)), [1, 1]);
    }

    /// Otherwise one core could keep the first of two for later, and another one the second.
    #[test]
    fn all_cores_hear_of_two_flushes_in_the_same_order() {
        let (mailboxes, mut receivers) = mailbox::mailboxes(2, 8);
        let flushing: Arc<Mutex<()>> = Arc::default();
        let [one, other] = [0, 1].map(|core| {
            let mut core = Rc::into_inner(backend(core, &mailboxes, NOW)).unwrap();
            core.flushing = flushing.clone();
            core
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            spawn_local(async move { one.flush(FlushTime::At(NOW + 10)).await });
            spawn_local(async move { other.flush(FlushTime::At(NOW + 1_000_000)).await });
            for at in [NOW + 10, NOW + 1_000_000] {
                let mut waiting = Vec::new();
                for mailbox in &mut receivers {
                    let Some(Mail::Flush(planned, done)) = mailbox.letter().await else { panic!("another letter") };
                    assert_eq!(planned, FlushTime::At(at));
                    yield_now().await;
                    waiting.push(done);
                }
                for mailbox in &mut receivers {
                    assert!(mailbox.letter().now_or_never().is_none(), "the next one waits until all have answered");
                }
                waiting.into_iter().for_each(|done| done.send(()).unwrap());
            }
        });
    }

    #[test]
    fn a_flush_that_a_core_did_not_do_is_not_acknowledged() {
        let (mailboxes, mut receivers) = mailbox::mailboxes(2, 8);
        receivers.pop();
        let core = backend(0, &mailboxes, NOW);
        let (backend, mut mailbox) = (core.clone(), receivers.remove(0));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            spawn_local(async move {
                while let Some(Mail::Flush(at, done)) = mailbox.letter().await {
                    backend.plan_flush(at);
                    let _ = done.send(());
                }
            });
            assert_eq!(core.flush(FlushTime::Now).await, Err(Unavailable));
        });
    }

    #[test]
    fn what_ran_is_answered_though_the_device_hangs_for_the_rest() {
        tests::run(async {
            let (open, gate) = std::sync::mpsc::channel();
            let device = Arc::new(tests::Memory::new(Some(gate)));
            let shard = tests::shard_within(device, 1, Schedule::default(), Duration::from_millis(80));
            spawn_local(desk::attend(shard.clone()));
            let (cold, _) = &tests::fill(&shard).await[0];
            {
                let mut store = shard.store.borrow_mut();
                let key = store.key(b"number").unwrap();
                store.put(&key, b"1", Put::default()).unwrap();
            }
            let (mailboxes, _receivers) = mailbox::mailboxes(1, 8);
            let health = Health::new(0, Failure::default(), &mailboxes);
            let (state, flush_at, flushing) = (CoreState::default(), Cell::new(None), Arc::default());
            let backend = Rc::new(CoreBackend { shard, mailboxes, state, flush_at, flushing, health });
            let settings = Settings::new(ConnectionLimit::new(1), None, NOW, Vec::new());
            let service = Service::start(backend.clone(), settings);
            let memcached = Memcached { core: Some((backend, service)), ..Memcached::default() };
            let get = format!("get {cold}\r\n");
            let mut batch = Batch::of(&["incr number 1\r\n", &get, &get]);
            assert_eq!(memcached.run(&mut batch), Ran::Tier);
            let (answer, answered) = oneshot::channel();
            memcached.run_rest(batch, answer);
            let batch = answered.await.expect("its client would repeat what ran");
            assert_eq!((batch.answer(0), batch.answer(1)), (Some(&b"2\r\n"[..]), None));
            // The rest, when it is sent again.
            let mut batch = Batch::of(&[&get]);
            assert_eq!(memcached.run(&mut batch), Ran::Tier);
            let (answer, answered) = oneshot::channel();
            memcached.run_rest(batch, answer);
            assert!(answered.await.is_err());
            drop(open);
        });
    }

    #[test]
    fn a_million_planned_flushes_are_one() {
        let (mailboxes, _receivers) = mailbox::mailboxes(1, 8);
        let core = backend(0, &mailboxes, NOW);
        store(&core);
        for later in 0..1_000_000 {
            core.plan_flush(FlushTime::At(NOW + 1 + later));
        }
        assert_eq!((Rc::weak_count(&core), Rc::strong_count(&core)), (0, 1), "nothing waits for any of them");
        core.shard.set_now(NOW + 999_999);
        core.flush_if_due();
        assert_eq!(items(&core), 1, "only the last one counts");
        core.shard.set_now(NOW + 1_000_000);
        core.flush_if_due();
        assert_eq!(items(&core), 0);
    }
}
