//! `rpc-workers`: section 3.2. Latency of quick calls alone, and beside calls whose handler takes 1 ms, on a worker
//! thread and in the event loop; and the fate of slow calls beyond the workers' queue.

use std::time::Duration;

use dunlin_lab::Figure;
use dunlin_lab::report::{Metric, Target};

use crate::rpc::roles::{Carrier, FULL_POOL, Mode, Setup, SlowServer, Work, WorkersClient, WorkersFigures};
use crate::rpc::runs::transports;
use crate::{BenchError, Lab};

/// Limit of the loaded latency, in unloaded latencies.
const FACTOR: f64 = 2.0;
/// Additional time limit of a server, for starting and ending its client.
const CLIENT_SLACK: Duration = Duration::from_secs(20);

/// The slow calls beside the quick ones.
#[derive(Debug, Clone, Copy)]
struct Beside {
    name: &'static str,
    mode: Mode,
    work: Work,
    /// Slow calls outstanding.
    slow: usize,
}

const ALONE: &str = "quick calls alone";
const WORKER: &str = "beside 1 ms of waiting in a worker";
const FULL: &str = "beside a full pool";

const CASES: [Beside; 5] = [
    Beside { name: ALONE, mode: Mode::Worker, work: Work::Wait, slow: 0 },
    Beside { name: WORKER, mode: Mode::Worker, work: Work::Wait, slow: 1 },
    Beside { name: "beside 1 ms of waiting in the event loop", mode: Mode::Dispatch, work: Work::Wait, slow: 1 },
    // On two cores, which client and event loop poll, none is left for this worker: it shares them.
    Beside { name: "beside 1 ms of computing in a worker", mode: Mode::Worker, work: Work::Compute, slow: 1 },
    Beside { name: FULL, mode: Mode::Worker, work: Work::Wait, slow: FULL_POOL },
];

type Column = Figure<(Carrier, Beside), WorkersFigures>;

const FIGURES: [Column; 6] = [
    Column::new(Metric::LatencyP50, |_, seen| seen.quick.p50),
    Column::new(Metric::LatencyP99, |_, seen| seen.quick.p99).target(|(carrier, beside)| {
        let case = format!("{} {ALONE}", carrier.name());
        (beside.name == WORKER).then_some(Target::CaseTimes { case, factor: FACTOR })
    }),
    // A computing worker causes few long pauses for the others.
    Column::new(Metric::LatencyP999, |_, seen| seen.quick.p999),
    // The fate of the slow calls: each is answered or rejected.
    Column::new(Metric::Rate, |_, seen| seen.answered).part(", slow calls answered").only_if(is_full),
    Column::new(Metric::Rate, |_, seen| seen.busy).part(", slow calls pushed back as busy").only_if(is_full),
    Column::new(Metric::Calls, |_, seen| seen.lost)
        .part(", slow calls lost")
        .only_if(is_full)
        .target(|_| Some(Target::Absolute(0.0))),
];

fn is_full((_, beside): &(Carrier, Beside)) -> bool {
    beside.name == FULL
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = transports().joined(" ").by("slow calls", CASES, |beside| beside.name);
    lab.measure_each(&cases, &FIGURES, |lab, (carrier, beside)| measure(lab, *carrier, beside))
}

fn measure(lab: &Lab, carrier: Carrier, beside: &Beside) -> Result<WorkersFigures, BenchError> {
    let setup = Setup::new(carrier);
    let server = SlowServer { setup: setup.clone(), mode: beside.mode, work: beside.work, core: lab.cores()?.server };
    let mut server = lab.anywhere(server, lab.run_length() + CLIENT_SLACK)?;
    let client = WorkersClient { setup, server: server.ready()?, slow: beside.slow, run: lab.run_length() };
    let figures = lab.client(client, lab.run_length())?.result()?;
    server.stop()?;
    Ok(figures)
}
