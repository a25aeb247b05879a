//! `rein-sim-slack`: Figure 3.5. How much latency operations with slack could give to others, by load.

use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_schedule::simulator::{Setting, SlackBounds, slack_bounds};

use super::requests;
use crate::{BenchError, Lab};

const REQUESTS: f64 = 100_000.0;
const LOADS: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];
/// "Roughly double": within this range.
const GROWTH: std::ops::RangeInclusive<f64> = 1.5..=2.5;

/// A bound, with its name.
type Bound = (&'static str, fn(&SlackBounds) -> f64);

const BOUNDS: [Bound; 2] = [("upper bound", |bounds| bounds.upper), ("lower bound", |bounds| bounds.lower)];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_simulations(LOADS.len());
    let requests = requests(lab, REQUESTS);
    let mut by_load = Vec::new();
    for load in LOADS {
        let case = format!("{:.0} % load", load * 100.0);
        let setting = Setting { load, requests, ..Setting::default() };
        let bounds =
            lab.simulate(&case, |trial| Ok(slack_bounds(&Setting { seed: trial.seed()?, ..setting.clone() })?))?;
        for (name, bound) in BOUNDS {
            let savings: Vec<f64> = bounds.iter().map(bound).collect();
            lab.push(RowBuilder::of_seeds(format!("{case}, {name}"), Metric::Saving, &savings)?);
        }
        by_load.push(bounds);
    }
    let (Some(idle), Some(busy)) = (by_load.first(), by_load.last()) else { return Ok(()) };
    for (name, bound) in BOUNDS {
        // In a short run, no operation may be able to let another one pass.
        let pairs = idle.iter().zip(busy).filter(|(idle, _)| bound(idle) > 0.0);
        let growth: Vec<f64> = pairs.map(|(idle, busy)| bound(busy) / bound(idle)).collect();
        if growth.is_empty() {
            lab.note(format!("{name}: nothing was saved at 10 % load in a run this short; give it a longer `--for`"));
            continue;
        }
        let row = RowBuilder::of_seeds(format!("90 % over 10 % load, {name}"), Metric::Advantage, &growth)?;
        lab.push(row.within(GROWTH));
    }
    Ok(())
}
