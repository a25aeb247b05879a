//! Keeps operations in flight: whenever one ends, the next one starts.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use dunlin_kv::client::{Finished, KvClient, KvError, Pipeline};
use dunlin_kv::wire::{Operation as Request, Status, ValueAnswer};
use dunlin_lab::measure::Latencies;
use dunlin_net::{Clock, Transport};
use dunlin_rpc::{Endpoint, MsgBuf};
use dunlin_store::Put;

use super::client::KvFigures;
use crate::BenchError;
use crate::workload::item::{fill_value, is_value, key};
use crate::workload::{Operation, Operations};

/// One slot in this many is timed, including the first: reading the clock costs a tenth of an operation.
const TIMED: usize = 16;

/// The next operations.
pub(super) enum Next {
    /// Stores items in order.
    Fill(Unstored),
    /// Operations of a mix.
    Mix(Box<Operations>),
}

/// The items that are not stored yet.
pub(super) struct Unstored {
    pub next: u64,
    pub items: u64,
}

impl Next {
    fn draw(&mut self) -> Option<Operation> {
        match self {
            Next::Mix(operations) => Some(operations.draw()),
            Next::Fill(fill) => {
                let number = fill.next;
                fill.next += 1;
                (number < fill.items).then_some(Operation::Insert(number))
            }
        }
    }

    fn items(&self) -> u64 {
        match self {
            Next::Mix(operations) => operations.items(),
            Next::Fill(fill) => fill.items,
        }
    }
}

/// A load that runs while the endpoint does.
pub(super) struct Driver {
    state: Rc<RefCell<State>>,
    pipeline: Rc<Pipeline>,
}

struct State {
    pipeline: Weak<Pipeline>,
    next: Next,
    clock: Clock,
    places: Vec<Place>,
    value: Vec<u8>,
    answered: u64,
    reads: u64,
    hits: u64,
    refused: u64,
    wrong: u64,
    latencies: Latencies,
    failed: Option<KvError>,
    unanswered: Option<dunlin_rpc::CallError>,
}

/// One operation in flight.
#[derive(Clone, Copy)]
struct Place {
    operation: Operation,
    /// Whether its read is answered and its write is in flight.
    is_written: bool,
    began: u64,
}

impl Driver {
    /// Starts operations.
    pub fn start<T: Transport + 'static>(
        endpoint: &Endpoint<T>,
        client: &KvClient<T>,
        next: Next,
        in_flight: usize,
        value_bytes: usize,
    ) -> Result<Driver, BenchError> {
        let state = Rc::new(RefCell::new(State {
            pipeline: Weak::new(),
            next,
            clock: Clock::new(),
            places: vec![Place { operation: Operation::Get(0), is_written: false, began: 0 }; in_flight],
            value: vec![0; value_bytes],
            answered: 0,
            reads: 0,
            hits: 0,
            refused: 0,
            wrong: 0,
            latencies: Latencies::new(),
            failed: None,
            unanswered: None,
        }));
        let shared = Rc::clone(&state);
        let pipeline =
            endpoint.block_on(Pipeline::new(client, move |finished| shared.borrow_mut().on_end(finished)))?;
        let pipeline = Rc::new(pipeline);
        state.borrow_mut().pipeline = Rc::downgrade(&pipeline);
        (0..in_flight).for_each(|place| state.borrow_mut().begin(place));
        Ok(Driver { state, pipeline })
    }

    /// Whether nothing is in flight any more, or an operation failed.
    pub fn is_done(&self) -> bool {
        self.pipeline.in_flight() == 0 || self.has_failed()
    }

    pub fn has_failed(&self) -> bool {
        let state = self.state.borrow();
        state.failed.is_some() || state.unanswered.is_some() || state.wrong > 0 || state.refused > 0
    }

    pub fn answered(&self) -> u64 {
        self.state.borrow().answered
    }

    /// Whether an operation was timed.
    pub fn is_timed(&self) -> bool {
        self.state.borrow().latencies.count() > 0
    }

    /// Resets the counters.
    pub fn count_anew(&self) {
        let mut state = self.state.borrow_mut();
        (state.answered, state.reads, state.hits, state.latencies) = (0, 0, 0, Latencies::new());
    }

    /// Returns an error if there was one.
    pub fn finish(self) -> Result<(), BenchError> {
        let mut state = self.state.borrow_mut();
        if let Some(error) = state.failed.take() {
            return Err(error.into());
        }
        if let Some(error) = state.unanswered.take() {
            return Err(error.into());
        }
        let State { wrong, refused, .. } = *state;
        if wrong > 0 || refused > 0 { Err(BenchError::WrongAnswers { wrong, missing: 0, refused }) } else { Ok(()) }
    }

    /// The figures of a run of this length.
    pub fn figures(self, seconds: f64) -> Result<KvFigures, BenchError> {
        let figures = {
            let state = self.state.borrow();
            let hits = if state.reads == 0 { 1.0 } else { state.hits as f64 / state.reads as f64 };
            (state.answered as f64 / seconds, state.latencies.percentiles(), hits, state.next.items())
        };
        self.finish()?;
        let (rate, latency, hits, items) = figures;
        Ok(KvFigures { rate, latency: latency?, hits, items })
    }
}

impl State {
    /// Starts the next operation in a slot, if there is one.
    #[inline]
    fn begin(&mut self, place: usize) {
        let Some(operation) = self.next.draw() else { return };
        let began = if place.is_multiple_of(TIMED) { self.clock.now() } else { 0 };
        self.places[place] = Place { operation, is_written: false, began };
        match operation {
            Operation::Get(number) | Operation::ReadModifyWrite(number) => self.get(place, number),
            Operation::Update(number) | Operation::Insert(number) => self.put(place, number),
        }
    }

    #[inline]
    fn get(&mut self, place: usize, number: u64) {
        self.submit(place, &Request::Get { key: &key(number) });
    }

    #[inline]
    fn put(&mut self, place: usize, number: u64) {
        let mut value = std::mem::take(&mut self.value);
        fill_value(number, &mut value);
        self.submit(place, &Request::Put { key: &key(number), value: &value, put: Put::default() });
        self.value = value;
    }

    #[inline]
    fn submit(&mut self, place: usize, request: &Request<'_>) {
        // Gone once the load is over: then nothing starts any more.
        let Some(pipeline) = self.pipeline.upgrade() else { return };
        if let Err(error) = pipeline.submit(request, place as u64) {
            self.failed = Some(error);
        }
    }

    #[inline]
    fn on_end(&mut self, finished: Finished) {
        let place = finished.tag as usize;
        let response = match finished.result {
            Ok(response) => response,
            Err(error) => return self.unanswered = Some(error),
        };
        let Place { operation, is_written, began } = self.places[place];
        match operation {
            Operation::Get(number) => self.check_get(number, &response),
            Operation::ReadModifyWrite(number) if !is_written => {
                self.check_get(number, &response);
                self.places[place].is_written = true;
                return self.put(place, number);
            }
            _ => self.refused += u64::from(Status::of(&response) != Some(Status::Done)),
        }
        self.answered += 1;
        if place.is_multiple_of(TIMED) {
            self.latencies.record(self.clock.now() - began);
        }
        if self.wrong == 0 && self.refused == 0 {
            self.begin(place);
        }
    }

    #[inline]
    fn check_get(&mut self, number: u64, response: &MsgBuf) {
        self.reads += 1;
        match ValueAnswer::parse(response) {
            Some(ValueAnswer::Found { start, .. }) if is_value(number, &response[start..]) => self.hits += 1,
            Some(ValueAnswer::NotFound) => {}
            _ => self.wrong += 1,
        }
    }
}
