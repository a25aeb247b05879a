//! Many calls in flight.

use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, Session};
use serde::{Deserialize, Serialize};

use super::load::Load;
use super::setup::{OnTransport, Setup, Side};
use crate::BenchError;

/// Sessions opened concurrently.
const OPENING_MAX: usize = 64;

/// Echoes in batches over several sessions.
#[derive(Debug, Serialize, Deserialize)]
pub struct RateClient {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Sessions to open.
    pub sessions: usize,
    /// The load on them.
    pub load: Load,
}

/// The result of a [`RateClient`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RateFigures {
    /// Calls per second.
    pub rate: f64,
    /// Retransmissions per second, from the first call to the last.
    pub retransmissions: f64,
}

impl Role for RateClient {
    const NAME: &'static str = "rate client";
    type Ready = ();
    type Output = RateFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<RateFigures, BenchError> {
        self.setup.on_transport(Side::Client, Call { client: &self, control })
    }
}

struct Call<'a> {
    client: &'a RateClient,
    control: &'a Control<RateClient>,
}

impl OnTransport for Call<'_> {
    type Output = RateFigures;

    fn run<T: Transport>(self, transport: T) -> Result<RateFigures, BenchError> {
        let endpoint = Endpoint::new(transport, self.client.setup.endpoint())?;
        let sessions = open_sessions(&endpoint, &self.client.server.parse()?, self.client.sessions)?;
        let (start, before) = (endpoint.now(), endpoint.stats().counters.retransmissions);
        let rate = self.client.load.run(&endpoint, sessions, |rate| {
            self.control.live(Metric::Rate, rate);
            !self.control.stopping()
        })?;
        let again = endpoint.stats().counters.retransmissions - before;
        let seconds = (endpoint.now() - start).max(1) as f64 / 1e9;
        Ok(RateFigures { rate, retransmissions: again as f64 / seconds })
    }
}

/// Opens sessions, several at a time.
pub(crate) fn open_sessions<T: Transport>(
    endpoint: &Endpoint<T>,
    server: &Addr,
    count: usize,
) -> Result<Vec<Session>, BenchError> {
    let mut sessions = Vec::with_capacity(count);
    while sessions.len() < count {
        let opening: Vec<_> = (sessions.len()..count).take(OPENING_MAX).map(|_| endpoint.connect(server)).collect();
        for connecting in opening {
            sessions.push(endpoint.block_on(connecting)?);
        }
    }
    Ok(sessions)
}
