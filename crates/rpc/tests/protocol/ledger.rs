//! What became of every call.

use dunlin_rpc::CallError;

use crate::messages;
use crate::scenario::Roughness;

/// What the handler of a request type does, as far as its callers can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Responds.
    Responds,
    /// Responds, or drops the request.
    MayFail,
    /// Drops the request.
    Fails,
    /// There is none.
    Missing,
}

/// One call.
#[derive(Debug, Clone)]
pub struct Record {
    /// Node and incarnation of the endpoint that issued it.
    pub issuer: (usize, u32),
    pub behaviour: Behaviour,
    /// Whether the request carries its number.
    pub named: bool,
    pub response_len: usize,
    pub has_deadline: bool,
    pub runs: u32,
    pub ended: Option<Result<(), CallError>>,
    /// Dropped by its caller, or with its endpoint.
    pub cancelled: bool,
}

/// All calls of a run.
#[derive(Debug)]
pub struct Ledger {
    pub roughness: Roughness,
    pub records: Vec<Record>,
    pub anonymous_runs: u64,
}

impl Ledger {
    pub fn new(roughness: Roughness) -> Ledger {
        Ledger { roughness, records: Vec::new(), anonymous_runs: 0 }
    }

    pub fn corrupts(&self) -> bool {
        self.roughness == Roughness::Corrupt
    }

    pub fn add(&mut self, record: Record) -> u64 {
        self.records.push(record);
        self.records.len() as u64 - 1
    }

    /// A handler got a request: gives its number, and the length of the response that it wants.
    pub fn ran(&mut self, payload: &[u8]) -> messages::Named {
        let parsed = messages::parse(payload);
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
        record.runs += 1;
        assert_eq!(record.runs, 1, "the handler of request {} ran again: {record:?}", named.number);
        named
    }

    /// A call ended, with this response.
    pub fn ended(&mut self, number: u64, result: Result<&[u8], CallError>) {
        let corrupts = self.corrupts();
        let strict = self.roughness == Roughness::Steady;
        let record = &mut self.records[number as usize];
        assert_eq!(record.ended, None, "call {number} ended twice, now with {result:?}");
        assert!(!record.cancelled, "call {number} was cancelled, and ended with {result:?}");
        record.ended = Some(result.map(|_| ()));
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
                let nothing_ran = matches!(
                    error,
                    CallError::QueueFull
                        | CallError::Busy
                        | CallError::NoHandler
                        | CallError::RequestTooLarge
                        | CallError::NoReverseCredits
                );
                assert!(!nothing_ran || record.runs == 0, "call {number} ended with {error:?}, and its handler ran");
                let allowed = match error {
                    CallError::DeadlineExceeded => record.has_deadline,
                    // An endpoint that goes away answers so for the handlers that it takes along.
                    CallError::HandlerFailed => !strict || matches!(record.behaviour, Behaviour::Fails | Behaviour::MayFail),
                    CallError::NoHandler => record.behaviour == Behaviour::Missing,
                    CallError::QueueFull | CallError::Busy | CallError::NoReverseCredits => true,
                    CallError::PeerSilent | CallError::PeerReset | CallError::Closed => !strict,
                    _ => false,
                };
                assert!(allowed, "call {number} ended with {error:?}: {record:?}");
            }
        }
    }

    pub fn cancelled(&mut self, number: u64) {
        let record = &mut self.records[number as usize];
        if record.ended.is_none() {
            record.cancelled = true;
        }
    }

    /// An endpoint is gone, and its tasks with it.
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
