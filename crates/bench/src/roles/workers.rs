//! A slow handler beside quick ones: the question of the paper's section 3.2.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Addr, Clock, Transport};
use dunlin_rpc::{CallError, Endpoint, MsgBuf, Session, WorkerPool};
use serde::{Deserialize, Serialize};

use super::setup::{OnTransport, Setup, Side};
use super::{ECHO, SLOW, WARM_UP_SHARE};
use crate::BenchError;
use crate::measure::{Latencies, Percentiles, pin};
use crate::peer::{Control, Role};

/// What the slow handler waits, as for a device.
const SLOW_TIME: Duration = Duration::from_millis(1);
/// Worker threads.
const WORKERS: usize = 1;
/// Requests that may wait for them.
const WORKER_QUEUE: usize = 64;

/// Where the slow handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// In the event loop.
    Dispatch,
    /// On a worker thread.
    Worker,
}

/// Serves [`ECHO`] in dispatch mode and [`SLOW`] in either.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlowServer {
    /// Transport and endpoint.
    pub setup: Setup,
    /// Where the slow handler runs.
    pub mode: Mode,
    /// Processor of the event loop; workers go where the system puts them.
    pub core: usize,
}

impl Role for SlowServer {
    const NAME: &'static str = "server with a slow handler";
    /// Its address.
    type Ready = String;
    type Output = ();

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        // Its threads inherit the processors of this one, so it comes before pinning.
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
        match self.server.mode {
            Mode::Dispatch => endpoint.register(SLOW, |request| {
                std::thread::sleep(SLOW_TIME);
                let payload = request.payload();
                request.respond(payload);
            })?,
            Mode::Worker => endpoint.register_worker(SLOW, &self.pool, |request: MsgBuf| {
                std::thread::sleep(SLOW_TIME);
                request
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

impl Role for WorkersClient {
    const NAME: &'static str = "client of slow and quick calls";
    type Ready = ();
    /// Latencies of the quick calls.
    type Output = Percentiles;

    fn run(self, control: &Control<Self>) -> Result<Percentiles, BenchError> {
        self.setup.on_transport(Side::Client, Call { client: &self, control })
    }
}

struct Call<'a> {
    client: &'a WorkersClient,
    control: &'a Control<WorkersClient>,
}

impl OnTransport for Call<'_> {
    type Output = Percentiles;

    fn run<T: Transport>(self, transport: T) -> Result<Percentiles, BenchError> {
        let server: Addr = self.client.server.parse()?;
        let endpoint = Endpoint::new(transport, self.client.setup.endpoint())?;
        let quick = endpoint.block_on(endpoint.connect(&server))?;
        let failed = Rc::new(Cell::new(None));
        for _ in 0..self.client.slow {
            let slow = endpoint.block_on(endpoint.connect(&server))?;
            endpoint.spawn(call_slowly(slow, Rc::clone(&failed)));
        }
        let clock = Clock::new();
        let warm = self.client.run.mul_f64(WARM_UP_SHARE).as_nanos() as u64;
        let end = warm + self.client.run.as_nanos() as u64;
        let calls = async {
            let mut latencies = Latencies::new();
            let mut buffer = MsgBuf::copy_from(&[7; 32])?;
            loop {
                let before = clock.now();
                buffer = quick.call(ECHO, buffer).await.map_err(|failure| failure.error)?.request;
                let after = clock.now();
                if before >= warm {
                    latencies.record(after - before);
                }
                if let Some(error) = failed.get() {
                    return Err(BenchError::from(error));
                }
                // Beside a slow handler one call may take longer than the run: it counts then.
                if (after >= end && latencies.count() > 0) || self.control.stopping() {
                    return latencies.percentiles();
                }
            }
        };
        endpoint.block_on(calls)
    }
}

/// Keeps one slow call outstanding until one fails.
async fn call_slowly(session: Session, failed: Rc<Cell<Option<CallError>>>) {
    let mut request = vec![7; 32];
    loop {
        match session.call(SLOW, request).await {
            Ok(reply) => request = reply.request,
            Err(failure) => return failed.set(Some(failure.error)),
        }
    }
}
