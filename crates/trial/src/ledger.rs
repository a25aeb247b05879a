//! The outcome of every call.

use dunlin_rpc::CallError;

use crate::messages;

/// Which faults a run has besides those of single packets, and so which guarantees are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roughness {
    /// Sessions stay open and every endpoint lives: calls fail only for reasons of their own.
    Steady,
    /// Sessions are closed and opened, endpoints restart, crash and fall silent: calls may also fail with their
    /// session.
    Rough,
    /// As rough, and packets are corrupted. Packets may arrive changed, a corrupted packet may occupy a slot or end a
    /// session, and one request may look like another. So payloads and executions are not checked, and a call that a
    /// corrupted packet left without an answer may be ended by closing its session.
    Corrupt,
}

/// The behaviour of a request type's handler, as its callers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Responds.
    Responds,
    /// Responds, or drops the request.
    MayFail,
    /// Drops the request, or answers with an application error.
    Fails,
    /// There is no handler.
    Missing,
}

/// One call.
#[derive(Debug, Clone)]
pub struct Record {
    /// Node and incarnation of the endpoint that issued it.
    pub issuer: (usize, u32),
    /// Its request type.
    pub req_type: u8,
    /// The behaviour of that type.
    pub behaviour: Behaviour,
    /// Bytes of its request.
    pub request_len: usize,
    /// Whether the request carries its number.
    pub named: bool,
    /// Bytes of the response that it requests.
    pub response_len: usize,
    /// Whether it may fail by its deadline.
    pub has_deadline: bool,
    /// How often its handler ran.
    pub runs: u32,
    /// How it ended.
    pub ended: Option<Result<(), CallError>>,
    /// Dropped by its caller, or with its endpoint.
    pub cancelled: bool,
}

/// An event in the ledger, with the number of the call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A call was issued, with the lengths of its request and response.
    Issued {
        /// The call.
        call: u64,
        /// Number and incarnation of its endpoint.
        issuer: (usize, u32),
        /// Its request type.
        req_type: u8,
        /// Bytes of its request.
        request_len: usize,
        /// Bytes of the response that it requests.
        response_len: usize,
    },
    /// Its handler ran.
    Ran {
        /// The call.
        call: u64,
    },
    /// A call ended.
    Ended {
        /// The call.
        call: u64,
        /// Its result.
        result: Result<(), CallError>,
    },
    /// A call was cancelled.
    Cancelled {
        /// The call.
        call: u64,
    },
}

/// All calls of a run.
pub struct Ledger {
    /// The faults of the run.
    pub roughness: Roughness,
    /// By number.
    pub records: Vec<Record>,
    /// Executions of requests too short to carry a number.
    pub anonymous_runs: u64,
    /// Called with every event.
    watcher: Option<Box<dyn FnMut(Event)>>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(roughness: Roughness) -> Ledger {
        Ledger { roughness, records: Vec::new(), anonymous_runs: 0, watcher: None }
    }

    /// Calls `watcher` with every event from now on.
    pub fn watch(&mut self, watcher: impl FnMut(Event) + 'static) {
        self.watcher = Some(Box::new(watcher));
    }

    fn tell(&mut self, event: Event) {
        if let Some(watcher) = &mut self.watcher {
            watcher(event);
        }
    }

    /// Whether packets may arrive changed.
    pub fn corrupts(&self) -> bool {
        self.roughness == Roughness::Corrupt
    }

    /// Adds a call that is about to be issued; returns its number.
    pub fn add(&mut self, record: Record) -> u64 {
        let call = self.records.len() as u64;
        let Record { issuer, req_type, request_len, response_len, .. } = record;
        self.records.push(record);
        self.tell(Event::Issued { call, issuer, req_type, request_len, response_len });
        call
    }

    /// Records that a handler got a request; returns its number, and the requested length of the response.
    pub fn ran(&mut self, payload: &[u8]) -> messages::Named {
        let parsed = messages::parse(payload);
        if let Ok(Some(named)) = parsed {
            self.tell(Event::Ran { call: named.number });
        }
        if self.corrupts() {
            let number = parsed.ok().flatten().map_or(0, |named| named.number);
            let response_len = self.records.get(number as usize).map_or(0, |record| record.response_len);
            return messages::Named { number, response_len };
        }
        let Some(named) = parsed.unwrap_or_else(|damage| panic!("{damage}")) else {
            self.anonymous_runs += 1;
            return messages::Named { number: 0, response_len: payload.len() };
        };
        let record = &mut self.records[named.number as usize];
        if let Some(Err(error)) = &record.ended {
            assert!(
                error.may_have_run(),
                "call {} ended with {error:?}, and then its handler ran: {record:?}",
                named.number
            );
        }
        record.runs += 1;
        assert_eq!(record.runs, 1, "the handler of request {} ran again: {record:?}", named.number);
        named
    }

    /// Records that a call ended, with this response.
    pub fn ended(&mut self, number: u64, result: Result<&[u8], CallError>) {
        let corrupts = self.corrupts();
        let strict = self.roughness == Roughness::Steady;
        self.tell(Event::Ended { call: number, result: result.clone().map(|_| ()) });
        let record = &mut self.records[number as usize];
        assert_eq!(record.ended, None, "call {number} ended twice, now with {result:?}");
        assert!(!record.cancelled, "call {number} was cancelled, and ended with {result:?}");
        record.ended = Some(result.clone().map(|_| ()));
        if corrupts {
            return;
        }
        match result {
            Ok(response) => {
                assert!(
                    matches!(record.behaviour, Behaviour::Responds | Behaviour::MayFail),
                    "call {number} got a response"
                );
                if record.named {
                    assert_eq!(record.runs, 1, "call {number} got a response, and its handler did not run");
                    let intact = messages::is_response(number, record.response_len, response);
                    let len = response.len();
                    assert!(intact, "the response of call {number}, {len} bytes, is not the one of {record:?}");
                }
            }
            Err(error) => {
                let is_possible = error.may_have_run() || record.runs == 0;
                assert!(is_possible, "call {number} ended with {error:?}, and its handler ran");
                let allowed = match &error {
                    CallError::DeadlineExceeded => record.has_deadline,
                    // An endpoint that goes away answers so for the handlers that it ends.
                    CallError::Overloaded => record.behaviour == Behaviour::MayFail,
                    CallError::HandlerFailed => {
                        !strict || matches!(record.behaviour, Behaviour::Fails | Behaviour::MayFail)
                    }
                    CallError::Application(error) => {
                        let is_named = !record.named || error.code() == number as u32;
                        record.behaviour == Behaviour::Fails && is_named && error.message() == messages::FAILURE
                    }
                    CallError::NoHandler => record.behaviour == Behaviour::Missing,
                    CallError::QueueFull | CallError::Busy | CallError::NoReverseCredits => true,
                    CallError::ShuttingDown => !strict,
                    CallError::PeerSilent | CallError::PeerReset | CallError::Closed => !strict,
                    _ => false,
                };
                assert!(allowed, "call {number} ended with {error:?}: {record:?}");
            }
        }
    }

    /// Records that a call was dropped by its caller, if it had not ended.
    pub fn cancelled(&mut self, number: u64) {
        self.tell(Event::Cancelled { call: number });
        let record = &mut self.records[number as usize];
        if record.ended.is_none() {
            record.cancelled = true;
        }
    }

    /// Records that an endpoint is gone, and its tasks with it.
    pub fn abandon(&mut self, issuer: (usize, u32)) {
        for record in self.records.iter_mut().filter(|r| r.issuer == issuer && r.ended.is_none()) {
            record.cancelled = true;
        }
    }

    /// Calls that have neither ended nor been cancelled.
    pub fn open(&self) -> Vec<u64> {
        let open = |r: &Record| r.ended.is_none() && !r.cancelled;
        (0..).zip(&self.records).filter(|(_, r)| open(r)).map(|(number, _)| number).collect()
    }
}
