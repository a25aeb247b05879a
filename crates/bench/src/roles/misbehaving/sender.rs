//! A client for others to stop in the middle of what it does.

use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::Endpoint;
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::peer::{Control, Role};
use crate::roles::load::Load;
use crate::roles::rate::open_sessions;
use crate::roles::setup::{OnTransport, Setup, Side};

/// Sessions over which its calls are spread.
const SESSIONS: usize = 8;
/// Calls in a batch, and on the way.
const BATCHES: (usize, usize) = (3, 60);
/// Bytes of a call.
const BYTES: usize = 32;
/// Longer than any experiment.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// Sends small calls as fast as it can.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sender {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
}

impl Role for Sender {
    const NAME: &'static str = "client that is stopped now and then";
    type Ready = ();
    type Output = ();

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        self.setup.on_transport(Side::Client, Call { sender: &self, control })
    }
}

struct Call<'a> {
    sender: &'a Sender,
    control: &'a Control<Sender>,
}

impl OnTransport for Call<'_> {
    type Output = ();

    fn run<T: Transport>(self, transport: T) -> Result<(), BenchError> {
        let endpoint = Endpoint::new(transport, self.sender.setup.endpoint())?;
        let server = self.sender.server.parse()?;
        let mut was_ready = false;
        while !self.control.stopping() {
            let sessions = open_sessions(&endpoint, &server, SESSIONS)?;
            if !std::mem::replace(&mut was_ready, true) {
                self.control.ready(());
            }
            let (batch, in_flight) = BATCHES;
            let load = Load::uniform(batch, in_flight, BYTES, FOR_EVER);
            // Who is stopped for long is taken for dead by the server, and begins anew.
            match load.run(&endpoint, sessions, |_| !self.control.stopping()) {
                Ok(_) | Err(BenchError::Call(_) | BenchError::NoSamples { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
