//! `kv-rate`: operations per second of one server core, like the one-core row of the guidelines' Figure 5 (4.14 of
//! Kalia's thesis).
//!
//! The paper's figure is shown only with the rows that have its 8 million items. HERD under Zipf (Figure 4.13) is a
//! sixth of a saturated NIC, not a saturated core, so it is not shown.

use dunlin_lab::report::{Metric, Target};

use super::kv_runs::{self, Ask, HERD_GETS, ITEMS};
use super::paper;
use crate::rpc::roles::Carrier;
use crate::workload::{Mix, Popularity};
use crate::{BenchError, Lab};

/// Items of a server thread in the paper: more than any cache holds.
const HERD_ITEMS: u64 = 8_000_000;
/// Shares of reads in HERD's other mixes (Figure 4.8).
const FEWER_GETS: [f64; 2] = [0.5, 0.0];
/// Operations in flight: fewer than those of the paper's 51 client processes, with windows of 4 or more.
const IN_FLIGHT: usize = 128;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let few = lab.items(ITEMS);
    let mut cases = vec![(few, Popularity::Zipf, HERD_GETS), (few, Popularity::Uniform, HERD_GETS)];
    cases.extend(FEWER_GETS.map(|gets| (few, Popularity::Uniform, gets)));
    if lab.items(HERD_ITEMS) > few {
        cases.push((lab.items(HERD_ITEMS), Popularity::Uniform, HERD_GETS));
    }
    lab.expect_cases(Carrier::ALL.len() * cases.len());
    for carrier in Carrier::ALL {
        for (items, popularity, gets) in cases.iter().copied() {
            let puts = (1.0 - gets) * 100.0;
            let name = format!("{}, {items} items, {puts:.0} % PUT, {}", carrier.name(), popularity.name());
            let ask = Ask { in_flight: IN_FLIGHT, ..Ask::small(carrier, items, Mix::gets(gets, popularity)) };
            let runs = kv_runs::case(lab, &name, ask)?;
            let is_papers = (items, popularity) == (HERD_ITEMS, Popularity::Uniform);
            let mut row = kv_runs::rate_row(&name, &runs)?.paper(is_papers.then_some(paper::HERD_ONE_CORE));
            if items == ITEMS && gets == HERD_GETS {
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
