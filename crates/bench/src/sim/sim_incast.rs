//! `sim-incast`: Table 5 on the simulated CX4. Clients on hosts of all racks send 8 MB requests to one server, one
//! outstanding each, with and without congestion control. Their packets queue at the port of the server's rack, and the
//! clients' round trips show how long.

use std::ops::RangeInclusive;
use std::time::Duration;

use dunlin_lab::report::{Line, Metric, Places, Plot, RowBuilder, Target};
use dunlin_sim::trace::{Sample, Series};

use super::incast::{CLIENTS_MAX, Control, Incast, Outcome, Seen};
use crate::{BenchError, Lab};

/// Measured virtual time for each second of the run length, and its minimum.
const TIME: Duration = Duration::from_millis(60);
const TIME_MIN: u64 = 1_000_000;
/// As in the paper.
const CLIENTS: [u32; 3] = [20, 50, CLIENTS_MAX];

/// A figure: the factors of the paper's within which Timely is like it, and the target of our algorithm with a hundred
/// clients.
type Column = (Metric, fn(&Outcome) -> f64, RangeInclusive<f64>, Option<f64>);

const FIGURES: [Column; 3] = [
    (Metric::Bandwidth, |seen| seen.bandwidth, 0.8..=1.2, Some(22e9)),
    (Metric::RttP50, |seen| seen.rtt_p50, 0.5..=2.0, None),
    (Metric::RttP99, |seen| seen.rtt_p99, 0.5..=2.0, Some(200_000.0)),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_simulations(CLIENTS.len() * Control::ALL.len());
    let time = lab.virtual_time(TIME).max(TIME_MIN);
    for clients in CLIENTS {
        let (mut queues, mut rates, mut rtts) = (Vec::new(), Vec::new(), Vec::new());
        for control in Control::ALL {
            let incast = Incast { clients, control, time };
            let case = format!("{clients} clients, {}", control.name());
            if !lab.wants(&case) {
                continue;
            }
            let seen = lab.simulate(&case, |trial| incast.run(trial))?;
            if let Some(first) = seen.first() {
                queues.push(line(control, &first.port, |sample| sample.queued_bytes as f64 / 1e3));
                rates.push(line(control, &first.port, |sample| sample.gbit_per_s));
                rtts.push(Line { name: control.name().into(), points: first.rtts.clone() });
            }
            push(lab, &case, &seen, (clients, control))?;
        }
        if queues.is_empty() {
            continue;
        }
        let title = |what| format!("{what} of the server's port, {clients} clients begin");
        lab.plot(Plot { title: title("Queue"), unit: "kB", lines: queues, places: Places::Page });
        lab.plot(Plot { title: title("Rate"), unit: "Gbit/s", lines: rates, places: Places::Page });
        let title = format!("Round trip of packets (median of each interval), {clients} clients begin");
        lab.plot(Plot { title, unit: "µs", lines: rtts, places: Places::Page });
    }
    Ok(())
}

fn line(control: Control, series: &Series, value: impl Fn(&Sample) -> f64) -> Line {
    let points = series.samples.iter().map(|sample| (sample.time_ns as f64 / 1e6, value(sample)));
    Line { name: control.name().into(), points: points.collect() }
}

fn push(lab: &mut Lab, case: &str, seen: &[Seen], (clients, control): (u32, Control)) -> Result<(), BenchError> {
    for (metric, figure, like_paper, target) in FIGURES {
        let values: Vec<f64> = seen.iter().map(|seen| figure(&seen.outcome)).collect();
        let mut row = RowBuilder::of_seeds(case, metric, &values)?;
        if control == Control::Timely {
            row = row.like_paper(like_paper);
        }
        if control == Control::Ours && clients == CLIENTS_MAX {
            row = target.into_iter().map(Target::Absolute).fold(row, RowBuilder::target);
        }
        lab.push(row);
    }
    Ok(())
}
