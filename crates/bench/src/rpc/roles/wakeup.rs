//! An endpoint that sleeps, and one that wakes it.

use std::time::Duration;

use dunlin_lab::measure::{Gaps, Latencies, Percentiles, StateWatch, cpu_nanos, shared_nanos};
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Addr, PollPolicy, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf, Session};
use serde::{Deserialize, Serialize};

use super::setup::{OnTransport, Setup, Side};
use super::{IDLE_TIMES, WAKE};
use crate::{BenchError, WARM_UP_SHARE};

/// An endpoint that sleeps when idle. Serves [`WAKE`] and [`IDLE_TIMES`] until it is stopped.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sleeper {
    /// Transport and endpoint.
    pub setup: Setup,
}

impl Role for Sleeper {
    const NAME: &'static str = "endpoint that sleeps";
    /// Its address.
    type Ready = String;
    /// How often its transport slept.
    type Output = u64;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<u64, BenchError> {
        self.setup.on_transport(Side::Server, Sleep { setup: &self.setup, control })
    }
}

struct Sleep<'a> {
    setup: &'a Setup,
    control: &'a Control<Sleeper>,
}

impl OnTransport for Sleep<'_> {
    type Output = u64;

    fn run<T: Transport>(self, transport: T) -> Result<u64, BenchError> {
        let endpoint =
            Endpoint::new(transport, EndpointConfig { poll: PollPolicy::default(), ..self.setup.endpoint() })?;
        endpoint.register(WAKE, |request| {
            // The first action of the handler: this time is compared with that of the request.
            let now = shared_nanos();
            request.respond(&now.to_le_bytes());
        })?;
        endpoint.register(IDLE_TIMES, |request| {
            let [cpu, now] = [cpu_nanos(), shared_nanos()].map(u64::to_le_bytes);
            request.respond(&[cpu, now].concat());
        })?;
        self.control.ready(endpoint.local_addr().to_string());
        endpoint.run_until(|| self.control.stopping());
        Ok(endpoint.stats().transport.waits)
    }
}

/// Opens a session with a [`Sleeper`] and leaves it idle for a while.
#[derive(Debug, Serialize, Deserialize)]
pub struct IdleWatcher {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The sleeper's address.
    pub server: String,
    /// How long to leave it idle.
    pub idle: Duration,
}

impl Role for IdleWatcher {
    const NAME: &'static str = "endpoint that leaves another alone";
    type Ready = ();
    /// Share of a core that the sleeper used meanwhile, in percent.
    type Output = f64;
    type Error = BenchError;

    fn run(self, _: &Control<Self>) -> Result<f64, BenchError> {
        self.setup.on_transport(Side::Client, Watch(&self))
    }
}

struct Watch<'a>(&'a IdleWatcher);

impl OnTransport for Watch<'_> {
    type Output = f64;

    fn run<T: Transport>(self, transport: T) -> Result<f64, BenchError> {
        let server: Addr = self.0.server.parse()?;
        let endpoint = Endpoint::new(transport, self.0.setup.endpoint())?;
        let session = endpoint.block_on(endpoint.connect(&server))?;
        let times = || -> Result<(u64, u64), BenchError> {
            let response = call(&endpoint, &session, IDLE_TIMES)?;
            let (cpu, now) = response.split_at_checked(8).ok_or(BenchError::WrongEcho)?;
            Ok((number(cpu)?, number(now)?))
        };
        let before = times()?;
        // Including its keep-alive, which the other side pays for too.
        endpoint.run_for(self.0.idle);
        let after = times()?;
        Ok(100.0 * (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64)
    }
}

/// Wakes a [`Sleeper`] repeatedly. Its own endpoint never sleeps.
#[derive(Debug, Serialize, Deserialize)]
pub struct Alarm {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The sleeper's address.
    pub server: String,
    /// The sleeper's process.
    pub process: u32,
    /// Pauses between two calls.
    pub gaps: Gaps,
    /// Length of the measured run.
    pub run: Duration,
}

impl Role for Alarm {
    const NAME: &'static str = "endpoint that wakes another";
    type Ready = ();
    /// From the call until the handler runs; only calls that found the sleeper asleep.
    type Output = Percentiles;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Percentiles, BenchError> {
        self.setup.on_transport(Side::Client, Ring { alarm: &self, control })
    }
}

struct Ring<'a> {
    alarm: &'a Alarm,
    control: &'a Control<Alarm>,
}

impl OnTransport for Ring<'_> {
    type Output = Percentiles;

    fn run<T: Transport>(self, transport: T) -> Result<Percentiles, BenchError> {
        let server: Addr = self.alarm.server.parse()?;
        let endpoint =
            Endpoint::new(transport, EndpointConfig { poll: PollPolicy::Spin, ..self.alarm.setup.endpoint() })?;
        let session = endpoint.block_on(endpoint.connect(&server))?;
        let watch = StateWatch::of(self.alarm.process)?;
        let mut gaps = self.alarm.gaps.clone();
        let mut latencies = Latencies::new();
        let warm = shared_nanos() + self.alarm.run.mul_f64(WARM_UP_SHARE).as_nanos() as u64;
        let end = warm + self.alarm.run.as_nanos() as u64;
        loop {
            let gap_end = shared_nanos() + gaps.next_gap().as_nanos() as u64;
            while shared_nanos() < gap_end {
                endpoint.run_once();
            }
            let asleep = watch.sleeps()?;
            let called_at = shared_nanos();
            let ran_at = number(&call(&endpoint, &session, WAKE)?)?;
            if asleep && called_at >= warm {
                latencies.record(ran_at.saturating_sub(called_at));
            }
            let over = shared_nanos() >= end && latencies.count() > 0;
            if over || self.control.stopping() {
                return Ok(latencies.percentiles()?);
            }
        }
    }
}

fn call<T: Transport>(endpoint: &Endpoint<T>, session: &Session, kind: u8) -> Result<MsgBuf, BenchError> {
    let call = session.call(kind, MsgBuf::with_len(0)?);
    Ok(endpoint.block_on(call).map_err(|failure| failure.error)?.response)
}

fn number(bytes: &[u8]) -> Result<u64, BenchError> {
    Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| BenchError::WrongEcho)?))
}
