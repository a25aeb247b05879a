//! Batches of calls, many in flight: the load of the paper's section 6.2.
//!
//! The client keeps several batches in flight. Each batch is `batch` requests to random sessions; when its last
//! response arrives, it is issued again. This uses the callback layer, so a call in steady state allocates nothing.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Clock, Transport};
use dunlin_rpc::{CallError, Completion, ContinuationId, Endpoint, MsgBuf, Payload, Session};
use dunlin_seq::wire::{NEXT, encode_next};
use serde::{Deserialize, Serialize};

use super::ECHO;
use crate::{BenchError, WARM_UP_SHARE};

/// Above this number, sessions are prefetched, since caches near the core cannot hold them.
const SESSIONS_IN_CACHE: usize = 256;
/// Event-loop iterations between two readings of the clock.
const ITERATIONS_PER_LOOK: u32 = 64;
/// Interval of figures for the progress bar.
const LIVE_INTERVAL_NANOS: u64 = 200_000_000;
/// How long a run without an answer continues beyond its end before it fails.
const SILENCE_NANOS_MAX: u64 = 10_000_000_000;

/// Whether a client prefetches its next sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hints {
    /// It prefetches them, if there are more than caches hold.
    Given,
    /// It does not.
    None,
}

/// The requests of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Procedure {
    /// Echoes.
    Echo,
    /// One number of a sequencer each; the sizes of the load are ignored.
    Number,
}

/// The shape of the load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    /// Its requests.
    pub procedure: Procedure,
    /// Requests in a batch.
    pub batch: usize,
    /// Requests in flight; rounded down to whole batches.
    pub in_flight: usize,
    /// Bytes of requests and their responses; buffers take these sizes in turn.
    pub sizes: Vec<usize>,
    /// Whether sessions are prefetched.
    pub hints: Hints,
    /// Time before the measured run, not counted.
    pub warm_up: Duration,
    /// Length of the measured run.
    pub run: Duration,
}

/// A batch: the number of missing responses, and the buffers of those that arrived.
#[derive(Default)]
struct Batch {
    missing: usize,
    buffers: Vec<Payload>,
    /// Sessions chosen for the next round, and prefetched: like a client that knows its next keys.
    next: Vec<usize>,
}

struct State {
    req_type: u8,
    sessions: Vec<Session>,
    batches: Vec<Batch>,
    continuation: Option<ContinuationId>,
    random: u64,
    /// Whether hints are requested and there are enough sessions.
    hints: Hints,
    completed: u64,
    error: Option<CallError>,
}

impl Load {
    /// Batches of calls of one size, with the usual share of warm-up.
    pub fn uniform(batch: usize, in_flight: usize, size: usize, run: Duration) -> Self {
        let (procedure, warm_up) = (Procedure::Echo, run.mul_f64(WARM_UP_SHARE));
        Load { procedure, batch, in_flight, sizes: vec![size], hints: Hints::Given, warm_up, run }
    }

    /// Calls for one number each, one by one, with the usual share of warm-up.
    pub fn numbers(in_flight: usize, run: Duration) -> Self {
        Load { procedure: Procedure::Number, ..Load::uniform(1, in_flight, 0, run) }
    }

    /// Runs the load on `sessions` and returns the calls per second. `live` gets the rate periodically and returns
    /// whether to continue; if not, the rate so far is returned.
    ///
    /// # Errors
    /// The first error of a call, and [`dunlin_lab::LabError::NoSamples`] if no call ended.
    pub(crate) fn run<T: Transport>(
        &self,
        endpoint: &Endpoint<T>,
        sessions: Vec<Session>,
        mut live: impl FnMut(f64) -> bool,
    ) -> Result<f64, BenchError> {
        let state = Rc::new(RefCell::new(self.state(sessions)?));
        let shared = Rc::clone(&state);
        let continuation =
            endpoint.register_continuation(move |completion| shared.borrow_mut().on_completion(completion));
        state.borrow_mut().start(continuation);

        let clock = Clock::new();
        let (warm, length) = (self.warm_up.as_nanos() as u64, self.run.as_nanos() as u64);
        let (mut from, mut last) = (None, (0, 0));
        let (mut iterations, mut next_live) = (0u32, LIVE_INTERVAL_NANOS);
        endpoint.run_until(|| {
            iterations = iterations.wrapping_add(1);
            if !iterations.is_multiple_of(ITERATIONS_PER_LOOK) {
                return false;
            }
            let (now, state) = (clock.now(), state.borrow());
            last = (now, state.completed);
            if from.is_none() && now >= warm {
                from = Some(last);
            }
            let mut go_on = true;
            if now >= next_live {
                next_live = now + LIVE_INTERVAL_NANOS;
                go_on = live(state.completed as f64 * 1e9 / now as f64);
            }
            // A server that waits for a processor may answer nothing in a short run; then the run continues until it
            // does.
            let over = from.is_some_and(|(start, before)| {
                let end = start + length;
                now >= end && (state.completed > before || now >= end + SILENCE_NANOS_MAX)
            });
            state.error.is_some() || over || !go_on
        });
        if let Some(error) = state.borrow_mut().error.take() {
            return Err(error.into());
        }
        // Without any answer there is no rate, not even zero.
        let from = from.filter(|from| last.1 > from.1).ok_or(BenchError::no_samples("a rate measurement"))?;
        Ok((last.1 - from.1) as f64 * 1e9 / (last.0 - from.0).max(1) as f64)
    }

    /// Batches with all their buffers; nothing is issued yet.
    fn state(&self, sessions: Vec<Session>) -> Result<State, BenchError> {
        let mut sizes = self.sizes.iter().cycle();
        let mut batches = Vec::new();
        for _ in 0..(self.in_flight / self.batch).max(1) {
            let mut batch = Batch::default();
            for _ in 0..self.batch {
                let size = sizes.next().copied().unwrap_or(0);
                let request = match self.procedure {
                    Procedure::Echo => MsgBuf::copy_from(&vec![7; size])?,
                    Procedure::Number => MsgBuf::copy_from(&encode_next(1))?,
                };
                batch.buffers.push(request.into());
            }
            batches.push(batch);
        }
        let hints = if sessions.len() > SESSIONS_IN_CACHE { self.hints } else { Hints::None };
        let random = 0x9e37_79b9_7f4a_7c15;
        let req_type = match self.procedure {
            Procedure::Echo => ECHO,
            Procedure::Number => NEXT,
        };
        Ok(State { req_type, sessions, batches, continuation: None, random, hints, completed: 0, error: None })
    }
}

impl State {
    fn start(&mut self, continuation: ContinuationId) {
        self.continuation = Some(continuation);
        for index in 0..self.batches.len() {
            self.issue(index);
        }
    }

    /// Sends the requests of a batch.
    #[inline]
    fn issue(&mut self, index: usize) {
        let Some(continuation) = self.continuation else { return };
        let batch = &mut self.batches[index];
        while let Some(request) = batch.buffers.pop() {
            let session = match batch.next.pop() {
                Some(session) => session,
                None => random_below(&mut self.random, self.sessions.len()),
            };
            match self.sessions[session].enqueue_request(self.req_type, request, continuation, index as u64) {
                Ok(()) => batch.missing += 1,
                Err(failure) => return self.error = Some(failure.error),
            }
        }
        if self.hints == Hints::None {
            return;
        }
        for _ in 0..batch.missing {
            let session = random_below(&mut self.random, self.sessions.len());
            self.sessions[session].prefetch();
            batch.next.push(session);
        }
    }

    #[inline]
    fn on_completion(&mut self, completion: Completion) {
        match completion.result {
            Ok(_) => self.completed += 1,
            Err(error) => self.error = Some(error),
        }
        let index = completion.tag as usize;
        let batch = &mut self.batches[index];
        batch.buffers.push(completion.request);
        batch.missing -= 1;
        if batch.missing == 0 && self.error.is_none() {
            self.issue(index);
        }
    }
}

/// A number below `limit`, by a xorshift generator.
#[inline]
fn random_below(random: &mut u64, limit: usize) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    ((u128::from(*random) * limit as u128) >> 64) as usize
}
