//! A working load in slices on two servers of one kind: beside clients that misbehave towards the one, and alone on the
//! other, which never had such clients. Only one of the two runs at a time, on the core of both. The slices alternate so
//! quickly that a machine whose speed drifts drifts for both.
//!
//! The working client has an endpoint, or connections, for each server. It runs an endpoint only while the endpoint's
//! server runs, and leaves no request outstanding. So neither end sees a silence that it could hold against the other,
//! however long a slice is.

use std::time::{Duration, Instant};

use dunlin_lab::LabError;
use dunlin_lab::measure::Latencies;
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Clock, Transport};
use dunlin_rpc::{Endpoint, MsgBuf, Session};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::rpc::roles::ECHO;
use crate::rpc::roles::latency::check;
use crate::rpc::roles::setup::{OnTransports, Setup, Side};

/// The kind of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On the server with misbehaving clients, while these run.
    Beside,
    /// On the server that never had such clients.
    Alone,
}

impl Kind {
    /// The slices of a block.
    const BLOCK: [Kind; 4] = [Kind::Beside, Kind::Alone, Kind::Alone, Kind::Beside];
}

/// One of each for the two kinds of slices.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Both<T> {
    /// For slices beside misbehaving clients.
    pub beside: T,
    /// For slices alone.
    pub alone: T,
}

impl<T> Both<T> {
    /// The one for slices of this kind.
    pub fn of(&mut self, kind: Kind) -> &mut T {
        match kind {
            Kind::Beside => &mut self.beside,
            Kind::Alone => &mut self.alone,
        }
    }

    /// Makes another pair from this one.
    ///
    /// # Errors
    /// The first error of `make`.
    pub fn try_map<U>(self, mut make: impl FnMut(T) -> Result<U, BenchError>) -> Result<Both<U>, BenchError> {
        Ok(Both { beside: make(self.beside)?, alone: make(self.alone)? })
    }
}

/// The processes that run in slices of one kind, and are stopped (SIGSTOP) in those of the other.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Processes {
    /// Misbehaving clients and their server, in the order in which they are stopped.
    pub beside: Vec<u32>,
    /// Processes that are stopped after those, and that one of those lets continue.
    pub led: Vec<u32>,
    /// The other server.
    pub alone: Vec<u32>,
}

impl Processes {
    fn run_only(&self, kind: Kind) -> Result<(), BenchError> {
        match kind {
            Kind::Beside => {
                signal(&self.alone, Signal::STOP)?;
                signal(&self.beside, Signal::CONT)
            }
            Kind::Alone => {
                signal(&self.beside, Signal::STOP)?;
                signal(&self.led, Signal::STOP)?;
                signal(&self.alone, Signal::CONT)
            }
        }
    }

    fn run_all(&self) -> Result<(), BenchError> {
        signal(&self.beside, Signal::CONT)?;
        signal(&self.alone, Signal::CONT)
    }
}

/// Sends a signal to processes.
pub(super) fn signal(processes: &[u32], signal: Signal) -> Result<(), BenchError> {
    for process in processes {
        let Some(process) = Pid::from_raw(*process as i32) else { continue };
        kill_process(process, signal)
            .map_err(|error| BenchError::io("stop a process and let it continue")(error.into()))?;
    }
    Ok(())
}

/// The slices of a load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Slicing {
    /// The processes of either kind of slice.
    pub processes: Processes,
    /// Length of a slice.
    pub slice: Duration,
    /// Time before each slice. It does not count if the slice is one alone. Beside misbehaving clients it does, since
    /// what fell due while these stood still comes then.
    pub settle: Duration,
    /// Blocks of four slices: beside the misbehaving clients, alone, alone, beside them.
    pub blocks: u32,
}

/// The load in one slice.
pub struct Slice {
    /// Operations per second.
    pub rate: f64,
    /// Their latencies.
    pub latencies: Latencies,
}

/// The load in all slices.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sliced {
    /// The mean rates in each block, per second.
    pub blocks: Vec<Both<f64>>,
    /// The 99th percentile of latencies in nanoseconds.
    pub p99: Both<f64>,
    /// How long the misbehaving clients were stopped.
    pub paused: Duration,
}

impl Slicing {
    /// How long the load takes, at least.
    pub fn length(&self) -> Duration {
        Kind::BLOCK.len() as u32 * (self.slice + self.settle) * self.blocks
    }

    /// Measures each slice with a load of a given kind and length, which leaves no request outstanding. All processes
    /// but the led ones run afterwards, also after an error: a stopped process could not end.
    ///
    /// # Errors
    /// Those of the load, [`LabError`] if a process cannot be stopped, and [`LabError::Interrupted`] if `stopping`.
    pub fn measure(
        &self,
        stopping: impl Fn() -> bool,
        load: impl FnMut(Kind, Duration) -> Result<Slice, BenchError>,
    ) -> Result<Sliced, BenchError> {
        let measured = self.alternate(stopping, load);
        let continued = self.processes.run_all();
        measured.and_then(|sliced| continued.map(|()| sliced))
    }

    fn alternate(
        &self,
        stopping: impl Fn() -> bool,
        mut load: impl FnMut(Kind, Duration) -> Result<Slice, BenchError>,
    ) -> Result<Sliced, BenchError> {
        let (mut blocks, mut paused) = (Vec::new(), Duration::ZERO);
        let mut latencies = Both { beside: Latencies::new(), alone: Latencies::new() };
        for _ in 0..self.blocks {
            let mut rates = Both { beside: 0.0, alone: 0.0 };
            for kind in Kind::BLOCK {
                if stopping() {
                    return Err(LabError::Interrupted.into());
                }
                let since = Instant::now();
                self.processes.run_only(kind)?;
                let slice = match kind {
                    Kind::Beside => load(kind, self.settle + self.slice)?,
                    Kind::Alone => {
                        load(kind, self.settle)?;
                        load(kind, self.slice)?
                    }
                };
                *rates.of(kind) += slice.rate / 2.0;
                latencies.of(kind).add(&slice.latencies);
                paused += if kind == Kind::Alone { since.elapsed() } else { Duration::ZERO };
            }
            blocks.push(rates);
        }
        let p99 = latencies.try_map(|latencies| Ok(latencies.percentiles()?.p99))?;
        Ok(Sliced { blocks, p99, paused })
    }
}

/// Echoes, one outstanding.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlicedEchoes {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The servers' addresses.
    pub servers: Both<String>,
    /// Bytes of request and response.
    pub size: usize,
    /// The slices.
    pub slicing: Slicing,
}

impl Role for SlicedEchoes {
    const NAME: &'static str = "client that calls beside misbehaving ones";
    type Ready = ();
    type Output = Sliced;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Sliced, BenchError> {
        self.measure(|| control.stopping())
    }
}

impl SlicedEchoes {
    fn measure(&self, stopping: impl Fn() -> bool) -> Result<Sliced, BenchError> {
        self.setup.on_transports(Side::Client, 2, Call { client: self, stopping })
    }
}

struct Call<'a, F> {
    client: &'a SlicedEchoes,
    stopping: F,
}

impl<F: Fn() -> bool> OnTransports for Call<'_, F> {
    type Output = Sliced;

    fn run<T: Transport + 'static>(self, transports: Vec<T>) -> Result<Sliced, BenchError> {
        let SlicedEchoes { setup, servers, size, slicing } = self.client;
        let connect = |(transport, server): (T, &String)| {
            let endpoint = Endpoint::new(transport, setup.endpoint())?;
            let session = endpoint.block_on(endpoint.connect(&server.parse()?))?;
            Ok((endpoint, session))
        };
        let each = transports.into_iter().zip([&servers.beside, &servers.alone]);
        let ends = each.map(connect).collect::<Result<Vec<_>, BenchError>>()?;
        let payload = vec![7; *size];
        slicing.measure(self.stopping, |kind, length| {
            let (endpoint, session) = &ends[kind as usize];
            endpoint.block_on(calls(session, &payload, length))
        })
    }
}

/// Calls for this long. On a busy machine one call may take longer: it counts then.
async fn calls(session: &Session, payload: &[u8], length: Duration) -> Result<Slice, BenchError> {
    let mut buffer = MsgBuf::copy_from(payload)?;
    let mut latencies = Latencies::new();
    let clock = Clock::new();
    let begun = clock.now();
    loop {
        let before = clock.now();
        let reply = session.call(ECHO, buffer).await.map_err(|failure| failure.error)?;
        let after = clock.now();
        latencies.record(after - before);
        if after - begun >= length.as_nanos() as u64 {
            check(&reply.response, payload)?;
            let rate = latencies.count() as f64 * 1e9 / (after - begun) as f64;
            return Ok(Slice { rate, latencies });
        }
        buffer = reply.request;
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    use std::sync::{Arc, mpsc};
    use std::{fs, thread};

    use dunlin_net::AnyTransport;
    use dunlin_rpc::EndpointConfig;

    use super::*;
    use crate::rpc::roles::Carrier;

    fn slicing(processes: Processes, blocks: u32) -> Slicing {
        Slicing { processes, slice: Duration::from_millis(1), settle: Duration::ZERO, blocks }
    }

    fn slice(rate: f64) -> Slice {
        let mut latencies = Latencies::new();
        latencies.record(1);
        Slice { rate, latencies }
    }

    /// A server that halves the rate of its working clients, on a machine that slows down.
    #[test]
    fn drift_favours_neither() {
        let mut speed = 1000.0;
        let sliced = slicing(Processes::default(), 3).measure(
            || false,
            |kind, length| {
                speed -= if length.is_zero() { 0.0 } else { 10.0 };
                Ok(slice(if kind == Kind::Beside { speed / 2.0 } else { speed }))
            },
        );
        let sliced = sliced.unwrap();
        assert_eq!(sliced.blocks.len(), 3);
        for Both { beside, alone } in sliced.blocks {
            assert!((beside / alone - 0.5).abs() < 1e-9, "{beside} beside, {alone} alone");
        }
    }

    /// Processes that do nothing, and that end with the test.
    struct Idle([Child; 3]);

    impl Idle {
        fn start() -> (Self, Processes) {
            let idle = Idle([(); 3].map(|()| Command::new("sleep").arg("600").spawn().unwrap()));
            let [beside, led, alone] = [0, 1, 2].map(|place| vec![idle.0[place].id()]);
            (idle, Processes { beside, led, alone })
        }

        /// Which of them are stopped. The signal may take a moment: it waits for what is `expected`.
        fn stopped(&self, expected: [bool; 3]) -> [bool; 3] {
            let is_stopped = |child: &Child| {
                let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
                stat.rsplit(") ").next().unwrap().starts_with('T')
            };
            let end = Instant::now() + Duration::from_secs(10);
            loop {
                let stopped = self.0.each_ref().map(is_stopped);
                if stopped == expected || Instant::now() >= end {
                    return stopped;
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Drop for Idle {
        fn drop(&mut self) {
            for child in &mut self.0 {
                child.kill().unwrap();
                child.wait().unwrap();
            }
        }
    }

    #[test]
    fn only_the_processes_of_a_slice_run() {
        let (idle, processes) = Idle::start();
        let mut seen = Vec::new();
        let sliced = slicing(processes, 1).measure(
            || false,
            |kind, _| {
                let is_alone = kind == Kind::Alone;
                seen.push(kind);
                // Nobody lets the led one continue.
                let expected = [is_alone, seen.contains(&Kind::Alone), !is_alone];
                assert_eq!(idle.stopped(expected), expected, "{kind:?}");
                Ok(slice(1.0))
            },
        );
        assert!(sliced.unwrap().paused > Duration::ZERO);
        // Those alone twice: before the slice, and in it.
        let loads = Kind::BLOCK.iter().flat_map(|kind| vec![*kind; if *kind == Kind::Alone { 2 } else { 1 }]);
        assert!(seen.into_iter().eq(loads));
        assert_eq!(idle.stopped([false, true, false]), [false, true, false]);
    }

    /// Also if the load fails, or nobody wants the result any more.
    #[test]
    fn nobody_stays_stopped() {
        let (idle, processes) = Idle::start();
        let slicing = slicing(processes, 1);
        let failed = slicing.measure(|| false, |_, _| Err(BenchError::WrongEcho));
        assert!(matches!(failed, Err(BenchError::WrongEcho)));
        assert_eq!(idle.stopped([false; 3]), [false; 3]);
        let ended = AtomicBool::new(false);
        let interrupted = slicing.measure(
            || ended.load(Relaxed),
            |_, _| {
                ended.store(true, Relaxed);
                Ok(slice(1.0))
            },
        );
        assert!(matches!(interrupted, Err(BenchError::Lab(LabError::Interrupted))));
        assert_eq!(idle.stopped([false; 3]), [false; 3]);
    }

    /// An echo server whose handler takes this long, and the number of its calls. It runs until `stop`.
    fn echo_server(takes: Duration, calls: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> (String, thread::JoinHandle<()>) {
        let (ready, is_ready) = mpsc::channel();
        let server = thread::spawn(move || {
            let transport = AnyTransport::bind(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
            let endpoint = Endpoint::new(transport, EndpointConfig::default()).unwrap();
            let register = endpoint.register(ECHO, move |request| {
                calls.fetch_add(1, Relaxed);
                thread::sleep(takes);
                let payload = request.payload();
                request.respond(payload);
            });
            register.unwrap();
            ready.send(endpoint.local_addr().to_string()).unwrap();
            endpoint.run_until(|| stop.load(Relaxed));
        });
        (is_ready.recv().unwrap(), server)
    }

    /// What only one of the two servers does slows down only its own slices.
    #[test]
    fn each_slice_is_on_its_server() {
        let stop = Arc::new(AtomicBool::new(false));
        let calls = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let (beside, slow) = echo_server(Duration::from_millis(2), calls[0].clone(), stop.clone());
        let (alone, fast) = echo_server(Duration::ZERO, calls[1].clone(), stop.clone());
        let client = SlicedEchoes {
            setup: Setup::new(Carrier::Udp),
            servers: Both { beside, alone },
            size: 32,
            slicing: Slicing { slice: Duration::from_millis(20), ..slicing(Processes::default(), 2) },
        };
        let sliced = client.measure(|| false);
        stop.store(true, Relaxed);
        slow.join().unwrap();
        fast.join().unwrap();
        let sliced = sliced.unwrap();
        let [of_slow, of_fast] = calls.map(|calls| calls.load(Relaxed));
        // Each slice, and each time before one, has at least one call.
        assert!(of_slow >= 8 && of_fast >= 8, "{of_slow} and {of_fast} calls");
        assert!(sliced.blocks.iter().all(|block| block.beside <= 500.0), "{sliced:?}");
        assert!(sliced.p99.beside >= 1.5e6, "{sliced:?}");
    }
}
