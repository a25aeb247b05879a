//! One core of a server: a thread that owns an endpoint, a partition and its memcached connections, in one event loop.

use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{DeferredRequest, Endpoint, EndpointConfig};
use dunlin_store::snapshot::{Misfit, Origin, Part, Progress, Turn, load_file};
use dunlin_store::{Mode, PartitionConfig, Shape, Sweep};
use tokio::task::{AbortHandle, LocalSet, spawn_local, yield_now};

use super::clock::{moment, ticks};
use super::config::ServerConfig;
use super::error::ServerError;
use super::failure::{Failure, Health};
use super::mail::{Mail, Mailboxes};
use super::memcached::Memcached;
use super::open::{self, Opened};
use super::partitions::MakePartition;
use super::saving::Saver;
use crate::drive::drive;
use crate::memcached::Ran;
use crate::metrics::CoreStats;
use crate::panics::{guarded, guarded_now};
use crate::routing::{Core, Routing};
use crate::service::{Identity, KvService};
use crate::shard::Shard;
use crate::wire::{ServerMap, Status};

/// Batches of other cores' connections that are run one after the other before the other tasks of the core have their turn.
const BATCHES_PER_TURN: u32 = 8;
/// How long a core waits for the disk before it looks again.
const SNAPSHOT_WAIT: Duration = Duration::from_millis(1);

/// What a core says while it starts.
pub(super) enum Report {
    /// It has loaded so much of the snapshot.
    Loading(Progress),
    /// It listens here, and its partition is filled.
    Ready { core: Core, addresses: Vec<Addr>, memcached: Vec<String>, value_bytes_max: u64 },
    /// It cannot.
    Failed(ServerError),
}

/// What a core's thread is given.
pub(super) struct Setup<P> {
    pub core: Core,
    pub make: Arc<MakePartition<P>>,
    /// What the snapshot was taken from, if there is one and it says so.
    pub origin: Option<Arc<Origin>>,
    /// Whether there is a snapshot to load.
    pub has_snapshot: bool,
    pub config: Arc<ServerConfig>,
    pub routing: Routing,
    pub identity: Identity,
    pub mailbox: tokio::sync::mpsc::Receiver<Mail>,
    pub mailboxes: Mailboxes,
    pub saver: Saver,
    pub failure: Failure,
    pub reports: mpsc::Sender<Report>,
}

impl<P: Sweep + 'static> Setup<P> {
    /// Runs the core until it is told to end. Who starts it is told why it does not; later the error is given to whoever joins the thread.
    pub fn run(self) -> Result<(), ServerError> {
        let (reports, core, failure) = (self.reports.clone(), self.core, self.failure.clone());
        let run = guarded_now(|| self.try_run(), |why| failure.note(core, why));
        match run.unwrap_or(Err(ServerError::Ended)).map_err(|error| reports.send(Report::Failed(error))) {
            Ok(()) | Err(Ok(())) => Ok(()),
            Err(Err(mpsc::SendError(Report::Failed(error)))) => Err(error),
            Err(Err(_)) => Err(ServerError::Ended),
        }
    }

    fn try_run(self) -> Result<(), ServerError> {
        if let Some(&processor) = self.config.pin.get(usize::from(self.core)) {
            open::pin(processor)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let system = |why: std::io::Error| ServerError::System { what: "an event loop", why: why.to_string() };
        let runtime = runtime.map_err(system)?;
        LocalSet::new().block_on(&runtime, async {
            match open::open(&self.config.listen, self.core)? {
                Opened::One(transport) => self.serve(transport).await,
                Opened::Both(transport) => self.serve(*transport).await,
            }
        })
    }

    async fn serve<T: Transport + 'static>(self, transport: T) -> Result<(), ServerError> {
        let addresses = transport.local_addrs();
        let endpoint = Rc::new(Endpoint::new(transport, EndpointConfig::default())?);
        let memcached = if self.core == 0 { Memcached::bind(&self.config)? } else { Memcached::default() };
        let partition = self.fill()?;
        let ready = Report::Ready {
            core: self.core,
            addresses,
            memcached: memcached.addresses(),
            value_bytes_max: partition.stats().value_bytes_max,
        };
        let shard = Rc::new(Shard::new(partition, self.routing, self.core));
        shard.set_moment(moment());
        let running = Rc::new(Running { endpoint, shard });
        if self.reports.send(ready).is_err() {
            return Err(ServerError::Ended);
        }
        self.run_mail(running, memcached).await
    }

    /// Makes the partition and loads what it had.
    fn fill(&self) -> Result<P, ServerError> {
        let memory = self.config.memory_bytes / usize::from(self.routing.cores());
        let mut config = PartitionConfig::new(self.config.mode, memory);
        config.key_function = self.config.key_function;
        let mut partition = (self.make)(config, self.shape())?;
        let Some(path) = self.config.snapshot.as_deref().filter(|_| self.has_snapshot) else { return Ok(partition) };
        let cannot_load = |source| ServerError::Load { path: path.to_owned(), source };
        let misfit = if self.config.mode == Mode::Cache { Misfit::Count } else { Misfit::Refuse };
        let route = |key: &[u8]| (self.routing.owner(key) == self.core).then_some(0);
        let progress = |progress| {
            // Every core reads the whole file; one of them tells.
            if self.core == 0 {
                let _ = self.reports.send(Report::Loading(progress));
            }
        };
        let partitions = std::slice::from_mut(&mut partition);
        let loaded = load_file(path, moment(), partitions, route, misfit, progress).map_err(cannot_load)?;
        if loaded.misfits + loaded.evicted > 0 {
            let (core, items) = (self.core, loaded.misfits + loaded.evicted);
            tracing::warn!(core, items, "the snapshot has more than the cache has room for; these items were left out");
        }
        Ok(partition)
    }

    /// What the partition of this core was like when the snapshot was taken: with the same again, all of its items have place. Of other cores
    /// it has other items.
    fn shape(&self) -> Option<&Shape> {
        let origin = self.origin.as_deref()?;
        let is_same = origin.partitions.len() == usize::from(self.routing.cores());
        origin.partitions.get(usize::from(self.core)).filter(|_| is_same)
    }

    async fn run_mail<T: Transport + 'static>(
        mut self,
        running: Rc<Running<T, P>>,
        mut memcached: Memcached<P>,
    ) -> Result<(), ServerError> {
        let health = Health::new(self.core, self.failure.clone(), self.mailboxes.of(self.core).clone());
        let mut batches = 0;
        let mut ticking = None;
        while let Some(letter) = self.mailbox.recv().await {
            if matches!(letter, Mail::Exit) {
                break;
            }
            batches += u32::from(matches!(letter, Mail::Run(..)));
            // A panic here would take the partition with it before its items are saved.
            let obeyed =
                guarded_now(|| self.obey(letter, &running, &mut memcached, &mut ticking, &health), |why| health.fail(why));
            if obeyed.transpose()? == Some(Obeyed::ForNow) || batches >= BATCHES_PER_TURN {
                batches = 0;
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Does what a letter says.
    fn obey<T: Transport + 'static>(
        &self,
        letter: Mail,
        running: &Rc<Running<T, P>>,
        memcached: &mut Memcached<P>,
        ticking: &mut Option<AbortHandle>,
        health: &Health,
    ) -> Result<Obeyed, ServerError> {
        match letter {
            Mail::Exit => {}
            Mail::Ping(answer) => drop(answer.send(self.core)),
            Mail::Snapshot(part) => drop(spawn_local(take_part(running.shard.clone(), part, health.clone()))),
            // Whoever is told when it is over waits no longer.
            Mail::Drain(done) if health.has_failed() => drop(done.send(self.core)),
            // Whoever waits for an answer learns that there is none.
            _ if health.has_failed() => {}
            Mail::Failed => {}
            Mail::Serve(map, done) => {
                memcached.begin(&running.shard, &self.config, &self.mailboxes, health);
                *ticking = Some(self.begin(running, &map, memcached, health)?);
                let _ = done.send(());
            }
            Mail::Stats(answer) => {
                let mut stats = running.stats();
                memcached.stats()(&mut stats);
                let _ = answer.send(stats);
            }
            Mail::Adopt(socket) => memcached.adopt(socket),
            Mail::Run(mut batch, answer) => match memcached.run(&mut batch) {
                // Whoever asked may have gone away.
                Ran::Over => drop(answer.send(batch)),
                Ran::More => {
                    memcached.run_rest(batch, answer);
                    return Ok(Obeyed::ForNow);
                }
            },
            Mail::Flush(at, answer) => {
                memcached.flush(at);
                let _ = answer.send(());
            }
            Mail::Ask(inquiry, answer) => {
                if let Some(report) = memcached.report(inquiry) {
                    // Whoever asked may have gone away.
                    let _ = answer.send(report);
                }
            }
            Mail::Drain(done) => {
                let stopped = memcached.stop(self.config.patience);
                let (endpoint, patience, core) = (running.endpoint.clone(), self.config.patience, self.core);
                let ticking = ticking.take();
                spawn_local(async move {
                    stopped.await;
                    let unfinished = endpoint.shutdown(patience).await;
                    if !unfinished.is_nothing() {
                        tracing::warn!(?unfinished, "a core left requests unanswered when it stopped");
                    }
                    // What falls due from now on, such as a planned flush, would spoil the last snapshot.
                    if let Some(ticking) = ticking {
                        ticking.abort();
                    }
                    let _ = done.send(core);
                });
            }
        }
        Ok(Obeyed::Done)
    }

    /// Begins to serve and to turn the event loop. Returns what ends the task that tells the partition the time.
    fn begin<T: Transport + 'static>(
        &self,
        running: &Rc<Running<T, P>>,
        map: &ServerMap,
        memcached: &Memcached<P>,
        health: &Health,
    ) -> Result<AbortHandle, ServerError> {
        let service = KvService::new(running.shard.clone(), map.clone()).with_identity(self.identity.clone());
        service.add_stats(memcached.stats());
        if self.saver.has_file() {
            let saver = self.saver.clone();
            service.on_snapshot(move |request| answer_snapshot(&saver, request));
        }
        let registered = service.register(&running.endpoint);
        registered.map_err(|error| ServerError::System { what: "a handler", why: error.to_string() })?;
        let (shard, flush, tick) = (running.shard.clone(), memcached.flush_if_due(), self.config.tick);
        let ticking = async move {
            let mut ticks = ticks(tick);
            loop {
                ticks.tick().await;
                shard.set_moment(moment());
                expire(&shard).await;
                flush();
            }
        };
        let endpoint = running.endpoint.clone();
        // Without its event loop a core is of no use, be it an error or a panic.
        let of_loop = health.clone();
        let driving = async move {
            match drive(&endpoint).await {
                Ok(never) => match never {},
                Err(error) => of_loop.fail(format!("its event loop has ended: {error}")),
            }
        };
        let ticking = spawn_guarded(ticking, health);
        for work in [ticking.clone(), spawn_guarded(driving, health)] {
            health.on_failure(move || work.abort());
        }
        Ok(ticking)
    }
}

/// Drops items that have expired, as many as the partition asks for, and lets the other tasks of the core run in between.
async fn expire<P: Sweep>(shard: &Shard<P>) {
    let mut calls = 1;
    while shard.store.borrow_mut().expire_some() > calls {
        calls += 1;
        yield_now().await;
    }
}

/// How far a letter is done.
#[derive(Debug, PartialEq, Eq)]
enum Obeyed {
    Done,
    /// A task does the rest: other tasks have their turn now.
    ForNow,
}

/// Spawns a task without which the core cannot go on.
fn spawn_guarded(work: impl Future<Output = ()> + 'static, health: &Health) -> AbortHandle {
    let health = health.clone();
    spawn_local(async move { guarded(work, |why| health.fail(why)).await }).abort_handle()
}

/// Saves a snapshot, and then answers.
fn answer_snapshot(saver: &Saver, request: DeferredRequest) {
    let begun = saver.begin();
    spawn_local(async move {
        let status = match begun {
            Err(error) => {
                tracing::warn!(error = &error as &(dyn Error + 'static), "a snapshot was asked for");
                Status::Failed
            }
            Ok(end) => match end.await {
                Ok(Ok(_)) => Status::Done,
                Ok(Err(error)) => {
                    tracing::error!(error = &error as &(dyn Error + 'static), "a snapshot was asked for");
                    Status::Failed
                }
                Err(_) => Status::Failed,
            },
        };
        // Whoever asked may have gone away.
        let _ = request.enqueue_response(vec![status as u8]);
    });
}

/// Takes part in a snapshot: a little between two bursts, as tasks of one thread do. Also after the core failed: what can be read is saved.
async fn take_part<P: Sweep>(shard: Rc<Shard<P>>, mut part: Part, health: Health) {
    loop {
        let turn = guarded_now(|| part.turn(&mut *shard.store.borrow_mut()), |why| health.fail(why));
        match turn {
            Some(Turn::Again) => yield_now().await,
            Some(Turn::Wait) => tokio::time::sleep(SNAPSHOT_WAIT).await,
            // A part that is dropped before it is over ends the snapshot.
            Some(Turn::Over) | None => return,
        }
    }
}

/// A core at work.
struct Running<T: Transport, P> {
    endpoint: Rc<Endpoint<T>>,
    shard: Rc<Shard<P>>,
}

impl<T: Transport, P: Sweep> Running<T, P> {
    fn stats(&self) -> CoreStats {
        CoreStats::take(&self.shard.metrics.borrow(), self.shard.store.borrow().stats(), &self.endpoint.stats())
    }
}
