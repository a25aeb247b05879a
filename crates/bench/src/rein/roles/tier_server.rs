//! A key-value server whose values are in a tier, as `dunlin kv serve --tier` runs it.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use dunlin_kv::server::{Server, ServerConfig, ServerError};
use dunlin_kv::tier::{Schedule, TierSettings};
use dunlin_lab::peer::{Control, Role};
use dunlin_schedule::{Ageing, Levels, Order};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::rpc::roles::Carrier;

/// Interval of checks whether to stop.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// A server with a device of its own. Runs until it is stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TierServer {
    /// Transport for Dunlin clients.
    pub carrier: Carrier,
    /// The order of operations that wait for the device.
    pub order: ServerOrder,
    /// Memory for items, in bytes.
    pub memory: u64,
    /// The file.
    pub file: PathBuf,
    /// Its bytes.
    pub file_bytes: u64,
    /// Memory for the index of the file, in bytes.
    pub index_bytes: u64,
    /// Reads at a time.
    pub reads: u32,
    /// The least time that a read takes.
    pub delay: Duration,
}

/// `--schedule`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerOrder {
    /// In order of arrival.
    Fifo,
    /// By exact rank, with ageing.
    Exact,
    /// Deficit round robin over the thesis' levels.
    Levels,
    /// Levels that are learnt: the default.
    Learnt,
}

impl ServerOrder {
    /// All orders.
    pub const ALL: [ServerOrder; 4] = [ServerOrder::Fifo, ServerOrder::Exact, ServerOrder::Levels, ServerOrder::Learnt];

    /// The order of the queue.
    pub fn order(self) -> Order {
        match self {
            ServerOrder::Fifo => Order::Fifo,
            ServerOrder::Exact => Order::Exact { ageing: Some(Ageing::default()) },
            ServerOrder::Levels => Order::Weighted { weights: Levels::default().weights().to_vec() },
            ServerOrder::Learnt => Order::default(),
        }
    }

    fn schedule(self) -> Schedule {
        let mut schedule = match self {
            ServerOrder::Levels => Schedule::levels(Levels::default()),
            order => Schedule::new(order.order()),
        };
        // All clients of the experiment are one host. `--schedule-lead 0`.
        schedule.queue.damping = None;
        schedule
    }
}

impl Role for TierServer {
    const NAME: &'static str = "key-value server with a tier";
    /// Its address.
    type Ready = String;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let mut tier = TierSettings::new(self.file, self.file_bytes, self.memory as usize);
        tier.index_bytes = self.index_bytes as usize;
        tier.reads = self.reads as usize;
        tier.delay = self.delay;
        let mut config = ServerConfig::default();
        config.listen = vec![self.carrier.own_address()?];
        config.memory_bytes = self.memory as usize;
        config.tier = Some(tier);
        config.schedule = self.order.schedule();
        let server = Server::start(config, |_| {}).map_err(ours)?;
        control.ready(server.addresses().first().map(ToString::to_string).unwrap_or_default());
        while !control.stopping() {
            thread::sleep(LOOK_AROUND);
        }
        server.stop().map_err(ours)?;
        Ok(())
    }
}

fn ours(error: ServerError) -> BenchError {
    BenchError::OtherSystem { system: "key-value server", why: error.to_string() }
}
