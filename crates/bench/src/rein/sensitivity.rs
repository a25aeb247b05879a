//! `rein-sim-sensitivity`: Figure 3.8. The p99 of Rein with other numbers of queues (K) and range factors (R), as the
//! share of the best setting that it keeps, and the same for learnt levels, which have no range factor.

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_schedule::simulator::{Contender, Outcome, Setting};
use dunlin_schedule::{Levels, Order, Policy};

use super::{Percentile, outcomes, requests};
use crate::{BenchError, Lab};

const REQUESTS: f64 = 200_000.0;
/// The thesis' defaults, and the values tried around them.
const COUNT: usize = 4;
const RANGE: u64 = 3;
const COUNTS: [usize; 6] = [2, 3, 4, 5, 6, 8];
const RANGES: [u64; 5] = [2, 3, 4, 5, 8];
/// Required share of their best p99 that learnt levels keep one step away: more than Rein's in the thesis.
const KEPT_ONE_STEP: f64 = 1.0 / 1.08;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_simulations(COUNTS.len() * 2 + RANGES.len());
    let setting = Setting { requests: requests(lab, REQUESTS), ..Setting::default() };
    let by_count = COUNTS.map(|count| (format!("Rein by K, K = {count}, R = {RANGE}"), rein(count, RANGE)));
    let by_range = RANGES.map(|range| (format!("Rein by R, K = {COUNT}, R = {range}"), rein(COUNT, range)));
    let learnt = COUNTS.map(|levels| {
        let order = Order::Learnt { levels, ageing: None };
        (format!("learnt levels, K = {levels}"), Contender::with_order(Policy::ShortestTotal, order))
    });
    sweep(lab, &setting, "Rein by K", &by_count, None)?;
    sweep(lab, &setting, "Rein by R", &by_range, None)?;
    sweep(lab, &setting, "learnt levels by K", &learnt, Some(KEPT_ONE_STEP))
}

fn rein(count: usize, range: u64) -> Contender {
    Contender::of(Policy::Rein(Levels::uniform(count, range).expect("K and R of the sweep are valid")))
}

/// Runs the settings, and adds for each the share of the best p99 that it keeps, then the minimum of all and the
/// minimum of the best one's neighbours.
fn sweep(
    lab: &mut Lab,
    setting: &Setting,
    name: &str,
    contenders: &[(String, Contender)],
    one_step_min: Option<f64>,
) -> Result<(), BenchError> {
    let mut seen: Vec<Vec<Outcome>> = Vec::new();
    for (case, contender) in contenders {
        seen.push(outcomes(lab, case, setting, contender)?);
    }
    let medians: Vec<f64> = seen.iter().map(|outcomes| median_p99(outcomes)).collect();
    let (best, p99) =
        medians.iter().copied().enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b)).expect("a sweep has settings");
    for ((case, _), outcomes) in contenders.iter().zip(&seen) {
        let kept: Vec<f64> = outcomes
            .iter()
            .zip(&seen[best])
            .map(|(ours, best)| Percentile::P99.of(best) / Percentile::P99.of(ours))
            .collect();
        lab.push(RowBuilder::of_seeds(format!("{case}, of the best p99"), Metric::Advantage, &kept)?);
    }
    let kept = |places: &[usize]| places.iter().map(|place| p99 / medians[*place]).fold(1.0, f64::min);
    let all: Vec<usize> = (0..medians.len()).collect();
    let neighbours: Vec<usize> =
        [best.checked_sub(1), Some(best + 1).filter(|place| *place < medians.len())].into_iter().flatten().collect();
    let row =
        |what, places: &[usize]| RowBuilder::of_seeds(format!("{name}, {what}"), Metric::Advantage, &[kept(places)]);
    lab.push(row("worst", &all)?);
    let one_step = row("one step from the best", &neighbours)?;
    lab.push(one_step_min.into_iter().map(Target::Absolute).fold(one_step, RowBuilder::target));
    Ok(())
}

fn median_p99(outcomes: &[Outcome]) -> f64 {
    let mut p99: Vec<f64> = outcomes.iter().map(|outcome| Percentile::P99.of(outcome)).collect();
    p99.sort_by(f64::total_cmp);
    p99[p99.len() / 2]
}
