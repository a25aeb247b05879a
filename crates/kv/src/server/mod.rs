//! The server: one thread for each core, each with an endpoint, a partition and its memcached connections in one event
//! loop. `dunlin-serve` provides the threads and their mailboxes, and ends them.
//!
//! | File | What it holds |
//! |---|---|
//! | `cores` | how cores are built, and what is done when they end |
//! | `core` | a running core |
//! | `mail` | messages between threads |
//! | `memcached` | a core's memcached connections, and commands for keys of other cores |
//! | `saving` | snapshots |
//! | `partitions` | what a core stores its items in |

pub(crate) mod clock;
mod config;
mod core;
mod cores;
mod error;
mod mail;
mod memcached;
mod partitions;
mod saving;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use dunlin_net::Addr;
use dunlin_rpc::EndpointConfig;
use dunlin_serve::addresses::is_exposed;
use dunlin_serve::port::{Pages, Port};
use dunlin_serve::{EventLoop, ServeConfig, ServeError};
use dunlin_store::snapshot::{Progress, Report};
use dunlin_store::{Mode, Partition, PartitionConfig, PartitionError, Shape, Sweep};
use tokio::sync::oneshot::error::TryRecvError;

pub use config::{
    CONNECTIONS_MAX_DEFAULT, HANG_MAX_DEFAULT, IDLE_MAX_DEFAULT, ReplicaConfig, ServerConfig, TICK_DEFAULT,
};
pub use error::ServerError;

use crate::memcached::Listen;
use crate::metrics::{ServerStats, exposition};
use crate::routing::{Core, Routing};
use crate::service::Identity;
use crate::tier::{Opened, Pool, TierError, TierFile};
use cores::Cores;
use mail::{Mail, Mailboxes};
use saving::Saving;

/// A running server. Dropping it stops it gracefully, without a snapshot.
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
pub struct Server<P: Sweep + 'static = Partition> {
    cores: dunlin_serve::Server<Cores<P>>,
    identity: Identity,
    incarnation: u64,
    begun: Instant,
    metrics: Option<Port>,
    /// The file of the tier.
    tier: Option<Opened>,
}

impl Server {
    /// Starts a server, and returns when all of it listens. `loading` is told the progress of loading a snapshot, on
    /// the thread of a core.
    ///
    /// # Errors
    /// [`ServerError`]: a setting is wrong, an address is in use, memory is not available, or the snapshot cannot be
    /// loaded or belongs to another server.
    pub fn start(
        config: ServerConfig,
        loading: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Server, ServerError> {
        Server::start_with(config, partitions::make, loading)
    }
}

impl<P: Sweep + 'static> Server<P> {
    /// As [`Server::start`], but `make` creates the store of each core: with the shape that it had when the snapshot
    /// was taken, if that is known.
    ///
    /// # Errors
    /// [`ServerError`], as [`Server::start`].
    pub fn start_with(
        config: ServerConfig,
        make: impl Fn(PartitionConfig, Option<&Shape>) -> Result<P, PartitionError> + Send + Sync + 'static,
        loading: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Server<P>, ServerError> {
        let cores = config.cores;
        if config.replica.is_some() {
            // Other replicas would not hear of their changes, and a snapshot is older than those.
            let wrong = [
                (config.snapshot.is_some(), "snapshot"),
                (!config.memcached.is_empty(), "memcached clients of its own"),
            ];
            let wrong = wrong.into_iter().find(|(is_wrong, _)| *is_wrong);
            wrong.map_or(Ok(()), |(_, what)| Err(ServerError::Replica { what }))?;
        }
        let mut random = [0; 24];
        getrandom::fill(&mut random)
            .map_err(|why| ServeError::System { what: "random numbers", why: why.to_string() })?;
        let (seed, incarnation) = random.split_at(16);
        // Split from 24 bytes: 16 and 8.
        let drawn: [u8; 16] = seed.try_into().expect("16 bytes");
        let incarnation = u64::from_le_bytes(incarnation.try_into().expect("8 bytes"));
        let mode = if config.mode == Mode::Cache { "cache" } else { "store" };
        let identity = Identity { mode: mode.into(), started: clock::unix_seconds().into() };
        // Locked before it is read.
        let saving = Saving::new(config.snapshot.as_deref(), config.hang_max)?;
        let (has_snapshot, origin) = partitions::look_at(config.snapshot.as_deref())?;
        // Another seed would divide the keys differently, and the snapshot of a full store would not fit its cores
        // again.
        let seed = partitions::seed_of(origin.as_ref()).unwrap_or(drawn);
        let routing = Routing::new(seed, cores).ok_or(ServerError::Cores { cores })?;
        let tier = match &config.tier {
            Some(_) if config.mode != Mode::Cache => return Err(TierError::NoCache.into()),
            Some(settings) => {
                let file = Arc::new(TierFile::open(settings, cores)?);
                let pool = Pool::start(file.clone(), settings.reads, settings.delay)?;
                Some((file, pool))
            }
            None => None,
        };
        let opened = tier.as_ref().map(|(file, _)| file.opened());
        let serving = serving(&config);
        let cores = Cores {
            config: Arc::new(config),
            make: Box::new(make),
            origin,
            has_snapshot,
            loading: Box::new(loading),
            routing,
            incarnation,
            identity: identity.clone(),
            saving: saving.routed_by(seed),
            tier,
        };
        let begun = Instant::now();
        let cores = dunlin_serve::Server::start(Arc::new(cores), serving)?;
        Ok(Server { cores, identity, incarnation, begun, metrics: None, tier: opened })
    }

    /// Returns what tells this process from others at the same addresses, as in its map.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns core 0's addresses for Dunlin clients, with the ports that the system chose.
    pub fn addresses(&self) -> &[Addr] {
        self.cores.addresses()
    }

    /// Returns the addresses for memcached clients, as text, with the ports that the system chose.
    pub fn memcached_addresses(&self) -> &[String] {
        &self.cores.plan().memcached
    }

    /// Returns what an operator could change to let it serve more, one sentence each.
    pub fn advice(&self) -> &[String] {
        self.cores.advice()
    }

    /// Serves metrics for Prometheus at `http://ADDRESS/metrics` and health at `/healthz` from now on, on a separate
    /// thread. Returns the address, with the port that the system chose.
    ///
    /// # Errors
    /// [`ServeError::Port`].
    pub fn serve_metrics(&mut self, address: SocketAddr) -> Result<SocketAddr, ServerError> {
        let source = self.source();
        let metrics = async move || Ok::<_, Infallible>(exposition(source.stats_async().await));
        let title = "Dunlin key-value server";
        let port = Port::open(address, Pages { title, metrics, failure: self.cores.failure().clone() })?;
        let address = port.address();
        self.metrics = Some(port);
        Ok(address)
    }

    /// Returns the number of cores.
    pub fn cores(&self) -> Core {
        self.cores.cores()
    }

    /// Returns the statistics. Waits for every core. Must not be called within an event loop of tokio.
    pub fn stats(&self) -> ServerStats {
        self.source().stats()
    }

    /// Returns a handle to get a running server's statistics from any thread.
    pub fn source(&self) -> StatsSource {
        let mailboxes = self.cores.mailboxes().clone();
        StatsSource { mailboxes, identity: self.identity.clone(), begun: self.begun }
    }

    /// Saves a snapshot, and waits until it is on the disk. The server keeps serving.
    ///
    /// # Errors
    /// [`ServerError::NoSnapshot`], [`ServerError::Saving`], [`ServerError::Save`].
    pub fn save(&self) -> Result<Report, ServerError> {
        self.begin()?.blocking_recv().map_err(|_| ServeError::Ended)?
    }

    /// Begins to save a snapshot, for a thread that cannot wait for the disk.
    ///
    /// # Errors
    /// [`ServerError::NoSnapshot`], [`ServerError::Saving`], [`ServerError::Serve`].
    pub fn begin_save(&self) -> Result<SnapshotSaving, ServerError> {
        self.begin().map(SnapshotSaving)
    }

    fn begin(&self) -> Result<saving::Outcome, ServerError> {
        self.cores.service().saving.of(self.cores.mailboxes()).begin()
    }

    /// Whether all its cores serve. After one has failed, the others keep serving until [`Server::stop`] ends the
    /// server and returns the cause.
    pub fn is_running(&self) -> bool {
        self.cores.is_running()
    }

    /// Stops gracefully: operations in progress are answered, peers are told, and the snapshot is saved if there is a
    /// file for it; its report is then returned. If a snapshot is being saved, waits for it, and then saves another
    /// one. After success, the file of a tier is closed, unless its device hangs.
    ///
    /// # Errors
    /// [`ServerError::Save`]; [`ServerError::CoreFailed`] if a core panicked or hangs, with what was saved of its items
    /// and those of the other cores. The server has ended in either case.
    pub fn stop(self) -> Result<Option<Report>, ServerError> {
        let report = self.cores.stop()?;
        self.tier.iter().for_each(Opened::wait);
        Ok(report)
    }
}

/// Returns the settings for serving a server's cores.
fn serving(config: &ServerConfig) -> ServeConfig {
    ServeConfig {
        listen: config.listen.clone(),
        cores: config.cores,
        pin: config.pin.clone(),
        event_loop: EventLoop::Tokio,
        endpoint: EndpointConfig { held_bytes_max: config.held_bytes_max, ..EndpointConfig::default() },
        patience: config.patience,
        // Connections take up to twice the patience, and the endpoint takes it once more.
        drain_max: config.patience.saturating_mul(3).saturating_add(config.hang_max),
        answer_max: config.hang_max,
        interrupt: config.interrupt.clone(),
        ..ServeConfig::named("kv")
    }
}

/// A snapshot that is being saved.
#[derive(Debug)]
pub struct SnapshotSaving(saving::Outcome);

impl SnapshotSaving {
    /// Returns its result; `None` while it is being saved.
    pub fn poll(&mut self) -> Option<Result<Report, ServerError>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err(ServeError::Ended.into())),
        }
    }
}

/// A handle to get a running server's statistics.
#[derive(Debug, Clone)]
pub struct StatsSource {
    mailboxes: Mailboxes,
    identity: Identity,
    begun: Instant,
}

impl StatsSource {
    /// Returns the statistics of every running core. Waits for them: must not be called within an event loop of tokio.
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

/// Returns the addresses of a configuration that may be reachable from outside of this host. Traffic is neither
/// encrypted nor authenticated.
pub fn exposed_addresses(config: &ServerConfig) -> Vec<String> {
    let native = config.listen.iter().filter(|addr| is_exposed(addr)).map(Addr::to_string);
    let is_open = |listen: &&Listen| matches!(listen, Listen::Tcp(addr) if !addr.ip().is_loopback());
    native.chain(config.memcached.iter().filter(is_open).map(ToString::to_string)).collect()
}
