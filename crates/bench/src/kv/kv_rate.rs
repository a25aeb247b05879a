//! `kv-rate`: operations per second of one server core, like the one-core row of the guidelines' Figure 5 (4.14 of
//! Kalia's thesis).
//!
//! The paper's figure is shown only with the rows that have its 8 million items. HERD under Zipf (Figure 4.13) is a
//! sixth of a saturated NIC, not a saturated core, so it is not shown.

use dunlin_lab::Figure;
use dunlin_lab::report::{Metric, Target};

use super::kv_runs::{self, Ask, HERD_GETS, ITEMS, KvRun};
use crate::rpc::roles::Carrier;
use crate::rpc::runs::transports;
use crate::workload::{Mix, Popularity};
use crate::{BenchError, Lab};

/// Items of a server thread in the paper: more than any cache holds.
const HERD_ITEMS: u64 = 8_000_000;
/// Operations in flight: fewer than those of the paper's 51 client processes, with windows of 4 or more.
const IN_FLIGHT: usize = 128;

/// Shares of reads, and their popularity: HERD's, and its other mixes (Figure 4.8).
const MIXES: [(f64, Popularity); 4] = [
    (HERD_GETS, Popularity::Zipf),
    (HERD_GETS, Popularity::Uniform),
    (0.5, Popularity::Uniform),
    (0.0, Popularity::Uniform),
];

type Place = ((Carrier, u64), (f64, Popularity));

type Column = Figure<Place, KvRun>;

const FIGURES: [Column; 3] = [
    Column::with_floor(Metric::Operations, |_, run| run.rate).target(|((carrier, items), (gets, _))| {
        let has_target = *items == ITEMS && *gets == HERD_GETS;
        has_target.then_some(Target::Absolute(match carrier {
            Carrier::Shm => 5e6,
            Carrier::Udp => 1.5e6,
        }))
    }),
    Column::new(Metric::LatencyP50, |_, run| run.p50),
    Column::new(Metric::LatencyP99, |_, run| run.p99),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let mut items = vec![lab.items(ITEMS), lab.items(HERD_ITEMS)];
    items.dedup();
    let few = items[0];
    let cases = transports()
        .by("items", items, |items| format!("{items} items"))
        .by("mix", MIXES, |(gets, popularity)| format!("{:.0} % PUT, {}", (1.0 - gets) * 100.0, popularity.name()))
        .only(|((_, items), mix)| *items == few || *mix == (HERD_GETS, Popularity::Uniform));
    lab.pair_each(&cases, &FIGURES, KvRun::time_per_operation, |lab, ((carrier, items), (gets, popularity))| {
        let small = Ask::small(*carrier, *items, Mix::gets(*gets, *popularity));
        kv_runs::run(lab, &Ask { in_flight: IN_FLIGHT, ..small })
    })
}
