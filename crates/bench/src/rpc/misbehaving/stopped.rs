//! A server over shared memory, and senders that are stopped in the middle of sending.

use std::time::Duration;

use dunlin_lab::measure::Scratch;
use dunlin_lab::peer::Peer;
use dunlin_lab::report::Metric;

use super::hoarders::{SESSIONS_PLANNED, SMALL, echoes, server};
use super::{BLOCKS_MIN, Cost, Growth, SLICE, Seen, push, push_seen, sharing, with_threads};
use crate::rpc::roles::{Carrier, Pause, RpcServing, Sender, Setup, Slicing, Stopped, Stopper};
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
/// Maximum length of a slice beside stopped senders, for catching some in each: about every other stop catches one.
const SLICE_MAX: Duration = Duration::from_millis(500);
/// Time before a slice, for catching the first, or for letting all go.
const SETTLE: Duration = Duration::from_millis(100);
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

/// One run, and how often senders were stopped within a burst during the working load. While they are paused, they
/// stand still outside of a burst.
fn round(lab: &Lab, case: &Stops) -> Result<(Seen, u64), BenchError> {
    let stop = case.stop.min(RUNS_STOPPED_MAX * lab.run_length());
    let scratch = Scratch::make("stopped-senders")?;
    let pause = scratch.path().join("paused");
    let slice = stop.clamp(2 * SLICE, SLICE_MAX);
    let blocks = (lab.run_length().as_nanos() / (4 * (slice + SETTLE)).as_nanos()) as u32;
    let slicing = Slicing { pause: Pause::Flag(pause.clone()), slice, settle: SETTLE, blocks: blocks.max(BLOCKS_MIN) };
    let run = super::length(&slicing);
    let mut server = server(lab, Carrier::Shm, run + PATIENCE)?;
    let RpcServing { address, process } = server.ready()?;
    let growth = Growth::of(process)?;
    let senders = senders(lab, &address, case.senders, run)?;
    let mut numbers: Vec<u32> = senders.iter().map(Peer::id).collect();
    let setup = Setup::as_shipped(Carrier::Shm, SESSIONS_PLANNED);
    // The first is caught before the load begins.
    let catches = case.caught + 1;
    let stopper = Stopper { setup, server: address.clone(), senders: numbers.clone(), stop, catches, paused: pause };
    let mut stopper = lab.client(stopper, 4 * run + PATIENCE)?;
    stopper.ready()?;
    numbers.push(stopper.id());
    let (works, taken) = sharing(&numbers, || Ok(vec![echoes(lab, Carrier::Shm, &address, (&SMALL, &slicing))?]))?;
    let grown = growth.most()?;
    let Stopped { caught } = stopper.stop()?;
    for sender in senders {
        // Killed, since the stops may have ended it already.
        sender.kill()?;
    }
    server.stop()?;
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
