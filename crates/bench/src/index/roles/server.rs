//! An index server, as `dunlin index serve` runs it, with its items.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use dunlin_index::{Server, ServerConfig, pin};
use dunlin_lab::peer::{Control, Role};
use dunlin_net::Addr;
use serde::{Deserialize, Serialize};

use super::ops::keys::item_key;
use crate::BenchError;
use crate::rpc::roles::Carrier;

/// Interval of checks whether to stop.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// Memory for an item, and beside them.
const BYTES_PER_ITEM: u64 = 100;
const BYTES_BESIDE: u64 = 64 << 20;

/// A server with one core and one worker. Runs until it is stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IndexServer {
    /// Its transport.
    pub carrier: Carrier,
    /// Items of 8 + 8 B.
    pub items: u64,
    /// Processor of its core. The system places its worker.
    pub core: usize,
}

impl Role for IndexServer {
    const NAME: &'static str = "index server with one core and one worker";
    /// Its address.
    type Ready = String;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let address = match self.carrier {
            // A name that no other process uses.
            Carrier::Shm => format!("shm:dunlin-bench-{}", std::process::id()).parse()?,
            Carrier::Udp => Addr::Udp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        };
        let memory_bytes = (BYTES_BESIDE + self.items * BYTES_PER_ITEM) as usize;
        let config =
            ServerConfig { listen: vec![address], pin: vec![self.core], memory_bytes, ..ServerConfig::default() };
        let server = Server::start(config, |_| {}).map_err(ours)?;
        let index = server.shared().index();
        for number in 0..self.items {
            index.insert(&item_key(number), &number.to_le_bytes(), &pin()).map_err(ours)?;
        }
        control.ready(server.addresses().first().map(Addr::to_string).unwrap_or_default());
        while !control.stopping() {
            thread::sleep(LOOK_AROUND);
        }
        server.stop().map(|_| ()).map_err(ours)
    }
}

fn ours(error: impl std::fmt::Display) -> BenchError {
    BenchError::OtherSystem { system: "index server", why: error.to_string() }
}
