//! One run of each kind of measurement of replicas: a group and its client in fresh processes.

use std::time::Duration;

use crate::BenchError;
use crate::lab::Lab;
use crate::replication::KEYS;
use crate::roles::{Carrier, PutFigures, PutLoad, ReplicaFigures, ReplicaGroup, Storage, Watch};

/// Time that replicas take to have all keys and to elect a leader, and that they wait for their client to come and go.
const SLACK: Duration = Duration::from_secs(40);

/// What is asked of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub carrier: Carrier,
    pub storage: Storage,
    /// Writes at a time.
    pub window: usize,
}

/// Starts a group, puts the load on it, and stops it.
pub(super) fn load(lab: &Lab, ask: Ask, watch: Watch) -> Result<(PutFigures, ReplicaFigures), BenchError> {
    let keys = lab.items(KEYS);
    let group = ReplicaGroup { carrier: ask.carrier, storage: ask.storage, keys, watch };
    let mut group = lab.server(group, lab.run_length() + SLACK)?;
    let members = group.ready()?;
    let load = PutLoad { members, keys, window: ask.window, run: lab.run_length(), watch };
    let figures = lab.client(load, lab.run_length() + SLACK)?.result()?;
    Ok((figures, group.stop()?))
}
