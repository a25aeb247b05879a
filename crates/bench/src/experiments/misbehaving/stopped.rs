//! A server over shared memory, and senders that are stopped in the middle of what they send.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::hoarders::{SESSIONS_PLANNED, echoes, server};
use super::{Growth, Seen, push, push_seen, sharing};
use crate::BenchError;
use crate::lab::Lab;
use crate::peer::Peer;
use crate::report::Metric;
use crate::roles::{Carrier, RpcServing, Sender, Setup};

/// Senders, and how they are stopped.
struct Stops {
    name: &'static str,
    senders: usize,
    /// How long they run at a time.
    run: Duration,
    /// How long they are stopped then.
    stop: Duration,
}

const CASES: [Stops; 2] = [
    Stops {
        name: "shm, a busy sender that is stopped every 5 ms",
        senders: 1,
        run: Duration::from_millis(5),
        stop: Duration::from_millis(5),
    },
    // Of several, since a sender that is stopped once is seldom in the middle of a packet.
    Stops {
        name: "shm, 8 busy senders that are stopped for 5 s",
        senders: 8,
        run: Duration::from_millis(20),
        stop: Duration::from_secs(5),
    },
];
/// No stop is longer than so many measured runs, so that short experiments are short.
const RUNS_STOPPED_MAX: u32 = 5;
/// Longest time between two looks whether the load is over.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// Memory by which the server may grow: sessions and the regions of the senders.
const MEMORY_MAX: u64 = 64 << 20;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    for case in &CASES {
        let runs = lab.case(case.name, |lab| round(lab, case))?;
        let seen: Vec<Seen> = runs.iter().map(|(seen, _)| *seen).collect();
        push(lab, case.name, Metric::Rate, &seen, MEMORY_MAX as f64)?;
        push_seen(lab, format!("{}, stops meanwhile", case.name), runs.iter().map(|(_, stops)| *stops));
    }
    Ok(())
}

/// One run, and how often the senders were stopped beside the working load.
fn round(lab: &Lab, case: &Stops) -> Result<(Seen, u64), BenchError> {
    let stop = case.stop.min(RUNS_STOPPED_MAX * lab.run_length());
    // A stop is measured from its beginning to its end.
    let run = stop.max(lab.run_length());
    let mut server = server(lab, Carrier::Shm, 2 * run)?;
    let RpcServing { address, process } = server.ready()?;
    let work = || echoes(lab, Carrier::Shm, &address, run);
    let alone = work()?;
    let growth = Growth::of(process)?;
    let mut senders = Vec::new();
    for _ in 0..case.senders {
        let setup = Setup::as_shipped(Carrier::Shm, SESSIONS_PLANNED);
        let mut sender = lab.client(Sender { setup, server: address.clone() }, 4 * run)?;
        sender.ready()?;
        senders.push(sender);
    }
    let numbers: Vec<u32> = senders.iter().map(Peer::id).collect();
    let ((beside, stops), taken) = sharing(&numbers, || while_stopping(&numbers, case.run, stop, work))?;
    let grown = growth.most()?;
    for sender in senders {
        // Killed, since it may have ended of what was done to it.
        sender.kill()?;
    }
    server.stop()?;
    Ok((Seen { alone, beside, taken, grown }, stops))
}

/// Does something while processes are stopped and go on again and again, and says how often. They run when this returns.
fn while_stopping<T>(
    processes: &[u32],
    run: Duration,
    stop: Duration,
    measure: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(T, u64), BenchError> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopping = scope.spawn(|| {
            let mut stops = 0;
            while !over.load(Ordering::Relaxed) {
                wait(run, &over);
                signal(processes, Signal::STOP)?;
                stops += 1;
                wait(stop, &over);
                signal(processes, Signal::CONT)?;
            }
            Ok(stops)
        });
        let measured = measure();
        over.store(true, Ordering::Relaxed);
        let stopped: Result<u64, BenchError> = stopping.join().expect("the thread above does not panic");
        Ok((measured?, stopped?))
    })
}

/// Waits, or until it is over.
fn wait(time: Duration, over: &AtomicBool) {
    let until = Instant::now() + time;
    while !over.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(LOOK_AROUND));
    }
}

fn signal(processes: &[u32], signal: Signal) -> Result<(), BenchError> {
    for process in processes {
        let Some(process) = Pid::from_raw(*process as i32) else { continue };
        kill_process(process, signal).map_err(|error| BenchError::io("stop a sender and let it go on")(error.into()))?;
    }
    Ok(())
}
