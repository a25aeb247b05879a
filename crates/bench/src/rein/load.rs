//! `rein-load`: Figure 3.9. Policies against load on 16 servers whose reads wait, with only the policy switched between
//! runs, beside the simulator with the same servers and arrivals.

use std::ops::RangeInclusive;

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_schedule::simulator::Outcome;

use super::cluster::Cluster;
use super::contenders::Policies;
use super::rounds::{self, PERCENTILES, Rounds, at, spread_of};
use super::{Percentile, gain, outcomes};
use crate::{BenchError, Lab};

const LOADS: [f64; 3] = [0.4, 0.75, 0.9];
/// Required share of what the simulator gains.
const OF_SIMULATED: f64 = 2.0 / 3.0;
/// Policies whose gains in the simulator differ by less are in no order.
const ORDER_MIN: f64 = 1.05;

/// Share of the values that devices read, in percent: the memory of a server, and blocks on their way to the tier, have
/// the others.
const FROM_DEVICES: RangeInclusive<f64> = 85.0..=100.0;

/// The simulated runs of the policies that the simulator has.
type Simulated = Vec<(Policies, Vec<Outcome>)>;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(2);
    let cluster = rounds::calibrate(lab, Cluster::new(lab))?;
    // Before the rounds, so that the goals are known.
    let mut simulated = Vec::new();
    for load in LOADS {
        simulated.push(simulate(lab, &cluster, load)?);
    }
    let rounds = rounds::measure(lab, &cluster, &Policies::ALL, &LOADS)?;
    for (place, simulated) in simulated.iter().enumerate() {
        push_gains(lab, &rounds, place, simulated)?;
        push_order(lab, &rounds, place, simulated)?;
    }
    rounds.push_latencies(lab)?;
    rounds.push_conditions(lab, FROM_DEVICES)?;
    lab.note(
        "All clients are one host, so damping is off (`--schedule-lead 0`), there and in the simulator. The simulator sends \
         no copies, so duplication and speculative retries have no counterpart.",
    );
    lab.note(
        "Speculative retries and C3 work as in `KvCluster`: the 90th percentile of the last 256 response times, and response \
         times in place of service times. The simulator's C3 is told service times and queues.",
    );
    Ok(())
}

/// Simulates the policies, with the same number of multigets, and the same ones with the same seed.
fn simulate(lab: &mut Lab, cluster: &Cluster, load: f64) -> Result<Simulated, BenchError> {
    let mut simulated = Vec::new();
    for policy in Policies::ALL {
        let requests = cluster.load(policy, load, lab.run_length(), 0).requests;
        let Some((contender, setting)) = policy.simulated(&cluster.setting(load, requests, 0)) else { continue };
        let name = simulated_name(load, policy);
        simulated.push((policy, outcomes(lab, &name, &setting, &contender)?));
    }
    Ok(simulated)
}

fn simulated_name(load: f64, policy: Policies) -> String {
    at(load, &format!("{}, simulated", policy.name()))
}

/// Adds the gains in the simulator, and the measured ones with their goal: two thirds of what FIFO's latency exceeds.
fn push_gains(lab: &mut Lab, rounds: &Rounds, place: usize, simulated: &Simulated) -> Result<(), BenchError> {
    let Some((_, fifo)) = simulated.first() else { return Ok(()) };
    for policy in Policies::ALL.into_iter().skip(1) {
        let ours = simulated.iter().find(|(it, _)| *it == policy);
        for (percentile, _) in PERCENTILES {
            let mut least = None;
            if let Some((_, ours)) = ours {
                let gained = median(fifo, ours, percentile)?;
                least = (gained > 1.0).then_some(1.0 + OF_SIMULATED * (gained - 1.0));
                lab.push(gain(&simulated_name(LOADS[place], policy), percentile, fifo, ours)?);
            }
            rounds.push_gain(lab, (place, policy, percentile), least)?;
        }
    }
    Ok(())
}

fn median(fifo: &[Outcome], ours: &[Outcome], percentile: Percentile) -> Result<f64, BenchError> {
    let gains: Vec<f64> = fifo.iter().zip(ours).map(|(fifo, ours)| percentile.of(fifo) / percentile.of(ours)).collect();
    Ok(spread_of(&gains)?.median)
}

/// Adds the share of the pairs of policies that are in the simulator's order.
fn push_order(lab: &mut Lab, rounds: &Rounds, place: usize, simulated: &Simulated) -> Result<(), BenchError> {
    let Some((_, fifo)) = simulated.first() else { return Ok(()) };
    for (percentile, _) in PERCENTILES {
        let mut gains = Vec::new();
        for (policy, ours) in simulated {
            let measured = spread_of(&rounds.gains(place, *policy, percentile))?.median;
            gains.push((median(fifo, ours, percentile)?, measured));
        }
        let Some(share) = share_in_order(&gains) else {
            lab.note(format!(
                "{:.0} %: the simulator's policies do not differ at {}.",
                LOADS[place] * 100.0,
                percentile.name()
            ));
            continue;
        };
        let name = at(LOADS[place], &format!("pairs of policies in the simulator's order, {}", percentile.name()));
        lab.push(RowBuilder::new(name, Metric::Share, share.into()).target(Target::Absolute(100.0)));
    }
    Ok(())
}

/// Of pairs whose first figures differ, the share whose second figures differ in the same direction; in percent. `None` if
/// none differ.
fn share_in_order(gains: &[(f64, f64)]) -> Option<f64> {
    let pairs = gains.iter().enumerate().flat_map(|(place, a)| gains[place + 1..].iter().map(move |b| (a, b)));
    let ordered: Vec<bool> = pairs
        .filter(|(a, b)| f64::max(a.0 / b.0, b.0 / a.0) >= ORDER_MIN)
        .map(|(a, b)| (a.0 > b.0) == (a.1 > b.1))
        .collect();
    let count = ordered.iter().filter(|is_same| **is_same).count();
    (!ordered.is_empty()).then(|| 100.0 * count as f64 / ordered.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_differ_have_an_order() {
        assert_eq!(share_in_order(&[(1.0, 1.0), (2.0, 1.5), (3.0, 1.7)]), Some(100.0));
        assert_eq!(share_in_order(&[(1.0, 1.0), (2.0, 1.5), (3.0, 1.2)]), Some(100.0 * 2.0 / 3.0));
        assert_eq!(share_in_order(&[(1.0, 1.0), (1.01, 0.5)]), None, "a difference of 1 % is none");
    }
}
