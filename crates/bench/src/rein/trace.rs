//! `rein-sim-trace`: Figure 3.3. The trace of SoundCloud is not public; these are the statistics of its stand-in.

use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_schedule::simulator::{Keys, LoadFacts, Setting, load_facts};

use super::requests;
use crate::{BenchError, Lab};

/// Default number of requests of a simulation, in which the hottest key is requested about 1000 times.
const REQUESTS: f64 = 400_000.0;
/// Tolerated deviation of a statistic from the published one, which is rounded.
const TOLERANCE: f64 = 0.1;
/// "Most keys are accessed just once": more than half of the requested keys.
const ONCE_MIN: f64 = 50.0;

/// A statistic with the published one, which is for `1 / scale` times as many requests.
struct Row {
    case: &'static str,
    metric: Metric,
    fact: fn(&LoadFacts) -> f64,
    scale: f64,
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_simulations(1);
    let setting = Setting { keys: Keys::SOUNDCLOUD, requests: requests(lab, REQUESTS), ..Setting::default() };
    let facts =
        lab.simulate("stand-in", |trial| Ok(load_facts(&Setting { seed: trial.seed()?, ..setting.clone() })?))?;
    // The number of requests for a key grows with the total.
    let of_default = f64::from(setting.requests) / REQUESTS;
    let share = |case, fact| Row { case, metric: Metric::Share, fact, scale: 1.0 };
    let count = |case, fact| Row { case, metric: Metric::Count, fact, scale: 1.0 };
    let rows = [
        share("requests with several keys", |facts| facts.several * 100.0),
        count("keys of a request, mean", |facts| facts.mean),
        count("keys of a request, most", |facts| f64::from(facts.most)),
        Row { scale: of_default, ..count("requests for the hottest key", |facts| f64::from(facts.hottest)) },
    ];
    for Row { case, metric, fact, scale } in rows {
        let row = RowBuilder::of_seeds(case, metric, &facts.iter().map(fact).collect::<Vec<_>>())?;
        lab.push(row.like_paper(scale * (1.0 - TOLERANCE)..=scale * (1.0 + TOLERANCE)));
    }
    let once: Vec<f64> = facts.iter().map(|facts| facts.once * 100.0).collect();
    lab.push(RowBuilder::of_seeds("keys asked for just once", Metric::Share, &once)?.within(ONCE_MIN..=100.0));
    Ok(())
}
