//! The server as `dunlin kv serve` runs it, with one core.

use std::rc::Rc;
use dunlin_kv::routing::Routing;
use dunlin_kv::wire::{Limits, ServerMap};
use dunlin_kv::{KvService, Shard};
use dunlin_net::Transport;
use dunlin_rpc::Endpoint;
use dunlin_store::{Mode, Partition, PartitionConfig, Store};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::peer::{Control, Role};
use crate::roles::memcached::Serving;
use crate::roles::setup::{Carrier, OnTransport, Setup, Side};

/// A key-value server. Runs until it is stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KvServer {
    /// Where Dunlin clients reach it.
    pub carrier: Carrier,
    /// Whether it may lose items.
    pub keeps: Keeps,
    /// Memory for items, in bytes.
    pub memory: u64,
}

/// What a server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keeps {
    /// All items, or it refuses more.
    All,
    /// The newer ones, as a cache does.
    Newer,
}

/// Where a server is reached.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KvServing {
    /// Its address for Dunlin clients.
    pub address: String,
}

impl KvServer {
    /// One that loses nothing.
    pub fn store(carrier: Carrier, memory: u64) -> Self {
        KvServer { carrier, keeps: Keeps::All, memory }
    }

    /// A cache.
    pub fn cache(carrier: Carrier, memory: u64) -> Self {
        KvServer { carrier, keeps: Keeps::Newer, memory }
    }
}

impl Role for KvServer {
    const NAME: &'static str = "key-value server";
    type Ready = KvServing;
    type Output = ();

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        Setup::new(self.carrier).on_transport(Side::Server, Serve { server: &self, control })
    }
}

struct Serve<'a> {
    server: &'a KvServer,
    control: &'a Control<KvServer>,
}

impl OnTransport for Serve<'_> {
    type Output = ();

    fn run<T: Transport + 'static>(self, transport: T) -> Result<(), BenchError> {
        let endpoint = Endpoint::new(transport, Setup::new(self.server.carrier).endpoint())?;
        let routing = Routing::new([0; 16], 1).expect("one core");
        let mode = if self.server.keeps == Keeps::All { Mode::Store } else { Mode::Cache };
        let store = Partition::new(PartitionConfig::new(mode, self.server.memory as usize))?;
        let map = ServerMap {
            incarnation: 1,
            routing,
            limits: Limits { value_bytes_max: store.stats().value_bytes_max as u32 },
            addresses: vec![vec![endpoint.local_addr().to_string()]],
        };
        let shard = Rc::new(Shard::new(store, routing, 0));
        KvService::new(shard, map).register(&endpoint)?;
        self.control.ready(KvServing { address: endpoint.local_addr().to_string() });
        endpoint.run_until(|| self.control.stopping());
        Ok(())
    }
}

/// The same with a port for memcached's protocol.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KvMemcachedServer(pub KvServer);

impl Role for KvMemcachedServer {
    const NAME: &'static str = "key-value server with a memcached port";
    type Ready = Serving;
    type Output = ();

    fn run(self, _control: &Control<Self>) -> Result<(), BenchError> {
        Err(BenchError::Interrupted)
    }
}
