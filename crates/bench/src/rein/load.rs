//! `rein-load`: Figure 3.9. Policies against load on 16 servers whose reads wait, with only the policy switched between
//! runs, beside the simulator with the same servers and arrivals.

use dunlin_lab::report::Metric;
use dunlin_schedule::simulator;

use super::cluster::Cluster;
use super::contenders::Policies;
use super::rounds::{self, PERCENTILES, Rounds, at, spread_of};
use super::row_name;
use crate::{BenchError, Lab};

const LOADS: [f64; 3] = [0.4, 0.75, 0.9];
/// Required share of what the simulator gains over FIFO, and of the latency that it has if it gains nothing.
const OF_SIMULATED: f64 = 2.0 / 3.0;
const OF_NO_GAIN: f64 = 0.95;
/// Policies whose gains in the simulator differ by less are in no order.
const ORDER_MIN: f64 = 1.05;

/// What the shipped queue is to gain in the simulator's literal setting at a load, by percentile: two thirds of it are
/// required here, whatever the simulator says of these servers.
fn gain_of_issue(load: usize) -> Option<[f64; 3]> {
    [None, Some([1.4, 1.28, 1.2]), Some([2.5, 2.3, 2.1])][load]
}

/// Latencies of the policies that the simulator has; by percentile.
type Simulated = Vec<(Policies, [f64; 3])>;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(3);
    let cluster = rounds::calibrate(lab, Cluster::new(lab))?;
    // Before the rounds, so that the goals are known.
    let mut seeds = rounds::seeds(lab);
    let simulated = lab.case("simulated", |lab| {
        let seed = seeds.next().unwrap_or_default();
        LOADS.iter().map(|load| simulate(lab, &cluster, *load, seed)).collect::<Result<Vec<_>, _>>()
    })?;
    let rounds = rounds::measure(lab, &cluster, &Policies::ALL, &LOADS)?;
    for load in 0..LOADS.len() {
        let simulated: Vec<&Simulated> = simulated.iter().map(|of_round| &of_round[load]).collect();
        push_gains(lab, &rounds, load, &simulated)?;
        push_order(lab, &rounds, load, &simulated)?;
    }
    rounds.push_latencies(lab)?;
    rounds.push_conditions(lab)?;
    lab.note(
        "The simulator has, round by round, the same arrivals, and servers whose reads take a constant time: that of \
         the highest rate. Its network's delay makes its median without load that of these servers. Rows \"over its \
         goal\" are the measured gain over two thirds of the simulated one, or over 0.95 of it if the simulator gains \
         nothing.",
    );
    lab.note(
        "All clients are one host, so damping is off (`--schedule-lead 0`), there and in the simulator. The simulator \
         sends no copies, and its C3 is told how many operations wait: duplication, speculative retries and C3 have \
         no counterpart. Speculative retries and C3 work as in `KvCluster`: the 90th percentile of the last 256 \
         response times, and response times with and without the time in the queue.",
    );
    Ok(())
}

/// Simulates the policies with the arrivals of a round.
fn simulate(lab: &Lab, cluster: &Cluster, load: f64, seed: u64) -> Result<Simulated, BenchError> {
    let length = lab.run_length().min(cluster.time_needed(load));
    let mut simulated = Vec::new();
    for policy in Policies::ALL {
        let requests = cluster.load(policy, load, length, seed).requests;
        let Some((contender, setting)) = policy.simulated(&cluster.setting(load, requests, seed)) else { continue };
        let outcome = simulator::simulate(&setting, &contender)?;
        simulated.push((policy, PERCENTILES.map(|(percentile, _)| percentile.of(&outcome))));
    }
    Ok(simulated)
}

/// The gains of a policy over FIFO in the simulator, one of each round; `None` if the simulator does not have it.
fn simulated_gains(simulated: &[&Simulated], policy: Policies, place: usize) -> Option<Vec<f64>> {
    let latency = |of_round: &Simulated, policy| Some(of_round.iter().find(|(it, _)| *it == policy)?.1[place]);
    simulated.iter().map(|of_round| Some(latency(of_round, Policies::Fifo)? / latency(of_round, policy)?)).collect()
}

/// The gain to measure on real servers.
fn goal(simulated: f64) -> f64 {
    (1.0 + OF_SIMULATED * (simulated - 1.0).max(0.0)).min(OF_NO_GAIN * simulated)
}

/// Adds the gains, the same in the simulator, and how both compare.
fn push_gains(lab: &mut Lab, rounds: &Rounds, load: usize, simulated: &[&Simulated]) -> Result<(), BenchError> {
    for policy in rounds.policies(load) {
        for (place, (percentile, _)) in PERCENTILES.into_iter().enumerate() {
            let of_issue = gain_of_issue(load).filter(|_| policy == Policies::ShippedQueue);
            rounds.push_gain(lab, (load, policy, percentile), of_issue.map(|gains| goal(gains[place])))?;
            let Some(simulated) = simulated_gains(simulated, policy, place) else { continue };
            let name = |what| row_name(&at(LOADS[load], &format!("{}, {what}", policy.name())), percentile);
            rounds.push(lab, load, (name("simulated"), Metric::Advantage, &simulated), None)?;
            let measured = rounds.gains(load, policy, percentile)?;
            let reached: Vec<f64> =
                measured.iter().zip(&simulated).map(|(ours, theirs)| ours / goal(*theirs)).collect();
            rounds.push(lab, load, (name("over its goal"), Metric::Advantage, &reached), Some(1.0))?;
        }
    }
    Ok(())
}

/// Adds the share of the pairs of policies that are in the simulator's order.
fn push_order(lab: &mut Lab, rounds: &Rounds, load: usize, simulated: &[&Simulated]) -> Result<(), BenchError> {
    for (place, (percentile, _)) in PERCENTILES.into_iter().enumerate() {
        let mut gains = vec![(1.0, 1.0)];
        for policy in rounds.policies(load) {
            if let Some(simulated) = simulated_gains(simulated, policy, place) {
                let measured = rounds.gains(load, policy, percentile)?;
                gains.push((spread_of(&simulated)?.median, spread_of(&measured)?.median));
            }
        }
        let name = at(LOADS[load], &format!("pairs of policies in the simulator's order, {}", percentile.name()));
        match share_in_order(&gains) {
            Some(share) => rounds.push(lab, load, (name, Metric::Share, &[share]), Some(100.0))?,
            None => lab.note(format!("{name}: the simulator's policies do not differ.")),
        }
    }
    Ok(())
}

/// Of pairs whose first figures differ, the share whose second figures do not differ in the other direction; in
/// percent. `None` if none differ.
fn share_in_order(gains: &[(f64, f64)]) -> Option<f64> {
    let pairs = gains.iter().enumerate().flat_map(|(place, a)| gains[place + 1..].iter().map(move |b| (a, b)));
    let ordered: Vec<bool> = pairs
        .filter(|(a, b)| f64::max(a.0 / b.0, b.0 / a.0) >= ORDER_MIN)
        .map(|(a, b)| if a.0 > b.0 { b.1 / a.1 < ORDER_MIN } else { a.1 / b.1 < ORDER_MIN })
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

    #[test]
    fn what_gains_nothing_has_a_goal_too() {
        assert!((goal(2.5) - 2.0).abs() < 1e-9);
        assert!((goal(0.8) - 0.76).abs() < 1e-9);
        assert!((goal(1.01) - 0.9595).abs() < 1e-9, "a gain of next to nothing is none");
    }
}
