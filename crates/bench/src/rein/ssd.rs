//! `rein-ssd`: Figure 3.12. A third of the values fit in memory, the others are read from the tier: operations of two
//! kinds, and nobody knows which is which before they are served.

use std::ops::RangeInclusive;

use super::cluster::Cluster;
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
/// The share of the values that devices read, in percent.
const FROM_DEVICES: RangeInclusive<f64> = 55.0..=75.0;
/// What ships makes no percentile worse.
const LEAST: f64 = 1.0;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(2);
    let cluster = Cluster::new(lab);
    let memory = (cluster.server_bytes() / IN_MEMORY).max(cluster.memory);
    let cluster = rounds::calibrate(lab, Cluster { memory, ..cluster })?;
    let rounds = rounds::measure(lab, &cluster, &POLICIES, &LOADS)?;
    for place in 0..LOADS.len() {
        for policy in POLICIES.into_iter().skip(1) {
            for (percentile, _) in PERCENTILES {
                let least = (policy == Policies::Shipped).then_some(LEAST);
                rounds.push_gain(lab, (place, policy, percentile), least)?;
            }
        }
    }
    rounds.push_latencies(lab)?;
    rounds.push_conditions(lab, FROM_DEVICES)
}
