//! Stops others in the middle of what they send over shared memory.

use std::thread;
use std::time::{Duration, Instant};

use dunlin_net::Transport;
use dunlin_rpc::Endpoint;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::counted::Counted;
use crate::BenchError;
use crate::peer::{Control, Role};
use crate::roles::setup::{OnTransport, Setup, Side};

/// How long senders run between two stops: some of their bursts.
const RUN: Duration = Duration::from_micros(50);
/// How long they rest, stopped, where none was caught: so all of this costs the core little.
const REST: Duration = Duration::from_millis(15);
/// What the server awaits now may be of another sender that had no processor for the moment. After so long it is of one that is stopped.
const SETTLE: Duration = Duration::from_millis(1);
/// Longest time between two looks whether to end.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// Stops senders again and again, and asks their server each time whether it awaits packets for which one has taken places. If it does, they
/// stay stopped for long, and if not, they go on soon. So a stop that counts is one in the middle of sending.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stopper {
    /// Transport and endpoint, over shared memory.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Numbers of the senders' processes.
    pub senders: Vec<u32>,
    /// How long one that was caught stays stopped, or until the stopper is to end.
    pub stop: Duration,
}

/// How often senders were stopped.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Stopped {
    /// While the server awaited packets of theirs.
    pub caught: u64,
}

impl Role for Stopper {
    const NAME: &'static str = "stopping of senders";
    /// Said while the first one that was caught is stopped.
    type Ready = ();
    type Output = Stopped;

    fn run(self, control: &Control<Self>) -> Result<Stopped, BenchError> {
        self.setup.on_transport(Side::Client, Stop { stopper: &self, control })
    }
}

struct Stop<'a> {
    stopper: &'a Stopper,
    control: &'a Control<Stopper>,
}

impl OnTransport for Stop<'_> {
    type Output = Stopped;

    fn run<T: Transport>(self, transport: T) -> Result<Stopped, BenchError> {
        let Stopper { setup, server, senders, stop } = self.stopper;
        let endpoint = Endpoint::new(transport, setup.endpoint())?;
        let server = server.parse()?;
        // The question itself stands behind the places of the stopped, so the server has passed those when it answers. A session for each, since
        // a stop is longer than the server keeps a session on which it hears nothing.
        let awaits = || {
            let session = endpoint.block_on(endpoint.connect(&server))?;
            let counted = Counted::ask(&endpoint, &session);
            endpoint.block_on(session.close());
            counted.map(|counted| counted.awaited > 0)
        };
        let mut stopped = Stopped::default();
        while !self.control.stopping() {
            signal(senders, Signal::CONT)?;
            thread::sleep(RUN);
            signal(senders, Signal::STOP)?;
            let mut is_caught = awaits()?;
            if is_caught {
                thread::sleep(SETTLE);
                is_caught = awaits()?;
            }
            if !is_caught {
                self.rest(REST);
                continue;
            }
            stopped.caught += 1;
            if stopped.caught == 1 {
                self.control.ready(());
            }
            self.rest(*stop);
        }
        signal(senders, Signal::CONT)?;
        Ok(stopped)
    }
}

impl Stop<'_> {
    /// Waits, or until it is to end.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.control.stopping() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(LOOK_AROUND));
        }
    }
}

fn signal(processes: &[u32], signal: Signal) -> Result<(), BenchError> {
    for process in processes {
        let Some(process) = Pid::from_raw(*process as i32) else { continue };
        kill_process(process, signal).map_err(|error| BenchError::io("stop a sender and let it go on")(error.into()))?;
    }
    Ok(())
}
