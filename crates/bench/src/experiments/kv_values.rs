//! `kv-values`: HERD's Figure 10 (9 of the thesis): values of 4 B to 1000 B, the longest that fit its slots.

use super::kv_runs::{self, Ask, HERD_GETS, ITEMS};
use super::paper;
use crate::BenchError;
use crate::lab::Lab;
use crate::report::Metric;
use crate::roles::Carrier;
use crate::workload::{Mix, Popularity};

/// Bytes of a value.
const VALUE_BYTES: [usize; 8] = [4, 16, 32, 64, 128, 256, 512, 1000];
/// Up to here HERD keeps its rate, and its items have 60 B.
const HERD_FLAT_MAX: usize = 44;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * VALUE_BYTES.len());
    for carrier in Carrier::ALL {
        for value_bytes in VALUE_BYTES {
            let name = format!("{}, values of {value_bytes} B", carrier.name());
            let mix = Mix::gets(HERD_GETS, Popularity::Uniform);
            let ask = Ask { value_bytes, ..Ask::small(carrier, lab.items(ITEMS), mix) };
            let runs = kv_runs::case(lab, &name, ask)?;
            let paper = (value_bytes <= HERD_FLAT_MAX).then_some(paper::HERD_PER_CORE);
            lab.push(kv_runs::rate_row(&name, &runs)?.paper(paper));
            let bits = (value_bytes * 8) as f64;
            lab.push(kv_runs::plain_row(&name, Metric::Bandwidth, &runs, |run| run.rate * bits)?);
        }
    }
    Ok(())
}
