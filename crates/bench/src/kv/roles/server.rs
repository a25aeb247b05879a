//! The server as `dunlin kv serve` runs it.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use dunlin_kv::memcached::Listen;
use dunlin_kv::server::{Server, ServerConfig};
use dunlin_lab::peer::{Control, Role};
use dunlin_net::Addr;
use dunlin_store::Mode;
use serde::{Deserialize, Serialize};

use super::memcached::Serving;
use crate::BenchError;
use crate::rpc::roles::setup::Carrier;

/// Interval of checks whether to stop. The checking thread shares the core of the server.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// A key-value server. Runs until it is stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KvServer {
    /// Transport for Dunlin clients.
    pub carrier: Carrier,
    /// Whether it may lose items.
    pub keeps: Keeps,
    /// Memory for items, in bytes.
    pub memory: u64,
    /// Server threads. They share the core of this process.
    pub cores: u16,
}

/// Which items a server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keeps {
    /// All items; it refuses more.
    All,
    /// The newer ones, like a cache.
    Newer,
}

/// The address of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KvServing {
    /// Its address for Dunlin clients.
    pub address: String,
}

impl KvServer {
    /// A server that loses nothing.
    pub fn store(carrier: Carrier, memory: u64) -> Self {
        KvServer { carrier, keeps: Keeps::All, memory, cores: 1 }
    }

    /// A cache.
    pub fn cache(carrier: Carrier, memory: u64) -> Self {
        KvServer { carrier, keeps: Keeps::Newer, memory, cores: 1 }
    }

    fn start(&self, memcached: Vec<Listen>) -> Result<Server, BenchError> {
        let mut config = ServerConfig::default();
        config.listen = vec![self.carrier.own_address()?];
        config.memcached = memcached;
        config.memory_bytes = self.memory as usize;
        config.cores = self.cores;
        config.mode = match self.keeps {
            Keeps::All => Mode::Store,
            Keeps::Newer => Mode::Cache,
        };
        Server::start(config, |_| {}).map_err(ours)
    }
}

fn ours(error: dunlin_kv::server::ServerError) -> BenchError {
    BenchError::OtherSystem { system: "key-value server", why: error.to_string() }
}

impl Role for KvServer {
    const NAME: &'static str = "key-value server with one core";
    type Ready = KvServing;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        // Its thread inherits the CPU affinity of this process.
        let server = self.start(Vec::new())?;
        let address = server.addresses().first().map(Addr::to_string).unwrap_or_default();
        control.ready(KvServing { address });
        while !control.stopping() {
            thread::sleep(LOOK_AROUND);
        }
        server.stop().map(|_| ()).map_err(ours)
    }
}

/// The same with a port for memcached's protocol.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KvMemcachedServer(pub KvServer);

impl Role for KvMemcachedServer {
    const NAME: &'static str = "key-value server with one core and a memcached port";
    type Ready = Serving;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let listen = Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let server = self.0.start(vec![listen])?;
        let address = server.memcached_addresses().first().and_then(|text| text.strip_prefix("tcp://")?.parse().ok());
        let address = address.ok_or_else(|| BenchError::OtherSystem {
            system: "key-value server",
            why: "it listens nowhere for memcached clients".into(),
        })?;
        control.ready(Serving { address, process: std::process::id() });
        while !control.stopping() {
            thread::sleep(LOOK_AROUND);
        }
        server.stop().map(|_| ()).map_err(ours)
    }
}
