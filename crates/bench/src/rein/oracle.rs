//! `rein-sim-oracle`: Figure 3.14. Every policy over FIFO on 128 servers, with clairvoyant ones and the floor, which is
//! FIFO on idle servers: no scheduler can gain more.

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_schedule::simulator::{Contender, Keys, Outcome, ReplicaChoice, Setting};
use dunlin_schedule::{Ageing, Levels, Order, Overflow, Policy, SlackReading};

use super::{Percentile, gain, idle, laws, outcomes, push_all, push_gains, requests, row_name};
use crate::{BenchError, Lab};

const REQUESTS: f64 = 200_000.0;
/// Required share of the exact order's gain for the shipped queue, with the same replicas.
const OF_EXACT: f64 = 0.97;
/// Required minimum of any percentile at 75 % load, over FIFO with the same replicas.
const NO_WORSE: f64 = 0.95;
/// The correlation in the thesis (Pearson's, Figure 3.4).
const CORRELATION: f64 = 0.403;
const EXACT: &str = "shortest total, exact";
const SHIPPED: &str = "shipped queue";
/// Added to the name of a place.
const LEAST: &str = ", least outstanding";

/// A cluster at a load, and the required gains of the shipped queue at p50, p95 and p99 with random replicas.
struct Place {
    name: &'static str,
    setting: Setting,
    goals: [f64; 3],
}

fn places() -> [Place; 4] {
    let few = Setting { choice: ReplicaChoice::Drawn, ..Setting::default() };
    let keys = Keys::Zipf { keys: 1_000_000, skew: 0.6 };
    let many = Setting { partitions: 8192, keys, ..few.clone() };
    let at = |setting: &Setting, load| Setting { load, ..setting.clone() };
    [
        Place { name: "128 partitions, 75 %", setting: at(&few, 0.75), goals: [1.4, 1.28, 1.2] },
        Place { name: "128 partitions, 90 %", setting: at(&few, 0.9), goals: [2.5, 2.3, 2.1] },
        Place { name: "8192 partitions, Zipf, 75 %", setting: at(&many, 0.75), goals: [1.45, 1.33, 1.27] },
        Place { name: "8192 partitions, Zipf, 90 %", setting: at(&many, 0.9), goals: [2.7, 2.8, 2.7] },
    ]
}

fn contenders() -> Vec<(&'static str, Contender)> {
    let levels = Levels::default();
    let literal = levels.clone().with_overflow(Overflow::Literal);
    let aged = |policy| Contender::with_order(policy, Order::Exact { ageing: Some(Ageing::default()) });
    let four = Order::Learnt { levels: 4, ageing: Some(Ageing::default()) };
    vec![
        (EXACT, Contender::of(Policy::ShortestTotal)),
        ("shortest total, exact, with ageing", aged(Policy::ShortestTotal)),
        ("shortest remaining, clairvoyant", Contender::ShortestRemaining),
        ("SBF", Contender::of(Policy::ShortestBottleneck)),
        ("SBF with ageing", aged(Policy::ShortestBottleneck)),
        ("SDS", Contender::of(Policy::SlackDriven(SlackReading::Opset))),
        ("SDS, per operation", Contender::of(Policy::SlackDriven(SlackReading::Operation))),
        ("MLQ-SBF", Contender::of(Policy::MlqShortestBottleneck(levels.clone()))),
        ("MLQ-SDS", Contender::of(Policy::MlqSlackDriven(levels.clone()))),
        ("Rein, overflow as printed", Contender::of(Policy::Rein(literal))),
        ("learnt levels, K = 4", Contender::with_order(Policy::ShortestTotal, four)),
    ]
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let places = places();
    // FIFO, the floor, Rein, its oracle and the shipped queue; three with the least outstanding replica, one with C3.
    lab.expect_simulations(places.len() * (contenders().len() + 9) + laws::SIMULATIONS);
    for place in &places {
        compare(lab, place)?;
    }
    laws::run(lab, requests(lab, REQUESTS / 4.0))
}

fn compare(lab: &mut Lab, Place { name, setting, goals }: &Place) -> Result<(), BenchError> {
    let setting = Setting { requests: requests(lab, REQUESTS), ..setting.clone() };
    let fifo_contender = Contender::of(Policy::Fifo);
    let fifo = outcomes(lab, &format!("{name}: FIFO"), &setting, &fifo_contender)?;
    push_all(lab, &format!("{name}: floor"), &fifo, &idle(&setting), &fifo_contender)?;
    for (what, contender) in contenders() {
        push_all(lab, &format!("{name}: {what}"), &fifo, &setting, &contender)?;
    }
    compare_with_oracle(lab, name, &setting, &fifo)?;
    compare_shipped(lab, name, Some(goals), &setting, &fifo)?;

    let ranked = Setting { choice: ReplicaChoice::C3, ..setting.clone() };
    push_all(lab, &format!("{name}: FIFO, C3"), &fifo, &ranked, &fifo_contender)?;
    let least = Setting { choice: ReplicaChoice::LeastOutstanding, ..setting.clone() };
    let case = format!("{name}: FIFO{LEAST}");
    let fifo_least = push_all(lab, &case, &fifo, &least, &fifo_contender)?;
    let name_least = format!("{name}{LEAST}");
    let exact = Contender::of(Policy::ShortestTotal);
    push_all(lab, &format!("{name_least}: {EXACT}"), &fifo_least, &least, &exact)?;
    let shipped = compare_shipped(lab, &name_least, None, &least, &fifo_least)?;
    // Not a comparison of queues: two things differ.
    let case = format!("{name}: shipped queue and replicas");
    push_gains(lab, &case, (&fifo, &shipped))?;
    if let Some(first) = fifo.first() {
        lab.note(format!(
            "{name}: with FIFO, the size and the latency of requests have a correlation of {:.3}; the thesis measured {} on \
             its testbed at 75 % load (Figure 3.4)",
            first.correlation,
            CORRELATION
        ));
    }
    Ok(())
}

/// Rein compared with the thesis' gain, and with its oracle.
fn compare_with_oracle(lab: &mut Lab, name: &str, setting: &Setting, fifo: &[Outcome]) -> Result<(), BenchError> {
    let case = format!("{name}: Rein");
    let rein = outcomes(lab, &case, setting, &Contender::of(Policy::Rein(Levels::default())))?;
    push_gains(lab, &case, (fifo, &rein))?;
    let case = format!("{name}: Rein with the thesis' oracle");
    let oracle = outcomes(lab, &case, setting, &Contender::Oracle(Levels::default()))?;
    push_gains(lab, &case, (fifo, &oracle))?;
    for percentile in [Percentile::P50, Percentile::P95, Percentile::P99] {
        let case = row_name(&format!("{name}: Rein over its oracle"), percentile);
        let of_oracle: Vec<f64> =
            oracle.iter().zip(&rein).map(|(oracle, rein)| percentile.of(oracle) / percentile.of(rein)).collect();
        lab.push(RowBuilder::of_seeds(case, Metric::Advantage, &of_oracle)?);
    }
    Ok(())
}

/// The shipped queue over FIFO, with its goals. The full shipped configuration also chooses the replica with the least
/// outstanding operations.
fn compare_shipped(
    lab: &mut Lab,
    name: &str,
    goals: Option<&[f64; 3]>,
    setting: &Setting,
    fifo: &[Outcome],
) -> Result<Vec<Outcome>, BenchError> {
    let case = format!("{name}: {SHIPPED}");
    let ours = outcomes(lab, &case, setting, &Contender::shipped())?;
    for (place, percentile) in Percentile::ALL.into_iter().enumerate() {
        let exact = row_name(&format!("{name}: {EXACT}"), percentile);
        let of_exact = Target::CaseTimes { case: exact, factor: OF_EXACT };
        let goal = goals.and_then(|goals| goals.get(place)).copied();
        let no_worse = (setting.load == 0.75).then_some(NO_WORSE);
        let absolute = goal.into_iter().chain(no_worse).map(Target::Absolute);
        let targets = absolute.chain([of_exact]).collect();
        lab.push(gain(&case, percentile, fifo, &ours)?.target(Target::All(targets)));
    }
    Ok(ours)
}
