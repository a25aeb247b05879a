//! `rein-queues`: Figure 3.13. Queues under 32 threads, each of which pushes and pops with equal probability, with five
//! priorities; and beside them what a server of Dunlin uses: a queue for each core, which no other thread touches.

use std::cell::Cell;

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::{Cases, Figure};

use super::roles::{QueueKind, Queues};
use crate::{BenchError, Lab};

/// Threads, as in the thesis.
const THREADS: usize = 32;

/// Two kinds of queues, by their rows, and the name of their ratio.
const RATIOS: [(&str, &str, &str); 5] = [
    ("5 levels over the heap", "shared: 5 levels", "shared: heap, locked"),
    ("5 levels over the skip list", "shared: 5 levels", "shared: skip list"),
    ("5 levels over the FIFO", "shared: 5 levels", "shared: FIFO"),
    ("what Dunlin uses over the heap", "one a thread: Dunlin, as shipped", "shared: heap, locked"),
    ("what Dunlin uses over 5 shared levels", "one a thread: Dunlin, as shipped", "shared: 5 levels"),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let kinds = QueueKind::ALL;
    let cases = Cases::along("queue", kinds.iter().copied(), |kind| kind.name());
    let figures = [Figure::with_floor(Metric::Operations, |_, rate: &f64| *rate)];
    let round = Cell::new(0);
    let rounds = lab.measure_in_turn(&cases, &figures, |lab| {
        round.set(round.get() + 1);
        let queues = Queues { threads: THREADS, run: lab.run_length(), seed: round.get() };
        let measured = lab.run_length() * (kinds.len() + 2) as u32;
        let rates = lab.anywhere(queues, measured)?.result()?;
        let floor = |kind: &QueueKind| if kind.is_shared() { rates.shared_floor } else { rates.own_floor };
        Ok(kinds.iter().zip(&rates.rates).map(|(kind, rate)| (*rate, Some(floor(kind)))).collect())
    })?;
    for (name, one, other) in RATIOS {
        let place = |name| kinds.iter().position(|kind| kind.name() == name);
        if let (Some(one), Some(other)) = (place(one), place(other)) {
            let ratio = rounds.spread(|rates| rates[one] / rates[other])?;
            lab.push(RowBuilder::new(name, Metric::Advantage, ratio).target(Target::Absolute(1.0)));
        }
    }
    lab.note(
        "An operation is a push or a pop, also of an empty queue. The floor of shared queues is an addition to one \
         word that all threads use, that of the others a bare `VecDeque` for each thread.",
    );
    lab.note(
        "A server of Dunlin has one thread for each core, and requests for its part of the keys come to its own \
         socket. So its queue is touched by that thread alone, and needs no lock; what the rows of shared queues cost \
         does not arise. It gives up what they have: an idle core does not take what waits for a busy one.",
    );
    if kinds.len() < 10 {
        lab.note("This build has no queues without locks: they need the cargo feature `rivals` or `peers`.");
    }
    Ok(())
}
