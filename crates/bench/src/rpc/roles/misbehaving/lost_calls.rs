//! Small calls that are lost together.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use dunlin_lab::measure::Latencies;
use dunlin_lab::peer::{Control, Role};
use dunlin_net::Transport;
use dunlin_rpc::{Call, Endpoint, MsgBuf, Session};
use serde::{Deserialize, Serialize};

use super::losing::{Losing, Loss};
use crate::BenchError;
use crate::rpc::roles::ECHO;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};

/// Concurrent calls, as many as a session has slots.
const CALLS: usize = 8;
/// Bytes of a call.
const BYTES: usize = 32;
/// Rounds without losses before each one with losses, so that round trips are known.
const ROUNDS_BETWEEN: usize = 20;

/// Makes eight calls at a time on one session, and sometimes loses all eight requests.
#[derive(Debug, Serialize, Deserialize)]
pub struct LostCalls {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Length of the run.
    pub run: Duration,
}

/// Nanoseconds from the calls until their answers, unless it says otherwise: medians.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Recovered {
    /// The last of the eight, in rounds with losses.
    pub last: f64,
    /// From the answer of the first of the eight to that of the last, in rounds with losses.
    pub after_first: f64,
    /// The last of the eight, in rounds without losses.
    pub round_trip: f64,
}

impl Role for LostCalls {
    const NAME: &'static str = "small calls that are lost together";
    type Ready = ();
    type Output = Recovered;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Recovered, BenchError> {
        self.setup.on_transport(Side::Client, Rounds { role: &self, control })
    }
}

struct Rounds<'a> {
    role: &'a LostCalls,
    control: &'a Control<LostCalls>,
}

impl OnTransport for Rounds<'_> {
    type Output = Recovered;

    fn run<T: Transport>(self, transport: T) -> Result<Recovered, BenchError> {
        let loss = Rc::new(Cell::new(Loss::Nothing));
        let endpoint = Endpoint::new(Losing { inner: transport, loss: loss.clone() }, self.role.setup.endpoint())?;
        let session = endpoint.block_on(endpoint.connect(&self.role.server.parse()?))?;
        let (mut lasts, mut after_firsts, mut round_trips) = (Latencies::new(), Latencies::new(), Latencies::new());
        let until = Instant::now() + self.role.run;
        while lasts.count() == 0 || (Instant::now() < until && !self.control.stopping()) {
            for _ in 0..ROUNDS_BETWEEN {
                let (_, last) = round(&endpoint, &session)?;
                round_trips.record(last.as_nanos() as u64);
            }
            loss.set(Loss::Requests(CALLS as u32));
            let (first, last) = round(&endpoint, &session)?;
            lasts.record(last.as_nanos() as u64);
            after_firsts.record((last - first).as_nanos() as u64);
        }
        let median = |times: &Latencies| Ok::<_, BenchError>(times.percentiles()?.p50);
        Ok(Recovered { last: median(&lasts)?, after_first: median(&after_firsts)?, round_trip: median(&round_trips)? })
    }
}

/// Makes a call in each slot, and returns when the first and the last were answered.
fn round<T: Transport>(endpoint: &Endpoint<T>, session: &Session) -> Result<(Duration, Duration), BenchError> {
    let begun = Instant::now();
    let mut calls = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        calls.push(Box::pin(session.call(ECHO, MsgBuf::with_len(BYTES)?)));
    }
    let mut first = None;
    endpoint.block_on(std::future::poll_fn(|context| {
        let mut result = Ok(());
        calls.retain_mut(|call: &mut Pin<Box<Call<MsgBuf>>>| match call.as_mut().poll(context) {
            Poll::Ready(Ok(_)) => {
                first.get_or_insert_with(|| begun.elapsed());
                false
            }
            Poll::Ready(Err(failure)) => {
                result = Err(failure.error);
                false
            }
            Poll::Pending => true,
        });
        if calls.is_empty() || result.is_err() { Poll::Ready(result) } else { Poll::Pending }
    }))?;
    let last = begun.elapsed();
    Ok((first.unwrap_or(last), last))
}
