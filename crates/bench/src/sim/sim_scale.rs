//! `sim-scale`: Figure 5 and section 6.3. A hundred hosts of the simulated CX4, each with several threads, and a
//! session from each thread to every other one of the cluster: batches of three small calls to random sessions, up to
//! 60 in flight.
//!
//! A short run has fewer threads: the paper's number (up to ten, with a million sessions in all) requires a run length
//! of ten seconds.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_rpc::{EndpointConfig, Session};
use dunlin_sim::{CostModel, Topology};

use crate::datacenter::{BatchLoad, BatchTally, Cluster, Member};
use crate::{BenchError, Lab, Trial};

/// Measured virtual time for each second of the run length, its minimum and its maximum.
const TIME: Duration = Duration::from_millis(1);
const TIME_MIN: u64 = 100_000;
const TIME_MAX: u64 = 4_000_000;
/// Time between the first call and the first measured one.
const SETTLING_MAX: u64 = 200_000;
/// Threads of a host, and the required run length.
const THREADS: [(u16, Duration); 6] = [
    (1, Duration::ZERO),
    (2, Duration::from_millis(500)),
    (4, Duration::from_secs(4)),
    (6, Duration::from_secs(8)),
    (8, Duration::from_secs(10)),
    (10, Duration::from_secs(10)),
];
/// The paper's hosts, evenly in the five racks; and the number for a run that is too short to be meaningful.
const HOSTS: u32 = 100;
const FEW_HOSTS: u32 = 10;
const FEW_BELOW: Duration = Duration::from_millis(100);
const RACKS: u32 = 5;
const RACK_PLACES: u32 = 40;
/// As in the paper.
const CREDITS: u16 = 32;
const BYTES: usize = 32;
const BATCH: usize = 3;
const IN_FLIGHT: usize = 60;
/// The credits of all sessions of a thread have a place each: 1,998 sessions of 32.
const RX_DESCRIPTORS: usize = 1 << 16;
/// Interval of checks while sessions open, and the time limit for all, in virtual time.
const OPENING: (u64, u64) = (1_000_000, 2_000_000_000);

/// The observations, per host.
struct Seen {
    rate: f64,
    quantiles: [f64; QUANTILES.len()],
    retransmissions: f64,
}

const QUANTILES: [(Metric, f64); 4] = [
    (Metric::LatencyP50, 0.5),
    (Metric::LatencyP99, 0.99),
    (Metric::LatencyP999, 0.999),
    (Metric::LatencyP9999, 0.9999),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let length = lab.run_length();
    let hosts = if length < FEW_BELOW { FEW_HOSTS } else { HOSTS };
    let time = lab.virtual_time(TIME).clamp(TIME_MIN, TIME_MAX);
    let threads: Vec<u16> =
        THREADS.iter().filter(|(_, enough)| length >= *enough).map(|(threads, _)| *threads).collect();
    lab.expect_simulations(threads.len());
    for threads in threads {
        let case = format!("{hosts} hosts, {threads} threads each");
        if !lab.wants(&case) {
            continue;
        }
        let seen = lab.simulate(&case, |trial| measure(trial, hosts, threads, time))?;
        lab.note_pace(&case)?;
        let row = |metric, figure: &dyn Fn(&Seen) -> f64| {
            RowBuilder::of_seeds(&case, metric, &seen.iter().map(figure).collect::<Vec<_>>())
        };
        lab.push(row(Metric::Rate, &|seen| seen.rate)?);
        for (place, (metric, _)) in QUANTILES.into_iter().enumerate() {
            lab.push(row(metric, &|seen| seen.quantiles[place])?);
        }
        lab.push(row(Metric::Retransmissions, &|seen| seen.retransmissions)?);
    }
    Ok(())
}

fn measure(trial: Trial<'_>, hosts: u32, threads: u16, time: u64) -> Result<Seen, BenchError> {
    let mut topology = Topology::cx4();
    topology.nic.rx_descriptors = RX_DESCRIPTORS;
    let mut cluster = Cluster::of_trial(trial, &topology, CostModel::default())?;
    let mut members = Vec::new();
    for thread in 0..threads {
        for host in (0..hosts).map(|host| host % RACKS * RACK_PLACES + host / RACKS) {
            let config = EndpointConfig { credits: CREDITS, reverse_credits: 0, ..EndpointConfig::default() };
            let member = cluster.join(host, thread, config)?;
            member.serve(BYTES, 0)?;
            members.push(member);
        }
    }
    let sessions = open_all(trial, &mut cluster, &members)?;
    let settling = SETTLING_MAX.min(time);
    let tally = Rc::new(RefCell::new(BatchTally::default()));
    let load = BatchLoad { batch: BATCH, in_flight: IN_FLIGHT, bytes: BYTES, tally_from: cluster.now() + settling };
    for (member, sessions) in members.iter().zip(sessions) {
        load.start(member, sessions, cluster.random(), &tally)?;
    }
    let retransmissions =
        || -> u64 { members.iter().map(|member| member.endpoint().stats().counters.retransmissions).sum() };
    trial.run_for(&mut cluster, settling)?;
    let before = retransmissions();
    trial.run_for(&mut cluster, time)?;
    let per_host_and_second = |count: u64| count as f64 * 1e9 / time as f64 / f64::from(hosts);
    let tally = tally.borrow();
    Ok(Seen {
        rate: per_host_and_second(tally.calls),
        quantiles: QUANTILES.map(|(_, quantile)| tally.latencies.quantile(quantile)),
        retransmissions: per_host_and_second(retransmissions() - before),
    })
}

/// Opens a session from each member to each other, one after the other.
fn open_all(trial: Trial<'_>, cluster: &mut Cluster, members: &[Member]) -> Result<Vec<Vec<Session>>, BenchError> {
    let opened: Vec<_> = members.iter().map(|_| Rc::new(RefCell::new(Vec::new()))).collect();
    for (number, (member, sessions)) in members.iter().zip(&opened).enumerate() {
        // Each begins with its neighbour, so that they do not all connect to the same one.
        let others = (1..members.len()).map(|step| &members[(number + step) % members.len()]);
        member.open_each(others.map(|other| other.addr().clone()).collect(), sessions.clone());
    }
    let is_open = || opened.iter().all(|sessions| sessions.borrow().len() == members.len() - 1);
    trial.run_until(cluster, OPENING, "sessions did not open", is_open)?;
    Ok(opened.iter().map(|sessions| sessions.take()).collect())
}
