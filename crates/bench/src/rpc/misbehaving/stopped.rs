//! A server over shared memory, and senders that are stopped in the middle of sending.

use std::time::Duration;

use dunlin_lab::peer::Peer;
use dunlin_lab::report::Metric;

use super::hoarders::{SESSIONS_PLANNED, SMALL, echoes, server};
use super::{Cost, Growth, Order, Seen, load_length, push, push_seen, sharing, with_threads};
use crate::rpc::roles::{Carrier, RpcServing, Sender, Setup, Stopped, Stopper};
use crate::{BenchError, Lab};

/// Senders, and how they are stopped.
struct Stops {
    name: &'static str,
    senders: usize,
    /// How long a sender that was caught in the middle of sending stays stopped.
    stop: Duration,
    /// Required number of catches during a load.
    caught: u64,
}

const CASES: [Stops; 2] = [
    Stops {
        name: "shm, a sender that is stopped within a burst, for 5 ms",
        senders: 1,
        stop: Duration::from_millis(5),
        caught: 2,
    },
    Stops {
        name: "shm, 8 senders that are stopped within a burst, for 5 s",
        senders: 8,
        stop: Duration::from_secs(5),
        caught: 1,
    },
];
/// Maximum length of a stop, in measured runs, so that short experiments are short.
const RUNS_STOPPED_MAX: u32 = 5;
/// Minimum length of a load, so that a sender is caught during each: about every other stop catches one.
const LOAD_MIN: Duration = Duration::from_millis(500);
/// Limit of the server's growth: sessions and the regions of the senders.
const MEMORY_MAX: u64 = 64 << 20;
/// Time limit for catching a sender, which happens only at times.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    for case in &CASES {
        // The senders, and the process that stops them.
        let name = with_threads(case.name, case.senders + 1);
        if !lab.wants(&name) {
            continue;
        }
        let mut order = Order::AloneFirst;
        let runs = lab.case(&name, |lab| round(lab, order.next(), case))?;
        let seen: Vec<Seen> = runs.iter().map(|(seen, _)| seen.clone()).collect();
        push(lab, &name, (Metric::Rate, &[SMALL.name]), &seen, MEMORY_MAX as f64)?;
        push_seen(
            lab,
            format!("{name}, within a burst meanwhile"),
            case.caught,
            runs.iter().map(|(_, caught)| *caught),
        );
    }
    Ok(())
}

/// One run, and how often senders were stopped within a burst during the working load.
fn round(lab: &Lab, order: Order, case: &Stops) -> Result<(Seen, u64), BenchError> {
    let stop = case.stop.min(RUNS_STOPPED_MAX * lab.run_length());
    // A long stop is measured from its beginning to its end.
    let alone_run = load_length(lab).max(LOAD_MIN);
    let run = stop.max(alone_run);
    let with_server = || server(lab, Carrier::Shm, 2 * run + PATIENCE);
    let work = |address: &str, run| Ok(vec![echoes(lab, Carrier::Shm, address, (&SMALL, run))?]);
    let (alone, (beside, stopped, cost)) = order.take(
        || {
            let mut server = with_server()?;
            let alone = work(&server.ready()?.address, alone_run)?;
            server.stop()?;
            Ok(alone)
        },
        || {
            let mut server = with_server()?;
            let RpcServing { address, process } = server.ready()?;
            let growth = Growth::of(process)?;
            let senders = senders(lab, &address, case.senders, run)?;
            let mut numbers: Vec<u32> = senders.iter().map(Peer::id).collect();
            let setup = Setup::as_shipped(Carrier::Shm, SESSIONS_PLANNED);
            let stopper = Stopper { setup, server: address.clone(), senders: numbers.clone(), stop };
            let mut stopper = lab.client(stopper, 4 * run + PATIENCE)?;
            stopper.ready()?;
            numbers.push(stopper.id());
            let (beside, taken) = sharing(&numbers, || work(&address, run))?;
            let grown = growth.most()?;
            let stopped = stopper.stop()?;
            for sender in senders {
                // Killed, since the stops may have ended it already.
                sender.kill()?;
            }
            server.stop()?;
            Ok((beside, stopped, Cost { taken, grown }))
        },
    )?;
    let Stopped { caught } = stopped;
    // The first one was caught before the load began, and counts only if it was still stopped then.
    Ok((Seen::new(alone, beside, cost), caught - u64::from(stop < alone_run)))
}

fn senders(lab: &Lab, server: &str, count: usize, run: Duration) -> Result<Vec<Peer<Sender>>, BenchError> {
    let start = |_| {
        let setup = Setup::as_shipped(Carrier::Shm, SESSIONS_PLANNED);
        let mut sender = lab.client(Sender { setup, server: server.to_owned() }, 4 * run + PATIENCE)?;
        sender.ready()?;
        Ok(sender)
    };
    (0..count).map(start).collect()
}
