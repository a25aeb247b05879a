//! `kv-rate`: HERD's Figures 9 and 13 and the one-core row of the guidelines' Figure 5: operations per second of one server core.

use super::kv_runs::{self, Ask, HERD_GETS, ITEMS};
use super::paper;
use crate::BenchError;
use crate::lab::Lab;
use crate::report::{Metric, Target};
use crate::roles::Carrier;
use crate::workload::{Mix, Popularity};

/// Items of a server thread in the paper: they fit no cache.
const HERD_ITEMS: u64 = 8_000_000;
/// Operations in flight: fewer than the paper's 51 client processes had, with windows of 4 or more.
const IN_FLIGHT: usize = 128;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let mut cases = vec![(lab.items(ITEMS), Popularity::Zipf), (lab.items(ITEMS), Popularity::Uniform)];
    if lab.items(HERD_ITEMS) > lab.items(ITEMS) {
        cases.push((lab.items(HERD_ITEMS), Popularity::Uniform));
    }
    lab.expect_cases(Carrier::ALL.len() * cases.len());
    for carrier in Carrier::ALL {
        for (items, popularity) in cases.iter().copied() {
            let name = format!("{}, {items} items, 5 % PUT, {}", carrier.name(), popularity.name());
            let ask = Ask { in_flight: IN_FLIGHT, ..Ask::small(carrier, items, Mix::gets(HERD_GETS, popularity)) };
            let runs = kv_runs::case(lab, &name, ask)?;
            let paper = match popularity {
                Popularity::Zipf => paper::HERD_ZIPF_PER_CORE,
                _ => paper::HERD_ONE_CORE,
            };
            let mut row = kv_runs::rate_row(&name, &runs)?.paper(Some(paper));
            if items == ITEMS {
                row = row.target(target(carrier));
            }
            lab.push(row);
            for (metric, figure) in LATENCIES {
                lab.push(kv_runs::plain_row(&name, metric, &runs, figure)?);
            }
        }
    }
    Ok(())
}

type Figure = fn(&kv_runs::KvRun) -> f64;

const LATENCIES: [(Metric, Figure); 2] = [(Metric::LatencyP50, |run| run.p50), (Metric::LatencyP99, |run| run.p99)];

fn target(carrier: Carrier) -> Target {
    match carrier {
        Carrier::Shm => Target::Absolute(5e6),
        Carrier::Udp => Target::Absolute(1.5e6),
    }
}
