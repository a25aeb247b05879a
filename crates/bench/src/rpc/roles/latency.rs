//! One call at a time.

use std::time::Duration;

use dunlin_lab::measure::{Latencies, Percentiles};
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::{Addr, Clock, Transport};
use dunlin_rpc::{Endpoint, MsgBuf};
use serde::{Deserialize, Serialize};

use super::ECHO;
use super::setup::{OnTransport, Setup, Side};
use crate::{BenchError, WARM_UP_SHARE};

/// Calls between two figures for the progress bar.
const LIVE_INTERVAL: u64 = 100_000;

/// Echoes through the asynchronous API, one outstanding.
#[derive(Debug, Serialize, Deserialize)]
pub struct LatencyClient {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Bytes of request and response.
    pub size: usize,
    /// Length of the measured run.
    pub run: Duration,
}

impl Role for LatencyClient {
    const NAME: &'static str = "latency client";
    type Ready = ();
    type Output = Percentiles;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Percentiles, BenchError> {
        self.setup.on_transport(Side::Client, Call { client: &self, control })
    }
}

struct Call<'a> {
    client: &'a LatencyClient,
    control: &'a Control<LatencyClient>,
}

impl OnTransport for Call<'_> {
    type Output = Percentiles;

    fn run<T: Transport>(self, transport: T) -> Result<Percentiles, BenchError> {
        let server: Addr = self.client.server.parse()?;
        let endpoint = Endpoint::new(transport, self.client.setup.endpoint())?;
        let session = endpoint.block_on(endpoint.connect(&server))?;
        let payload = vec![7; self.client.size];
        let calls = async {
            let mut buffer = MsgBuf::copy_from(&payload)?;
            let mut latencies = Latencies::new();
            let clock = Clock::new();
            let warm = self.client.run.mul_f64(WARM_UP_SHARE).as_nanos() as u64;
            let end = warm + self.client.run.as_nanos() as u64;
            loop {
                let before = clock.now();
                let reply = session.call(ECHO, buffer).await.map_err(|failure| failure.error)?;
                let after = clock.now();
                if before >= warm {
                    latencies.record(after - before);
                }
                // On a busy machine one call may take longer than the run: it counts then.
                if (after >= end && latencies.count() > 0) || self.control.stopping() {
                    check(&reply.response, &payload)?;
                    return Ok(latencies.percentiles()?);
                }
                if latencies.count() % LIVE_INTERVAL == 1 {
                    self.control.live(Metric::LatencyP50, latencies.percentiles()?.p50);
                }
                buffer = reply.request;
            }
        };
        endpoint.block_on(calls)
    }
}

/// A wrong echo would make the measurement meaningless.
pub(super) fn check(response: &[u8], expected: &[u8]) -> Result<(), BenchError> {
    if response == expected { Ok(()) } else { Err(BenchError::WrongEcho) }
}
