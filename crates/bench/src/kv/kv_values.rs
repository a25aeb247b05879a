//! `kv-values`: Figure 4.9 of Kalia's thesis (HERD): values of 4 B to 1000 B, the maximum for its slots. The paper's
//! figures are of six cores with a saturated NIC, so they are not shown.

use dunlin_lab::report::Metric;

use super::kv_runs::{self, Ask, HERD_GETS, ITEMS};
use crate::rpc::roles::Carrier;
use crate::workload::{Mix, Popularity};
use crate::{BenchError, Lab};

/// Bytes of a value.
const VALUE_BYTES: [usize; 8] = [4, 16, 32, 64, 128, 256, 512, 1000];
/// Operations in flight: enough that the server, and not the client, is the bottleneck over UDP too.
const IN_FLIGHT: usize = 128;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * VALUE_BYTES.len());
    for carrier in Carrier::ALL {
        for value_bytes in VALUE_BYTES {
            let name = format!("{}, values of {value_bytes} B", carrier.name());
            let mix = Mix::gets(HERD_GETS, Popularity::Uniform);
            let ask = Ask { value_bytes, in_flight: IN_FLIGHT, ..Ask::small(carrier, lab.items(ITEMS), mix) };
            let runs = kv_runs::case(lab, &name, ask)?;
            lab.push(kv_runs::rate_row(&name, &runs)?);
            let bits = (value_bytes * 8) as f64;
            lab.push(kv_runs::plain_row(&name, Metric::Bandwidth, &runs, |run| run.rate * bits)?);
        }
    }
    Ok(())
}
