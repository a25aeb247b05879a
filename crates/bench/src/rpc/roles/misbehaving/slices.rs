//! A working load in slices: beside clients that misbehave, and beside the same clients while they are paused. The two
//! alternate so quickly that a machine whose speed drifts drifts for both.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dunlin_lab::measure::Latencies;
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Clock, Transport};
use dunlin_rpc::{Endpoint, MsgBuf, Session};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::rpc::roles::ECHO;
use crate::rpc::roles::latency::check;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};

/// How misbehaving clients are paused. The server keeps what it holds for them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Pause {
    /// The processes are stopped: SIGSTOP.
    Processes(Vec<u32>),
    /// The misbehaving client waits while this file exists.
    Flag(PathBuf),
}

impl Pause {
    fn set(&self, is_paused: bool) -> Result<(), BenchError> {
        match self {
            Pause::Processes(processes) => signal(processes, if is_paused { Signal::STOP } else { Signal::CONT }),
            Pause::Flag(path) if is_paused => fs::write(path, []).map_err(BenchError::io("pause a client")),
            Pause::Flag(path) if path.exists() => {
                fs::remove_file(path).map_err(BenchError::io("let a client continue"))
            }
            Pause::Flag(_) => Ok(()),
        }
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
    /// How the misbehaving clients are paused.
    pub pause: Pause,
    /// Length of a slice.
    pub slice: Duration,
    /// Time before each slice that does not count.
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

/// The mean rates in a block, per second.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Block {
    /// Beside the misbehaving clients.
    pub beside: f64,
    /// While they were paused.
    pub alone: f64,
}

/// The load in all slices.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sliced {
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The 99th percentile of latencies in nanoseconds, beside the misbehaving clients and while they were paused.
    pub p99: Block,
    /// How long they were paused.
    pub paused: Duration,
}

impl Slicing {
    /// Measures each slice with a load of a given length. The misbehaving clients run before and after that.
    ///
    /// # Errors
    /// Those of the load, and [`dunlin_lab::LabError`] if the clients cannot be paused.
    pub fn measure(&self, mut load: impl FnMut(Duration) -> Result<Slice, BenchError>) -> Result<Sliced, BenchError> {
        let (mut blocks, mut paused) = (Vec::new(), Duration::ZERO);
        let mut latencies = [Latencies::new(), Latencies::new()];
        for _ in 0..self.blocks {
            let mut rates = [0.0; 2];
            for is_paused in [false, true, true, false] {
                let since = Instant::now();
                self.pause.set(is_paused)?;
                load(self.settle)?;
                let slice = load(self.slice)?;
                rates[usize::from(is_paused)] += slice.rate / 2.0;
                latencies[usize::from(is_paused)].add(&slice.latencies);
                paused += if is_paused { since.elapsed() } else { Duration::ZERO };
            }
            let [beside, alone] = rates;
            blocks.push(Block { beside, alone });
        }
        self.pause.set(false)?;
        let [beside, alone] = latencies;
        let p99 = Block { beside: beside.percentiles()?.p99, alone: alone.percentiles()?.p99 };
        Ok(Sliced { blocks, p99, paused })
    }
}

/// Echoes, one outstanding.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlicedEchoes {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
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

    fn run(self, _control: &Control<Self>) -> Result<Sliced, BenchError> {
        self.setup.on_transport(Side::Client, Call(&self))
    }
}

struct Call<'a>(&'a SlicedEchoes);

impl OnTransport for Call<'_> {
    type Output = Sliced;

    fn run<T: Transport>(self, transport: T) -> Result<Sliced, BenchError> {
        let Call(client) = self;
        let endpoint = Endpoint::new(transport, client.setup.endpoint())?;
        let session = endpoint.block_on(endpoint.connect(&client.server.parse()?))?;
        let payload = vec![7; client.size];
        client.slicing.measure(|length| endpoint.block_on(calls(&session, &payload, length)))
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
    use super::*;

    /// A load that halves its rate while nobody pauses the others, on a machine that slows down.
    #[test]
    fn drift_favours_neither() {
        let flag = std::env::temp_dir().join(format!("dunlin-slices-{}", std::process::id()));
        let [slice, settle] = [Duration::from_millis(1), Duration::ZERO];
        let slicing = Slicing { pause: Pause::Flag(flag.clone()), slice, settle, blocks: 3 };
        let mut speed = 1000.0;
        let sliced = slicing.measure(|length| {
            speed -= if length.is_zero() { 0.0 } else { 10.0 };
            let mut latencies = Latencies::new();
            latencies.record(1);
            Ok(Slice { rate: if flag.exists() { speed } else { speed / 2.0 }, latencies })
        });
        let sliced = sliced.unwrap();
        assert!(!flag.exists() && sliced.blocks.len() == 3);
        for Block { beside, alone } in sliced.blocks {
            assert!((beside / alone - 0.5).abs() < 1e-9, "{beside} beside, {alone} alone");
        }
    }
}
