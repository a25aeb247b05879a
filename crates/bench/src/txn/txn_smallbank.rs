//! `txn-smallbank`: SmallBank on six nodes. The unit is transactions per second of processor time of all nodes
//! together, and the floor that of [`super::txn_object_store`]. The sum of all accounts is checked at the end.

use dunlin_lab::Figure;
use dunlin_lab::report::{Metric, Target};

use super::workload::{Load, SmallBank};
use super::{Coalescing, FEW_BELOW, SHARE_OF_FLOOR, Sample, changed, cost, locked, measure, rate_shape};
use crate::{BenchError, Lab};

/// Required transactions per second of processor time.
const TARGET: f64 = 0.4e6;
/// Customers of the cluster: 100,000 for each node, as the paper has for each thread.
const ACCOUNTS: u64 = 600_000;

const FIGURES: [Figure<Coalescing, Sample>; 5] = [
    Figure::with_floor(Metric::Operations, |_, sample: &Sample| sample.rate).target(target),
    Figure::new(Metric::Count, |_, sample: &Sample| sample.figures.messages_of_all())
        .part(": messages of a transaction"),
    Figure::new(Metric::Share, |_, sample: &Sample| sample.figures.remote).part(": requests to other nodes"),
    Figure::new(Metric::Calls, locked).part(": runs that met a lock, of 100"),
    Figure::new(Metric::Calls, changed).part(": runs that failed validation, of 100"),
];

fn target(coalescing: &Coalescing) -> Option<Target> {
    let all = vec![Target::Absolute(TARGET), Target::FloorTimes(SHARE_OF_FLOOR)];
    (*coalescing == Coalescing::All).then_some(Target::All(all))
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let (is_short, accounts) = (lab.run_length() < FEW_BELOW, lab.items(ACCOUNTS));
    let cases = Coalescing::cases("SmallBank, 3 copies").only(|it| *it == Coalescing::All || !is_short);
    lab.pair_each(&cases, &FIGURES, cost, |lab, coalescing| {
        measure(lab, rate_shape(3, *coalescing), Load::SmallBank(SmallBank { accounts }))
    })?;
    lab.note(format!(
        "{accounts} customers with two accounts each; 90 % of the transactions use 4 % of them, and none is chosen for its \
         place. At the end the sum of all accounts was what deposits and payments have made it, and all copies were equal."
    ));
    lab.note("Locks are of items. Locks of whole buckets, as FaSST has them, are not built: there is nothing to compare with.");
    lab.note(super::UNIT);
    Ok(())
}
