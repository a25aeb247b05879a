//! A client of several servers that hold replicas of partitions: what mcrouter is for memcached.
//!
//! | File | What it holds |
//! |---|---|
//! | [`description`](Description) | servers, partitions and replicas, as the operator writes them down |
//! | `node` | one server: sessions, and whether it is worth asking |
//! | `view` | who is live, as a cluster manager says |
//! | `patience` | when another replica is asked because one is slow |
//! | `read` | reads: the choice of replicas, failover, duplicates, multigets in parts |
//! | `write` | writes to all replicas, with versions |
//! | `refill` | how a server that comes back is filled before it is read |
//! | `coordinated` | membership with a cluster manager |
//! | [`trace`](MultigetTrace) | what became of each part of a multiget |
//!
//! `docs/kv-cluster.md` says what is promised and why.

mod config;
mod coordinated;
mod description;
mod error;
mod node;
mod patience;
mod read;
mod refill;
mod trace;
mod version;
mod view;
mod write;

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_rpc::Endpoint;
use dunlin_schedule::{ChooseReplica, Opsets};
use dunlin_serve::Joint;
use futures::future::{Either, select};

pub use config::{Choice, ClusterConfig, ConfigError, Copies, IN_FLIGHT_DEFAULT, MakeChoice, WRITE_TIME_MAX};
pub use coordinated::{
    AttendError, Attendance, DescribeError, MemberDirectory, MemberEvent, MemberFence, description_at, member_about,
};
pub use description::{
    DESCRIPTION_BYTES_MAX, Description, DescriptionError, NAME_BYTES_MAX, PARTITIONS_MAX, REPLICAS_MAX, SERVERS_MAX,
    ServerPlace,
};
pub(crate) use description::{label_of, partition_of, partitions_of_label};
pub use error::{ClusterError, Missed, ServerError};
pub use refill::{Fill, Refilled};
pub use trace::{MultigetTrace, PartTrace, Why};
pub(crate) use version::seconds_of;
pub use view::{Directory, Seen};
pub use write::{Complete, Written};

use crate::client::ClientConfig;
use crate::wire::ReplicaInfo;
use node::Node;
use patience::{ExtraRequests, Responses};
use version::VersionClock;

/// Pauses before an operation looks up again who is live: the first; twice as long each time,
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(2);
/// up to this.
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(100);

/// A client of a cluster. Clones share its sessions. Operations may run concurrently like any futures.
///
/// Writes go to all replicas of the key's partition that are live, reads to one. If it fails or is slow, another one is
/// asked. There is no quorum: after a write that reached some replicas only, which [`Written::missed`] lists, a read may
/// return the old value or the new one.
pub struct KvCluster<T: Transport> {
    inner: Rc<Inner<T>>,
}

impl<T: Transport> Clone for KvCluster<T> {
    fn clone(&self) -> Self {
        KvCluster { inner: self.inner.clone() }
    }
}

struct Inner<T: Transport> {
    endpoint: Rc<Endpoint<T>>,
    cluster: Description,
    config: ClusterConfig,
    nodes: Vec<Rc<Node<T>>>,
    choice: RefCell<Box<dyn ChooseReplica>>,
    random: RefCell<Random>,
    versions: VersionClock,
    /// Kept from one multiget to the next.
    opsets: RefCell<Opsets>,
    responses: RefCell<Responses>,
    extra: RefCell<ExtraRequests>,
    directory: Option<Rc<dyn Directory>>,
    seen: RefCell<Option<Rc<Seen>>>,
    looking: Joint<Result<Rc<Seen>, ClusterError>>,
    /// The number of look-ups so far.
    looks: Cell<u64>,
}

impl<T: Transport + 'static> KvCluster<T> {
    /// Returns a client of a cluster without a cluster manager: all servers count as live. It connects to a server with
    /// the first operation on it.
    ///
    /// # Errors
    /// [`ConfigError`] if the settings cannot work.
    pub fn new(
        endpoint: &Rc<Endpoint<T>>,
        cluster: Description,
        config: ClusterConfig,
    ) -> Result<KvCluster<T>, ConfigError> {
        KvCluster::start(endpoint, cluster, config, None)
    }

    /// Returns a client of a cluster whose live members `directory` knows.
    ///
    /// # Errors
    /// As [`KvCluster::new`].
    pub fn with_directory(
        endpoint: &Rc<Endpoint<T>>,
        cluster: Description,
        config: ClusterConfig,
        directory: Rc<dyn Directory>,
    ) -> Result<KvCluster<T>, ConfigError> {
        KvCluster::start(endpoint, cluster, config, Some(directory))
    }

    fn start(
        endpoint: &Rc<Endpoint<T>>,
        cluster: Description,
        config: ClusterConfig,
        directory: Option<Rc<dyn Directory>>,
    ) -> Result<KvCluster<T>, ConfigError> {
        config.check()?;
        let of_servers = ClientConfig { sessions_per_core: config.sessions_per_core, deadline: Some(config.deadline) };
        let node = |server: &ServerPlace| {
            Node::new(&server.name, &server.address, cluster.fingerprint(), endpoint, of_servers)
        };
        let mut seed = [0; 8];
        let drawn = || {
            // Without the system's random numbers, clients that start at different times still differ.
            let _ = getrandom::fill(&mut seed);
            u64::from_le_bytes(seed) ^ endpoint.now()
        };
        let seed = config.seed.unwrap_or_else(drawn);
        let mut random = Random::new(seed);
        let inner = Inner {
            endpoint: endpoint.clone(),
            nodes: cluster.servers().iter().map(node).collect(),
            choice: RefCell::new((config.choice)(&cluster)),
            versions: VersionClock::new(random.next(), config.wall_micros),
            random: RefCell::new(random),
            opsets: RefCell::new(Opsets::new(cluster.partitions())),
            responses: RefCell::default(),
            extra: RefCell::default(),
            seen: RefCell::new(directory.is_none().then(|| Rc::new(Seen::all(cluster.servers().len())))),
            directory,
            looking: Joint::new(),
            looks: Cell::new(0),
            cluster,
            config,
        };
        Ok(KvCluster { inner: Rc::new(inner) })
    }

    /// Returns the description of the cluster.
    pub fn cluster(&self) -> &Description {
        &self.inner.cluster
    }

    /// Asks each server what its cores are.
    pub async fn status(&self) -> Vec<Result<Vec<ReplicaInfo>, ServerError>> {
        let ask = |node: Rc<Node<T>>| async move {
            let client = node.fresh_client().await?;
            let infos = node.infos_of(&client).await;
            if let Err(ServerError::Kv(error)) = &infos {
                node.failed(&client, error);
            }
            infos
        };
        futures::future::join_all(self.inner.nodes.iter().cloned().map(ask)).await
    }

    /// Returns who is live, as the cluster manager says now; all servers without one.
    ///
    /// # Errors
    /// [`ClusterError::Directory`].
    pub async fn live(&self) -> Result<Seen, ClusterError> {
        self.inner.look().await.map(|seen| (*seen).clone())
    }

    /// Closes the sessions; later operations reopen them.
    pub fn close(&self) {
        self.inner.nodes.iter().for_each(|node| node.close());
    }
}

impl<T: Transport + 'static> Inner<T> {
    /// Returns who is live, as far as is known.
    async fn seen(self: &Rc<Self>) -> Result<Rc<Seen>, ClusterError> {
        let seen = self.seen.borrow().clone();
        match seen {
            Some(seen) => Ok(seen),
            None => self.look().await,
        }
    }

    /// Looks up who is live, together with the other operations that do.
    async fn look(self: &Rc<Self>) -> Result<Rc<Seen>, ClusterError> {
        let look = || {
            let this = self.clone();
            async move {
                let Some(directory) = this.directory.clone() else { return Ok(Rc::new(Seen::all(this.nodes.len()))) };
                let seen = Rc::new(directory.look().await.map_err(ClusterError::Directory)?);
                this.looks.set(this.looks.get() + 1);
                this.seen.replace(Some(seen.clone()));
                Ok(seen)
            }
        };
        Box::pin(self.looking.get(look, drop)).await
    }

    /// Waits before an operation looks up again who is live. Returns whether there is time left.
    async fn pause(&self, attempt: u32, deadline: u64) -> bool {
        let pause = LOOK_AGAIN_MIN.saturating_mul(1 << attempt.min(10)).min(LOOK_AGAIN_MAX).as_nanos() as u64;
        let pause = pause / 2 + self.random.borrow_mut().below(pause);
        let until = self.endpoint.now().saturating_add(pause);
        if until >= deadline {
            return false;
        }
        self.endpoint.timers().sleep_until(until).await;
        self.endpoint.now() < deadline
    }

    /// Returns the result of `work`, unless the deadline passes before.
    async fn until<R>(&self, deadline: u64, work: impl Future<Output = R>) -> Option<R> {
        let timers = self.endpoint.timers();
        match select(pin!(work), pin!(timers.sleep_until(deadline))).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    fn deadline(&self) -> u64 {
        let nanos = self.config.deadline.as_nanos().try_into().unwrap_or(u64::MAX);
        self.endpoint.now().saturating_add(nanos)
    }

    fn missed(&self, server: u32, error: ServerError) -> Missed {
        Missed { server: self.nodes[server as usize].name.clone(), error }
    }
}
