//! `rpc-switch`: section 4.1 of FaSST. What does it cost to go from one task of an endpoint to another that is ready?
//! FaSST's coroutines take 13 to 20 ns, and some 20 of them hide the latency of the network.
//!
//! Each task yields at once when it is polled. So the figure contains the waker, the endpoint's queue of ready tasks, and
//! the share of an iteration of the event loop that falls to a task. The floor polls the same futures in a plain loop.

use dunlin_lab::Figure;
use dunlin_lab::measure::Measured;
use dunlin_lab::report::Metric;

use super::roles::{Carrier, Setup, Switching};
use crate::{BenchError, Lab};

/// Tasks of an endpoint: FaSST's number, and others beside it.
const TASKS: [usize; 3] = [1, 20, 100];

const FIGURES: [Figure<(Carrier, usize), f64>; 1] = [Figure::with_floor(Metric::CpuTime, |_, nanos| *nanos)];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = super::runs::transports().by("tasks", TASKS, |tasks| {
        let s = if *tasks == 1 { "" } else { "s" };
        format!("a switch among {tasks} task{s}")
    });
    lab.pair_each(
        &cases,
        &FIGURES,
        |nanos| *nanos,
        |lab, (carrier, tasks)| {
            let role = Switching { setup: Setup::new(*carrier), tasks: *tasks, run: lab.run_length() };
            let (ours, floor) = lab.server(role, lab.run_length() * 2)?.result()?;
            Ok(Measured { ours, floor })
        },
    )
}
