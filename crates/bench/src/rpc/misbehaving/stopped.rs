//! A server over shared memory, and senders that are stopped in the middle of sending.

use std::time::Duration;

use dunlin_lab::peer::Peer;
use dunlin_lab::report::Metric;

use super::hoarders::{SESSIONS_PLANNED, SMALL, echoes, server};
use super::{Cost, Growth, SLICE, Seen, push, push_seen, sharing, slicing, with_threads};
use crate::rpc::roles::{Both, Carrier, Processes, RpcServing, Sender, Setup, Stopped, Stopper};
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
        name: "shm, 8 senders that are stopped within a burst, for 1 s",
        senders: 8,
        stop: Duration::from_secs(1),
        caught: 1,
    },
];
/// Maximum length of a stop, in measured runs, so that short experiments are short.
const RUNS_STOPPED_MAX: u32 = 5;
/// Maximum length of a slice beside stopped senders. It is longer than others, so that most slices see a catch: about
/// every other attempt catches a sender.
const SLICE_MAX: Duration = Duration::from_millis(200);
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
        let runs = lab.case(&name, |lab| round(lab, case))?;
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

/// One run, and how often senders were stopped within a burst during the working load. In slices alone they, the stopper
/// and their server stand still wherever they are; a stop that lasts longer goes on in the next slice beside them.
fn round(lab: &Lab, case: &Stops) -> Result<(Seen, u64), BenchError> {
    let stop = case.stop.min(RUNS_STOPPED_MAX * lab.run_length());
    let slice = stop.clamp(2 * SLICE, SLICE_MAX);
    let run = slicing(lab, slice, Processes::default()).length();
    let mut beside = server(lab, Carrier::Shm, run + PATIENCE)?;
    let mut alone = server(lab, Carrier::Shm, run + PATIENCE)?;
    let (RpcServing { address, process }, other) = (beside.ready()?, alone.ready()?);
    let growth = Growth::of(process)?;
    let senders = senders(lab, &address, case.senders, run)?;
    let led: Vec<u32> = senders.iter().map(Peer::id).collect();
    let setup = Setup::as_shipped(Carrier::Shm, SESSIONS_PLANNED);
    // The first is caught before the load begins.
    let catches = case.caught + 1;
    let stopper = Stopper { setup, server: address.clone(), senders: led.clone(), stop, catches };
    let mut stopper = lab.client(stopper, 4 * run + PATIENCE)?;
    stopper.ready()?;
    let misbehaving = [&led[..], &[stopper.id()]].concat();
    // The stopper first: it must not let a sender continue that stands still already.
    let processes = Processes { beside: vec![stopper.id(), process], led, alone: vec![other.process] };
    let slicing = slicing(lab, slice, processes);
    let servers = Both { beside: address, alone: other.address };
    let (works, taken) = sharing(&misbehaving, || Ok(vec![echoes(lab, Carrier::Shm, &servers, (&SMALL, &slicing))?]))?;
    let grown = growth.most()?;
    let Stopped { caught } = stopper.stop()?;
    for sender in senders {
        // Killed, since the stops may have ended it already.
        sender.kill()?;
    }
    beside.stop()?;
    alone.stop()?;
    Ok((Seen { works, cost: Cost { taken, grown } }, caught - 1))
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
