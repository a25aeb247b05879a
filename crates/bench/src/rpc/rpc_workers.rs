//! `rpc-workers`: section 3.2. Latency of quick calls alone, and beside calls whose handler takes 1 ms, on a worker
//! thread and in the event loop; and the fate of slow calls beyond the workers' queue.

use std::time::Duration;

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use crate::rpc::roles::{Carrier, FULL_POOL, Mode, Setup, SlowServer, Work, WorkersClient, WorkersFigures};
use crate::{BenchError, Lab};

/// Limit of the loaded latency, in unloaded latencies.
const FACTOR: f64 = 2.0;
/// Additional time limit of a server, for starting and ending its client.
const CLIENT_SLACK: Duration = Duration::from_secs(20);

/// The slow calls beside the quick ones.
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

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * CASES.len());
    for carrier in Carrier::ALL {
        for beside in &CASES {
            let case = format!("{} {}", carrier.name(), beside.name);
            let measured = lab.case(&case, |lab| measure(lab, carrier, beside))?;
            lab.push(RowBuilder::new(&case, Metric::LatencyP50, spread(&measured, |figures| figures.quick.p50)?));
            let p99 = RowBuilder::new(&case, Metric::LatencyP99, spread(&measured, |figures| figures.quick.p99)?);
            let alone = format!("{} {ALONE}", carrier.name());
            lab.push(match beside.name {
                WORKER => p99.target(Target::CaseTimes { case: alone, factor: FACTOR }),
                _ => p99,
            });
            // A computing worker causes few long pauses for the others.
            lab.push(RowBuilder::new(&case, Metric::LatencyP999, spread(&measured, |figures| figures.quick.p999)?));
            if beside.name == FULL {
                push_slow(lab, &case, &measured)?;
            }
        }
    }
    Ok(())
}

/// The fate of the slow calls: each is answered or rejected.
fn push_slow(lab: &mut Lab, case: &str, measured: &[WorkersFigures]) -> Result<(), BenchError> {
    let row = |what, metric, spread| RowBuilder::new(format!("{case}, slow calls {what}"), metric, spread);
    lab.push(row("answered", Metric::Rate, spread(measured, |figures| figures.answered)?));
    lab.push(row("pushed back as busy", Metric::Rate, spread(measured, |figures| figures.busy)?));
    let lost = row("lost", Metric::Calls, spread(measured, |figures| figures.lost)?);
    lab.push(lost.target(Target::Absolute(0.0)));
    Ok(())
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
