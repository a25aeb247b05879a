//! `rein-ssd`: Figure 3.12. A third of the values fit in memory, the others are read from the tier: operations of two
//! kinds, and only the server knows which is which.

use super::cluster::{Access, Cluster};
use super::contenders::Policies;
use super::rounds::{self, PERCENTILES};
use crate::{BenchError, Lab};

const POLICIES: [Policies; 6] = [
    Policies::Fifo,
    Policies::Sbf,
    Policies::Rein,
    Policies::ShippedQueue,
    Policies::ShippedReplicas,
    Policies::Shipped,
];
/// "High load".
const LOADS: [f64; 2] = [0.75, 0.9];
/// A third of the items.
const IN_MEMORY: u64 = 3;
/// The gain over FIFO that what ships must have at each percentile.
const LEAST: f64 = 1.0;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(2);
    let cluster = Cluster::new(lab);
    let memory = (cluster.server_bytes() / IN_MEMORY).max(cluster.memory);
    let cluster = rounds::calibrate(lab, Cluster { memory, access: Access::AtRandom, ..cluster })?;
    let rounds = rounds::measure(lab, &cluster, &POLICIES, &LOADS)?;
    for load in 0..LOADS.len() {
        for policy in rounds.policies(load) {
            for (percentile, _) in PERCENTILES {
                let least = (policy == Policies::Shipped).then_some(LEAST);
                rounds.push_gain(lab, (load, policy, percentile), least)?;
            }
        }
    }
    rounds.push_latencies(lab)?;
    rounds.push_conditions(lab)
}
