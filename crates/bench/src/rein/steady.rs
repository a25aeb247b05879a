//! `rein-steady`: Figure 3.10. Rein for a long time, with the keys that are outstanding meanwhile. One run only, 60
//! times as long as others: `--for 3s` are the thesis' three minutes.

use std::time::Duration;

use dunlin_lab::measure::Spread;
use dunlin_lab::report::{Line, Metric, Places, Plot, RowBuilder, Target};

use super::cluster::{self, Cluster};
use super::contenders::Policies;
use super::roles::{Load, MultigetFigures};
use super::rounds::{self, LOAD_BAND, PERCENTILES, at, came, in_use, of, push_disturbances};
use crate::{BenchError, Lab};

/// Runs in the measured time.
const RUNS: u32 = 60;
const LOAD: f64 = 0.75;
/// A thirtieth of the multigets come before those that are measured.
const WARM_UP: u32 = 20;
/// Each third is to be as long as a run that has a verdict.
const PARTS_MIN: u32 = 3;
/// By how much the 99th percentile of the last third may exceed that of the first: by more, and queues would grow.
const DRIFT_MAX: f64 = 1.5;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(1);
    lab.expect_steps(1);
    let cluster = rounds::calibrate(lab, Cluster::new(lab))?;
    lab.step("Rein for a long time");
    let name = at(LOAD, Policies::Rein.name());
    let length = lab.run_length() * RUNS;
    let ran = lab.once(&name, |lab| {
        // Of these, the simulator's setting measures two thirds.
        let all = cluster.load(Policies::Rein, LOAD, length * 2 / 3, lab.seed());
        let load = Load { warm_up: all.requests / WARM_UP, ..all };
        cluster::run(lab, &cluster, Policies::Rein.order(), Duration::ZERO, (length, vec![load]))
    })?;
    let figures = ran.loads.into_iter().next().ok_or(BenchError::no_samples("a load"))?;
    push_disturbances(lab, &name, &[&figures]);
    let came = came(&cluster, &figures);
    lab.push(RowBuilder::new(format!("{name}, load that came"), Metric::Portion, came.into()));
    let devices =
        RowBuilder::new(format!("{name}, devices in use"), Metric::Portion, in_use(&cluster, &figures).into());
    lab.push(devices.within(came - LOAD_BAND..=came + LOAD_BAND));
    let needed = cluster.time_needed(LOAD);
    let has_verdict = length >= needed * PARTS_MIN;
    if !has_verdict {
        lab.note(format!(
            "The run is too short to judge whether queues grow: it needs --for {:.0}s.",
            (needed * PARTS_MIN / RUNS).as_secs_f64().ceil()
        ));
    }
    push(lab, &name, figures, has_verdict);
    lab.note(
        "The thesis has 1.9, 14.3 and 19.2 ms at p50, p95 and p99, with a closed loop of 500 threads, reads of about \
         1 ms and a load that is not given: 1.9, 14.4 and 19.4 times a read. Its outstanding keys vary by as much as \
         10,000.",
    );
    Ok(())
}

fn push(lab: &mut Lab, name: &str, figures: MultigetFigures, has_verdict: bool) {
    let row =
        |what: &str, metric, figure: f64| RowBuilder::new(format!("{name}{what}"), metric, Spread::single(figure));
    for (percentile, metric) in PERCENTILES {
        lab.push(row("", metric, of(percentile, &figures.latency)));
    }
    let [first, second, third] = figures.p99_of_parts;
    lab.push(row(", first third", Metric::LatencyP99, first));
    lab.push(row(", second third", Metric::LatencyP99, second));
    let last = row(", last third", Metric::LatencyP99, third);
    let drift = Target::CaseTimes { case: format!("{name}, first third"), factor: DRIFT_MAX };
    lab.push(if has_verdict { last.target(drift) } else { last });
    let keys: Vec<f64> = figures.outstanding.iter().map(|(_, keys)| *keys).collect();
    let mean = keys.iter().sum::<f64>() / keys.len().max(1) as f64;
    let variance = keys.iter().map(|keys| (keys - mean).powi(2)).sum::<f64>() / keys.len().max(1) as f64;
    let most = keys.iter().copied().fold(0.0, f64::max);
    for (what, figure) in [("mean", mean), ("standard deviation", variance.sqrt()), ("most", most)] {
        lab.push(row(&format!(", outstanding keys, {what}"), Metric::Backlog, figure));
    }
    lab.plot(Plot {
        title: "keys that were requested and have no answer, at least 100 ms apart".into(),
        unit: "keys",
        lines: vec![Line { name: name.into(), points: figures.outstanding }],
        places: Places::PageAndTerminal,
    });
}
