//! The replicas.

use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::Endpoint;
use dunlin_smr::config::Clock;
use dunlin_smr::kv::{Command, Condition, KvMachine};
use dunlin_smr::{Beginning, Host, LogStore, NodeConfig, Probe, StateMachine};

use crate::BenchError;
use crate::workload::item::{self, KEY_BYTES};

/// Initial keys of all replicas, as in the paper (section 7.1).
pub const KEYS: u64 = 1_000_000;
/// Bytes of a value.
pub(super) const VALUE_BYTES: usize = 64;
/// Approximate bytes that an item counts, for the limit of the machine.
const ITEM_BYTES: u64 = 160;
/// The paper's replicas take no snapshots; these take none during a measurement.
const SNAPSHOT_LOG_BYTES: u64 = 8 << 30;

/// Members of a group, by id, from 1 on.
pub type Members = Vec<(u64, Addr)>;

/// A replica of each group, all on one endpoint.
pub struct Replica<L: LogStore> {
    host: Host<KvMachine, L>,
}

/// The common properties of a group.
#[derive(Clone)]
pub struct Group {
    members: Members,
    keys: u64,
    groups: u16,
}

impl Group {
    /// A group with these members and this many initial keys.
    pub fn new(members: Members, keys: u64) -> Group {
        Group { members, keys, groups: 1 }
    }

    /// This many groups, which share the keys.
    #[must_use]
    pub fn times(self, groups: u16) -> Group {
        Group { groups, ..self }
    }

    /// Number of groups.
    pub fn groups(&self) -> u16 {
        self.groups
    }

    /// Its members.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Settings of one member.
    pub fn config(&self, id: u64, clock: Clock) -> NodeConfig {
        NodeConfig {
            clock,
            tick: Duration::from_millis(10),
            snapshot_entries: u64::MAX,
            snapshot_log_bytes: SNAPSHOT_LOG_BYTES,
            ..NodeConfig::new(id)
        }
    }

    /// Starts one member, with the logs of all groups. `probe` observes its work, once it runs.
    ///
    /// # Errors
    /// [`BenchError::Replica`].
    pub fn start<T: Transport + 'static, L: LogStore + 'static>(
        &self,
        endpoint: &Rc<Endpoint<T>>,
        config: NodeConfig,
        logs: Vec<L>,
        probe: Option<Rc<dyn Probe>>,
    ) -> Result<Replica<L>, BenchError> {
        let config = NodeConfig { probe, ..config };
        let groups = logs.into_iter().map(|log| Ok((log, self.machine()?))).collect::<Result<Vec<_>, BenchError>>()?;
        Ok(Replica { host: Host::start(endpoint, config, groups, Beginning::First(self.members.clone()))? })
    }

    /// The keys of each group.
    pub fn keys_of_group(&self) -> u64 {
        (self.keys / u64::from(self.groups)).max(1)
    }

    /// A machine that has all keys of a group.
    fn machine(&self) -> Result<KvMachine, BenchError> {
        let keys = self.keys_of_group();
        let mut machine = KvMachine::new((keys + 1) * ITEM_BYTES)?;
        let mut reply = Vec::new();
        for number in 0..keys {
            let command = put(number, number);
            reply.clear();
            machine.apply(1, &command, &mut reply);
        }
        Ok(machine)
    }
}

impl<L: LogStore + 'static> Replica<L> {
    /// Number of groups that it leads.
    pub fn led(&self) -> usize {
        self.host.led()
    }

    /// Whether it leads any group.
    pub fn leads(&self) -> bool {
        self.led() > 0
    }

    /// Whether it has executed everything committed. A new replica restores its initial state first.
    pub fn is_up_to_date(&self) -> bool {
        self.host.nodes().all(|node| {
            let status = node.status();
            status.committed > 0 && status.applied == status.committed
        })
    }

    /// Executed entries.
    pub fn commits(&self) -> u64 {
        self.host.nodes().map(|node| node.counters().applied).sum()
    }

    /// The longest time that it was occupied with a snapshot of its state, in nanoseconds.
    pub fn snapshot_pause_max(&self) -> u64 {
        self.host.nodes().map(|node| node.status().snapshot_pause_max).max().unwrap_or(0)
    }

    /// Checks that it runs.
    ///
    /// # Errors
    /// [`BenchError::Replica`], if it has stopped.
    pub fn check(&self) -> Result<(), BenchError> {
        self.host.failure().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// The command that writes value `value` to key `number`.
pub(super) fn put(number: u64, value: u64) -> Vec<u8> {
    let key: [u8; KEY_BYTES] = item::key(number);
    let mut bytes = [0; VALUE_BYTES];
    item::fill_value(value, &mut bytes);
    Command::Put { key: &key, value: &bytes, condition: Condition::Always }.encode()
}
