//! A replica of a key-value machine, as `dunlin raft serve` runs it.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Addr, AnyTransport, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::kv::KvMachine;
use dunlin_smr::wal::{Directory, WalConfig, open};
use dunlin_smr::{Beginning, DurableLog, Node, NodeConfig};
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// Maximum size of keys and values, in bytes.
const LIMIT: u64 = 256 << 20;
/// Heartbeats per election timeout.
const HEARTBEATS: u32 = 10;
/// How long it polls for packets before it sleeps: longer than a flush takes.
const LOOK: Duration = Duration::from_micros(300);
/// Entries per snapshot, so that a restarted replica need not execute too many again.
const SNAPSHOT_ENTRIES: u64 = 50_000;

/// One of the first members of a cluster, with its log on disk. Runs until it is stopped, or killed; a restarted one
/// continues from its log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KvReplica {
    /// Its id.
    pub id: u64,
    /// Ids and addresses of all members.
    pub members: Vec<(u64, String)>,
    /// The directory of its log, which is created if it does not exist.
    pub directory: PathBuf,
    /// Its election timeout.
    pub election: Duration,
}

impl Role for KvReplica {
    const NAME: &'static str = "replica";
    type Ready = ();
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let members = self.members.iter().map(|(id, address)| Ok((*id, address.parse()?)));
        let members: Vec<(u64, Addr)> = members.collect::<Result<_, BenchError>>()?;
        let own = members.iter().find(|(id, _)| *id == self.id);
        let (_, own) = own.ok_or_else(|| failed("it is not among the members"))?;
        let directory = Directory::open(&self.directory).map_err(failed)?;
        let (wal, _) = open(directory, WalConfig::new(self.id)).map_err(failed)?;
        let log = DurableLog::new(wal).map_err(failed)?;
        let mut config = NodeConfig { snapshot_entries: SNAPSHOT_ENTRIES, ..NodeConfig::new(self.id) };
        config.election_ticks = self.election.div_duration_f64(config.tick).round() as u32;
        config.heartbeat_ticks = (config.election_ticks / HEARTBEATS).max(1);
        // All three may share one core: polling must not keep it from the others.
        let endpoint_config = EndpointConfig { poll: PollPolicy::Yielding { spin: LOOK }, ..EndpointConfig::default() };
        let endpoint = Rc::new(Endpoint::new(AnyTransport::bind(own)?, endpoint_config)?);
        let machine = KvMachine::new(LIMIT)?;
        let node = Node::start(&endpoint, config, log, machine, Beginning::First(members)).map_err(failed)?;
        control.ready(());
        // Ticks wake the loop often enough.
        endpoint.run_until(|| control.stopping() || node.failure().is_some());
        node.close().map_err(failed)
    }
}

fn failed(why: impl ToString) -> BenchError {
    BenchError::OtherSystem { system: "replica", why: why.to_string() }
}
