//! Many operations on single keys in flight.

use std::rc::Rc;
use std::time::Duration;

use dunlin_kv::client::{ClientConfig, KvClient};
use dunlin_lab::measure::Percentiles;
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::{Clock, Transport};
use dunlin_rpc::Endpoint;
use serde::{Deserialize, Serialize};

use super::driver::{Driver, Next, Unstored};
use crate::rpc::roles::setup::{OnTransport, Setup, Side};
use crate::workload::{Mix, Operations};
use crate::{BenchError, WARM_UP_SHARE};

/// Operations in flight while the items of the load are stored.
const FILL_IN_FLIGHT: usize = 64;
/// Numbers of items that are drawn before a load begins, if drawing is slow: more items than any cache holds.
const DRAWN_AHEAD: usize = 4 << 20;
/// Requests of a session in flight at a time.
const SLOTS: usize = 8;
/// Event-loop iterations between two readings of the clock.
const ITERATIONS_PER_LOOK: u32 = 64;
/// Interval of figures for the progress bar.
const LIVE_INTERVAL_NANOS: u64 = 200_000_000;

/// Whether to store the items first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fill {
    /// Stores all of them, from 0 on, once each.
    All,
    /// They exist already.
    None,
}

/// Stores items if requested, then runs operations of a mix on them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KvLoad {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Whether to store the items first.
    pub fill: Fill,
    /// Number of items.
    pub items: u64,
    /// Bytes of their values.
    pub value_bytes: usize,
    /// The mix of operations.
    pub mix: Mix,
    /// Operations in flight.
    pub in_flight: usize,
    /// Length of the measured run; if it is zero, nothing is measured.
    pub run: Duration,
}

/// The result.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct KvFigures {
    /// Operations per second.
    pub rate: f64,
    /// From submitting an operation until its answer was verified; for one slot in sixteen.
    pub latency: Percentiles,
    /// Share of reads that found their item, from 0 to 1.
    pub hits: f64,
    /// Number of items now.
    pub items: u64,
}

impl Role for KvLoad {
    const NAME: &'static str = "load of a key-value server";
    type Ready = ();
    /// None if nothing was measured.
    type Output = Option<KvFigures>;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Option<KvFigures>, BenchError> {
        self.setup.on_transport(Side::Client, Drive { load: &self, control })
    }
}

struct Drive<'a> {
    load: &'a KvLoad,
    control: &'a Control<KvLoad>,
}

impl OnTransport for Drive<'_> {
    type Output = Option<KvFigures>;

    fn run<T: Transport + 'static>(self, transport: T) -> Result<Option<KvFigures>, BenchError> {
        let KvLoad { items, value_bytes, mix, in_flight, .. } = *self.load;
        let endpoint = Rc::new(Endpoint::new(transport, self.load.setup.endpoint())?);
        let client = connect(&endpoint, &self.load.server, in_flight.max(FILL_IN_FLIGHT))?;
        if self.load.fill == Fill::All {
            let fill = Driver::start(
                &endpoint,
                &client,
                Next::Fill(Unstored { next: 0, items }),
                FILL_IN_FLIGHT,
                value_bytes,
            )?;
            endpoint.run_until(|| fill.is_done() || self.control.stopping());
            fill.finish()?;
        }
        if self.load.run.is_zero() {
            return Ok(None);
        }
        let mut operations = Operations::new(mix, items, u64::from(std::process::id()));
        operations.draw_ahead(DRAWN_AHEAD);
        let driver = Driver::start(&endpoint, &client, Next::Mix(Box::new(operations)), in_flight, value_bytes)?;
        self.measure(&endpoint, driver).map(Some)
    }
}

impl Drive<'_> {
    fn measure<T: Transport>(&self, endpoint: &Endpoint<T>, driver: Driver) -> Result<KvFigures, BenchError> {
        let clock = Clock::new();
        let (warm, length) = (self.load.run.mul_f64(WARM_UP_SHARE).as_nanos() as u64, self.load.run.as_nanos() as u64);
        let (mut from, mut seconds) = (None, 0.0);
        let (mut iterations, mut next_live) = (0u32, LIVE_INTERVAL_NANOS);
        endpoint.run_until(|| {
            iterations = iterations.wrapping_add(1);
            if !iterations.is_multiple_of(ITERATIONS_PER_LOOK) {
                return false;
            }
            let now = clock.now();
            match from {
                None if now >= warm && driver.answered() > 0 => {
                    from = Some(now);
                    driver.count_anew();
                }
                None => {}
                Some(start) => seconds = (now - start) as f64 / 1e9,
            }
            if now >= next_live && seconds > 0.0 {
                next_live = now + LIVE_INTERVAL_NANOS;
                self.control.live(Metric::Operations, driver.answered() as f64 / seconds);
            }
            // On a busy machine one answer may take longer than the run: it counts then.
            let over = from.is_some_and(|start| now >= start + length) && driver.is_timed();
            over || driver.has_failed() || self.control.stopping()
        });
        driver.figures(seconds)
    }
}

/// A client whose sessions hold this many concurrent operations.
pub(super) fn connect<T: Transport + 'static>(
    endpoint: &Rc<Endpoint<T>>,
    server: &str,
    in_flight: usize,
) -> Result<KvClient<T>, BenchError> {
    let mut config = ClientConfig::default();
    config.sessions_per_core = in_flight.div_ceil(SLOTS).clamp(1, ClientConfig::SESSIONS_MAX);
    Ok(endpoint.block_on(KvClient::connect(endpoint, &server.parse()?, config))?)
}
