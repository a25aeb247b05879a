//! Clients of Spec-S0.

use std::time::Duration;

use dunlin_lab::measure::Latencies;
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::{Addr, Transport};
use dunlin_seq::direct::{DirectClient, DirectConfig};
use serde::{Deserialize, Serialize};

use super::window::Window;
use super::{NumberFigures, TIMEOUT};
use crate::BenchError;
use crate::rpc::roles::setup::{OnTransports, Setup, Side};

/// Turns of all clients between two looks at the clock.
const TURNS_PER_LOOK: u32 = 64;

/// Clients of Spec-S0 on one thread, each with a transport of its own. They take turns.
#[derive(Debug, Serialize, Deserialize)]
pub struct SeqDirectClients {
    /// The transport.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Clients.
    pub clients: usize,
    /// Calls that each client has in progress.
    pub in_flight: usize,
    /// Whether latencies are recorded. This reads the clock twice for each number.
    pub timed: bool,
    /// The run continues until every client has had a number as high as this. 0 for none.
    pub beyond: u64,
    /// Length of the measured run.
    pub run: Duration,
}

impl Role for SeqDirectClients {
    const NAME: &'static str = "clients of Spec-S0";
    type Ready = ();
    type Output = NumberFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<NumberFigures, BenchError> {
        self.setup.on_transports(Side::Client, self.clients, Ask { clients: &self, control })
    }
}

struct Ask<'a> {
    clients: &'a SeqDirectClients,
    control: &'a Control<SeqDirectClients>,
}

impl OnTransports for Ask<'_> {
    type Output = NumberFigures;

    fn run<T: Transport + 'static>(self, transports: Vec<T>) -> Result<NumberFigures, BenchError> {
        let SeqDirectClients { in_flight, timed, beyond, run, .. } = *self.clients;
        let server: Addr = self.clients.server.parse()?;
        let config = DirectConfig { calls_max: in_flight, timeout: TIMEOUT, ..DirectConfig::default() };
        let mut clients = Vec::with_capacity(transports.len());
        for transport in transports {
            clients.push(DirectClient::new(transport, vec![server.clone()], config)?);
        }
        let (mut window, mut latencies) = (Window::new(run), Latencies::new());
        let (mut numbers, mut failure) = (0u64, None);
        loop {
            for _ in 0..TURNS_PER_LOOK {
                for client in &mut clients {
                    while client.in_progress() < in_flight {
                        // The token of a call is the time at which it began.
                        client.ask(if timed { window.now() } else { 0 })?;
                    }
                    client.poll(|began, result| match result {
                        Ok(_) => {
                            numbers += 1;
                            if timed && window.is_measuring() {
                                latencies.record(window.now() - began);
                            }
                        }
                        Err(error) => failure = Some(error),
                    });
                }
            }
            if let Some(error) = failure {
                return Err(error.into());
            }
            let is_over = window.look(numbers, |rate| self.control.live(Metric::Operations, rate));
            let are_beyond = clients.iter().all(|client| client.seen() >= Some(beyond));
            if (is_over && are_beyond) || self.control.stopping() {
                break;
            }
        }
        let latency = if timed { Some(latencies.percentiles()?) } else { None };
        Ok(NumberFigures { rate: window.rate()?, latency })
    }
}
