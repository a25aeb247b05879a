//! One run of each kind of measurement of replicas: a group and its client in fresh processes.

use std::time::Duration;

use crate::BenchError;
use crate::lab::Lab;
use crate::roles::{Carrier, Poll, PutFigures, PutLoad, ReplicaFigures, ReplicaGroup, Storage, Watch};

/// Time that replicas take to have all keys and to elect a leader, and that they wait for their client to come and go.
const SLACK: Duration = Duration::from_secs(40);

/// What is asked of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub carrier: Carrier,
    pub storage: Storage,
    /// Groups of each replica.
    pub groups: u16,
    /// Writes at a time.
    pub window: usize,
    /// Keys that there are from the beginning.
    pub keys: u64,
    /// Entries after which each replica takes a snapshot; `None` if none is to be taken.
    pub snapshot_entries: Option<u64>,
}

/// Starts a group, puts the load on it, and stops it.
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
    // Threads that flush need a core, too: on two, all share both.
    let is_disk = ask.storage.is_disk();
    let mut group =
        if is_disk { lab.anywhere(group, lab.run_length() + SLACK)? } else { lab.server(group, lab.run_length() + SLACK)? };
    let members = group.ready()?;
    let poll = if is_disk { Poll::Yield } else { Poll::Spin };
    let load = PutLoad { members, groups: ask.groups, keys, window: ask.window, run: lab.run_length(), watch, poll };
    let load =
        if is_disk { lab.anywhere(load, lab.run_length() + SLACK)? } else { lab.client(load, lab.run_length() + SLACK)? };
    Ok((load.result()?, group.stop()?))
}
