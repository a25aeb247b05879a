//! The client: asynchronous calls on one endpoint, each to the core that owns its key.
//!
//! | File | What it holds |
//! |---|---|
//! | `links` | sessions to every core, according to the server's map |
//! | `connection` | one attempt at a time to open them, shared by all waiting operations |
//! | `operations` | the operations on one key |
//! | `multiget` | many keys: a request to each owner |
//! | `scan` | all items |
//! | `replica` | what clusters ask of a replica |
//! | [`pipeline`](Pipeline) | operations without futures, for load generators |

mod config;
mod connection;
mod error;
mod links;
mod multiget;
mod operations;
mod pipeline;
mod replica;
mod scan;
mod value;

use std::rc::Rc;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::Endpoint;

pub use config::ClientConfig;
use connection::Connection;
pub use error::{KvError, Outcome};
pub(crate) use operations::check_key;
pub use pipeline::{Finished, Pipeline};
pub use value::Value;

use crate::wire::{Ranked, ServerMap};

/// A client of one server. Clones share its sessions. Operations may run concurrently like any futures, on the
/// endpoint's own executor or in [`Endpoint::block_on`]; they take effect in any order, unless one is awaited before
/// the next is begun.
///
/// When the server goes away, operations end with an error that says whether they may have been executed
/// ([`KvError::outcome`]); reads are retried. If one core is lost, operations in progress on the others continue. An
/// operation that a busy core pushes back is retried until its deadline.
///
/// After a loss, the next operation fetches the map again and opens new sessions, so the client reconnects
/// automatically when the server restarts.
///
/// ```
/// # use std::rc::Rc;
/// # use dunlin_kv::routing::Routing;
/// # use dunlin_kv::wire::{Limits, ServerMap};
/// # use dunlin_kv::{KvService, Shard};
/// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
/// use dunlin_kv::client::{ClientConfig, KvClient};
/// use dunlin_rpc::{Endpoint, EndpointConfig};
/// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
/// # let server = Rc::new(Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?);
/// # let routing = Routing::new([0; 16], 1).ok_or("no cores")?;
/// # let map = ServerMap { incarnation: 1, routing, limits: Limits { value_bytes_max: 1 << 20 }, addresses: vec![vec!["node:1".into()]] };
/// # KvService::new(Rc::new(Shard::new(dunlin_store::Model::new(), routing, 0)), map).register(&server)?;
/// # let transport = network.endpoint(2)?;
///
/// let endpoint = Rc::new(Endpoint::new(transport, EndpointConfig::default())?);
/// let work = async {
///     let client = KvClient::connect(&endpoint, &Addr::Node(1), ClientConfig::default()).await?;
///     client.set(b"bird", b"dunlin").await?;
///     assert_eq!(client.get(b"bird").await?.as_deref(), Some(&b"dunlin"[..]));
///     assert_eq!(client.get(b"fish").await?, None);
/// #   Ok::<(), dunlin_kv::client::KvError>(())
/// };
/// # let mut work = Box::pin(work);
/// # loop {
/// #     server.run_once();
/// #     if let Some(done) = endpoint.poll_once(work.as_mut()) {
/// #         break done?;
/// #     }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KvClient<T: Transport> {
    connection: Rc<Connection<T>>,
    config: ClientConfig,
    /// The rank of its reads.
    rank: Option<Ranked>,
}

impl<T: Transport> Clone for KvClient<T> {
    fn clone(&self) -> Self {
        KvClient { connection: self.connection.clone(), ..*self }
    }
}

impl<T: Transport + 'static> KvClient<T> {
    /// Asks any core of a server (`server`) for the map, and opens sessions to all its cores.
    ///
    /// # Errors
    /// [`KvError::Connect`], [`KvError::NoMap`], [`KvError::NoService`], [`KvError::NoAddress`].
    pub async fn connect(
        endpoint: &Rc<Endpoint<T>>,
        server: &Addr,
        config: ClientConfig,
    ) -> Result<KvClient<T>, KvError> {
        let client = KvClient::new(endpoint, server, config);
        client.connection.links().await?;
        Ok(client)
    }

    /// Returns a client that connects with its first operation.
    pub fn new(endpoint: &Rc<Endpoint<T>>, server: &Addr, config: ClientConfig) -> KvClient<T> {
        KvClient { connection: Rc::new(Connection::new(endpoint.clone(), server.clone(), config)), config, rank: None }
    }

    /// Returns the same client with another deadline for its operations; `None` for none.
    #[must_use]
    pub fn with_deadline(&self, deadline: Option<std::time::Duration>) -> KvClient<T> {
        KvClient { config: ClientConfig { deadline, ..self.config }, ..self.clone() }
    }

    /// Returns the same client whose reads say how urgent they are, for the server's queue in front of its tier; `None`
    /// lets the server decide.
    #[must_use]
    pub fn with_rank(&self, rank: Option<Ranked>) -> KvClient<T> {
        KvClient { rank, ..self.clone() }
    }

    /// Returns the server's map, fetching it if necessary.
    ///
    /// # Errors
    /// As [`KvClient::connect`].
    pub async fn map(&self) -> Result<ServerMap, KvError> {
        Ok(self.connection.links().await?.map.clone())
    }

    /// Whether it is a clone of this one.
    pub(crate) fn is_same(&self, other: &KvClient<T>) -> bool {
        Rc::ptr_eq(&self.connection, &other.connection)
    }

    /// Closes the sessions; a later operation reopens them. Operations in progress fail, except those on sessions that
    /// the client had left because one of them had ended.
    pub fn close(&self) {
        self.connection.forget();
    }
}
