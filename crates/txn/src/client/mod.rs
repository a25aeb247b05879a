//! The client: transactions of one thread, beside a participant (FaSST's symmetric model) or remote from all of them.
//!
//! | File | What it holds |
//! |---|---|
//! | `transaction` | the interface for users: get, put, insert, delete, commit |
//! | `rounds` | sends the messages of a phase, and evaluates the answers |
//! | `commit` | the phases of a commit |
//! | `finish` | rounds that go on when their future is dropped |
//! | `fence` | ends transactions that have held locks or records on this core for too long |
//! | `links`, `quota` | messages to participants; the coordinator's records in their logs |
//! | `retry` | running a transaction again |
//! | `recover` | recovery at the beginning of an epoch |
//! | `fill` | fills new copies on the core of a client |

mod commit;
mod fence;
mod fill;
mod finish;
mod links;
mod quota;
mod recover;
mod retry;
mod rounds;
mod transaction;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::Endpoint;

use crate::configuration::Configuration;
use crate::error::TxnError;
use crate::ids::{Epoch, Place, TableId, TransactionId};
use crate::limits::{Limits, RecoverySlice};
use crate::participant::Participant;
use crate::transaction::{Coalescing, OpenSet, State};
use crate::wire::Kind;
use links::Links;
use quota::Quota;

pub use recover::Recovered;
pub use retry::RetryPolicy;
pub use rounds::Outcome;
pub use transaction::Transaction;

/// Settings of a client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Limit of transactions that have sent messages and have not ended everywhere. Beyond it, new ones fail with
    /// [`TxnError::Busy`]. Default 4,096.
    pub transactions_max: usize,
    /// Minimum bytes that [`Transaction::get_for_update`] reserves for a value. A longer value costs one more message
    /// at the commit. Default 256.
    pub room_bytes: usize,
    /// Bytes of its records in one log: not more than [`Limits::log_bytes_max`] of the participants. Default 8 MiB.
    pub log_bytes_max: usize,
    /// How long a caller waits for a commit while a participant is unreachable. The client itself goes on as long as
    /// the epoch lasts. Default 10 s.
    pub patience: Duration,
    /// Pause before a message is sent again; it doubles with each further retry, up to 100 ms. Default 1 ms.
    pub pause: Duration,
    /// How long a transaction may hold a lock or a record at the participant beside this client. After twice as long it
    /// is fenced, as soon as all members can be reached. Default 5 s.
    pub lock_age: Duration,
    /// How long an idle client waits before it tells the logs which records to drop. Default 1 ms.
    pub log_idle: Duration,
    /// How many records one message of a recovery brings to a member.
    pub recovery_slice: RecoverySlice,
    /// Which requests of a phase to one core form one message. Default all of them.
    pub coalescing: Coalescing,
    /// Seed of random pauses.
    pub seed: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            transactions_max: 4096,
            room_bytes: 256,
            log_bytes_max: Limits::default().log_bytes_max,
            patience: Duration::from_secs(10),
            pause: Duration::from_millis(1),
            lock_age: Duration::from_secs(5),
            log_idle: Duration::from_millis(1),
            recovery_slice: RecoverySlice::default(),
            coalescing: Coalescing::default(),
            seed: 1,
        }
    }
}

/// The counters of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Transactions that committed.
    pub committed: u64,
    /// Transactions that met a lock.
    pub locked: u64,
    /// Transactions that failed validation: an item that they read has changed since.
    pub changed: u64,
    /// Transactions that failed otherwise.
    pub failed: u64,
    /// Transactions whose outcome is unknown.
    pub in_doubt: u64,
    /// Commits that a participant refused although the transaction was decided: a bug in Dunlin, or a memory error.
    pub broken: u64,
    /// Transactions that held locks or records for too long, and were ended here.
    pub fenced: u64,
    /// Messages to participants of other cores, by kind: in the order of [`Kind::ALL`].
    pub messages: [u64; Kind::ALL.len()],
    /// Requests to the participant beside the client, which need no message, by kind.
    pub local: [u64; Kind::ALL.len()],
}

impl ClientStats {
    /// Messages of one kind.
    pub fn messages_of(&self, kind: Kind) -> u64 {
        self.messages[kind.index()]
    }

    /// Requests of one kind to the participant beside the client.
    pub fn local_of(&self, kind: Kind) -> u64 {
        self.local[kind.index()]
    }
}

/// A coordinator: begins transactions, and runs their phases on its endpoint. Clones share one state.
///
/// ```
/// use std::{cell::RefCell, rc::Rc, time::Duration};
///
/// use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
/// use dunlin_rpc::{Endpoint, EndpointConfig};
/// use dunlin_txn::{Client, ClientConfig, Limits, Member, Participant, Place, Plan, RetryPolicy, serve};
///
/// # let network = LoopbackNetwork::new(LoopbackConfig { delay: Duration::ZERO, ..Default::default() });
/// // Three nodes of one core each, two copies of each partition.
/// let plan = Plan {
///     cluster: 1,
///     nodes: (1..=3).map(|node| (node, Member { incarnation: 1, cores: vec![Addr::Node(node)] })).collect(),
///     partitions_per_core: 4,
///     replicas: 2,
///     tables: vec!["accounts".into()],
///     seed: [7; 16],
/// };
/// let configuration = Rc::new(plan.configure()?);
/// let mut servers = Vec::new();
/// for node in 1..=3 {
///     let endpoint = Endpoint::new(network.endpoint(node)?, EndpointConfig::default())?;
///     let participant = Participant::new(Place { node, core: 0 }, 1, configuration.clone(), Limits::default());
///     serve(&endpoint, &Rc::new(RefCell::new(participant)))?;
///     endpoint.propagate_panics();
///     servers.push(endpoint);
/// }
/// let endpoint = Rc::new(Endpoint::new(network.endpoint(9)?, EndpointConfig::default())?);
/// let client = Client::new(&endpoint, 9, configuration, ClientConfig::default());
/// let accounts = client.table("accounts")?;
/// let work = async {
///     let mut tx = client.begin();
///     tx.insert(accounts, b"alice", b"100".to_vec())?;
///     tx.insert(accounts, b"bob", b"0".to_vec())?;
///     tx.commit().await?;
///     // Runs again after a conflict.
///     client.run(&RetryPolicy::default(), async |tx| {
///         let alice = tx.get_for_update(accounts, b"alice").await?;
///         tx.put(accounts, b"bob", alice.unwrap_or_default())?;
///         tx.delete(accounts, b"alice")
///     }).await?;
///     let mut tx = client.begin();
///     let found = (tx.get(accounts, b"alice").await?, tx.get(accounts, b"bob").await?);
///     tx.commit().await?;
///     assert_eq!(found, (None, Some("100".into())));
/// #     Ok::<(), dunlin_txn::TxnError>(())
/// };
/// # let mut work = Box::pin(work);
/// # loop {
/// #     servers.iter().for_each(|server| drop(server.run_once()));
/// #     if let Some(done) = endpoint.poll_once(work.as_mut()) {
/// #         break done?;
/// #     }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Client<T: Transport>(Rc<Inner<T>>);

impl<T: Transport> Clone for Client<T> {
    fn clone(&self) -> Self {
        Client(self.0.clone())
    }
}

struct Inner<T: Transport> {
    endpoint: Rc<Endpoint<T>>,
    coordinator: u64,
    home: Option<Place>,
    links: Links<T>,
    configuration: RefCell<Rc<Configuration>>,
    config: ClientConfig,
    next: Cell<u64>,
    open: Rc<OpenSet>,
    quota: RefCell<Quota>,
    /// The epoch in which all its log replicas have registered it as a coordinator.
    logs_in: Cell<Epoch>,
    /// Its log replicas in the epoch of the last transaction that asked for them.
    logs: RefCell<(Epoch, Rc<[Place]>)>,
    /// Whether a task will tell the logs which transactions have ended.
    is_flushing: Cell<bool>,
    stats: RefCell<ClientStats>,
}

impl<T: Transport + 'static> Client<T> {
    /// A client remote from all participants, f + 1 of which log for it. No other client of the cluster may ever use
    /// the same `coordinator` number.
    pub fn new(
        endpoint: &Rc<Endpoint<T>>,
        coordinator: u64,
        configuration: Rc<Configuration>,
        config: ClientConfig,
    ) -> Client<T> {
        Client::with(endpoint, coordinator, configuration, config, None)
    }

    /// A client on the core of a participant and on its endpoint. Keys of this core cost no message, and this core is
    /// one of its log replicas. It ends transactions that hold locks of this core for too long, so each participant
    /// should have one.
    pub fn beside(
        endpoint: &Rc<Endpoint<T>>,
        coordinator: u64,
        configuration: Rc<Configuration>,
        config: ClientConfig,
        participant: &Rc<RefCell<Participant>>,
    ) -> Client<T> {
        Client::with(endpoint, coordinator, configuration, config, Some(participant.clone()))
    }

    fn with(
        endpoint: &Rc<Endpoint<T>>,
        coordinator: u64,
        configuration: Rc<Configuration>,
        config: ClientConfig,
        participant: Option<Rc<RefCell<Participant>>>,
    ) -> Client<T> {
        let home = participant.as_ref().map(|participant| participant.borrow().place());
        let inner = Rc::new(Inner {
            endpoint: endpoint.clone(),
            coordinator,
            home,
            links: Links::new(endpoint, participant, config.seed),
            configuration: RefCell::new(configuration),
            config,
            next: Cell::new(1),
            open: Rc::default(),
            quota: RefCell::default(),
            logs_in: Cell::new(0),
            logs: RefCell::new((0, Rc::new([]))),
            is_flushing: Cell::new(false),
            stats: RefCell::default(),
        });
        if home.is_some() {
            endpoint.spawn(fence::watch_locks(Rc::downgrade(&inner)));
        }
        Client(inner)
    }

    /// The table with this name.
    ///
    /// # Errors
    /// [`TxnError::NoTable`].
    pub fn table(&self, name: &str) -> Result<TableId, TxnError> {
        let table = self.0.configuration.borrow().table(name);
        table.ok_or_else(|| TxnError::NoTable { table: format!("\"{name}\"") })
    }

    /// Begins a transaction. It costs nothing until it reads.
    pub fn begin(&self) -> Transaction<T> {
        let inner = &self.0;
        let configuration = inner.configuration.borrow().clone();
        let sequence = inner.next.replace(inner.next.get() + 1);
        let id = TransactionId { epoch: configuration.epoch, coordinator: inner.coordinator, sequence };
        Transaction::new(inner, State::counted(id, configuration, inner.config.coalescing, &inner.open))
    }

    /// Enters the epoch of a newer configuration; an older one changes nothing. Transactions that began before it
    /// cannot commit any more unless they have logged.
    pub fn reconfigure(&self, next: Rc<Configuration>) {
        let inner = &self.0;
        if next.epoch > inner.configuration.borrow().epoch {
            inner.links.retain(&next);
            *inner.configuration.borrow_mut() = next;
        }
    }

    /// The current epoch.
    pub fn epoch(&self) -> Epoch {
        self.0.configuration.borrow().epoch
    }

    /// The counters.
    pub fn stats(&self) -> ClientStats {
        *self.0.stats.borrow()
    }

    /// Transactions that are open: begun, and neither dropped nor ended at all participants.
    pub fn open(&self) -> usize {
        self.0.open.len()
    }
}
