//! The replicas.

use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::Endpoint;
use dunlin_smr::config::Clock;
use dunlin_smr::kv::{Command, Condition, KvMachine};
use dunlin_smr::wire::response::Role;
use dunlin_smr::{Beginning, LogStore, Node, NodeConfig, Probe, StateMachine};

use crate::BenchError;
use crate::workload::item::{self, KEY_BYTES};

/// Keys that all replicas have from the beginning, as in the paper (section 7.1).
pub const KEYS: u64 = 1_000_000;
/// Bytes of a value.
pub(super) const VALUE_BYTES: usize = 64;
/// What an item counts, about: for the limit of the machine.
const ITEM_BYTES: u64 = 160;
/// The paper's replicas take no snapshot; these take none while they are measured.
const SNAPSHOT_LOG_BYTES: u64 = 8 << 30;

/// Members of a group, by id, from 1 on.
pub type Members = Vec<(u64, Addr)>;

/// A replica that runs on an endpoint.
pub struct Replica<L: LogStore> {
    node: Node<KvMachine, L>,
}

/// What a group has in common.
#[derive(Clone)]
pub struct Group {
    members: Members,
    keys: u64,
}

impl Group {
    /// With these members, and so many keys from the beginning.
    pub fn new(members: Members, keys: u64) -> Group {
        Group { members, keys }
    }

    /// Its members.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Keys that all have from the beginning.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Settings of one of them.
    pub fn config(&self, id: u64, clock: Clock) -> NodeConfig {
        NodeConfig {
            clock,
            tick: Duration::from_millis(10),
            snapshot_entries: u64::MAX,
            snapshot_log_bytes: SNAPSHOT_LOG_BYTES,
            ..NodeConfig::new(id)
        }
    }

    /// Starts one of them. `probe` is told what it works on, once it is there.
    ///
    /// # Errors
    /// [`BenchError::Replica`].
    pub fn start<T: Transport + 'static, L: LogStore + 'static>(
        &self,
        endpoint: &Rc<Endpoint<T>>,
        config: NodeConfig,
        log: L,
        probe: Option<Rc<dyn Probe>>,
    ) -> Result<Replica<L>, BenchError> {
        let config = NodeConfig { probe, ..config };
        let node = Node::start(endpoint, config, log, self.machine()?, Beginning::First(self.members.clone()))?;
        Ok(Replica { node })
    }

    /// A machine that has all keys.
    fn machine(&self) -> Result<KvMachine, BenchError> {
        let mut machine = KvMachine::new((self.keys + 1) * ITEM_BYTES)?;
        let mut reply = Vec::new();
        for number in 0..self.keys {
            let command = put(number, number);
            reply.clear();
            machine.apply(1, &command, &mut reply);
        }
        Ok(machine)
    }
}

impl<L: LogStore + 'static> Replica<L> {
    /// Whether it leads.
    pub fn leads(&self) -> bool {
        self.node.status().role == Role::Leader
    }

    /// Whether it has all that is committed. One that has just begun restores its first state meanwhile.
    pub fn is_up_to_date(&self) -> bool {
        let status = self.node.status();
        status.committed > 0 && status.applied == status.committed
    }

    /// Entries that it has executed.
    pub fn commits(&self) -> u64 {
        self.node.counters().applied
    }

    /// The longest time that it did nothing else for a snapshot of its state, in nanoseconds.
    pub fn snapshot_pause_max(&self) -> u64 {
        self.node.status().snapshot_pause_max
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// [`BenchError::Replica`], if it has stopped.
    pub fn check(&self) -> Result<(), BenchError> {
        self.node.failure().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// The command that writes value `value` to key `number`.
pub(super) fn put(number: u64, value: u64) -> Vec<u8> {
    let key: [u8; KEY_BYTES] = item::key(number);
    let mut bytes = [0; VALUE_BYTES];
    item::fill_value(value, &mut bytes);
    Command::Put { key: &key, value: &bytes, condition: Condition::Always }.encode()
}
