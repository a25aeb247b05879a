//! `txn-tatp`: TATP on six nodes. The unit is transactions per second of processor time of all nodes together, and the
//! floor that of [`super::txn_object_store`]. The shares of transactions that find their rows are the standard's, or
//! the results are wrong.

use std::ops::RangeInclusive;

use dunlin_lab::Figure;
use dunlin_lab::report::{Metric, Target};

use super::workload::{Load, NEW_DESTINATION, NEW_DESTINATION_LATER, SUCCESSES, Tatp};
use super::{Coalescing, FEW_BELOW, SHARE_OF_FLOOR, Sample, changed, cost, locked, measure, rate_shape};
use crate::{BenchError, Lab};

/// Required transactions per second of processor time.
const TARGET: f64 = 1.0e6;
/// Subscribers of the cluster.
const SUBSCRIBERS: u64 = 60_000;
/// Items of a subscriber, about.
const ITEMS: u64 = 10;
/// How close a share of successes must be to the standard's.
const CLOSE: RangeInclusive<f64> = 0.93..=1.07;
/// The share of `GET_NEW_DESTINATION` that the standard prints, which its rules do not give: see [`SUCCESSES`].
const NEW_DESTINATION_PRINTED: f64 = 23.9;

fn success<const KIND: usize>(_: &Coalescing, sample: &Sample) -> f64 {
    let (found, not) = (sample.figures.successful[KIND], sample.figures.unsuccessful[KIND]);
    100.0 * found as f64 / (found + not).max(1) as f64
}

const fn share(of: fn(&Coalescing, &Sample) -> f64, part: &'static str) -> Figure<Coalescing, Sample> {
    Figure::new(Metric::Share, of).part(part).like_paper(|_| Some(CLOSE)).only_if(|it| *it == Coalescing::All)
}

/// The share of `GET_NEW_DESTINATION` rises while call forwardings are replaced.
fn new_destination(_: &Coalescing) -> Option<RangeInclusive<f64>> {
    let low = CLOSE.start() * SUCCESSES[NEW_DESTINATION];
    let high = CLOSE.end() * NEW_DESTINATION_LATER;
    Some(low / NEW_DESTINATION_PRINTED..=high / NEW_DESTINATION_PRINTED)
}

const FIGURES: [Figure<Coalescing, Sample>; 13] = [
    Figure::with_floor(Metric::Operations, |_, sample: &Sample| sample.rate).target(target),
    Figure::new(Metric::Operations, |_, sample: &Sample| sample.rate * sample.success())
        .part(": those that find their rows"),
    Figure::new(Metric::Count, |_, sample: &Sample| sample.figures.messages_of_all())
        .part(": messages of a transaction"),
    Figure::new(Metric::Share, |_, sample: &Sample| sample.figures.remote).part(": requests to other nodes"),
    Figure::new(Metric::Calls, locked).part(": runs that met a lock, of 100"),
    Figure::new(Metric::Calls, changed).part(": runs that failed validation, of 100"),
    share(success::<0>, ": successes of GET_SUBSCRIBER_DATA"),
    share(success::<NEW_DESTINATION>, ": successes of GET_NEW_DESTINATION").like_paper(new_destination),
    share(success::<2>, ": successes of GET_ACCESS_DATA"),
    share(success::<3>, ": successes of UPDATE_SUBSCRIBER_DATA"),
    share(success::<4>, ": successes of UPDATE_LOCATION"),
    share(success::<5>, ": successes of INSERT_CALL_FORWARDING"),
    share(success::<6>, ": successes of DELETE_CALL_FORWARDING"),
];

fn target(coalescing: &Coalescing) -> Option<Target> {
    let all = vec![Target::Absolute(TARGET), Target::FloorTimes(SHARE_OF_FLOOR)];
    (*coalescing == Coalescing::All).then_some(Target::All(all))
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let (is_short, subscribers) = (lab.run_length() < FEW_BELOW, lab.items(SUBSCRIBERS * ITEMS) / ITEMS);
    let cases = Coalescing::cases("TATP, 3 copies").only(|it| *it == Coalescing::All || !is_short);
    lab.pair_each(&cases, &FIGURES, cost, |lab, coalescing| {
        measure(lab, rate_shape(3, *coalescing), Load::Tatp(Tatp { subscribers, only: None }))
    })?;
    lab.note(format!(
        "{subscribers} subscribers, drawn non-uniformly as the standard says. The rate counts all transactions that end as the \
         standard expects: {:.0} % of them find what they are to read or change. At the end every row was checked: all \
         copies are equal, every call forwarding has its facility, every number leads to its subscriber, and there are as many \
         call forwardings as were loaded and inserted, without those deleted. For GET_NEW_DESTINATION the standard prints \
         {NEW_DESTINATION_PRINTED} %. Its rules give {:.1} % for the rows that are loaded, which rises to {NEW_DESTINATION_LATER:.1} % \
         while rows are replaced; the bounds are these.",
        SUCCESSES.iter().zip([35.0, 10.0, 35.0, 2.0, 14.0, 2.0, 2.0]).map(|(found, share)| found * share / 100.0).sum::<f64>(),
        SUCCESSES[NEW_DESTINATION]
    ));
    lab.note(super::UNIT);
    Ok(())
}
