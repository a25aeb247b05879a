//! The floors: the performance of the bare transport, measured beside each figure.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dunlin_lab::measure::{Cores, Gaps, Latencies, Percentiles, pin};
use dunlin_lab::peer::{Control, Role};
use dunlin_net::shm;
use dunlin_net::udp::raw::{self as udp, Half, Method};
use serde::{Deserialize, Serialize};

use super::setup::Carrier;
use crate::BenchError;

/// Bytes of a small datagram: header and payload of a small call.
const SMALL_BYTES: usize = 64;
/// Datagrams of one system call for large ones, and their bytes: they fill the 64 KiB of a call.
const LARGE: (usize, usize) = (7, 9355);

/// Minimum run of a ping-pong over UDP: it fails if no answer comes at all, as when other work occupies both cores for
/// a while.
const UDP_RUN_MIN: Duration = Duration::from_millis(200);

/// A bare ping-pong: one word through shared memory, or one datagram.
#[derive(Debug, Serialize, Deserialize)]
pub struct LatencyFloor {
    /// The transport.
    pub carrier: Carrier,
    /// Bytes of a datagram.
    pub size: usize,
    /// Where its two threads run.
    pub cores: Cores,
    /// Length of the run.
    pub run: Duration,
}

impl Role for LatencyFloor {
    const NAME: &'static str = "bare ping-pong";
    type Ready = ();
    type Output = Percentiles;
    type Error = BenchError;

    fn run(self, _: &Control<Self>) -> Result<Percentiles, BenchError> {
        let Cores { client, server } = self.cores;
        let samples = match self.carrier {
            Carrier::Shm => shm::raw::ring_ping_pong(Some([client, server]), self.run)?,
            Carrier::Udp => {
                let run = self.run.max(UDP_RUN_MIN);
                pinned(self.cores, |on_start| udp::ping_pong(self.size, run, on_start))?
            }
        };
        let mut latencies = Latencies::new();
        samples.iter().for_each(|ns| latencies.record(*ns));
        Ok(latencies.percentiles()?)
    }
}

/// Bare echoes, many in flight: 64 B messages through one ring and back through another, or as datagrams with
/// segmentation offload in both directions.
#[derive(Debug, Serialize, Deserialize)]
pub struct RateFloor {
    /// The transport.
    pub carrier: Carrier,
    /// Echoes in flight.
    pub in_flight: usize,
    /// Where its two threads run.
    pub cores: Cores,
    /// Length of the run.
    pub run: Duration,
}

impl Role for RateFloor {
    const NAME: &'static str = "bare echoes";
    type Ready = ();
    /// Echoes per second.
    type Output = f64;
    type Error = BenchError;

    fn run(self, _: &Control<Self>) -> Result<f64, BenchError> {
        let Cores { client, server } = self.cores;
        match self.carrier {
            Carrier::Shm => Ok(shm::raw::ring_echo_rate(Some([client, server]), self.in_flight as u64, self.run)?),
            Carrier::Udp => {
                // Two trains: one is in flight while the other is answered.
                let train = self.in_flight / 2;
                let run = self.run.max(UDP_RUN_MIN);
                pinned(self.cores, |on_start| udp::echo_rate(SMALL_BYTES, train, run, on_start))
            }
        }
    }
}

/// A bare wake-up: of a thread that sleeps on a word of memory, or on a socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct WakeFloor {
    /// The transport.
    pub carrier: Carrier,
    /// Pauses between two wake-ups.
    pub gaps: Gaps,
    /// Where its two threads run.
    pub cores: Cores,
    /// Length of the run.
    pub run: Duration,
}

impl Role for WakeFloor {
    const NAME: &'static str = "bare wake-up";
    type Ready = ();
    /// From the write or send until the sleeper runs.
    type Output = Percentiles;
    type Error = BenchError;

    fn run(mut self, _: &Control<Self>) -> Result<Percentiles, BenchError> {
        let Cores { client, server } = self.cores;
        let mut gap = || self.gaps.next_gap();
        let samples = match self.carrier {
            Carrier::Shm => shm::raw::wake_ups(Some([client, server]), gap, self.run)?,
            Carrier::Udp => pinned(self.cores, |on_start| udp::wake_ups(&mut gap, self.run, on_start))?,
        };
        let mut latencies = Latencies::new();
        samples.iter().for_each(|ns| latencies.record(*ns));
        Ok(latencies.percentiles()?)
    }
}

/// A bare memory copy of a message, or a bare stream of the largest datagrams with segmentation offload.
#[derive(Debug, Serialize, Deserialize)]
pub struct BandwidthFloor {
    /// The transport.
    pub carrier: Carrier,
    /// Bytes of the copied message.
    pub size: usize,
    /// Where its threads run.
    pub cores: Cores,
    /// Length of the run.
    pub run: Duration,
}

impl Role for BandwidthFloor {
    const NAME: &'static str = "bare copy";
    type Ready = ();
    /// Bits per second.
    type Output = f64;
    type Error = BenchError;

    fn run(self, _: &Control<Self>) -> Result<f64, BenchError> {
        match self.carrier {
            Carrier::Shm => {
                pin(self.cores.client)?;
                Ok(copy_rate(self.size, self.run))
            }
            Carrier::Udp => {
                let (segments, bytes) = LARGE;
                let method = Method::Offload(segments);
                let rate = pinned(self.cores, |on_start| udp::one_way(method, bytes, self.run, on_start))?;
                Ok(rate.gbit_per_second() * 1e9)
            }
        }
    }
}

/// Bits per second of copying `size` bytes from one place to another, repeatedly.
fn copy_rate(size: usize, run: Duration) -> f64 {
    /// Minimum number of bytes copied between two readings of the clock.
    const STRIDE_BYTES: usize = 1 << 20;
    let (from, mut to) = (vec![7u8; size], vec![1u8; size]);
    let repeats = STRIDE_BYTES.div_ceil(size);
    let (start, mut copies) = (Instant::now(), 0);
    while start.elapsed() < run {
        for _ in 0..repeats {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
        }
        copies += repeats;
    }
    (copies * size) as f64 * 8.0 / start.elapsed().as_secs_f64()
}

/// Runs a measurement of two threads, each on its core.
fn pinned<R>(
    cores: Cores,
    measure: impl FnOnce(&(dyn Fn(Half) + Sync)) -> std::io::Result<R>,
) -> Result<R, BenchError> {
    let failed = Mutex::new(None);
    let on_start = |half| {
        let core = match half {
            Half::Server => cores.server,
            Half::Client => cores.client,
        };
        if let Err(error) = pin(core) {
            *failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(error);
        }
    };
    let result = measure(&on_start).map_err(BenchError::io("measure bare UDP over loopback"));
    match failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        Some(error) => Err(error.into()),
        None => result,
    }
}
