//! The back end on an existing etcd (3.4 or newer), built on its transactions.
//!
//! Each thing has a key: a member, its failure, a lease, an entry of the tree. An operation reads first; then one
//! transaction makes its changes, on the condition that what it read has not changed. If it has, the operation reads
//! and decides again. Revisions, versions, incarnations and tokens are etcd's revisions, which only rise. Each
//! transaction that changes something also writes the events to one more key, whose **history** in etcd is the history
//! of everything: a watch watches that key.
//!
//! # Failure detection
//!
//! The same [watchman](Watchman) as that of [`crate::embedded`] decides, by the same rules ([`crate::model`]). It names
//! the count that it saw, here the revision of the last heartbeat, and the number of its reign, here the revision at
//! which it took over. etcd's own leases are not used, for three reasons. They have whole seconds, by default two at
//! least. An etcd leader that was stopped may end leases that were renewed (etcd issue 15247, fixed in 2024). The end
//! of one only deletes a key, where an epoch must rise in the same step. The cost is a write for each heartbeat and
//! renewal.
//!
//! # Where it runs
//!
//! [`Etcd`] has a thread of its own for its connections. Its operations can therefore be polled anywhere: in tasks of
//! an endpoint, in tokio, or with [`Etcd::block_on`] on a plain thread.
//!
//! # Files
//!
//! | File | What it holds |
//! |---|---|
//! | `keys` | the keys in etcd |
//! | `work` | transactions, and what is known of them if no answer comes |
//! | `members`, `epochs`, `leases`, `tree`, `transactions`, `view`, `changes` | the operations |
//! | `watchman` | failed members, and leases that are over |
//! | `decisions` | the transactions that record these |
//! | [`local`] | an etcd as child processes, for tests and experiments |

mod changes;
mod clock;
mod decisions;
mod epochs;
mod keys;
mod leases;
pub mod local;
mod members;
mod transactions;
mod tree;
mod view;
mod watchman;
mod work;

use std::future::Future;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use dunlin_serve::side;
use etcd_client::{Client, ConnectOptions};
use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::changes::{Parked, Watching};
use self::keys::Keys;
use self::work::{Trace, Work};
use crate::coordinator::{Coordinator, sleep_until};
use crate::error::CoordError;
use crate::limits::Limits;
use crate::path::check_path;
use crate::transaction::Transaction;
use crate::types::{
    Changes, Entry, Epochs, Heartbeat, Holder, Lease, Leases, Listing, MemberId, Members, Membership, Revision, Scope,
    View,
};

pub use watchman::Watchman;

/// Keep-alive interval of an idle connection, and how long the answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// The first attempt of a request that may be repeated takes this part of the time of an operation; one after a late
/// one takes twice as long.
const ATTEMPTS: u32 = 4;
/// Largest message that is accepted: all members, or all leases, at their limits.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Settings of an [`Etcd`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The prefix of all keys, a path. It lets several clusters share an etcd. Default `/dunlin`.
    pub prefix: String,
    /// How long an operation may take. Default 5 s.
    pub timeout: Duration,
    /// A watch that was silent for this long reports up to which revision nothing has happened. Default 5 s.
    pub quiet_max: Duration,
    /// Limits of the state. The tree as a whole and the history are limited by etcd itself. Concurrent calls may exceed
    /// the limits of members and leases, by as many as run at one time.
    pub limits: Limits,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        let (timeout, quiet_max) = (Duration::from_secs(5), Duration::from_secs(5));
        EtcdConfig { prefix: "/dunlin".into(), timeout, quiet_max, limits: Limits::default() }
    }
}

/// A client of a cluster manager whose state is in an etcd. Clones share its connections.
///
/// An operation is executed at most once. If a change gets no answer, it is not sent again; the error then says that it
/// may have been executed ([`CoordError::may_have_run`]). Heartbeats, renewals and reads are retried until their time
/// is over.
#[derive(Clone)]
pub struct Etcd {
    shared: Arc<Shared>,
}

struct Shared {
    source: WorkSource,
    handle: Handle,
    timeout: Duration,
    parked: Arc<Parked>,
    /// Dropping it ends the thread.
    _running: oneshot::Sender<()>,
}

/// Starts operations.
#[derive(Clone)]
struct WorkSource {
    template: Work,
}

impl WorkSource {
    fn work(&self) -> Work {
        Work { trace: Arc::default(), ..self.template.clone() }
    }
}

/// A task that is aborted when this value is dropped.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn no_backend(why: String) -> CoordError {
    CoordError::Backend { why, may_have_run: false }
}

async fn client(endpoints: &[String], config: &EtcdConfig) -> Result<Client, CoordError> {
    let options = ConnectOptions::new()
        .with_connect_timeout(config.timeout / ATTEMPTS)
        .with_keep_alive(KEEP_ALIVE, KEEP_ALIVE)
        .with_keep_alive_while_idle(true)
        // A watch at a partitioned member ends instead of staying silent.
        .with_require_leader(true);
    let client = Client::connect(endpoints, Some(options)).await;
    client.map_err(|error| no_backend(format!("{endpoints:?} cannot be addresses of an etcd: {error}")))
}

impl Etcd {
    /// Makes a client of the etcd with these members, as `http://10.0.0.1:2379`. It connects on first use.
    ///
    /// # Errors
    /// [`CoordError::BadPath`] if the prefix is not a path; [`CoordError::Backend`] if an address is invalid, or a
    /// thread cannot be started.
    pub fn new(endpoints: &[String], config: EtcdConfig) -> Result<Etcd, CoordError> {
        check_path(&config.prefix)?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| no_backend(format!("an event loop cannot be had: {error}")))?;
        let handle = runtime.handle().clone();
        let (running, end) = oneshot::channel::<()>();
        let (made, client_made) = mpsc::sync_channel(1);
        let (addresses, settings) = (endpoints.to_vec(), config.clone());
        let thread = side::start("dunlin-etcd", move || {
            // Nothing is sent yet, so this does not wait.
            if made.send(runtime.block_on(client(&addresses, &settings))).is_ok() {
                // The result is an error when the sender is dropped: nothing is ever sent.
                let _ = runtime.block_on(end);
            }
        });
        thread.map_err(|error| no_backend(format!("a thread cannot be had: {error}")))?;
        let client = client_made.recv().map_err(|_| no_backend("its thread has ended".into()))??;
        let template = Work {
            kv: client.kv_client().max_decoding_message_size(MESSAGE_BYTES_MAX),
            watch: client.watch_client().max_decoding_message_size(MESSAGE_BYTES_MAX),
            keys: Arc::new(Keys::new(&config.prefix)),
            limits: config.limits,
            attempt_timeout: config.timeout / ATTEMPTS,
            quiet_max: config.quiet_max,
            trace: Arc::default(),
        };
        let (source, parked) = (WorkSource { template }, Arc::<Parked>::default());
        handle.spawn(Parked::clear(Arc::downgrade(&parked)));
        Ok(Etcd { shared: Arc::new(Shared { source, handle, timeout: config.timeout, parked, _running: running }) })
    }

    /// Polls a future on this thread until it ends, for callers without an event loop.
    ///
    /// # Panics
    /// Within a task of tokio: await it there.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.shared.handle.block_on(future)
    }

    /// Discards etcd's history before a revision: watchers cannot read it any more, and its space is reclaimed. This
    /// affects every user of this etcd. An etcd started with `--auto-compaction-retention` does it by itself.
    ///
    /// # Errors
    /// [`CoordError::Backend`] if etcd refuses, as it does when that was discarded already; [`CoordError::TimedOut`].
    pub async fn compact(&self, revision: Revision) -> Result<(), CoordError> {
        self.operate(|work| work.compact(revision)).await
    }

    fn handle(&self) -> &Handle {
        &self.shared.handle
    }

    fn source(&self) -> WorkSource {
        self.shared.source.clone()
    }

    /// Runs a future on the thread of the connections; dropping the returned future ends it.
    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, CoordError> {
        let mut task = Task(self.shared.handle.spawn(work));
        (&mut task.0).await.map_err(|error| CoordError::Backend { why: error.to_string(), may_have_run: true })
    }

    /// Waits for the next answer of a watch, then parks the watch until the caller comes back.
    async fn go_on(&self, watching: Watching) -> Result<Changes, CoordError> {
        let parked = self.shared.parked.clone();
        self.on_thread(async move {
            let (watching, changes) = watching.next().await?;
            parked.park(watching);
            Ok(changes)
        })
        .await?
    }

    /// Runs an operation within its time limit.
    async fn operate<T, F>(&self, operation: impl FnOnce(Work) -> F) -> Result<T, CoordError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CoordError>> + Send + 'static,
    {
        self.operate_within(self.shared.timeout, operation).await
    }

    /// Runs one that is of no use unless it ends within the time for which a member or a lease may be silent; 0 if that
    /// is unknown.
    async fn prove<T, F>(&self, patience_ms: u64, operation: impl FnOnce(Work) -> F) -> Result<T, CoordError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CoordError>> + Send + 'static,
    {
        match patience_ms {
            0 => self.operate(operation).await,
            patience => self.operate_within(self.shared.timeout.min(Duration::from_millis(patience)), operation).await,
        }
    }

    async fn operate_within<T, F>(&self, timeout: Duration, operation: impl FnOnce(Work) -> F) -> Result<T, CoordError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CoordError>> + Send + 'static,
    {
        let work = Work { attempt_timeout: timeout / ATTEMPTS, ..self.shared.source.work() };
        let trace: Arc<Trace> = work.trace.clone();
        let operation = operation(work);
        let in_time = self.on_thread(async move { tokio::time::timeout(timeout, operation).await });
        in_time.await?.unwrap_or_else(|_| Err(trace.timed_out()))
    }
}

impl Coordinator for Etcd {
    async fn join(&self, member: MemberId, about: &[u8]) -> Result<Membership, CoordError> {
        let sent_at = self.now();
        let joined = self.operate(|work| work.join(member, about.to_vec())).await?;
        Ok(Membership::joined(member, joined, sent_at))
    }

    async fn heartbeat(&self, membership: &Membership) -> Result<Heartbeat, CoordError> {
        let sent_at = self.now();
        let (epoch, is_settled, failure_timeout_ms) =
            self.prove(membership.failure_timeout_ms, |work| work.heartbeat(*membership)).await?;
        Ok(Heartbeat::heard(epoch, is_settled, failure_timeout_ms, sent_at))
    }

    async fn leave(&self, membership: &Membership) -> Result<(), CoordError> {
        self.operate(|work| work.leave(*membership)).await
    }

    async fn forget(&self, member: MemberId) -> Result<(), CoordError> {
        self.operate(|work| work.forget(member)).await
    }

    async fn members(&self) -> Result<Members, CoordError> {
        self.operate(Work::members).await
    }

    async fn epochs(&self, after: u64) -> Result<Epochs, CoordError> {
        self.operate(|work| work.epochs(after)).await
    }

    async fn cut_epochs(&self, up_to: u64) -> Result<(), CoordError> {
        self.operate(|work| work.cut_epochs(up_to)).await
    }

    async fn acquire(&self, membership: &Membership, name: &str, ttl: Duration) -> Result<Lease, CoordError> {
        let sent_at = self.now();
        let ttl_ms = ttl.as_millis().try_into().unwrap_or(u64::MAX);
        let (token, ttl_ms) = self.operate(|work| work.acquire(*membership, name.to_owned(), ttl_ms)).await?;
        Ok(Lease::granted(name, token, ttl_ms, sent_at))
    }

    async fn renew(&self, lease: &mut Lease) -> Result<(), CoordError> {
        let sent_at = self.now();
        let ttl_ms = self.prove(lease.ttl_ms, |work| work.renew(lease.name.clone(), lease.token)).await?;
        lease.renewed(sent_at, ttl_ms);
        Ok(())
    }

    async fn release(&self, lease: &Lease) -> Result<(), CoordError> {
        let (name, token) = (lease.name.clone(), lease.token);
        self.operate(|work| async move { work.release(name, token).await }).await
    }

    async fn holder(&self, name: &str) -> Result<Option<Holder>, CoordError> {
        self.operate(|work| work.holder(name.to_owned())).await
    }

    async fn leases(&self, after: Option<&str>) -> Result<Leases, CoordError> {
        self.operate(|work| work.all_leases(after.map(str::to_owned))).await
    }

    async fn get(&self, path: &str) -> Result<Option<Entry>, CoordError> {
        self.operate(|work| work.get(path.to_owned())).await
    }

    async fn transact(&self, transaction: &Transaction) -> Result<Revision, CoordError> {
        self.operate(|work| work.transact(transaction.clone())).await
    }

    async fn view(&self, root: &str) -> Result<View, CoordError> {
        self.operate(|work| work.view(root.to_owned())).await
    }

    async fn list(&self, root: &str, after: Option<&str>) -> Result<Listing, CoordError> {
        self.operate(|work| work.list(root.to_owned(), after.map(str::to_owned))).await
    }

    async fn changes(&self, scope: &Scope, after: Revision) -> Result<Changes, CoordError> {
        if let Some(watching) = self.shared.parked.take(scope, after) {
            match self.go_on(watching).await {
                // Its connection broke, perhaps long ago.
                Err(CoordError::Backend { .. }) => {}
                changes => return changes,
            }
        }
        let watching = self.operate(|work| work.watch(scope.clone(), after)).await?;
        self.go_on(watching).await
    }

    fn now(&self) -> u64 {
        clock::now()
    }

    async fn sleep_until(&self, time: u64) {
        let slept = self.on_thread(sleep_until(time, clock::now, tokio::time::sleep));
        // The sender is dropped early only when the thread ends, which this value keeps running.
        let _ = slept.await;
    }
}
