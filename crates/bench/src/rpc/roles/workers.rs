//! A slow handler beside quick ones: section 3.2 of the paper.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::{Latencies, Percentiles, pin};
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Addr, Clock, Transport};
use dunlin_rpc::{CallError, Endpoint, EndpointConfig, MsgBuf, Session, WorkerPool};
use serde::{Deserialize, Serialize};

use super::setup::{OnTransport, Setup, Side};
use super::{ECHO, SLOW};
use crate::{BenchError, WARM_UP_SHARE};

/// Duration of the slow handler.
const SLOW_TIME: Duration = Duration::from_millis(1);
/// Worker threads.
const WORKERS: usize = 1;
/// Queue limit of the workers.
const WORKER_QUEUE: usize = 64;
/// Outstanding slow calls with which the queue is full: the worker and the queue hold half of them.
pub const FULL_POOL: usize = 2 * (WORKERS + WORKER_QUEUE);
/// Time limit for the last slow calls; calls without an answer by then are lost.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Where the slow handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// In the event loop.
    Dispatch,
    /// On a worker thread.
    Worker,
}

/// What the slow handler does during that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// It sleeps, as when waiting for a device.
    Wait,
    /// It computes, so it needs a core.
    Compute,
}

impl Work {
    fn run(self) {
        match self {
            Work::Wait => std::thread::sleep(SLOW_TIME),
            Work::Compute => {
                let clock = Clock::new();
                while clock.now() < SLOW_TIME.as_nanos() as u64 {}
            }
        }
    }
}

/// Serves [`ECHO`] in dispatch mode and [`SLOW`] in either mode.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlowServer {
    /// Transport and endpoint.
    pub setup: Setup,
    /// Where the slow handler runs.
    pub mode: Mode,
    /// What the slow handler does.
    pub work: Work,
    /// Processor of the event loop; the system places the workers.
    pub core: usize,
}

impl Role for SlowServer {
    const NAME: &'static str = "server with a slow handler";
    /// Its address.
    type Ready = String;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        // Its threads inherit the affinity of this one, so it is made before pinning.
        let pool = WorkerPool::new(WORKERS, WORKER_QUEUE).map_err(BenchError::io("start worker threads"))?;
        pin(self.core)?;
        self.setup.on_transport(Side::Server, Serve { server: &self, pool, control })
    }
}

struct Serve<'a> {
    server: &'a SlowServer,
    pool: WorkerPool,
    control: &'a Control<SlowServer>,
}

impl OnTransport for Serve<'_> {
    type Output = ();

    fn run<T: Transport>(self, transport: T) -> Result<(), BenchError> {
        let endpoint = Endpoint::new(transport, self.server.setup.endpoint())?;
        endpoint.register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })?;
        let work = self.server.work;
        match self.server.mode {
            Mode::Dispatch => endpoint.register(SLOW, move |request| {
                work.run();
                let payload = request.payload();
                request.respond(payload);
            })?,
            Mode::Worker => endpoint.register_worker(SLOW, &self.pool, move |request| {
                work.run();
                request.into_payload()
            })?,
        }
        self.control.ready(endpoint.local_addr().to_string());
        endpoint.run_until(|| self.control.stopping());
        Ok(())
    }
}

/// Measures quick calls, one outstanding, while slow ones are outstanding too.
#[derive(Debug, Serialize, Deserialize)]
pub struct WorkersClient {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Slow calls outstanding.
    pub slow: usize,
    /// Length of the measured run.
    pub run: Duration,
}

/// The result.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct WorkersFigures {
    /// Latencies of the quick calls.
    pub quick: Percentiles,
    /// Slow calls answered per second.
    pub answered: f64,
    /// Slow calls rejected per second because the workers' queue was full.
    pub busy: f64,
    /// Slow calls that were neither answered nor rejected.
    pub lost: f64,
}

impl Role for WorkersClient {
    const NAME: &'static str = "client of slow and quick calls";
    type Ready = ();
    type Output = WorkersFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<WorkersFigures, BenchError> {
        self.setup.on_transport(Side::Client, Call { client: &self, control })
    }
}

struct Call<'a> {
    client: &'a WorkersClient,
    control: &'a Control<WorkersClient>,
}

impl OnTransport for Call<'_> {
    type Output = WorkersFigures;

    fn run<T: Transport>(self, transport: T) -> Result<WorkersFigures, BenchError> {
        let server: Addr = self.client.server.parse()?;
        let endpoint = Endpoint::new(transport, self.client.setup.endpoint())?;
        let quick = endpoint.block_on(endpoint.connect(&server))?;
        let slow = Rc::new(SlowCalls::default());
        let slots = usize::from(EndpointConfig::default().slots);
        for first in (0..self.client.slow).step_by(slots) {
            let session = endpoint.block_on(endpoint.connect(&server))?;
            for _ in first..self.client.slow.min(first + slots) {
                endpoint.spawn(call_slowly(session.clone(), Rc::clone(&slow)));
            }
        }
        let clock = Clock::new();
        let quick = endpoint.block_on(self.call_quickly(&clock, quick, &slow))?;
        let seconds = clock.now() as f64 / 1e9;
        let (answered, busy) = (slow.answered.get() as f64 / seconds, slow.busy.get() as f64 / seconds);
        slow.stopping.set(true);
        let drained_by = clock.now() + DRAIN_MAX.as_nanos() as u64;
        endpoint.run_until(|| slow.outstanding() == 0 || clock.now() >= drained_by);
        Ok(WorkersFigures { quick, answered, busy, lost: slow.outstanding() as f64 })
    }
}

impl Call<'_> {
    async fn call_quickly(&self, clock: &Clock, quick: Session, slow: &SlowCalls) -> Result<Percentiles, BenchError> {
        let warm = self.client.run.mul_f64(WARM_UP_SHARE).as_nanos() as u64;
        let end = warm + self.client.run.as_nanos() as u64;
        let mut latencies = Latencies::new();
        let mut buffer = MsgBuf::copy_from(&[7; 32])?;
        loop {
            let before = clock.now();
            buffer = quick.call(ECHO, buffer).await.map_err(|failure| failure.error)?.request;
            let after = clock.now();
            if before >= warm {
                latencies.record(after - before);
            }
            if let Some(error) = slow.failed.take() {
                return Err(BenchError::from(error));
            }
            // Beside a slow handler one call may take longer than the run: it counts then.
            if (after >= end && latencies.count() > 0) || self.control.stopping() {
                return Ok(latencies.percentiles()?);
            }
        }
    }
}

/// The results of the slow calls.
#[derive(Default)]
struct SlowCalls {
    issued: Cell<u64>,
    answered: Cell<u64>,
    busy: Cell<u64>,
    failed: Cell<Option<CallError>>,
    stopping: Cell<bool>,
}

impl SlowCalls {
    fn outstanding(&self) -> u64 {
        self.issued.get() - self.answered.get() - self.busy.get()
    }
}

/// Keeps one slow call outstanding until it is told to stop or one fails. A rejected call is issued again.
async fn call_slowly(session: Session, calls: Rc<SlowCalls>) {
    let count = |counter: &Cell<u64>| counter.set(counter.get() + 1);
    let mut request = vec![7; 32];
    while !calls.stopping.get() {
        count(&calls.issued);
        match session.call(SLOW, request).await {
            Ok(reply) => {
                count(&calls.answered);
                request = reply.request;
            }
            Err(failure) if failure.error == CallError::Busy => {
                count(&calls.busy);
                request = failure.request;
            }
            Err(failure) => return calls.failed.set(Some(failure.error)),
        }
    }
}
