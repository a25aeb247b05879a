//! The server: one thread for each core, each with an endpoint, a partition and its memcached connections in one event loop.
//!
//! | File | What it holds |
//! |---|---|
//! | `core` | a core's thread: from its start to its end |
//! | `mail` | what threads tell each other |
//! | `failure` | what happens when a core fails |
//! | `memcached` | its memcached connections, and commands for keys of other cores |
//! | `metrics` | the port that Prometheus reads |
//! | `saving` | snapshots |
//! | `partitions` | what a core keeps its items in |
//! | `open`, `addresses` | where a core listens |

mod addresses;
mod clock;
mod config;
mod core;
mod error;
mod failure;
mod mail;
mod memcached;
mod metrics;
mod open;
mod partitions;
mod saving;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dunlin_net::Addr;
use dunlin_store::snapshot::{NoRoom, Progress, Report, SnapshotError};
use dunlin_store::{Mode, PartitionConfig, PartitionError, Shape, Sweep};
use tokio::sync::oneshot::error::TryRecvError;

pub use config::{CONNECTIONS_MAX_DEFAULT, HANG_MAX_DEFAULT, IDLE_MAX_DEFAULT, ServerConfig, TICK_DEFAULT};
pub use error::ServerError;

use crate::metrics::ServerStats;
use crate::routing::{CORES_MAX, Core, Routing};
use crate::service::Identity;
use crate::wire::{Limits, ServerMap};
use failure::{Failed, Failure};
use mail::{Mail, Mailboxes};
use metrics::MetricsPort;
use saving::Saver;

/// How often cores are asked whether they hang while a snapshot needs them, and how long a silent one has when
/// it is asked again; no longer than it had at first.
const HANG_LOOK_MAX: Duration = Duration::from_secs(1);
/// How often a thread is looked at that is about to end.
const END_LOOK: Duration = Duration::from_millis(1);

/// A running server. Dropped, it ends in order, without a snapshot.
///
/// ```
/// use dunlin_kv::server::{Server, ServerConfig};
///
/// let mut config = ServerConfig::default();
/// config.listen = vec![format!("shm:doc-kv-{}", std::process::id()).parse()?];
/// config.memory_bytes = 16 << 20;
/// let server = Server::start(config, |_| {})?;
/// println!("serving at {}", server.addresses()[0]);
/// server.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Server {
    mailboxes: Mailboxes,
    threads: Vec<JoinHandle<Result<(), ServerError>>>,
    saver: Saver,
    failure: Failure,
    patience: Duration,
    hang_max: Duration,
    identity: Identity,
    begun: Instant,
    addresses: Vec<Addr>,
    memcached: Vec<String>,
    metrics: Option<MetricsPort>,
}

impl Server {
    /// Starts a server, and returns when all of it listens. `loading` is told how far a snapshot is loaded.
    ///
    /// # Errors
    /// [`ServerError`]: a setting is wrong, an address is in use, memory is not available, or the snapshot cannot be loaded or
    /// belongs to another server.
    pub fn start(config: ServerConfig, loading: impl FnMut(Progress)) -> Result<Server, ServerError> {
        Server::start_with(config, partitions::make, loading)
    }

    /// Starts a server whose cores keep their items in what `make` makes, each in one of its own: of the shape that it
    /// had when the snapshot was taken, if that is known. As [`Server::start`] else.
    ///
    /// # Errors
    /// [`ServerError`], as [`Server::start`].
    pub fn start_with<P: Sweep + 'static>(
        config: ServerConfig,
        make: impl Fn(PartitionConfig, Option<&Shape>) -> Result<P, PartitionError> + Send + Sync + 'static,
        mut loading: impl FnMut(Progress),
    ) -> Result<Server, ServerError> {
        check(&config)?;
        let make: Arc<partitions::MakePartition<P>> = Arc::new(make);
        let cores = config.cores;
        let mut random = [0; 24];
        getrandom::fill(&mut random).map_err(|why| ServerError::System { what: "random numbers", why: why.to_string() })?;
        let (seed, incarnation) = random.split_at(16);
        // Of 24 bytes, 16 and 8.
        let drawn: [u8; 16] = seed.try_into().expect("16 bytes");
        let incarnation = u64::from_le_bytes(incarnation.try_into().expect("8 bytes"));
        let mode = if config.mode == Mode::Cache { "cache" } else { "store" };
        let identity = Identity { mode: mode.into(), started: clock::unix_seconds().into() };
        let (mailboxes, receivers) = Mailboxes::new(cores);
        let (reports, reported) = mpsc::channel();
        // Locked before it is looked at.
        let saver = Saver::new(config.snapshot.as_deref(), mailboxes.clone(), config.hang_max)?;
        let (has_snapshot, origin) = partitions::look_at(config.snapshot.as_deref())?;
        // Another seed would divide the keys otherwise: what a full store saved would not fit its cores again.
        let seed = partitions::seed_of(origin.as_ref()).unwrap_or(drawn);
        let routing = Routing::new(seed, cores).ok_or(ServerError::Cores { cores })?;
        let (saver, origin) = (saver.routed_by(seed), origin.map(Arc::new));
        let mut server = Server {
            mailboxes: mailboxes.clone(),
            threads: Vec::new(),
            saver: saver.clone(),
            failure: Failure::default(),
            patience: config.patience,
            hang_max: config.hang_max,
            identity: identity.clone(),
            begun: Instant::now(),
            addresses: Vec::new(),
            memcached: Vec::new(),
            metrics: None,
        };
        let config = Arc::new(config);
        for (core, mailbox) in (0..).zip(receivers) {
            let setup = core::Setup {
                core,
                make: make.clone(),
                origin: origin.clone(),
                has_snapshot,
                config: config.clone(),
                routing,
                identity: identity.clone(),
                mailbox,
                mailboxes: mailboxes.clone(),
                saver: saver.clone(),
                failure: server.failure.clone(),
                reports: reports.clone(),
            };
            let thread = thread::Builder::new().name(format!("kv-{core}")).spawn(move || setup.run());
            let thread = thread.map_err(|why| ServerError::System { what: "a thread", why: why.to_string() })?;
            server.threads.push(thread);
        }
        drop(reports);
        let (by_core, value_bytes_max) = server.wait_until_ready(cores, &reported, &mut loading)?;
        let limits = Limits { value_bytes_max: value_bytes_max.try_into().unwrap_or(u32::MAX) };
        server.addresses.clone_from(&by_core[0]);
        let addresses = by_core.iter().map(|core| core.iter().map(Addr::to_string).collect()).collect();
        let map = Arc::new(ServerMap { incarnation, routing, limits, addresses });
        let serving = mailboxes.ask_all_blocking(|done| Mail::Serve(map.clone(), done));
        if serving.len() == usize::from(cores) { Ok(server) } else { Err(ServerError::Ended) }
    }

    /// Waits until every core listens; gives where, and the longest value that all take.
    fn wait_until_ready(
        &mut self,
        cores: u16,
        reported: &mpsc::Receiver<core::Report>,
        loading: &mut impl FnMut(Progress),
    ) -> Result<(Vec<Vec<Addr>>, u64), ServerError> {
        let mut by_core = vec![Vec::new(); usize::from(cores)];
        let mut value_max = u64::MAX;
        let mut waiting = cores;
        let mut no_room: Option<(PathBuf, NoRoom)> = None;
        while waiting > 0 {
            match reported.recv().map_err(|_| ServerError::Ended)? {
                core::Report::Loading(progress) => loading(progress),
                // Each core knows what it has no room for: all of it is told.
                core::Report::Failed(ServerError::Load { path, source: SnapshotError::NoRoom(more) }) => {
                    no_room = Some((path, no_room.map_or(more, |(_, before)| together(&before, &more))));
                    waiting -= 1;
                }
                core::Report::Failed(error) => return Err(error),
                core::Report::Ready { core, addresses, memcached, value_bytes_max } => {
                    by_core[usize::from(core)] = addresses;
                    self.memcached.extend(memcached);
                    value_max = value_max.min(value_bytes_max);
                    waiting -= 1;
                }
            }
        }
        if let Some((path, no_room)) = no_room {
            return Err(ServerError::Load { path, source: SnapshotError::NoRoom(no_room) });
        }
        Ok((by_core, value_max))
    }

    /// Where Dunlin clients reach core 0, with the ports that the system chose.
    pub fn addresses(&self) -> &[Addr] {
        &self.addresses
    }

    /// Where memcached clients connect, as text, with the ports that the system chose.
    pub fn memcached_addresses(&self) -> &[String] {
        &self.memcached
    }

    /// Serves metrics for Prometheus at `http://ADDRESS/metrics` from now on, on a thread of its own. Gives the address, with the port that the
    /// system chose.
    ///
    /// # Errors
    /// [`ServerError::Metrics`].
    pub fn serve_metrics(&mut self, address: SocketAddr) -> Result<SocketAddr, ServerError> {
        let port = MetricsPort::open(address, self.source())?;
        let address = port.address();
        self.metrics = Some(port);
        Ok(address)
    }

    /// How many cores it has.
    pub fn cores(&self) -> Core {
        self.mailboxes.len()
    }

    /// What it counts. Waits for every core. Not to be called from within an event loop of tokio.
    pub fn stats(&self) -> ServerStats {
        self.source().stats()
    }

    /// What asks a running server for its counts, from any thread.
    pub fn source(&self) -> StatsSource {
        StatsSource { mailboxes: self.mailboxes.clone(), identity: self.identity.clone(), begun: self.begun }
    }

    /// Saves a snapshot, and waits until it is on the disk. The server serves meanwhile.
    ///
    /// # Errors
    /// [`ServerError::NoSnapshot`], [`ServerError::Saving`], [`ServerError::Save`].
    pub fn save(&self) -> Result<Report, ServerError> {
        self.saver.begin()?.blocking_recv().map_err(|_| ServerError::Ended)?
    }

    /// Begins to save a snapshot, for a thread that has other things to do than to wait for the disk.
    ///
    /// # Errors
    /// [`ServerError::NoSnapshot`], [`ServerError::Saving`], [`ServerError::System`].
    pub fn begin_save(&self) -> Result<SnapshotSaving, ServerError> {
        self.saver.begin().map(SnapshotSaving)
    }

    /// Whether all its cores serve. Once one has failed, the others serve on until [`Server::stop`] ends the server and says why.
    pub fn is_running(&self) -> bool {
        self.failure.get().is_none() && self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Ends gracefully: what is in progress is answered, peers are told, and the snapshot is saved if there is a file for it; its report is
    /// given then. A snapshot that is being saved is waited for, and another one saved after it.
    ///
    /// # Errors
    /// [`ServerError::Save`]; [`ServerError::CoreFailed`] if a core panicked or hangs, with what was saved of its items and those of the other
    /// cores. The server has ended all the same.
    pub fn stop(mut self) -> Result<Option<Report>, ServerError> {
        self.drain();
        let watch = HangWatch {
            mailboxes: self.mailboxes.clone(),
            saver: self.saver.clone(),
            failure: self.failure.clone(),
            hang_max: self.hang_max,
        };
        watch.look();
        let is_well = self.failure.get().is_none() && self.saver.has_file();
        let saved = is_well.then(|| watch.during(|| self.saver.save_last()));
        // A core may have failed while it was saved.
        let rescued = self.failure.get().map(|failed| (failed, watch.during(|| self.saver.save_after_failure())));
        let ended = self.end();
        // A core that failed has ended with an error that says less.
        if let Some((Failed { core, why }, saved)) = rescued {
            return Err(ServerError::CoreFailed { core, why, saved });
        }
        ended?;
        saved.transpose()
    }

    fn drain(&self) {
        // Connections have the patience twice, and the endpoint has it once more.
        let silent = self.mailboxes.silent_cores(self.patience * 3 + self.hang_max, Mail::Drain);
        if !silent.is_empty() {
            tracing::warn!(cores = ?silent, "cores did not finish what was in progress");
        }
    }

    /// Ends the threads. One that hangs is left alone: it ends with the process.
    fn end(&mut self) -> Result<(), ServerError> {
        // It asks the cores.
        self.metrics = None;
        let deadline = Instant::now() + self.hang_max;
        for core in 0..self.mailboxes.len() {
            // Whoever is gone has ended.
            self.mailboxes.send_by(deadline, core, Mail::Exit);
        }
        let mut ended = Ok(());
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(END_LOOK);
            }
            if thread.is_finished() {
                // All are joined before the first error is told.
                ended = ended.and(thread.join().unwrap_or(Err(ServerError::Ended)));
            }
        }
        ended
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.drain();
            // Whoever wants to know asks `stop`.
            let _ = self.end();
        }
    }
}

/// Finds cores that hang, so that no snapshot waits for them.
struct HangWatch {
    mailboxes: Mailboxes,
    saver: Saver,
    failure: Failure,
    hang_max: Duration,
}

impl HangWatch {
    fn look_time(&self) -> Duration {
        self.hang_max.min(HANG_LOOK_MAX)
    }

    /// Asks all cores whether they are there, and gives those up that do not answer.
    fn look(&self) {
        let known = self.saver.hung();
        let mut hung = self.mailboxes.silent_but(&known, self.hang_max, Mail::Ping);
        if !hung.is_empty() {
            // The whole process may have stood still: then they answer now.
            let again = self.mailboxes.silent_but(&known, self.look_time(), Mail::Ping);
            hung.retain(|core| again.contains(core));
        }
        if let Some(core) = hung.first() {
            self.failure.note(*core, format!("it has not answered for {:?}", self.hang_max));
        }
        self.saver.give_up(&hung);
    }

    /// Does `work`, and looks again and again until it is over.
    fn during<R>(&self, work: impl FnOnce() -> R) -> R {
        thread::scope(|scope| {
            let (working, is_over) = mpsc::channel::<()>();
            let watch = move || {
                while is_over.recv_timeout(self.look_time()) == Err(mpsc::RecvTimeoutError::Timeout) {
                    self.look();
                }
            };
            if let Err(error) = thread::Builder::new().name("watch".into()).spawn_scoped(scope, watch) {
                tracing::warn!(%error, "no thread watches the cores while a snapshot is saved");
            }
            let result = work();
            drop(working);
            result
        })
    }
}

/// A snapshot that is being saved.
#[derive(Debug)]
pub struct SnapshotSaving(saving::Saving);

impl SnapshotSaving {
    /// What came of it; `None` while it goes on.
    pub fn poll(&mut self) -> Option<Result<Report, ServerError>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err(ServerError::Ended)),
        }
    }
}

/// Asks a running server for its counts.
#[derive(Debug, Clone)]
pub struct StatsSource {
    mailboxes: Mailboxes,
    identity: Identity,
    begun: Instant,
}

impl StatsSource {
    /// The counts of every core that runs. Waits for them: not to be called from within an event loop of tokio.
    pub fn stats(&self) -> ServerStats {
        self.with_cores(self.mailboxes.ask_all_blocking(Mail::Stats))
    }

    /// The same, for a task.
    pub async fn stats_async(&self) -> ServerStats {
        self.with_cores(self.mailboxes.ask_all(Mail::Stats).await)
    }

    fn with_cores(&self, cores: Vec<crate::metrics::CoreStats>) -> ServerStats {
        let uptime = self.begun.elapsed().as_micros().try_into().unwrap_or(u64::MAX);
        ServerStats::new(&self.identity.mode, self.identity.started, uptime, cores)
    }
}

/// What two cores have no room for.
fn together(one: &NoRoom, other: &NoRoom) -> NoRoom {
    NoRoom {
        items: one.items + other.items,
        of: one.of + other.of,
        bytes: one.bytes + other.bytes,
        memory: one.memory + other.memory,
        taken_of: one.taken_of,
    }
}

/// Refuses settings that cannot be.
fn check(config: &ServerConfig) -> Result<(), ServerError> {
    let cores = config.cores;
    if cores == 0 || cores > CORES_MAX {
        return Err(ServerError::Cores { cores });
    }
    if !config.pin.is_empty() && config.pin.len() != usize::from(cores) {
        return Err(ServerError::Pins { cores, processors: config.pin.len() });
    }
    if config.listen.is_empty() {
        return Err(ServerError::NoAddress);
    }
    Ok(())
}

/// The addresses of a configuration that others than processes of this host may reach. Traffic is neither encrypted nor authenticated.
pub fn exposed_addresses(config: &ServerConfig) -> Vec<String> {
    let native = config.listen.iter().filter(|addr| addresses::is_exposed(addr)).map(Addr::to_string);
    let is_exposed = |listen: &&crate::memcached::Listen| matches!(listen, crate::memcached::Listen::Tcp(addr) if !addr.ip().is_loopback());
    native.chain(config.memcached.iter().filter(is_exposed).map(ToString::to_string)).collect()
}
