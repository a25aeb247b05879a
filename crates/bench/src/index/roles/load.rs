//! Clients of an index server: look-ups, and writes and scans beside them, many in flight.
//!
//! This uses the callback layer, as the rate of bare echoes does, so that the two compare.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_index::service::Latency;
use dunlin_index::wire::{
    After, LONG_SCAN, OPERATE, Operation as Request, Page, PageLimits, SCAN, SHORT_PAGE, STATS, ScanRequest,
    encode_plain,
};
use dunlin_index::{Order, Range, ServerStats};
use dunlin_lab::measure::{Latencies, Percentiles};
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::random::Random;
use dunlin_net::{Clock, Transport};
use dunlin_rpc::{CallError, Completion, ContinuationId, Endpoint, MsgBuf, Session};
use serde::{Deserialize, Serialize};

use super::ops::SUMMED;
use super::ops::keys::item_key;
use crate::BenchError;
use crate::rpc::roles::open_sessions;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};
use crate::seq::roles::window::Window;

/// One place in this many is timed, including the first: reading the clock costs a tenth of a look-up. Places go round
/// the sessions, whose number must not be a multiple of this one: then places of several sessions are timed.
const TIMED: usize = 17;
/// One operation in this many is a scan, if there are scans.
const SCAN_EVERY: u64 = 100;
/// Bytes of the request of a look-up before its key.
const GET_HEADER_BYTES: usize = 2;
/// Event-loop iterations between two readings of the clock.
const ITERATIONS_PER_LOOK: u32 = 64;
/// Where the scans run that are beside the look-ups: one operation in a hundred reads 128 items in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scanning {
    /// There are none.
    None,
    /// A page of 128 items in a worker.
    Workers,
    /// Two pages of 64 items in the event loop, one after the other.
    Dispatch,
}

/// A load of look-ups of items chosen uniformly.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IndexLoad {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Its items.
    pub items: u64,
    /// Sessions to open.
    pub sessions: usize,
    /// Operations in flight.
    pub in_flight: usize,
    /// Scans among them.
    pub scanning: Scanning,
    /// Whether every other operation stores the value that the item has, and is no look-up.
    pub has_puts: bool,
    /// Length of the measured run.
    pub run: Duration,
}

/// The result.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct IndexFigures {
    /// Look-ups and writes per second.
    pub operations: f64,
    /// Scans per second.
    pub scans: f64,
    /// From sending a look-up until its answer was checked, so with the time in all queues; for one place in seventeen.
    pub latency: Percentiles,
    /// Time in the server's handler of operations, in nanoseconds, from the buckets of its metrics.
    pub handler_p50: f64,
    /// The same.
    pub handler_p99: f64,
    /// Look-ups in a burst, on average.
    pub burst: f64,
    /// Writes in a burst, on average; 0 if there were none.
    pub write_burst: f64,
}

impl Role for IndexLoad {
    const NAME: &'static str = "load of an index server";
    type Ready = ();
    type Output = IndexFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<IndexFigures, BenchError> {
        self.setup.on_transport(Side::Client, Drive { load: &self, control })
    }
}

struct Drive<'a> {
    load: &'a IndexLoad,
    control: &'a Control<IndexLoad>,
}

/// An operation in flight.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Get(u64),
    Put,
    /// A scan from an item on, and how many of its items have come.
    Scan {
        from: u64,
        seen: usize,
    },
}

#[derive(Clone, Copy)]
struct Place {
    operation: Operation,
    session: usize,
    began: u64,
}

struct State {
    items: u64,
    scanning: Scanning,
    has_puts: bool,
    sessions: Vec<Session>,
    places: Vec<Place>,
    continuation: Option<ContinuationId>,
    random: Random,
    clock: Clock,
    latencies: Latencies,
    is_measuring: bool,
    operations: u64,
    scans: u64,
    wrong: u64,
    missing: u64,
    error: Option<CallError>,
}

impl OnTransport for Drive<'_> {
    type Output = IndexFigures;

    fn run<T: Transport + 'static>(self, transport: T) -> Result<IndexFigures, BenchError> {
        let IndexLoad { items, sessions, in_flight, scanning, has_puts, run, .. } = *self.load;
        let endpoint = Endpoint::new(transport, self.load.setup.endpoint())?;
        let sessions = open_sessions(&endpoint, &self.load.server.parse()?, sessions)?;
        let asking = sessions.first().ok_or(BenchError::no_samples("a session"))?.clone();
        let count = sessions.len();
        let places = (0..in_flight).map(|at| Place { operation: Operation::Get(0), session: at % count, began: 0 });
        let state = Rc::new(RefCell::new(State {
            items,
            scanning,
            has_puts,
            places: places.collect(),
            sessions,
            continuation: None,
            random: Random::new(std::process::id().into()),
            clock: Clock::new(),
            latencies: Latencies::new(),
            is_measuring: false,
            operations: 0,
            scans: 0,
            wrong: 0,
            missing: 0,
            error: None,
        }));
        let before = stats(&endpoint, &asking)?;
        let shared = state.clone();
        let continuation =
            endpoint.register_continuation(move |completion| shared.borrow_mut().on_completion(completion));
        state.borrow_mut().continuation = Some(continuation);
        (0..in_flight).for_each(|place| state.borrow_mut().begin(place, None));
        let (mut window, mut iterations, mut scans_before) = (Window::new(run), 0u32, 0);
        let (mut from, mut seconds) = (0, 0.0);
        endpoint.run_until(|| {
            iterations = iterations.wrapping_add(1);
            if !iterations.is_multiple_of(ITERATIONS_PER_LOOK) {
                return false;
            }
            let mut state = state.borrow_mut();
            let is_over = window.look(state.operations, |rate| self.control.live(Metric::Operations, rate));
            if window.is_measuring() && !state.is_measuring {
                (state.is_measuring, scans_before, from) = (true, state.scans, window.now());
            }
            seconds = (window.now().saturating_sub(from)) as f64 / 1e9;
            let is_timed = state.latencies.count() > 0;
            (is_over && is_timed) || state.has_failed() || self.control.stopping()
        });
        let (scans, latency) = {
            let mut state = state.borrow_mut();
            // Nothing is begun any more, so that the sessions are idle when the server is asked.
            state.continuation = None;
            state.outcome()?;
            ((state.scans - scans_before) as f64 / seconds, state.latencies.percentiles()?)
        };
        let after = stats(&endpoint, &asking)?;
        let handler = latency_of(&after).since(&latency_of(&before));
        let nanos = |percent| handler.percentile(percent).as_nanos() as f64;
        let (now, earlier) = (after.service(), before.service());
        let average = |now: u64, before: u64, bursts: u64, bursts_before: u64| {
            // No message can carry what is not a number.
            now.saturating_sub(before) as f64 / bursts.saturating_sub(bursts_before).max(1) as f64
        };
        let (writes, writes_before) = (now.puts + now.deletes, earlier.puts + earlier.deletes);
        Ok(IndexFigures {
            operations: window.rate()?,
            scans,
            latency,
            handler_p50: nanos(50.0),
            handler_p99: nanos(99.0),
            burst: average(now.gets, earlier.gets, now.get_bursts, earlier.get_bursts),
            write_burst: average(writes, writes_before, now.write_bursts, earlier.write_bursts),
        })
    }
}

/// Asks the server for its statistics.
fn stats<T: Transport>(endpoint: &Endpoint<T>, session: &Session) -> Result<ServerStats, BenchError> {
    let answer = endpoint.block_on(session.call(STATS, encode_plain())).map_err(|failure| failure.error)?;
    let malformed = |why| BenchError::OtherSystem { system: "index server", why };
    ServerStats::decode(&answer.response).map_err(malformed)
}

fn latency_of(stats: &ServerStats) -> Latency {
    let handlers = stats.handlers();
    handlers.into_iter().find(|handler| handler.name == "operate").map(|handler| handler.latency).unwrap_or_default()
}

impl State {
    fn has_failed(&self) -> bool {
        self.error.is_some() || self.wrong > 0 || self.missing > 0
    }

    fn outcome(&mut self) -> Result<(), BenchError> {
        match self.error.take() {
            Some(error) => Err(error.into()),
            None if self.wrong + self.missing > 0 => {
                Err(BenchError::WrongAnswers { wrong: self.wrong, missing: self.missing, refused: 0 })
            }
            None => Ok(()),
        }
    }

    /// Begins an operation in a place. The buffer of a look-up serves the next one.
    #[inline]
    fn begin(&mut self, place: usize, buffer: Option<MsgBuf>) {
        let number = self.random.below(self.items);
        let is_scan = self.scanning != Scanning::None && self.random.below(SCAN_EVERY) == 0;
        let is_put = self.has_puts && self.random.below(2) == 0;
        let is_timed = place.is_multiple_of(TIMED) && !is_scan && !is_put;
        let began = if is_timed { self.clock.now() } else { 0 };
        let at = &mut self.places[place];
        at.began = began;
        if is_scan {
            at.operation = Operation::Scan { from: number, seen: 0 };
            return self.scan(place, number, None);
        }
        let key = item_key(number);
        if is_put {
            at.operation = Operation::Put;
            return self.send(place, OPERATE, Request::Put(&key, &number.to_le_bytes()).encode().into());
        }
        at.operation = Operation::Get(number);
        let Some(mut buffer) = buffer.or_else(|| MsgBuf::copy_from(&Request::Get(&key).encode()).ok()) else {
            return self.missing += 1;
        };
        // As it is encoded: the header stays.
        buffer[GET_HEADER_BYTES..].copy_from_slice(&key);
        self.send(place, OPERATE, buffer.into());
    }

    fn scan(&mut self, place: usize, from: u64, after: Option<After<'_>>) {
        let (req_type, items) = match self.scanning {
            Scanning::Dispatch => (SCAN, SHORT_PAGE.items),
            _ => (LONG_SCAN, SUMMED as u32),
        };
        let key = item_key(from);
        let limits = PageLimits { items, bytes: SHORT_PAGE.bytes };
        let request = ScanRequest { range: Range::from(&key), order: Order::Ascending, limits, after };
        self.send(place, req_type, request.encode().into());
    }

    #[inline]
    fn send(&mut self, place: usize, req_type: u8, request: dunlin_rpc::Payload) {
        let Some(continuation) = self.continuation else { return };
        let session = &self.sessions[self.places[place].session];
        if let Err(failure) = session.enqueue_request(req_type, request, continuation, place as u64) {
            self.error = Some(failure.error);
        }
    }

    #[inline]
    fn on_completion(&mut self, completion: Completion) {
        let place = completion.tag as usize;
        let Place { operation, began, .. } = self.places[place];
        let response = match completion.result {
            Ok(response) => response,
            // The workers' queue is full: the scan is tried again.
            Err(CallError::Busy) if matches!(operation, Operation::Scan { .. }) => return self.again(place),
            Err(error) => return self.error = Some(error),
        };
        match operation {
            Operation::Get(number) => {
                match response[..] {
                    [1, ref value @ ..] if *value == number.to_le_bytes() => self.operations += 1,
                    [0] => self.missing += 1,
                    _ => self.wrong += 1,
                }
                if self.is_measuring && began > 0 {
                    self.latencies.record(self.clock.now() - began);
                }
                let buffer = <MsgBuf as dunlin_rpc::RequestBuffer>::from_payload(completion.request);
                self.begin(place, buffer);
            }
            Operation::Put => {
                // Each item has a value.
                match response[..] {
                    [1] => self.operations += 1,
                    _ => self.wrong += 1,
                }
                self.begin(place, None);
            }
            Operation::Scan { from, seen } => self.on_page(place, from, seen, response),
        }
    }

    fn again(&mut self, place: usize) {
        if let Operation::Scan { from, .. } = self.places[place].operation {
            self.places[place].operation = Operation::Scan { from, seen: 0 };
            self.scan(place, from, None);
        }
    }

    fn on_page(&mut self, place: usize, from: u64, seen: usize, response: MsgBuf) {
        let Some(page) = Page::parse(response) else { return self.wrong += 1 };
        // A scan begins at an item.
        let is_right = seen > 0
            || page.items().next().is_some_and(|(key, value)| key == item_key(from) && value == from.to_le_bytes());
        self.wrong += u64::from(!is_right);
        let seen = seen + page.len();
        if let (true, true, Some(key)) = (seen < SUMMED, page.has_more(), page.last_key()) {
            self.places[place].operation = Operation::Scan { from, seen };
            return self.scan(place, from, Some(After { key, incarnation: page.incarnation() }));
        }
        self.scans += 1;
        self.begin(place, None);
    }
}
