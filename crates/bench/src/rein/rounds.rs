//! Policies on real servers, compared in rounds: each round has every policy under the same arrivals.

use std::ops::RangeInclusive;
use std::time::Duration;

use dunlin_lab::measure::Spread;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::cluster::{self, Cluster, DELAY};
use super::contenders::Policies;
use super::roles::{Load, MultigetFigures, Quantiles, ServerOrder, Sleepers};
use super::{Percentile, row_name};
use crate::{BenchError, Lab};

/// A load at which multigets wait for hardly more than their own operations.
const LOW: f64 = 0.05;
/// More processor time than this, in percent, and operations wait for processors, not for devices.
const PROCESSORS_MAX: f64 = 75.0;
/// The share of a read's time by which multigets may be sent late, at the 99th percentile.
const LATE_MAX: f64 = 0.1;
/// Values that may be lost, in percent: their multigets are faster.
const LOST_MAX: f64 = 1.0;

/// The figures of all rounds.
pub(super) struct Rounds {
    policies: Vec<Policies>,
    loads: Vec<f64>,
    /// By round, load and policy.
    figures: Vec<Vec<Vec<MultigetFigures>>>,
    /// Values, reads of devices, and values that were lost; by round.
    values: Vec<(u64, u64, u64)>,
}

/// The percentiles of real runs, with their metrics.
pub(super) const PERCENTILES: [(Percentile, Metric); 3] = [
    (Percentile::P50, Metric::LatencyP50),
    (Percentile::P95, Metric::LatencyP95),
    (Percentile::P99, Metric::LatencyP99),
];

pub(super) fn of(percentile: Percentile, latency: &Quantiles) -> f64 {
    match percentile {
        Percentile::P50 => latency.p50,
        Percentile::P95 => latency.p95,
        Percentile::P99 => latency.p99,
        Percentile::P999 => latency.p999,
    }
}

/// The name of a case at a load.
pub(super) fn at(load: f64, what: &str) -> String {
    format!("{:.0} %: {what}", load * 100.0)
}

/// Measures the highest rate of a cluster, beside threads that only sleep as long as a read takes, and its latency
/// almost without load. Returns the cluster with its times: loads are shares of that rate, as in the thesis, and the
/// simulator gets the same cluster.
pub(super) fn calibrate(lab: &mut Lab, cluster: Cluster) -> Result<Cluster, BenchError> {
    let runs = lab.case("highest rate", |lab| {
        let run = lab.run_length();
        let sleepers = Sleepers { threads: cluster.reads(), delay: DELAY, run };
        let floor = lab.anywhere(sleepers, run)?.result()?;
        let idle = vec![cluster.load(Policies::Fifo, LOW, run, 1)];
        let ran = cluster::run(lab, &cluster, ServerOrder::Fifo, run, (run, idle))?;
        let (rate, processors) = ran.figures.peak.ok_or(BenchError::no_samples("the highest rate"))?;
        let idle = ran.figures.loads.first().ok_or(BenchError::no_samples("a load"))?.latency;
        Ok((floor, rate, processors, idle))
    })?;
    let rate = spread(&runs, |(_, rate, ..)| *rate)?;
    let floor = spread(&runs, |(floor, ..)| *floor)?;
    lab.push(RowBuilder::new("highest rate, one key a request", Metric::Keys, rate).floor(floor));
    let processors = spread(&runs, |(.., processors, _)| *processors)?;
    lab.push(RowBuilder::new("highest rate, busy time of all processors", Metric::CoreShare, processors));
    for (percentile, metric) in PERCENTILES {
        let idle = spread(&runs, |(.., idle)| of(percentile, idle))?;
        lab.push(RowBuilder::new(at(LOW, "FIFO"), metric, idle).floor(DELAY.as_nanos() as f64));
    }
    let service = f64::from(cluster.reads()) / rate.median * 1e9;
    let idle = spread(&runs, |(.., idle)| idle.p50)?.median;
    lab.note(format!(
        "Loads are shares of the highest rate. At that rate an operation takes {:.2} ms of one of the {} parallel reads, of \
         which a device is told to take {:?}: the simulator has servers with that constant time, and with the delay of the \
         network that makes its median without load that of these servers.",
        service / 1e6,
        cluster.reads(),
        DELAY
    ));
    Ok(Cluster { service: service as u64, network: ((idle - service) / 2.0).max(0.0) as u64, ..cluster })
}

/// Runs every policy at every load, in as many rounds as the settings say. A round has arrivals of its own.
pub(super) fn measure(
    lab: &mut Lab,
    cluster: &Cluster,
    policies: &[Policies],
    loads: &[f64],
) -> Result<Rounds, BenchError> {
    let mut seed = 0;
    let rounds = lab.case("all policies in turn", |lab| {
        seed += 1;
        round(lab, cluster, policies, loads, seed)
    })?;
    let (figures, values) = rounds.into_iter().unzip();
    Ok(Rounds { policies: policies.to_vec(), loads: loads.to_vec(), figures, values })
}

type Round = (Vec<Vec<MultigetFigures>>, (u64, u64, u64));

fn round(lab: &Lab, cluster: &Cluster, policies: &[Policies], loads: &[f64], seed: u64) -> Result<Round, BenchError> {
    let run = lab.run_length();
    let mut figures: Vec<Vec<Option<MultigetFigures>>> = vec![vec![None; policies.len()]; loads.len()];
    let (mut values, mut reads, mut lost) = (0, 0, 0);
    for order in ServerOrder::ALL {
        // The servers are the same for all policies whose queues are.
        let places: Vec<(usize, usize)> = (0..loads.len())
            .flat_map(|load| (0..policies.len()).map(move |policy| (load, policy)))
            .filter(|(_, policy)| policies[*policy].order() == order)
            .collect();
        if places.is_empty() {
            continue;
        }
        let load = |(load, policy): &(usize, usize)| cluster.load(policies[*policy], loads[*load], run, seed);
        let asked: Vec<Load> = places.iter().map(load).collect();
        let ran = cluster::run(lab, cluster, order, Duration::ZERO, (run, asked))?;
        reads += ran.servers.iter().map(|server| server.reads).sum::<u64>();
        for ((load, policy), of_load) in places.into_iter().zip(ran.figures.loads) {
            values += of_load.values;
            lost += of_load.missing;
            figures[load][policy] = Some(of_load);
        }
    }
    let figures = figures.into_iter().map(|of_load| of_load.into_iter().collect::<Option<Vec<_>>>());
    let figures = figures.collect::<Option<Vec<_>>>().ok_or(BenchError::no_samples("a policy of a round"))?;
    Ok((figures, (values, reads, lost)))
}

impl Rounds {
    /// The place of a policy.
    fn place(&self, policy: Policies) -> usize {
        // The caller names one of those that were measured.
        self.policies.iter().position(|it| *it == policy).unwrap_or(0)
    }

    /// A figure of each round.
    pub fn each(&self, load: usize, policy: Policies, figure: impl Fn(&MultigetFigures) -> f64) -> Vec<f64> {
        let place = self.place(policy);
        self.figures.iter().map(|round| figure(&round[load][place])).collect()
    }

    /// The gains of a policy over FIFO in each round.
    pub fn gains(&self, load: usize, policy: Policies, percentile: Percentile) -> Vec<f64> {
        let latency = |figures: &MultigetFigures| of(percentile, &figures.latency);
        let (fifo, ours) = (self.each(load, Policies::Fifo, latency), self.each(load, policy, latency));
        fifo.iter().zip(&ours).map(|(fifo, ours)| fifo / ours).collect()
    }

    /// Adds the latencies of every policy.
    pub fn push_latencies(&self, lab: &mut Lab) -> Result<(), BenchError> {
        for (place, load) in self.loads.iter().enumerate() {
            for policy in &self.policies {
                for (percentile, metric) in PERCENTILES {
                    let latency = self.each(place, *policy, |figures| of(percentile, &figures.latency));
                    lab.push(RowBuilder::new(at(*load, policy.name()), metric, spread_of(&latency)?));
                }
            }
        }
        Ok(())
    }

    /// Adds the gain of a policy over FIFO at a percentile, with the least gain as its target.
    pub fn push_gain(
        &self,
        lab: &mut Lab,
        (load, policy, percentile): (usize, Policies, Percentile),
        least: Option<f64>,
    ) -> Result<(), BenchError> {
        let gain = spread_of(&self.gains(load, policy, percentile))?;
        let name = row_name(&at(self.loads[load], policy.name()), percentile);
        let row = RowBuilder::new(name, Metric::Advantage, gain);
        lab.push(least.map(Target::Absolute).into_iter().fold(row, RowBuilder::target));
        Ok(())
    }

    /// Adds what shows whether figures are of waiting for devices: the processors, the generator, lost values, and the
    /// share that devices read, in percent.
    pub fn push_conditions(&self, lab: &mut Lab, from_devices: RangeInclusive<f64>) -> Result<(), BenchError> {
        for (place, load) in self.loads.iter().enumerate() {
            let worst = |figure: fn(&MultigetFigures) -> f64| {
                let of_round = |round: &Vec<Vec<MultigetFigures>>| round[place].iter().map(figure).fold(0.0, f64::max);
                spread_of(&self.figures.iter().map(of_round).collect::<Vec<f64>>())
            };
            let row = |what: &str, metric, spread| RowBuilder::new(at(*load, what), metric, spread);
            let busy = row("busy time of all processors, most", Metric::CoreShare, worst(|seen| seen.processors)?);
            lab.push(busy.target(Target::Absolute(PROCESSORS_MAX)));
            lab.push(row("busy time of the clients' core, most", Metric::CoreShare, worst(|seen| seen.core)?));
            let late = worst(|seen| seen.late.p99)?;
            let late = row("how late a multiget was sent, most", Metric::LatencyP99, late);
            lab.push(late.target(Target::Absolute(LATE_MAX * DELAY.as_nanos() as f64)));
            let waited = worst(|seen| seen.waited * 100.0)?;
            lab.push(row("requests that waited at the client, most", Metric::Lost, waited));
        }
        let share = |part: fn(&(u64, u64, u64)) -> u64| {
            let percent = |round: &(u64, u64, u64)| 100.0 * part(round) as f64 / round.0.max(1) as f64;
            spread_of(&self.values.iter().map(percent).collect::<Vec<f64>>())
        };
        let read = RowBuilder::new("values that devices read", Metric::Share, share(|round| round.1)?);
        lab.push(read.within(from_devices));
        let lost = RowBuilder::new("values that servers had lost", Metric::Lost, share(|round| round.2)?);
        lab.push(lost.target(Target::Absolute(LOST_MAX)));
        lab.note(
            "The processors' busy time counts whatever uses them; latencies run from the time at which a multiget should \
             have been sent. The lowest and the highest of five rounds are a confidence interval of 94 % for the median.",
        );
        Ok(())
    }
}

pub(super) fn spread_of(figures: &[f64]) -> Result<Spread, BenchError> {
    Ok(spread(figures, |figure| *figure)?)
}
