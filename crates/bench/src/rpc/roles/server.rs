//! The server of most experiments.

use dunlin_lab::measure::resident_bytes;
use dunlin_lab::peer::{Control, Role};
use dunlin_net::Transport;
use dunlin_rpc::Endpoint;
use serde::{Deserialize, Serialize};

use super::setup::{OnTransport, Setup, Side};
use super::{ECHO, MEMORY, SINK, SINK_RESPONSE_BYTES};
use crate::BenchError;

/// Serves [`ECHO`], [`SINK`] and [`MEMORY`] until it is stopped.
#[derive(Debug, Serialize, Deserialize)]
pub struct EchoServer {
    /// Transport and endpoint.
    pub setup: Setup,
}

impl Role for EchoServer {
    const NAME: &'static str = "echo server";
    /// Its address.
    type Ready = String;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        self.setup.on_lossy_transport(Side::Server, Serve { setup: &self.setup, control })
    }
}

struct Serve<'a> {
    setup: &'a Setup,
    control: &'a Control<EchoServer>,
}

impl OnTransport for Serve<'_> {
    type Output = ();

    fn run<T: Transport>(self, transport: T) -> Result<(), BenchError> {
        let endpoint = Endpoint::new(transport, self.setup.endpoint())?;
        endpoint.register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })?;
        endpoint.register(SINK, |request| request.respond(&[0; SINK_RESPONSE_BYTES]))?;
        // If the server cannot read it, it drops the request, and the client gets an error.
        endpoint.register(MEMORY, |request| {
            if let Ok(bytes) = resident_bytes() {
                request.respond(&bytes.to_le_bytes());
            }
        })?;
        self.control.ready(endpoint.local_addr().to_string());
        endpoint.run_until(|| self.control.stopping());
        Ok(())
    }
}
