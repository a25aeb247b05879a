//! The load: one thread, several connections, a window of requests on each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dunlin_lab::measure::{Latencies, Percentiles, cpu_nanos};
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::connection::{Check, Connection};
use crate::rpc::roles::{Both, Slice, Sliced, Slicing};
use crate::workload::{Numbers, Popularity};
use crate::{BenchError, WARM_UP_SHARE};

/// How long a server may be silent. Between two turns of a connection, every other ready one may have moved up to 256
/// KiB. With over a thousand of them, on a machine whose cores a dozen other processes share, that can take many
/// seconds.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Interval of figures for the progress bar.
const LIVE_INTERVAL: Duration = Duration::from_millis(200);
/// Connections, and requests on each, while items are stored before the measurement.
const LOADING: (usize, usize) = (8, 64);

/// The operation to request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextOperation {
    /// `get` of one key.
    Get,
    /// `set` of one key.
    Set,
}

/// Loads a memcached server with items of uniform popularity.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum MemcachedLoad {
    /// Stores items from 0 on, once each.
    Fill {
        /// Address of the server.
        server: SocketAddr,
        /// Number of items.
        items: u64,
        /// Bytes of their values.
        value_bytes: usize,
    },
    /// Requests these items for a while.
    Run {
        /// Address of the server.
        server: SocketAddr,
        /// Number of items.
        items: u64,
        /// Bytes of their values.
        value_bytes: usize,
        /// The operation.
        operation: TextOperation,
        /// Connections.
        connections: usize,
        /// Requests in flight on each.
        window: usize,
        /// Length of the measured run.
        run: Duration,
        /// Whether the server is a bare one, whose answers have no meaningful bytes.
        bare: bool,
    },
}

/// The result.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct MemcachedFigures {
    /// Requests answered per second.
    pub rate: f64,
    /// From issuing a request until its answer was read.
    pub latency: Percentiles,
    /// Share of reads that found their item, from 0 to 1.
    pub hits: f64,
    /// Share of its core that the load itself used, from 0 to 1: near 1 it was the bottleneck.
    pub cpu: f64,
}

impl Role for MemcachedLoad {
    const NAME: &'static str = "load of a memcached server";
    type Ready = ();
    type Output = MemcachedFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<MemcachedFigures, BenchError> {
        match self {
            MemcachedLoad::Fill { server, items, value_bytes } => {
                let mut driver = Driver::open(server, LOADING, value_bytes, Check::Everything, TextOperation::Set)?;
                let mut numbers = 0..items;
                driver.drive(control, || numbers.next(), |driver| driver.is_idle())?;
                driver.figures()
            }
            MemcachedLoad::Run { server, items, value_bytes, operation, connections, window, run, bare } => {
                let check = if bare { Check::Length } else { Check::Everything };
                let mut driver = Driver::open(server, (connections, window), value_bytes, check, operation)?;
                let mut numbers = Numbers::new(Popularity::Uniform, items, u64::from(std::process::id()));
                let mut draw = move || Some(numbers.draw());
                let warm = Instant::now() + run.mul_f64(WARM_UP_SHARE);
                driver.drive(control, &mut draw, |_| Instant::now() >= warm)?;
                driver.start_measuring();
                let end = Instant::now() + run;
                driver.drive(control, &mut draw, |driver| Instant::now() >= end && driver.answered > 0)?;
                driver.figures()
            }
        }
    }
}

/// The same load in slices, beside clients that misbehave and on another server alone.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SlicedMemcachedLoad {
    /// Addresses of the servers.
    pub servers: Both<SocketAddr>,
    /// Number of items.
    pub items: u64,
    /// Bytes of their values.
    pub value_bytes: usize,
    /// The operation.
    pub operation: TextOperation,
    /// Connections, and requests in flight on each.
    pub connections: (usize, usize),
    /// The slices.
    pub slicing: Slicing,
}

impl Role for SlicedMemcachedLoad {
    const NAME: &'static str = "load of a memcached server beside misbehaving clients";
    type Ready = ();
    type Output = Sliced;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Sliced, BenchError> {
        let SlicedMemcachedLoad { servers, items, value_bytes, operation, connections, slicing } = self;
        let open = |server| Driver::open(server, connections, value_bytes, Check::Everything, operation);
        let mut drivers = servers.try_map(open)?;
        let mut numbers = Numbers::new(Popularity::Uniform, items, u64::from(std::process::id()));
        let stopping = || control.stopping();
        slicing.measure(stopping, |kind, length| {
            let driver = drivers.of(kind);
            driver.start_measuring();
            let end = driver.since + length;
            driver.drive(
                control,
                || Some(numbers.draw()),
                |driver| Instant::now() >= end && driver.latencies.count() > 0,
            )?;
            let rate = driver.answered as f64 / driver.since.elapsed().as_secs_f64();
            let latencies = std::mem::replace(&mut driver.latencies, Latencies::new());
            // Until nothing is outstanding: the server may be stopped next.
            driver.drive(control, || None, Driver::is_idle)?;
            Ok(Slice { rate, latencies })
        })
    }
}

/// The connections, and the counters since the measured run began.
struct Driver {
    connections: Vec<Connection>,
    origin: Instant,
    since: Instant,
    cpu_before: u64,
    answered: u64,
    hits: u64,
    latencies: Latencies,
}

impl Driver {
    fn open(
        server: SocketAddr,
        (connections, window): (usize, usize),
        value_bytes: usize,
        check: Check,
        operation: TextOperation,
    ) -> Result<Self, BenchError> {
        let open = |_| {
            let mut connection = Connection::open(server, window, value_bytes, check)?;
            connection.set_operation(operation);
            Ok(connection)
        };
        let connections = (0..connections).map(open).collect::<Result<_, BenchError>>()?;
        let now = Instant::now();
        let latencies = Latencies::new();
        Ok(Driver { connections, origin: now, since: now, cpu_before: cpu_nanos(), answered: 0, hits: 0, latencies })
    }

    fn start_measuring(&mut self) {
        (self.since, self.cpu_before) = (Instant::now(), cpu_nanos());
        (self.answered, self.hits, self.latencies) = (0, 0, Latencies::new());
    }

    fn is_idle(&self) -> bool {
        self.connections.iter().all(|connection| connection.pending() == 0)
    }

    /// Sends and receives until `over` returns true. Sleeps in the system while no connection is ready.
    fn drive<R: Role>(
        &mut self,
        control: &Control<R>,
        mut next: impl FnMut() -> Option<u64>,
        over: impl Fn(&Driver) -> bool,
    ) -> Result<(), BenchError> {
        let origin = self.origin;
        let nanos = || origin.elapsed().as_nanos() as u64;
        let mut next_live = Instant::now() + LIVE_INTERVAL;
        for connection in &mut self.connections {
            connection.send(nanos(), &mut next)?;
        }
        while !over(self) && !control.stopping() {
            let ready = self.wait()?;
            let Driver { connections, answered, hits, latencies, .. } = self;
            for (place, connection) in connections.iter_mut().enumerate() {
                if !ready[place] {
                    continue;
                }
                let mut last = 0;
                let clock = || {
                    last = nanos();
                    last
                };
                connection.receive(clock, |answer| {
                    *answered += 1;
                    *hits += u64::from(answer.hit);
                    latencies.record(answer.nanos);
                })?;
                connection.send(last.max(1), &mut next)?;
            }
            if Instant::now() >= next_live {
                next_live += LIVE_INTERVAL;
                control.live(Metric::Operations, self.answered as f64 / self.since.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }

    /// Which connections can be read, or written if they have bytes to write.
    fn wait(&self) -> Result<Vec<bool>, BenchError> {
        let flags = |connection: &Connection| {
            if connection.wants_to_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
        };
        let mut ends: Vec<PollFd<'_>> =
            self.connections.iter().map(|connection| PollFd::new(connection.stream(), flags(connection))).collect();
        let limit = Timespec { tv_sec: SILENCE_MAX.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut ends, Some(&limit)) {
            Ok(0) => Err(BenchError::OtherSystem {
                system: "a memcached server",
                why: format!("silent for {SILENCE_MAX:?}"),
            }),
            Ok(_) => Ok(ends.iter().map(|end| !end.revents().is_empty()).collect()),
            Err(rustix::io::Errno::INTR) => Ok(vec![false; self.connections.len()]),
            Err(error) => Err(BenchError::io("wait for answers")(error.into())),
        }
    }

    fn figures(&self) -> Result<MemcachedFigures, BenchError> {
        let seconds = self.since.elapsed().as_secs_f64();
        Ok(MemcachedFigures {
            rate: self.answered as f64 / seconds,
            latency: self.latencies.percentiles()?,
            hits: self.hits as f64 / self.answered.max(1) as f64,
            cpu: (cpu_nanos() - self.cpu_before) as f64 / 1e9 / seconds,
        })
    }
}
