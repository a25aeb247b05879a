//! One core of a server: a thread that owns an endpoint, a partition and its memcached connections, in one event loop.

use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{DeferredRequest, Endpoint, EndpointConfig};
use dunlin_store::snapshot::{Misfit, Part, Progress, SnapshotError, Turn, load_file};
use dunlin_store::{Mode, Partition, PartitionConfig, Store as _};
use tokio::task::{LocalSet, spawn_local, yield_now};

use super::clock::{TICK, moment};
use super::config::ServerConfig;
use super::error::ServerError;
use super::mail::{Mail, Mailboxes};
use super::memcached::Memcached;
use super::open::{self, Opened};
use super::saving::Saver;
use crate::drive::drive;
use crate::metrics::CoreStats;
use crate::routing::{Core, Routing};
use crate::service::{Identity, KvService};
use crate::shard::Shard;
use crate::wire::{ServerMap, Status};

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
pub(super) struct Setup {
    pub core: Core,
    pub config: Arc<ServerConfig>,
    pub routing: Routing,
    pub identity: Identity,
    pub mailbox: tokio::sync::mpsc::Receiver<Mail>,
    pub mailboxes: Mailboxes,
    pub saver: Saver,
    pub reports: mpsc::Sender<Report>,
}

impl Setup {
    /// Runs the core until it is told to end. Who starts it is told why it does not; later the error is given to whoever joins the thread.
    pub fn run(self) -> Result<(), ServerError> {
        let reports = self.reports.clone();
        match self.try_run().map_err(|error| reports.send(Report::Failed(error))) {
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
    fn fill(&self) -> Result<Partition, ServerError> {
        let memory = self.config.memory_bytes / usize::from(self.routing.cores());
        let mut config = PartitionConfig::new(self.config.mode, memory);
        config.key_function = self.config.key_function;
        let mut partition = Partition::new(config)?;
        let Some(path) = self.config.snapshot.as_deref() else { return Ok(partition) };
        let cannot_load = |source| ServerError::Load { path: path.to_owned(), source };
        // Only a file that is known not to be there means "nothing yet": one that cannot be looked at would be lost when the next is saved.
        let is_there = path.try_exists();
        if !is_there.map_err(|source| cannot_load(SnapshotError::Open { path: path.to_owned(), source }))? {
            return Ok(partition);
        }
        let misfit = if self.config.mode == Mode::Cache { Misfit::Count } else { Misfit::Refuse };
        let route = |key: &[u8]| (self.routing.owner(key) == self.core).then_some(0);
        let progress = |progress| {
            // Every core reads the whole file; one of them tells.
            if self.core == 0 {
                let _ = self.reports.send(Report::Loading(progress));
            }
        };
        load_file(path, moment(), std::slice::from_mut(&mut partition), route, misfit, progress).map_err(cannot_load)?;
        Ok(partition)
    }

    async fn run_mail<T: Transport + 'static>(
        mut self,
        running: Rc<Running<T>>,
        mut memcached: Memcached,
    ) -> Result<(), ServerError> {
        while let Some(letter) = self.mailbox.recv().await {
            match letter {
                Mail::Serve(map, done) => {
                    memcached.begin(&running.shard, &self.config, &self.mailboxes);
                    self.begin(&running, &map, memcached.stats())?;
                    let _ = done.send(());
                }
                Mail::Stats(answer) => {
                    let mut stats = running.stats();
                    memcached.stats()(&mut stats);
                    let _ = answer.send(stats);
                }
                Mail::Snapshot(part) => drop(spawn_local(take_part(running.shard.clone(), part))),
                Mail::Adopt(socket) => memcached.adopt(socket),
                Mail::Run(batch, answer) => drop(answer.send(memcached.run(batch))),
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
                    let (endpoint, patience) = (running.endpoint.clone(), self.config.patience);
                    spawn_local(async move {
                        stopped.await;
                        let unfinished = endpoint.shutdown(patience).await;
                        if !unfinished.is_nothing() {
                            tracing::warn!(?unfinished, "a core left requests unanswered when it stopped");
                        }
                        let _ = done.send(());
                    });
                }
                Mail::Fail(why) => return Err(ServerError::EventLoop { why }),
                Mail::Exit => break,
            }
        }
        Ok(())
    }

    /// Begins to serve and to turn the event loop.
    fn begin<T: Transport + 'static>(
        &self,
        running: &Rc<Running<T>>,
        map: &ServerMap,
        more_stats: impl Fn(&mut CoreStats) + 'static,
    ) -> Result<(), ServerError> {
        let service = KvService::new(running.shard.clone(), map.clone()).with_identity(self.identity.clone());
        service.add_stats(more_stats);
        if self.saver.has_file() {
            let saver = self.saver.clone();
            service.on_snapshot(move |request| answer_snapshot(&saver, request));
        }
        let registered = service.register(&running.endpoint);
        registered.map_err(|error| ServerError::System { what: "a handler", why: error.to_string() })?;
        let shard = running.shard.clone();
        spawn_local(async move {
            let mut ticks = tokio::time::interval(TICK);
            loop {
                ticks.tick().await;
                shard.set_moment(moment());
                shard.store.borrow_mut().expire_some();
            }
        });
        let endpoint = running.endpoint.clone();
        let driving = spawn_local(async move { drive(&endpoint).await });
        let mailbox = self.mailboxes.of(self.core).clone();
        spawn_local(async move {
            // Without its event loop a core is of no use, be it an error or a panic.
            let why = match driving.await {
                Ok(Ok(never)) => match never {},
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            let _ = mailbox.send(Mail::Fail(why)).await;
        });
        Ok(())
    }
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

/// Takes part in a snapshot: a little between two bursts, as tasks of one thread do.
async fn take_part(shard: Rc<Shard<Partition>>, mut part: Part) {
    loop {
        let turn = part.turn(&mut *shard.store.borrow_mut());
        match turn {
            Turn::Again => yield_now().await,
            Turn::Wait => tokio::time::sleep(SNAPSHOT_WAIT).await,
            Turn::Over => return,
        }
    }
}

/// A core at work.
struct Running<T: Transport> {
    endpoint: Rc<Endpoint<T>>,
    shard: Rc<Shard<Partition>>,
}

impl<T: Transport> Running<T> {
    fn stats(&self) -> CoreStats {
        CoreStats::take(&self.shard.metrics.borrow(), self.shard.store.borrow().stats(), &self.endpoint.stats())
    }
}
