//! Calls over a path that starts to drop long packets after its session was opened.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use dunlin_lab::peer::{Control, Role};
use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, MsgBuf};
use serde::{Deserialize, Serialize};

use super::losing::{Losing, Loss};
use crate::BenchError;
use crate::rpc::roles::ECHO;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};

/// Maximum packet that the path carries in the end.
const PACKET_BYTES_MAX: usize = 1_400;
/// Bytes of a call.
const BYTES: usize = 20_000;
/// Time limit for a call to end, with success or an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two calls: they are to succeed, not to be many.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval of checks whether a call has ended.
const LOOK_AROUND: Duration = Duration::from_millis(1);

/// Calls over such a path, one at a time and without deadlines.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShortPath {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
}

/// The results of its calls.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct ShortPathCalls {
    /// Calls that were answered.
    pub answered: u32,
    /// Calls that ended with an error.
    pub failed: u32,
    /// Calls that did not end.
    pub stuck: u32,
}

impl Role for ShortPath {
    const NAME: &'static str = "calls over a path that takes shorter packets";
    type Ready = ();
    type Output = ShortPathCalls;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<ShortPathCalls, BenchError> {
        self.setup.on_transport(Side::Client, Calls { role: &self, control })
    }
}

struct Calls<'a> {
    role: &'a ShortPath,
    control: &'a Control<ShortPath>,
}

impl OnTransport for Calls<'_> {
    type Output = ShortPathCalls;

    fn run<T: Transport>(self, transport: T) -> Result<ShortPathCalls, BenchError> {
        let loss = Rc::new(Cell::new(Loss::Nothing));
        let endpoint = Endpoint::new(Losing { inner: transport, loss: loss.clone() }, self.role.setup.endpoint())?;
        let server = self.role.server.parse()?;
        let session = endpoint.block_on(endpoint.connect(&server))?;
        endpoint.block_on(session.call(ECHO, MsgBuf::with_len(BYTES)?)).map_err(|failure| failure.error)?;
        loss.set(Loss::LongerThan(PACKET_BYTES_MAX));
        self.control.ready(());
        let mut calls = ShortPathCalls::default();
        // It waits for the first one, however short the run is.
        while calls.answered + calls.failed == 0 || !self.control.stopping() {
            let mut call = pin!(session.call(ECHO, MsgBuf::with_len(BYTES)?));
            let since = Instant::now();
            let ended = loop {
                endpoint.run_once();
                if let Some(ended) = endpoint.poll_once(call.as_mut()) {
                    break Some(ended);
                }
                let is_first = calls.answered + calls.failed == 0;
                if since.elapsed() > PATIENCE || (self.control.stopping() && !is_first) {
                    break None;
                }
                thread::sleep(LOOK_AROUND);
            };
            match ended {
                Some(Ok(_)) => calls.answered += 1,
                Some(Err(_)) => calls.failed += 1,
                None => {
                    calls.stuck += u32::from(since.elapsed() > PATIENCE);
                    break;
                }
            }
            thread::sleep(PAUSE);
        }
        Ok(calls)
    }
}
