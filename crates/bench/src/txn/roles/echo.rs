//! The floor: calls of one node to all others, as many bytes long as a typical message of a transaction, with the
//! callback layer of the RPC library.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dunlin_lab::measure::Latencies;
use dunlin_net::{Addr, Clock, Transport};
use dunlin_rpc::{Completion, ContinuationId, Endpoint, MsgBuf, Payload, Session};

use crate::BenchError;

/// Its request type.
const ECHO: u8 = 1;
/// Bytes of a request: a read and lock of one key has 81, a commit of 40 bytes 128.
const REQUEST_BYTES: usize = 96;
/// Bytes of a response: a value of 40 bytes has 54, a commit 1.
const RESPONSE_BYTES: usize = 48;
/// Sessions with each other node: eight calls fit each.
const SESSIONS: usize = 2;

/// The calls of one node.
pub(super) struct Echo {
    sessions: RefCell<Vec<Session>>,
    continuation: Cell<Option<ContinuationId>>,
    clock: Clock,
    next: Cell<usize>,
    pub done: Cell<u64>,
    /// Those before the measured run.
    done_before: Cell<u64>,
    in_flight: Cell<usize>,
    is_over: Cell<bool>,
    began: Cell<u64>,
    pub latencies: RefCell<Option<Latencies>>,
    failure: RefCell<Option<BenchError>>,
}

impl Echo {
    /// Answers the others' calls.
    pub fn new<T: Transport + 'static>(endpoint: &Endpoint<T>) -> Result<Rc<Echo>, BenchError> {
        endpoint.register(ECHO, |request| request.respond_with(RESPONSE_BYTES, |bytes| bytes.fill(7)))?;
        let echo = Rc::new(Echo {
            sessions: RefCell::default(),
            continuation: Cell::new(None),
            clock: Clock::new(),
            next: Cell::new(0),
            done: Cell::new(0),
            done_before: Cell::new(0),
            in_flight: Cell::new(0),
            is_over: Cell::new(false),
            began: Cell::new(0),
            latencies: RefCell::default(),
            failure: RefCell::default(),
        });
        let calling = echo.clone();
        echo.continuation
            .set(Some(endpoint.register_continuation(move |completion| calling.on_completion(completion))));
        Ok(echo)
    }

    /// Opens sessions with the others.
    pub fn open<T: Transport + 'static>(self: &Rc<Self>, endpoint: &Rc<Endpoint<T>>, others: Vec<Addr>) {
        let (opening, connecting) = (self.clone(), endpoint.clone());
        self.in_flight.set(1);
        endpoint.spawn(async move {
            for addr in others.iter().cycle().take(others.len() * SESSIONS) {
                match connecting.connect(addr).await {
                    Ok(session) => opening.sessions.borrow_mut().push(session),
                    Err(error) => drop(opening.failure.borrow_mut().get_or_insert(error.into())),
                }
            }
            opening.in_flight.set(0);
        });
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.in_flight.get() == 0
    }

    pub fn take_failure(&self) -> Option<BenchError> {
        self.failure.take()
    }

    /// Begins the measured run, and records latencies in it.
    pub fn record(&self, is_timed: bool) {
        self.done_before.set(self.done.get());
        *self.latencies.borrow_mut() = is_timed.then(Latencies::new);
    }

    /// Whether a call, and a latency, was measured.
    pub fn is_measured(&self, is_timed: bool) -> bool {
        let has_latency = self.latencies.borrow().as_ref().is_some_and(|latencies| latencies.count() > 0);
        self.done.get() > self.done_before.get() && (has_latency || !is_timed)
    }

    /// Begins calls, and replaces each that ends.
    pub fn start(&self, in_flight: usize) -> Result<(), BenchError> {
        for _ in 0..in_flight {
            self.in_flight.set(self.in_flight.get() + 1);
            self.call(MsgBuf::copy_from(&[7; REQUEST_BYTES])?.into());
        }
        Ok(())
    }

    pub fn end(&self) {
        self.is_over.set(true);
    }

    fn call(&self, request: Payload) {
        let (sessions, Some(continuation)) = (self.sessions.borrow(), self.continuation.get()) else { return };
        let next = self.next.get();
        self.next.set(if next + 1 < sessions.len() { next + 1 } else { 0 });
        if self.latencies.borrow().is_some() {
            self.began.set(self.clock.now());
        }
        if let Err(failure) = sessions[next].enqueue_request(ECHO, request, continuation, 0) {
            self.failure.borrow_mut().get_or_insert(failure.error.into());
        }
    }

    fn on_completion(&self, completion: Completion) {
        if let Err(error) = completion.result {
            self.failure.borrow_mut().get_or_insert(error.into());
        }
        self.done.set(self.done.get() + 1);
        if let Some(latencies) = &mut *self.latencies.borrow_mut()
            && self.began.get() > 0
        {
            latencies.record(self.clock.now() - self.began.get());
        }
        if self.is_over.get() {
            self.in_flight.set(self.in_flight.get() - 1);
        } else {
            self.call(completion.request);
        }
    }
}
