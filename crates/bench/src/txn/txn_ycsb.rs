//! `txn-ycsb`: YCSB's workloads A, B and C in transactions of four items, on six nodes.

use dunlin_lab::report::Metric;
use dunlin_lab::{Cases, Figure};

use super::workload::{Load, Ycsb};
use super::{Coalescing, FEW_BELOW, Sample, changed, cost, locked, measure, rate_shape};
use crate::{BenchError, Lab};

const ITEMS: u64 = 300_000;
/// The workloads, with their updates in percent.
const WORKLOADS: [(&str, u64); 3] = [("A, 50 % updates", 50), ("B, 5 % updates", 5), ("C, reads only", 0)];

type Place = ((&'static str, u64), Coalescing);

const FIGURES: [Figure<Place, Sample>; 4] = [
    Figure::with_floor(Metric::Operations, |_, sample: &Sample| sample.rate),
    Figure::new(Metric::Count, |_, sample: &Sample| sample.figures.messages_of_all())
        .part(": messages of a transaction"),
    Figure::new(Metric::Calls, locked).part(": runs that met a lock, of 100"),
    Figure::new(Metric::Calls, changed).part(": runs that failed validation, of 100"),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let (is_short, items) = (lab.run_length() < FEW_BELOW, lab.items(ITEMS));
    let cases = Cases::along("workload", WORKLOADS, |(name, _)| format!("YCSB {name}, 4 items, 3 copies"))
        .by("coalescing", Coalescing::ALL, |it| it.name())
        .only(|((_, updates), coalescing)| match coalescing {
            Coalescing::All => *updates == 50 || !is_short,
            // Reads are validated where there are many of them.
            _ => *updates == 5 && !is_short,
        });
    lab.pair_each(&cases, &FIGURES, cost, |lab, ((_, updates), coalescing)| {
        measure(lab, rate_shape(3, *coalescing), Load::Ycsb(Ycsb { updates: *updates, items }))
    })?;
    lab.note(super::UNIT);
    Ok(())
}
