//! `txn-object-store`: FaSST's object store, O(r, w), on six nodes. The unit is transactions per second of processor
//! time of all nodes together. The floor is the rate if the calls of a transaction were all of its work, at the rate of
//! calls that the same nodes had just before.

use dunlin_lab::report::{Metric, Target};
use dunlin_lab::{Cases, Figure};

use super::roles::Shape;
use super::workload::{Load, ObjectStore};
use super::{Coalescing, FEW_BELOW, SHARE_OF_FLOOR, Sample, changed, cost, locked, measure, rate_shape};
use crate::{BenchError, Lab};

/// Keys that a transaction reads, and those of them that it writes.
type Size = (usize, usize);

const SIZES: [Size; 3] = [(1, 0), (4, 0), (4, 2)];
const REPLICAS: [usize; 3] = [3, 2, 1];
/// Objects of the whole cluster.
const OBJECTS: u64 = 300_000;
/// Required transactions per second of processor time, with three copies.
const TARGETS: [(Size, f64); 2] = [((1, 0), 2.5e6), ((4, 2), 0.2e6)];

/// A workload, copies, and processors of all nodes.
type Place = ((Size, usize), usize);

const FIGURES: [Figure<Place, Sample>; 6] = [
    Figure::with_floor(Metric::Operations, |_, sample: &Sample| sample.rate).target(target),
    Figure::new(Metric::Count, |_, sample: &Sample| sample.figures.messages_of_all())
        .part(": messages of a transaction"),
    Figure::new(Metric::Share, |_, sample: &Sample| sample.figures.remote).part(": requests to other nodes"),
    Figure::new(Metric::Calls, locked).part(": runs that met a lock, of 100"),
    Figure::new(Metric::Calls, changed).part(": runs that failed validation, of 100"),
    Figure::new(Metric::Rate, |_, sample: &Sample| sample.figures.call_rate).part(": calls alone"),
];

fn target(((size, replicas), processors): &Place) -> Option<Target> {
    if *replicas < 3 || *processors < 2 {
        return None;
    }
    let absolute = TARGETS.iter().filter(|(it, _)| it == size).map(|(_, rate)| Target::Absolute(*rate));
    Some(Target::All(absolute.chain([Target::FloorTimes(SHARE_OF_FLOOR)]).collect()))
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let (is_short, objects) = (lab.run_length() < FEW_BELOW, lab.items(OBJECTS));
    let cases = Cases::along("workload", SIZES, |(reads, writes)| format!("O({reads},{writes})"))
        .by("copies", REPLICAS, |copies| format!("{copies} {}", if *copies == 1 { "copy" } else { "copies" }))
        .joined("")
        .by("processors", [2, 1], |processors| if *processors == 1 { ", one processor" } else { "" })
        .only(|((_, replicas), processors)| *replicas == 3 || *processors == 2 && !is_short)
        .only(|(_, processors)| *processors == 2 || !is_short);
    lab.pair_each(&cases, &FIGURES, cost, |lab, (((reads, writes), replicas), processors)| {
        let load = Load::ObjectStore(ObjectStore { reads: *reads, writes: *writes, objects });
        measure(lab, Shape { processors: *processors, ..rate_shape(*replicas, Coalescing::All) }, load)
    })?;
    lab.note(super::UNIT);
    Ok(())
}
