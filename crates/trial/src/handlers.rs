//! Request handlers, one of each kind. An `unwrap` here is a check of the run: it fails if an endpoint refuses the
//! first handler of a type, or if a worker's job has panicked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use dunlin_net::Transport;
use dunlin_rpc::{
    Completion, ContinuationId, DeferredRequest, Endpoint, MsgBuf, Payload, Session, WorkerPool, WorkerRequest,
};

use crate::calls;
use crate::ledger::{Behaviour, Ledger};
use crate::messages::{self, Named};
use crate::random::Random;

/// Dispatch mode, response written in place.
pub const DISPATCH: u8 = 1;
/// A whole burst at once.
pub const BURST: u8 = 2;
/// Asynchronous: calls another endpoint first.
pub const NESTED: u8 = 3;
/// Asynchronous: calls its caller back first.
pub const CALL_BACK: u8 = 4;
/// Held, and answered or dropped by the workload later.
pub const DEFERRED: u8 = 5;
/// A burst: some held, some dropped, some answered.
pub const BURST_MIXED: u8 = 6;
/// Dispatch mode, response in a buffer of its own.
pub const OWNED: u8 = 7;
/// Dispatch mode, no response: an application error, or nothing.
pub const DROPPED: u8 = 8;
/// Worker mode, on a pool that the workload runs by hand.
pub const WORKER: u8 = 9;
/// No handler.
pub const MISSING: u8 = 99;

/// Every request type, with the behaviour that callers may expect.
pub const TYPES: [(u8, Behaviour); 10] = [
    (DISPATCH, Behaviour::Responds),
    (BURST, Behaviour::Responds),
    (NESTED, Behaviour::Responds),
    (CALL_BACK, Behaviour::Responds),
    (DEFERRED, Behaviour::MayFail),
    (BURST_MIXED, Behaviour::MayFail),
    (OWNED, Behaviour::Responds),
    (DROPPED, Behaviour::Fails),
    (WORKER, Behaviour::Responds),
    (MISSING, Behaviour::Missing),
];

/// Largest response of a worker.
pub const WORKER_RESPONSE_MAX: usize = 8 << 20;

/// State shared by the handlers, tasks and workload of one endpoint.
pub struct Local {
    /// Number of the endpoint.
    pub index: usize,
    /// How many earlier endpoints had this number.
    pub incarnation: u32,
    /// The outcome of every call of the run.
    pub ledger: Rc<RefCell<Ledger>>,
    /// Sessions opened here that were open at the last check.
    pub outbound: RefCell<Vec<Session>>,
    /// All sessions ever opened here, with the node at the other end.
    pub opened: RefCell<Vec<(usize, Session)>>,
    /// Sessions on which requests came.
    pub inbound: RefCell<Vec<Session>>,
    /// Requests that wait for [`Local::settle_deferred`].
    pub deferred: RefCell<Vec<(DeferredRequest, Named)>>,
    /// Runs only in [`Local::run_workers`].
    pub workers: WorkerPool,
    /// Requests that workers ran, not yet in the ledger.
    pub worked: Arc<Mutex<Vec<Vec<u8>>>>,
    /// The random source of handlers.
    pub random: RefCell<Random>,
    /// Sessions being opened whose future has not ended.
    pub connecting: Cell<u32>,
    /// Sessions being closed, likewise.
    pub closing: Cell<u32>,
    continuation: Cell<Option<ContinuationId>>,
}

impl Local {
    /// For the endpoint with this number, of which `incarnation` earlier endpoints had the same number.
    pub fn new(
        index: usize,
        incarnation: u32,
        ledger: &Rc<RefCell<Ledger>>,
        workers: WorkerPool,
        random: Random,
    ) -> Local {
        Local {
            index,
            incarnation,
            ledger: ledger.clone(),
            outbound: RefCell::default(),
            opened: RefCell::default(),
            inbound: RefCell::default(),
            deferred: RefCell::default(),
            workers,
            worked: Arc::default(),
            random: RefCell::new(random),
            connecting: Cell::new(0),
            closing: Cell::new(0),
            continuation: Cell::new(None),
        }
    }

    /// The continuation of calls with callbacks. Exists once [`register`] has run.
    pub fn continuation(&self) -> ContinuationId {
        self.continuation.get().expect("handlers are registered before the first call")
    }

    /// Records a session that has opened.
    pub fn open(&self, to: usize, session: Session) {
        self.opened.borrow_mut().push((to, session.clone()));
        self.outbound.borrow_mut().push(session);
    }

    fn ran(&self, payload: &[u8]) -> Named {
        self.ledger.borrow_mut().ran(payload)
    }

    fn met(&self, session: Session) {
        let mut inbound = self.inbound.borrow_mut();
        if !inbound.contains(&session) {
            inbound.push(session);
        }
    }

    /// Takes a deferred request, from a random place.
    pub fn take_deferred(&self) -> Option<(DeferredRequest, Named)> {
        let mut deferred = self.deferred.borrow_mut();
        if deferred.is_empty() {
            return None;
        }
        let at = self.random.borrow_mut().index(deferred.len());
        Some(deferred.swap_remove(at))
    }

    /// Answers or drops a deferred request.
    pub fn settle_deferred(&self) -> bool {
        let Some((request, named)) = self.take_deferred() else { return false };
        if self.random.borrow_mut().chance(80) {
            let response = self.response(named);
            // The caller may have given up.
            let _ = request.enqueue_response(response);
        }
        true
    }

    /// Runs the workers' waiting jobs; returns whether there were any.
    pub fn run_workers(&self) -> bool {
        let ran = self.workers.run_queued();
        for payload in self.worked.lock().unwrap().drain(..) {
            self.ran(&payload);
        }
        ran > 0
    }

    /// A response in a buffer of a random kind.
    fn response(&self, named: Named) -> Payload {
        let mut bytes = vec![0; named.response_len];
        messages::fill_response(named.number, &mut bytes);
        calls::payload(&mut self.random.borrow_mut(), bytes)
    }
}

/// Registers all handlers at a new endpoint.
///
/// # Panics
/// If some are already registered.
pub fn register<T: Transport>(endpoint: &Endpoint<T>, local: &Rc<Local>) {
    let at = local.clone();
    let continuation = endpoint.register_continuation(move |completion: Completion| {
        calls::finish(&at, completion.tag, completion.result, &completion.request);
    });
    local.continuation.set(Some(continuation));

    let at = local.clone();
    let dispatch = move |request: dunlin_rpc::Request<'_>| {
        let named = at.ran(request.payload());
        at.met(request.session());
        request.respond_with(named.response_len, |out| messages::fill_response(named.number, out));
    };
    endpoint.register(DISPATCH, dispatch).unwrap();

    let at = local.clone();
    let burst = move |burst: &mut dunlin_rpc::RequestBurst<'_>| {
        for i in 0..burst.len() {
            let named = at.ran(burst.payload(i));
            burst.respond_with(i, named.response_len, |out| messages::fill_response(named.number, out));
        }
    };
    endpoint.register_burst(BURST, burst).unwrap();

    for (req_type, calls_back) in [(NESTED, false), (CALL_BACK, true)] {
        let at = local.clone();
        let nested = move |request: dunlin_rpc::OwnedRequest| {
            let at = at.clone();
            async move {
                let named = at.ran(request.payload());
                let session = match calls_back {
                    true => Some(request.session().clone()),
                    false => at.random.borrow_mut().pick(&at.outbound.borrow()).cloned(),
                };
                if let Some(session) = session {
                    calls::nested_call(&at, &session, request.time_left()).await;
                }
                at.response(named)
            }
        };
        endpoint.register_async(req_type, nested).unwrap();
    }

    let at = local.clone();
    let deferred = move |request: dunlin_rpc::Request<'_>| {
        match request.defer() {
            Ok(deferred) => {
                let named = at.ran(deferred.request().payload());
                at.deferred.borrow_mut().push((deferred, named));
            }
            // Too many are held, and the handler did not run.
            Err(request) => request.push_back(),
        }
    };
    endpoint.register(DEFERRED, deferred).unwrap();

    let at = local.clone();
    let mixed = move |burst: &mut dunlin_rpc::RequestBurst<'_>| {
        // From the end, and not all: the handler chooses the order of answers.
        for i in (0..burst.len()).rev() {
            let choice = at.random.borrow_mut().between(0, 2);
            match choice {
                0 => {
                    let named = at.ran(burst.payload(i));
                    // If too many are held already, the caller is told that the request may have run.
                    if let Ok(deferred) = burst.defer(i) {
                        at.deferred.borrow_mut().push((deferred, named));
                    }
                }
                1 => {
                    let named = at.ran(burst.payload(i));
                    burst.respond_with(i, named.response_len, |out| messages::fill_response(named.number, out));
                }
                _ => drop(at.ran(burst.payload(i))),
            }
        }
    };
    endpoint.register_burst(BURST_MIXED, mixed).unwrap();

    let at = local.clone();
    let owned = move |request: dunlin_rpc::Request<'_>| {
        let named = at.ran(request.payload());
        let response = at.response(named);
        // The endpoint counts a response without a caller.
        let _ = request.respond_from(response);
    };
    endpoint.register(OWNED, owned).unwrap();

    let worked = local.worked.clone();
    let work = move |request: WorkerRequest| {
        let request = request.payload();
        worked.lock().unwrap().push(request.to_vec());
        let named = messages::parse(request).ok().flatten();
        let named = named.unwrap_or(Named { number: 0, response_len: request.len() });
        // A corrupted request may ask for any length.
        let mut response = vec![0; named.response_len.min(WORKER_RESPONSE_MAX)];
        messages::fill_response(named.number, &mut response);
        response
    };
    endpoint.register_worker(WORKER, &local.workers, work).unwrap();

    let at = local.clone();
    let dropped = move |request: dunlin_rpc::Request<'_>| {
        let named = at.ran(request.payload());
        if messages::fails_in_words(named.number) {
            request.fail(named.number as u32, messages::FAILURE);
        }
    };
    endpoint.register(DROPPED, dropped).unwrap();
}

/// A message buffer with these bytes.
pub fn msgbuf(bytes: &[u8]) -> MsgBuf {
    MsgBuf::copy_from(bytes).expect("tests stay below the limit of message buffers")
}
