//! `kv-values`: Figure 4.9 of Kalia's thesis (HERD): values of 4 B to 1000 B, the maximum for its slots. The paper's
//! figures are of six cores with a saturated NIC, so they are not shown.

use dunlin_lab::Figure;
use dunlin_lab::report::Metric;

use super::kv_runs::{self, Ask, HERD_GETS, ITEMS, KvRun};
use crate::rpc::roles::Carrier;
use crate::rpc::runs::transports;
use crate::workload::{Mix, Popularity};
use crate::{BenchError, Lab};

/// Bytes of a value.
const VALUE_BYTES: [usize; 8] = [4, 16, 32, 64, 128, 256, 512, 1000];
/// Operations in flight: enough that the server, and not the client, is the bottleneck over UDP too.
const IN_FLIGHT: usize = 128;

const FIGURES: [Figure<(Carrier, usize), KvRun>; 2] = [
    Figure::with_floor(Metric::Operations, |_, run| run.rate),
    Figure::new(Metric::Bandwidth, |(_, value_bytes), run| run.rate * (value_bytes * 8) as f64),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = transports().by("value", VALUE_BYTES, |bytes| format!("values of {bytes} B"));
    lab.pair_each(&cases, &FIGURES, KvRun::time_per_operation, |lab, (carrier, value_bytes)| {
        let mix = Mix::gets(HERD_GETS, Popularity::Uniform);
        let small = Ask::small(*carrier, lab.items(ITEMS), mix);
        kv_runs::run(lab, &Ask { value_bytes: *value_bytes, in_flight: IN_FLIGHT, ..small })
    })
}
