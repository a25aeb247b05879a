//! One run of each kind of measurement of replicas: a group and its client in new processes.

use std::time::Duration;

use crate::rpc::roles::Carrier;
use crate::smr::roles::{Poll, PutFigures, PutLoad, ReplicaFigures, ReplicaGroup, Storage, Watch};
use crate::{BenchError, Lab};

/// Additional time limit of replicas, for storing all keys, electing a leader, and starting and ending their client.
const SLACK: Duration = Duration::from_secs(40);

/// The parameters of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub carrier: Carrier,
    pub storage: Storage,
    /// Groups of each replica.
    pub groups: u16,
    /// Concurrent writes.
    pub window: usize,
    /// Initial keys.
    pub keys: u64,
    /// Entries per snapshot of each replica; `None` for no snapshots.
    pub snapshot_entries: Option<u64>,
}

/// Starts a group, runs the load on it, and stops it.
pub(super) fn load(lab: &Lab, ask: Ask, watch: Watch) -> Result<(PutFigures, ReplicaFigures), BenchError> {
    let keys = lab.items(ask.keys);
    let group = ReplicaGroup {
        carrier: ask.carrier,
        storage: ask.storage,
        groups: ask.groups,
        keys,
        watch,
        snapshot_entries: ask.snapshot_entries,
    };
    // Threads that flush need a core, too: on a machine with two, all share both.
    let is_disk = ask.storage.is_disk();
    let mut group = if is_disk {
        lab.anywhere(group, lab.run_length() + SLACK)?
    } else {
        lab.server(group, lab.run_length() + SLACK)?
    };
    let members = group.ready()?;
    let poll = if is_disk { Poll::Yield } else { Poll::Spin };
    let load = PutLoad { members, groups: ask.groups, keys, window: ask.window, run: lab.run_length(), watch, poll };
    let load = if is_disk {
        lab.anywhere(load, lab.run_length() + SLACK)?
    } else {
        lab.client(load, lab.run_length() + SLACK)?
    };
    Ok((load.result()?, group.stop()?))
}
