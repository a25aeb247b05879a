//! `sim-incast`: Table 5 on the simulated CX4. Clients on hosts of all racks send 8 MB requests to one server, one
//! outstanding each, with and without congestion control. Their packets queue at the port of the server's rack, and the
//! clients' round trips show how long.

use std::time::Duration;

use dunlin_lab::report::{Line, Metric, PaperFigure, Places, Plot, RowBuilder, Target};
use dunlin_sim::trace::{Sample, Series};

use super::incast::{Control, Incast, Seen};
use super::paper;
use crate::{BenchError, Lab};

/// Measured virtual time for each second of the run length, and its minimum.
const TIME: Duration = Duration::from_millis(60);
const TIME_MIN: u64 = 1_000_000;
/// For our algorithm with a hundred clients.
const BANDWIDTH_MIN: f64 = 22e9;
const RTT_P99_MAX: f64 = 200_000.0;
/// Maximum ratio of our Timely's round trips to the paper's, in either direction.
const RTT_FACTOR: f64 = 2.0;
const BANDWIDTH_SHARE: f64 = 0.2;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_simulations(paper::INCAST.len() * Control::ALL.len());
    let time = lab.virtual_time(TIME).max(TIME_MIN);
    for row in paper::INCAST {
        let (mut queues, mut rates, mut rtts) = (Vec::new(), Vec::new(), Vec::new());
        for control in Control::ALL {
            let incast = Incast { clients: row.clients, control, time };
            let case = format!("{} clients, {}", row.clients, control.name());
            let seen = lab.simulate(&case, |trial| incast.run(trial))?;
            if let Some(first) = seen.first() {
                queues.push(line(control, &first.port, |sample| sample.queued_bytes as f64 / 1e3));
                rates.push(line(control, &first.port, |sample| sample.gbit_per_s));
                rtts.push(Line { name: control.name().into(), points: first.rtts.clone() });
            }
            let figure = match control {
                Control::Off => Some(row.off),
                Control::Timely => Some(row.timely),
                _ => None,
            };
            push(lab, &case, &seen, (row.clients, control), figure)?;
        }
        let title = |what| format!("{what} of the server's port, {} clients begin", row.clients);
        lab.plot(Plot { title: title("Queue"), unit: "kB", lines: queues, places: Places::Page });
        lab.plot(Plot { title: title("Rate"), unit: "Gbit/s", lines: rates, places: Places::Page });
        let title = format!("Round trip of packets (median of each interval), {} clients begin", row.clients);
        lab.plot(Plot { title, unit: "µs", lines: rtts, places: Places::Page });
    }
    Ok(())
}

fn line(control: Control, series: &Series, value: impl Fn(&Sample) -> f64) -> Line {
    let points = series.samples.iter().map(|sample| (sample.time_ns as f64 / 1e6, value(sample)));
    Line { name: control.name().into(), points: points.collect() }
}

fn push(
    lab: &mut Lab,
    case: &str,
    seen: &[Seen],
    (clients, control): (u32, Control),
    figure: Option<paper::Incast>,
) -> Result<(), BenchError> {
    for metric in [Metric::Bandwidth, Metric::RttP50, Metric::RttP99] {
        let values: Vec<f64> = seen.iter().map(|seen| seen.outcome.figure(metric)).collect();
        let figure = figure.map(|figure| figure.figure(metric));
        let paper = figure.map(|value| PaperFigure { value, setup: paper::INCAST_SETUP });
        let mut row = RowBuilder::of_seeds(case, metric, &values)?.paper(paper);
        if let (Some(figure), Control::Timely) = (figure, control) {
            row = row.within(match metric {
                Metric::Bandwidth => figure * (1.0 - BANDWIDTH_SHARE)..=figure * (1.0 + BANDWIDTH_SHARE),
                _ => figure / RTT_FACTOR..=figure * RTT_FACTOR,
            });
        }
        if control == Control::Ours && clients == paper::INCAST_CLIENTS_MAX {
            match metric {
                Metric::Bandwidth => row = row.target(Target::Absolute(BANDWIDTH_MIN)),
                Metric::RttP99 => row = row.target(Target::Absolute(RTT_P99_MAX)),
                _ => {}
            }
        }
        lab.push(row);
    }
    Ok(())
}
