//! `txn-object-store`: FaSST's object store, O(r, w), on six nodes. The unit is transactions per second of processor
//! time of all nodes together. The floor is the rate if the calls of a transaction were all of its work, at the rate of
//! calls that the same nodes had just before.

use dunlin_lab::report::{Metric, Target};
use dunlin_lab::{Cases, Figure};

use super::workload::{Load, ObjectStore};
use super::{FEW_BELOW, Sample, conflicts, cost, measure, rate_shape};
use crate::{BenchError, Lab};

/// Keys that a transaction reads, and those of them that it writes.
type Size = (usize, usize);

const SIZES: [Size; 3] = [(1, 0), (4, 0), (4, 2)];
const REPLICAS: [usize; 3] = [3, 2, 1];
/// Objects of the whole cluster.
const OBJECTS: u64 = 300_000;
/// Required share of the floor, and transactions per second of processor time, with three copies.
const SHARE_OF_FLOOR: f64 = 0.5;
const TARGETS: [(Size, f64); 2] = [((1, 0), 2.5e6), ((4, 2), 0.2e6)];

type Place = (Size, usize);

const FIGURES: [Figure<Place, Sample>; 5] = [
    Figure::with_floor(Metric::Operations, |_, sample: &Sample| sample.rate).target(target),
    Figure::new(Metric::Count, |_, sample| sample.figures.messages_of_all()).part(": messages of a transaction"),
    Figure::new(Metric::Share, |_, sample| sample.figures.remote).part(": requests to other nodes"),
    Figure::new(Metric::Calls, |_, sample| conflicts(sample)).part(": conflicts in 100 runs"),
    Figure::new(Metric::Rate, |_, sample| sample.figures.call_rate).part(": calls alone"),
];

fn target((size, replicas): &Place) -> Option<Target> {
    if *replicas < 3 {
        return None;
    }
    let absolute = TARGETS.iter().filter(|(it, _)| it == size).map(|(_, rate)| Target::Absolute(*rate));
    Some(Target::All(absolute.chain([Target::FloorTimes(SHARE_OF_FLOOR)]).collect()))
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let (is_short, objects) = (lab.run_length() < FEW_BELOW, lab.items(OBJECTS));
    let cases = Cases::along("workload", SIZES, |(reads, writes)| format!("O({reads},{writes})"))
        .by("copies", REPLICAS, |copies| format!("{copies} {}", if *copies == 1 { "copy" } else { "copies" }))
        .only(|(_, replicas)| *replicas == 3 || !is_short);
    lab.pair_each(&cases, &FIGURES, cost, |lab, ((reads, writes), replicas)| {
        let load = Load::ObjectStore(ObjectStore { reads: *reads, writes: *writes, objects });
        measure(lab, rate_shape(*replicas), load)
    })?;
    lab.note(UNIT);
    Ok(())
}

/// How rates are to be read.
const UNIT: &str = "Rates are per second of processor time of all nodes together: six nodes of one core each share two \
     processors, which turn their event loops one after the other. The floor is the rate if the calls of a transaction \
     were all of its work: the rate of calls of 96 B alone, on the same nodes just before, divided by the messages of a \
     transaction. FaSST's figures are per core of a machine.";
