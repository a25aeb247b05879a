//! Policies on real servers, compared in rounds: each round has every policy under the same arrivals.

use std::time::Duration;

use dunlin_lab::measure::Spread;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;
use dunlin_net::random::Random;

use super::cluster::{self, Cluster, DELAY, MULTIGETS_MIN, RELAXATIONS_MIN};
use super::contenders::{Copies, Policies};
use super::roles::{Load, MultigetFigures, Peak, Quantiles, ServerOrder, Sleepers};
use super::{Percentile, row_name};
use crate::{BenchError, Lab};

/// A load at which multigets wait for hardly more than their own operations.
const LOW: f64 = 0.05;
/// Length of the runs before the rounds: this many reads at least, and no longer than this.
const READS_MIN: u32 = 10;
const CALIBRATION_MAX: Duration = Duration::from_secs(5);
/// More processor time than this, in percent, and operations wait for processors, not for devices.
const PROCESSORS_MAX: f64 = 75.0;
/// The share of a read's time by which multigets may be sent late, at the 99th percentile.
const LATE_MAX: f64 = 0.1;
/// Requests that may wait at the client, where they have no ranks, in percent.
const WAITED_MAX: f64 = 0.1;
/// Values that may be lost, in percent: their multigets are faster.
const LOST_MAX: f64 = 1.0;
/// By how much, in percent of what devices can do, FIFO's use of them may differ from the load that came, and that of
/// a policy from FIFO's.
pub(super) const LOAD_BAND: f64 = 5.0;
const POLICY_BAND: f64 = 2.0;
/// Devices that are used more have queues that grow.
const USE_MAX: f64 = 98.0;

/// A run of a round. Servers are started anew for each order of service, so none has learnt levels from a policy that
/// has no ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    order: ServerOrder,
    load: usize,
    policy: Policies,
}

impl Place {
    fn of(load: usize, policy: Policies) -> Place {
        Place { order: policy.order(), load, policy }
    }

    fn fifo(self) -> Place {
        Place::of(self.load, Policies::Fifo)
    }
}

/// The figures of all rounds.
pub(super) struct Rounds {
    cluster: Cluster,
    run: Duration,
    policies: Vec<Policies>,
    loads: Vec<f64>,
    rounds: Vec<Vec<(Place, MultigetFigures)>>,
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
/// almost without load. Returns the cluster with its times: loads are shares of that rate, and the simulator gets the
/// same cluster.
pub(super) fn calibrate(lab: &mut Lab, cluster: Cluster) -> Result<Cluster, BenchError> {
    let run = lab.run_length().clamp(DELAY * READS_MIN, CALIBRATION_MAX);
    let runs = lab.case("highest rate", |lab| {
        let sleepers = Sleepers { threads: cluster.reads(), delay: DELAY, run };
        let floor = lab.anywhere(sleepers, run)?.result()?;
        let idle = vec![cluster.load(Policies::Fifo, LOW, run, lab.seed())];
        let ran = cluster::run(lab, &cluster, ServerOrder::Fifo, run, (run, idle))?;
        let peak = ran.peak.ok_or(BenchError::no_samples("the highest rate"))?;
        let idle = ran.loads.first().ok_or(BenchError::no_samples("a load"))?.latency;
        Ok((floor, peak, idle))
    })?;
    let peak = |figure: fn(&Peak) -> f64| spread(&runs, |(_, peak, _)| figure(peak));
    let (values, reads) = (peak(|peak| peak.values)?, peak(|peak| peak.reads)?);
    if reads.min <= 0.0 {
        return Err(BenchError::OtherSystem {
            system: "tier",
            why: "memory holds all items, so that devices read none; raise --items-max".into(),
        });
    }
    lab.push(RowBuilder::new("highest rate, one key a request", Metric::Keys, values));
    let floor = spread(&runs, |(floor, ..)| *floor)?;
    lab.push(RowBuilder::new("highest rate, from devices", Metric::Keys, reads).floor(floor));
    let busy =
        RowBuilder::new("highest rate, busy time of all processors", Metric::Portion, peak(|peak| peak.processors)?);
    lab.push(busy.target(Target::Absolute(PROCESSORS_MAX)));
    for (percentile, metric) in PERCENTILES {
        let idle = spread(&runs, |(.., idle)| of(percentile, idle))?;
        lab.push(RowBuilder::new(at(LOW, "FIFO"), metric, idle).floor(DELAY.as_nanos() as f64));
    }
    let time = |rate: Spread| f64::from(cluster.reads()) / rate.median * 1e9;
    let (service, read) = (time(values), time(reads));
    lab.note(format!(
        "Loads are shares of the highest rate, measured with one key a request and evenly over the servers. At that \
         rate a device does {} reads at a time, each in {:.2} ms, of which it is told to wait {DELAY:?}.",
        cluster.reads() / cluster.servers,
        read / 1e6,
    ));
    let idle = spread(&runs, |(.., idle)| idle.p50)?.median;
    let network = ((idle - read) / 2.0).max(0.0) as u64;
    Ok(Cluster { service: service as u64, read: read as u64, network, ..cluster })
}

/// The seeds of the rounds.
pub(super) fn seeds(lab: &Lab) -> impl Iterator<Item = u64> + use<> {
    let first = lab.seed();
    (0..).map(move |round| first.wrapping_add(round))
}

/// Runs every policy at every load at which its queues are steady, in as many rounds as the settings say. A round has
/// arrivals of its own, and its order of servers, policies and loads is drawn.
pub(super) fn measure(
    lab: &mut Lab,
    cluster: &Cluster,
    policies: &[Policies],
    loads: &[f64],
) -> Result<Rounds, BenchError> {
    let mut places = Vec::new();
    for (load, share) in loads.iter().enumerate() {
        for policy in policies.iter().filter(|policy| policy.is_steady(*share)) {
            let place = Place::of(load, *policy);
            places
                .extend([place.fifo(), place].into_iter().filter(|place| !places.contains(place)).collect::<Vec<_>>());
        }
    }
    let mut seeds = seeds(lab);
    let rounds = lab.case("all policies in turn", |lab| {
        let seed = seeds.next().unwrap_or_default();
        round(lab, cluster, (&places, loads), seed)
    })?;
    let (policies, loads) = (policies.to_vec(), loads.to_vec());
    Ok(Rounds { cluster: *cluster, run: lab.run_length(), policies, loads, rounds })
}

fn round(
    lab: &Lab,
    cluster: &Cluster,
    (places, loads): (&[Place], &[f64]),
    seed: u64,
) -> Result<Vec<(Place, MultigetFigures)>, BenchError> {
    let (mut random, mut orders, mut figures) = (Random::new(seed), ServerOrder::ALL, Vec::new());
    shuffle(&mut orders, &mut random);
    for order in orders {
        let mut places: Vec<Place> = places.iter().copied().filter(|place| place.order == order).collect();
        if places.is_empty() {
            continue;
        }
        shuffle(&mut places, &mut random);
        let length = |place: &Place| lab.run_length().min(cluster.time_needed(loads[place.load]));
        let load = |place: &Place| cluster.load(place.policy, loads[place.load], length(place), seed);
        let asked: Vec<Load> = places.iter().map(load).collect();
        let all = places.iter().map(length).sum();
        let ran = cluster::run(lab, cluster, order, Duration::ZERO, (all, asked))?;
        figures.extend(places.into_iter().zip(ran.loads));
    }
    Ok(figures)
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for place in (1..items.len()).rev() {
        items.swap(place, random.below(place as u64 + 1) as usize);
    }
}

impl Rounds {
    /// Whether the runs at a load are long enough to judge them.
    fn has_verdict(&self, load: usize) -> bool {
        self.run >= self.cluster.time_needed(self.loads[load])
    }

    /// The policies, but the baseline, that have figures at a load.
    pub fn policies(&self, load: usize) -> impl Iterator<Item = Policies> + use<> {
        let share = self.loads[load];
        self.policies.clone().into_iter().filter(move |policy| *policy != Policies::Fifo && policy.is_steady(share))
    }

    /// The runs of a place, one of each round.
    fn runs(&self, place: Place) -> Result<Vec<&MultigetFigures>, BenchError> {
        let of_round = |round: &'_ Vec<(Place, MultigetFigures)>| round.iter().position(|(it, _)| *it == place);
        let runs = self.rounds.iter().map(|round| of_round(round).map(|found| &round[found].1));
        runs.collect::<Option<Vec<_>>>().ok_or(BenchError::no_samples("a policy of a round"))
    }

    /// The gains of a policy in each round over FIFO under the same arrivals.
    pub fn gains(&self, load: usize, policy: Policies, percentile: Percentile) -> Result<Vec<f64>, BenchError> {
        let place = Place::of(load, policy);
        let (fifo, ours) = (self.runs(place.fifo())?, self.runs(place)?);
        let latency = |figures: &MultigetFigures| of(percentile, &figures.latency);
        Ok(fifo.into_iter().zip(ours).map(|(fifo, ours)| latency(fifo) / latency(ours)).collect())
    }

    /// Adds a figure of the rounds at a load, with the least that it must be if the runs are long enough to judge it.
    pub fn push(
        &self,
        lab: &mut Lab,
        load: usize,
        row: (String, Metric, &[f64]),
        least: Option<f64>,
    ) -> Result<(), BenchError> {
        let (name, metric, figures) = row;
        let row = RowBuilder::new(name, metric, spread_of(figures)?);
        let least = least.filter(|_| self.has_verdict(load)).map(Target::Absolute);
        lab.push(least.into_iter().fold(row, RowBuilder::target));
        Ok(())
    }

    /// Adds the gain of a policy over FIFO at a percentile.
    pub fn push_gain(
        &self,
        lab: &mut Lab,
        (load, policy, percentile): (usize, Policies, Percentile),
        least: Option<f64>,
    ) -> Result<(), BenchError> {
        let gains = self.gains(load, policy, percentile)?;
        let name = row_name(&at(self.loads[load], policy.name()), percentile);
        self.push(lab, load, (name, Metric::Advantage, &gains), least)
    }

    /// Adds the latencies of every policy.
    pub fn push_latencies(&self, lab: &mut Lab) -> Result<(), BenchError> {
        for (load, share) in self.loads.iter().enumerate() {
            for policy in [Policies::Fifo].into_iter().chain(self.policies(load)) {
                let runs = self.runs(Place::of(load, policy))?;
                for (percentile, metric) in PERCENTILES {
                    let latency = spread(&runs, |figures| of(percentile, &figures.latency))?;
                    let row = RowBuilder::new(at(*share, policy.name()), metric, latency);
                    lab.push(row.floor(DELAY.as_nanos() as f64));
                }
            }
        }
        Ok(())
    }

    /// Adds what shows whether figures are of waiting for devices, and of this load: of each policy, the worst round.
    pub fn push_conditions(&self, lab: &mut Lab) -> Result<(), BenchError> {
        for (load, share) in self.loads.iter().enumerate() {
            let fifo = self.runs(Place::of(load, Policies::Fifo))?;
            self.push_length(lab, load, &fifo)?;
            for policy in [Policies::Fifo].into_iter().chain(self.policies(load)) {
                let place = Place::of(load, policy);
                let name = at(*share, policy.name());
                let with_baseline = [self.runs(place)?, self.runs(place.fifo())?].concat();
                push_disturbances(lab, &name, &with_baseline);
                self.push_use(lab, &name, place)?;
            }
            for policy in self.policies.iter().filter(|policy| !policy.is_steady(*share)) {
                let name = at(*share, &format!("{}, work for devices: no steady state, not run", policy.name()));
                lab.push(RowBuilder::new(name, Metric::Portion, (100.0 * policy.work(*share)).into()));
            }
        }
        lab.note(
            "Latencies run from the time at which a multiget should have been sent. Each policy is compared with FIFO \
             under the same arrivals; servers are started anew for each order of service, and the order of these, of \
             policies and of loads is drawn for each round. Processors are busy with whatever uses them. Of late sending, processors, waiting, refusals and losses, rows have the \
             worst round of the policy and of its FIFO.",
        );
        Ok(())
    }

    /// Adds whether the runs at a load are long enough, and the load that came.
    fn push_length(&self, lab: &mut Lab, load: usize, fifo: &[&MultigetFigures]) -> Result<(), BenchError> {
        let (share, nominal) = (self.loads[load], 100.0 * self.loads[load]);
        let needed = self.cluster.time_needed(share);
        let events = [
            (
                "relaxation times in a run",
                self.run.min(needed).as_secs_f64() / self.cluster.relaxation(share),
                RELAXATIONS_MIN,
            ),
            ("multigets of a run", fifo.iter().map(|run| run.multigets).min().unwrap_or(0) as f64, MULTIGETS_MIN),
        ];
        for (what, figure, least) in events {
            // The numbers of multigets are rounded.
            let row = RowBuilder::new(at(share, what), Metric::Events, figure.into());
            lab.push(row.target(Target::Absolute(least * 0.99)));
        }
        // Multigets are few and of very different sizes, so what comes differs from the load by chance.
        let came = spread(fifo, |run| came(&self.cluster, run))?;
        lab.push(RowBuilder::new(at(share, "load that came"), Metric::Portion, came).target(Target::Absolute(USE_MAX)));
        if !self.has_verdict(load) {
            lab.note(format!(
                "{nominal:.0} %: the runs are too short to judge gains: they need --for {:.0}s.",
                needed.as_secs_f64().ceil()
            ));
        }
        Ok(())
    }

    /// Adds how much of what devices can do a policy has used. That of FIFO is to be the load that came, and that of
    /// others FIFO's.
    fn push_use(&self, lab: &mut Lab, name: &str, place: Place) -> Result<(), BenchError> {
        let in_use = |place| spread(&self.runs(place)?, |run| in_use(&self.cluster, run)).map_err(BenchError::from);
        let row = RowBuilder::new(format!("{name}, devices in use"), Metric::Portion, in_use(place)?);
        let (middle, band) = match place.policy {
            Policies::Fifo => (spread(&self.runs(place)?, |run| came(&self.cluster, run))?.median, LOAD_BAND),
            _ => (in_use(place.fifo())?.median, POLICY_BAND),
        };
        lab.push(match place.policy.copies() {
            Copies::One if middle - band < USE_MAX => row.within(middle - band..=(middle + band).min(USE_MAX)),
            _ => row.target(Target::Absolute(USE_MAX)),
        });
        Ok(())
    }
}

/// How much of what devices can do is used in the measured part, in percent.
pub(super) fn in_use(cluster: &Cluster, run: &MultigetFigures) -> f64 {
    100.0 * run.offered * run.reads_of_key * cluster.read as f64 / 1e9 / f64::from(cluster.reads())
}

/// The work that came for the devices in the measured part, in percent of what they can do.
pub(super) fn came(cluster: &Cluster, run: &MultigetFigures) -> f64 {
    100.0 * run.offered * cluster.service as f64 / 1e9 / f64::from(cluster.reads())
}

/// The name of a figure of runs, its metric, the figure, and the most that it may be.
type Condition = (&'static str, Metric, fn(&MultigetFigures) -> f64, f64);

/// Adds what would disturb a policy, in the worst of its runs.
pub(super) fn push_disturbances(lab: &mut Lab, name: &str, runs: &[&MultigetFigures]) {
    let conditions: [Condition; 5] = [
        ("sent late", Metric::LatencyP99, |run| run.late, LATE_MAX * DELAY.as_nanos() as f64),
        ("busy time of all processors", Metric::Portion, |run| run.processors, PROCESSORS_MAX),
        ("requests that waited at the client", Metric::Portion, |run| 100.0 * run.waited, WAITED_MAX),
        ("operations that servers refused", Metric::Calls, |run| run.refused as f64, 0.0),
        ("values", Metric::Lost, |run| 100.0 * run.missing as f64 / run.values.max(1) as f64, LOST_MAX),
    ];
    for (what, metric, figure, most) in conditions {
        let worst = runs.iter().map(|run| figure(run)).fold(0.0, f64::max);
        lab.push(RowBuilder::new(format!("{name}, {what}"), metric, worst.into()).target(Target::Absolute(most)));
    }
}

pub(super) fn spread_of(figures: &[f64]) -> Result<Spread, BenchError> {
    Ok(spread(figures, |figure| *figure)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_orders_of_their_own() {
        let order = |seed| {
            let mut places: Vec<u32> = (0..10).collect();
            shuffle(&mut places, &mut Random::new(seed));
            places
        };
        assert_ne!(order(1), order(2));
        let mut sorted = order(1);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<u32>>());
    }

    #[test]
    fn policies_without_a_steady_state_are_not_run() {
        let steady = |policy: Policies| [0.4, 0.75, 0.9].map(|load| policy.is_steady(load));
        assert_eq!(steady(Policies::Fifo), [true; 3]);
        assert_eq!(steady(Policies::Speculation), [true, false, false]);
        assert_eq!(steady(Policies::Duplication), [true, false, false]);
    }
}
