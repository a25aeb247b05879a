//! One large request at a time: the load of the paper's section 6.4.

use std::time::Duration;

use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::{Addr, Clock, Transport};
use dunlin_rpc::{Endpoint, MsgBuf};
use serde::{Deserialize, Serialize};

use super::latency::check;
use super::setup::{OnTransport, Setup, Side};
use super::{SINK, SINK_RESPONSE_BYTES};
use crate::{BenchError, WARM_UP_SHARE};

/// Interval of figures for the progress bar.
const LIVE_INTERVAL_NANOS: u64 = 200_000_000;

/// Requests of one size, one outstanding, with small responses.
#[derive(Debug, Serialize, Deserialize)]
pub struct BandwidthClient {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Bytes of a request.
    pub size: usize,
    /// Length of the measured run.
    pub run: Duration,
}

impl Role for BandwidthClient {
    const NAME: &'static str = "bandwidth client";
    type Ready = ();
    /// Bits of requests per second.
    type Output = f64;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<f64, BenchError> {
        self.setup.on_lossy_transport(Side::Client, Call { client: &self, control })
    }
}

struct Call<'a> {
    client: &'a BandwidthClient,
    control: &'a Control<BandwidthClient>,
}

impl OnTransport for Call<'_> {
    type Output = f64;

    fn run<T: Transport>(self, transport: T) -> Result<f64, BenchError> {
        let server: Addr = self.client.server.parse()?;
        let endpoint = Endpoint::new(transport, self.client.setup.endpoint())?;
        let session = endpoint.block_on(endpoint.connect(&server))?;
        let calls = async {
            let mut buffer = MsgBuf::with_len(self.client.size)?;
            buffer.fill(7);
            let clock = Clock::new();
            let warm = self.client.run.mul_f64(WARM_UP_SHARE).as_nanos() as u64;
            let length = self.client.run.as_nanos() as u64;
            let (mut from, mut calls, mut next_live) = (None, 0u64, LIVE_INTERVAL_NANOS);
            loop {
                let reply = session.call(SINK, buffer).await.map_err(|failure| failure.error)?;
                let now = clock.now();
                calls += 1;
                let Some((start, before)) = from else {
                    // Counting starts with the first call after the warm-up, however long a call takes.
                    from = (now >= warm).then_some((now, calls));
                    buffer = reply.request;
                    continue;
                };
                let rate = (calls - before) as f64 * self.client.size as f64 * 8e9 / (now - start) as f64;
                if now >= start + length || self.control.stopping() {
                    check(&reply.response, &[0; SINK_RESPONSE_BYTES])?;
                    return Ok(rate);
                }
                if now >= next_live {
                    next_live = now + LIVE_INTERVAL_NANOS;
                    self.control.live(Metric::Bandwidth, rate);
                }
                buffer = reply.request;
            }
        };
        endpoint.block_on(calls)
    }
}
