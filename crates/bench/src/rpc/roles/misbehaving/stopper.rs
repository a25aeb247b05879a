//! Keeps processes stopped that were caught in the middle of sending over shared memory.

use std::thread;
use std::time::{Duration, Instant};

use dunlin_lab::measure::StateWatch;
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{PollPolicy, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::counted::Counted;
use super::slices::signal;
use crate::BenchError;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};

/// Interval of checks whether all senders have stopped.
const LOOK: Duration = Duration::from_micros(500);
/// Pause with stopped senders if none was caught: so the whole procedure costs the core little.
const REST: Duration = Duration::from_millis(15);
/// Pause with stopped senders after one was caught.
const REST_AFTER: Duration = Duration::from_millis(40);
/// Maximum interval of checks whether to end.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// Lets senders continue repeatedly, which stop themselves, and asks their server each time whether it awaits packets
/// whose places are reserved. If it does, they stay stopped for long; if not, they continue soon. So only stops in the
/// middle of sending count. The stopper, the senders and their server may themselves be stopped together at any time.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stopper {
    /// Transport and endpoint, over shared memory.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// The senders' process ids.
    pub senders: Vec<u32>,
    /// How long a caught sender stays stopped, unless the stopper ends first.
    pub stop: Duration,
    /// How often it catches one, at least.
    pub catches: u64,
}

/// How often senders were caught.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Stopped {
    /// While the server awaited their packets.
    pub caught: u64,
}

impl Role for Stopper {
    const NAME: &'static str = "stopping of senders";
    /// Sent while the first caught sender is stopped.
    type Ready = ();
    type Output = Stopped;
    type Error = BenchError;

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
        let Stopper { setup, server, senders, stop, catches } = self.stopper;
        // The answer to a query comes only after the server has given up waiting for the stopped senders. Polling for it
        // would cost the core more than everything else here.
        let endpoint = Endpoint::new(transport, EndpointConfig { poll: PollPolicy::Sleep, ..setup.endpoint() })?;
        let server = server.parse()?;
        // The query itself is queued behind the places of the stopped senders, so the server has passed those when it
        // answers. Each query has its own session, since a stop outlasts the server's timeout of a silent session.
        let awaits = || {
            let session = endpoint.block_on(endpoint.connect(&server))?;
            let counted = Counted::ask(&endpoint, &session);
            endpoint.block_on(session.close());
            counted.map(|counted| counted.awaited > 0)
        };
        let watches = senders.iter().map(|sender| StateWatch::of(*sender)).collect::<Result<Vec<_>, _>>()?;
        let mut stopped = Stopped::default();
        while stopped.caught < *catches || !self.control.stopping() {
            self.run_for_a_moment(&watches)?;
            if !awaits()? {
                self.rest(REST);
                continue;
            }
            stopped.caught += 1;
            if stopped.caught == 1 {
                self.control.ready(());
            }
            self.rest(*stop);
            // Its burst ends now. If the sender stops within another burst, that stop lasts longer.
            self.run_for_a_moment(&watches)?;
            self.rest(REST_AFTER);
        }
        signal(senders, Signal::CONT)?;
        Ok(stopped)
    }
}

impl Stop<'_> {
    /// Sleeps, unless it is to end earlier.
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

    /// Lets senders run until each has stopped itself, after a few bursts.
    fn run_for_a_moment(&self, senders: &[StateWatch]) -> Result<(), BenchError> {
        signal(&self.stopper.senders, Signal::CONT)?;
        for sender in senders {
            // It is stopped already if its turn has come before that of this process.
            while !sender.is_stopped()? {
                thread::sleep(LOOK);
            }
        }
        Ok(())
    }
}
