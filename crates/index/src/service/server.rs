//! A server of several cores, which share one index.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{ApplicationError, EndpointConfig, RegisterError, WorkerPool};
use dunlin_serve::metrics::exposition;
use dunlin_serve::port::{Pages, Port};
use dunlin_serve::{Core, Failed, Interrupt, Mailboxes, Pace, ServeConfig, ServeError, Service, Site, StartError};
use dunlin_store::snapshot::{Progress, SaveError};
use thiserror::Error;
use tokio::sync::oneshot;

use super::saver::{Outcome, Saver, Saving};
use super::stats::{Counts, IndexFigures, ServerStats, families};
use super::{IndexService, SharedIndex};
use crate::error::Refused;
use crate::index::Index;
use crate::snapshot::{self, NotLoaded, NotSaved, Saved};
use crate::wire::{Code, SAVE, STATS, encode_saved, parse_plain};

/// Most worker threads of a server.
pub const WORKERS_MAX: u16 = 256;
/// Requests that may wait for each worker thread. Further ones are pushed back.
const WAITING_MAX: usize = 64;
/// Prefix of the names of metrics.
const METRICS_PREFIX: &str = "dunlin_index";

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Addresses of core 0, as in [`ServeConfig::listen`].
    pub listen: Vec<Addr>,
    /// Cores: each is a thread with addresses of its own. They share the index. Default 1.
    pub cores: u16,
    /// Processors to pin the cores to, one for each; empty to leave them to the system.
    pub pin: Vec<usize>,
    /// Threads that make long pages and counts, shared by all cores: 1 to [`WORKERS_MAX`]. Default 1.
    pub workers: u16,
    /// The memory budget of the index in bytes. Default 1 GiB.
    pub memory_bytes: usize,
    /// Bytes that peers together may make each core hold beside the index: requests that are arriving or that workers
    /// have, and answers that are not acknowledged. One host gets at most half of it. At the limit, requests are pushed
    /// back. Default 256 MiB; [`EndpointConfig::held_bytes_max`] has the minimum.
    pub held_bytes_max: u64,
    /// A file from which the items are loaded if it exists, and to which they are saved. Default none.
    pub snapshot: Option<PathBuf>,
    /// Ends loading when it is set, and is rung when a core fails.
    pub interrupt: Interrupt,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            listen: Vec::new(),
            cores: 1,
            pin: Vec::new(),
            workers: 1,
            memory_bytes: 1 << 30,
            held_bytes_max: 256 << 20,
            snapshot: None,
            interrupt: Interrupt::default(),
        }
    }
}

/// Why a server did not start, or could not do what was requested.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Threads, endpoints or the metrics port are unavailable; or a core has failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// One of several cores could not start.
    #[error("core {core} cannot start: {source}")]
    Core {
        /// The core.
        core: u16,
        /// The cause.
        source: Box<ServerError>,
    },
    /// There are no workers, or too many.
    #[error("{workers} workers: choose 1 to {WORKERS_MAX}")]
    Workers {
        /// How many.
        workers: u16,
    },
    /// The memory budget is too small.
    #[error("a memory budget of {budget} bytes is too small for an index: give it more memory")]
    Memory {
        /// The budget in bytes.
        budget: usize,
    },
    /// The system provided no random numbers or no threads.
    #[error("{what}: {why}")]
    System {
        /// What failed.
        what: &'static str,
        /// The system's error.
        why: io::Error,
    },
    /// The snapshot could not be loaded. It is as it was.
    #[error("cannot load the snapshot {}: {source}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: NotLoaded,
    },
    /// The snapshot is in use by another server, or cannot be locked.
    #[error(transparent)]
    Lock(SaveError),
    /// The snapshot could not be saved. The previous file is still there.
    #[error("cannot save the snapshot {}: {source}", path.display())]
    Save {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: NotSaved,
    },
    /// The server was started without a snapshot file.
    #[error("the server has no file for snapshots: start it with one")]
    NoSnapshot,
    /// A thread panicked while it changed the index. The previous snapshot is still there.
    #[error("a thread panicked while it changed the index, which may be damaged: {what}")]
    Damaged {
        /// What was saved, or what to do.
        what: String,
    },
    /// Another snapshot is being saved.
    #[error("a snapshot is being saved already: try again when it is done")]
    Saving,
}

impl From<RegisterError> for ServerError {
    fn from(error: RegisterError) -> Self {
        ServeError::from(error).into()
    }
}

impl From<StartError<ServerError>> for ServerError {
    fn from(StartError { core, error }: StartError<ServerError>) -> Self {
        match core {
            Some(core) => ServerError::Core { core, source: error.into() },
            None => error,
        }
    }
}

/// A running server. When dropped, it ends gracefully, without a snapshot.
///
/// ```
/// use dunlin_index::{Server, ServerConfig};
///
/// let listen = format!("shm:doc-index-{}", std::process::id()).parse()?;
/// let config = ServerConfig { listen: vec![listen], memory_bytes: 64 << 20, ..ServerConfig::default() };
/// let server = Server::start(config, |_| {})?;
/// println!("serving at {}", server.addresses()[0]);
/// server.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Server {
    cores: dunlin_serve::Server<Cores>,
    metrics: Option<Port>,
    loaded: Option<usize>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts a server, and returns when all of it listens. `loading` is told the progress of loading a snapshot.
    ///
    /// # Errors
    /// [`ServerError`]: a setting is wrong, an address is in use, memory is not available, or the snapshot cannot be
    /// loaded or belongs to another server.
    pub fn start(config: ServerConfig, mut loading: impl FnMut(Progress)) -> Result<Server, ServerError> {
        let ServerConfig { listen, cores, pin, workers, memory_bytes, held_bytes_max, snapshot, interrupt } = config;
        if !(1..=WORKERS_MAX).contains(&workers) {
            return Err(ServerError::Workers { workers });
        }
        let index = Index::new(memory_bytes).map_err(|_: Refused| ServerError::Memory { budget: memory_bytes })?;
        let no_numbers = |why| ServerError::System { what: "cannot share the index", why };
        let shared = SharedIndex::new(index).map_err(no_numbers)?;
        // Locked before it is read.
        let saver = Saver::new(&shared, snapshot.as_deref())?;
        let mut loaded = None;
        if let Some(path) = snapshot {
            let cannot_load = |source| ServerError::Load { path: path.clone(), source };
            let cannot_look =
                |source| cannot_load(dunlin_store::snapshot::SnapshotError::Open { path: path.clone(), source }.into());
            // What cannot be looked at is not taken for nothing: it would be replaced.
            if path.try_exists().map_err(cannot_look)? {
                let goes_on = |progress| {
                    loading(progress);
                    !interrupt.is_set()
                };
                loaded = Some(snapshot::load(shared.index(), &path, goes_on).map_err(cannot_load)?);
            }
        }
        let pool = WorkerPool::new(workers.into(), WAITING_MAX * usize::from(workers));
        let pool = pool.map_err(|why| ServerError::System { what: "cannot start the workers", why })?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let common = Arc::new(Common { shared, saver, workers, started, begun: Instant::now() });
        let endpoint = EndpointConfig { held_bytes_max, ..EndpointConfig::default() };
        let config = ServeConfig { listen, cores, pin, endpoint, interrupt, ..ServeConfig::named("index") };
        let cores = dunlin_serve::Server::start(Arc::new(Cores { common, pool }), config)?;
        cores.service().common.saver.watch(cores.failure());
        Ok(Server { cores, metrics: None, loaded })
    }

    /// Core 0's addresses, with the ports that the system chose.
    pub fn addresses(&self) -> &[Addr] {
        self.cores.addresses()
    }

    /// Number of cores.
    pub fn cores(&self) -> u16 {
        self.cores.cores()
    }

    /// Items that were loaded from the snapshot, if there was one.
    pub fn loaded(&self) -> Option<usize> {
        self.loaded
    }

    /// The index that it serves.
    pub fn shared(&self) -> &Arc<SharedIndex> {
        &self.common().shared
    }

    /// What an operator could change so that the server can serve more, one sentence each.
    pub fn advice(&self) -> &[String] {
        self.cores.advice()
    }

    fn common(&self) -> &Arc<Common> {
        &self.cores.service().common
    }

    /// Serves metrics for Prometheus at `http://ADDRESS/metrics` and health at `/healthz` from now on, on a separate
    /// thread. Returns the address, with the port that the system chose.
    ///
    /// # Errors
    /// [`ServeError::Port`], [`ServeError::System`].
    pub fn serve_metrics(&mut self, address: SocketAddr) -> Result<SocketAddr, ServerError> {
        let (mailboxes, common) = (self.cores.mailboxes().clone(), self.common().clone());
        let metrics = async move || {
            let cores = mailboxes.ask_all(Inquiry).await;
            let (index, snapshots) = (IndexFigures::of(&common.shared), common.saver.figures());
            Ok::<_, ServeError>(exposition(METRICS_PREFIX, families(&cores, index, snapshots, common.workers)))
        };
        let failure = self.cores.failure().clone();
        let port = Port::open(address, Pages { title: "Dunlin ordered index", metrics, failure })?;
        let address = port.address();
        self.metrics = Some(port);
        Ok(address)
    }

    /// Begins to save a snapshot, for a thread that cannot wait for the disk.
    ///
    /// # Errors
    /// [`ServerError::NoSnapshot`], [`ServerError::Saving`], [`ServerError::Serve`].
    pub fn begin_save(&self) -> Result<Saving, ServerError> {
        self.common().saver.begin().map(Saving)
    }

    /// Whether all its cores serve. After one has failed, the others keep serving until [`Server::stop`] ends the
    /// server and returns the cause.
    pub fn is_running(&self) -> bool {
        self.cores.is_running()
    }

    /// Stops gracefully: requests in progress are answered, peers are told, and the snapshot is saved if there is a
    /// file for it.
    ///
    /// # Errors
    /// [`ServerError::Save`]; [`ServeError::CoreFailed`] if a core failed or hangs, with what was saved then. The server
    /// has ended in either case.
    pub fn stop(self) -> Result<Option<Saved>, ServerError> {
        self.cores.stop()
    }
}

/// What all cores, and the port for metrics, use.
struct Common {
    shared: Arc<SharedIndex>,
    saver: Saver,
    workers: u16,
    /// In seconds since 1970.
    started: u64,
    begun: Instant,
}

impl Common {
    fn stats(&self, cores: Vec<Counts>) -> ServerStats {
        ServerStats {
            server_version: env!("CARGO_PKG_VERSION").into(),
            incarnation: self.shared.incarnation(),
            started: self.started,
            uptime_micros: self.begun.elapsed().as_micros().try_into().unwrap_or(u64::MAX),
            workers: self.workers,
            index: IndexFigures::of(&self.shared),
            snapshots: self.saver.figures(),
            cores: cores.into_iter().map(Into::into).collect(),
            ..ServerStats::default()
        }
    }
}

/// The cores of a server.
struct Cores {
    common: Arc<Common>,
    pool: WorkerPool,
}

/// Asks a core for its counters.
struct Inquiry(oneshot::Sender<Counts>);

struct IndexCore<T: Transport> {
    site: Site<T, Inquiry>,
    service: IndexService,
}

impl<T: Transport + 'static> Core for IndexCore<T> {
    type Letter = Inquiry;
    type Plan = ();
    type Error = ServerError;

    fn read(&mut self, Inquiry(answer): Inquiry) -> Pace {
        let (core, service, endpoint) = (self.site.core, self.service.stats(), self.site.endpoint.stats());
        // The caller may be gone.
        let _ = answer.send(Counts { core, service, endpoint });
        Pace::Go
    }
}

impl<T: Transport + 'static> Service<T> for Cores {
    type Core = IndexCore<T>;
    type Ready = ();
    /// The last snapshot, if there is a file for it.
    type Finish = Option<Saved>;

    fn build(&self, site: Site<T, Inquiry>) -> Result<(IndexCore<T>, ()), ServerError> {
        // A panic may leave a node half changed: the server ends rather than serve it.
        site.endpoint.propagate_panics();
        let service = IndexService::register(&site.endpoint, self.common.shared.clone(), &self.pool)?;
        let (mailboxes, common) = (site.mailboxes.clone(), self.common.clone());
        site.endpoint.register_async(STATS, move |request| {
            let (mailboxes, common) = (mailboxes.clone(), common.clone());
            async move {
                refuse(parse_plain(request.payload()))?;
                Ok::<_, ApplicationError>(common.stats(mailboxes.ask_all(Inquiry).await).encode())
            }
        })?;
        let saver = self.common.saver.clone();
        site.endpoint.register_async(SAVE, move |request| {
            let saver = saver.clone();
            async move {
                refuse(parse_plain(request.payload()))?;
                save(&saver).await
            }
        })?;
        Ok((IndexCore { site, service }, ()))
    }

    fn plan(&self, _: Vec<()>) -> Result<(), ServerError> {
        Ok(())
    }

    async fn finish(&self, _: &Mailboxes<Inquiry>) -> Result<Option<Saved>, ServerError> {
        let saver = &self.common.saver;
        if saver.has_file() { saver.save_last().await.map(Some) } else { Ok(None) }
    }

    async fn rescue(&self, _: &Mailboxes<Inquiry>, _: &Failed) -> Option<String> {
        Some(self.common.saver.rescue().await)
    }
}

fn refuse<R>(parsed: Result<R, Code>) -> Result<R, ApplicationError> {
    parsed.map_err(|code| ApplicationError::new(code as u32, code.message()))
}

/// Saves a snapshot; returns the answer.
async fn save(saver: &Saver) -> Result<Vec<u8>, ApplicationError> {
    let saved = async {
        let outcome: Outcome = saver.begin()?;
        outcome.await.map_err(|_| ServeError::Ended)?
    };
    match saved.await {
        Ok(Saved { items, file_bytes }) => Ok(encode_saved(items, file_bytes)),
        Err(ServerError::NoSnapshot) => refuse(Err(Code::NoSnapshot)),
        Err(ServerError::Saving) => refuse(Err(Code::Saving)),
        // Names of files are the operator's business, and in the log.
        Err(_) => refuse(Err(Code::NotSaved)),
    }
}
