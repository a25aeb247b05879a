//! The actions of endpoints: they open and close sessions, and issue and cancel calls of every kind.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{CallError, CallOptions, ConnectError, Endpoint, MsgBuf, Payload, RequestBuffer, Session};

use crate::cancel::{CancelHandle, cancellable};
use crate::handlers::{self, Local, TYPES, msgbuf};
use crate::ledger::{Behaviour, Record, Roughness};
use crate::messages::{self, NAMED_BYTES_MIN};
use crate::random::Random;

/// Handlers that wait for each other's slots would wait forever, so nested calls give up after this time.
const NESTED_TIMEOUT: Duration = Duration::from_millis(10);

/// How a call ended.
pub struct Outcome {
    result: Result<MsgBuf, CallError>,
    request: Payload,
}

/// A call by its number, and the handle that cancels it.
pub type Cancel = (u64, CancelHandle<Outcome>);

/// Opens a session to the endpoint with number `to`. In a steady run it must open, or be refused for a reason.
pub fn connect<T: Transport>(endpoint: &Endpoint<T>, local: &Rc<Local>, to: usize, addr: &Addr) {
    let connecting = endpoint.connect(addr);
    let strict = local.ledger.borrow().roughness == Roughness::Steady;
    let local = local.clone();
    local.connecting.set(local.connecting.get() + 1);
    endpoint.spawn(async move {
        let opened = connecting.await;
        local.connecting.set(local.connecting.get() - 1);
        match opened {
            Ok(session) => local.open(to, session),
            Err(error) => {
                let explained = matches!(error, ConnectError::NoCredits { .. } | ConnectError::Refused { .. });
                assert!(!strict || explained, "a session did not open: {error}");
            }
        }
    });
}

/// As [`connect`], with a handle to cancel it.
pub fn connect_in_doubt<T: Transport>(
    endpoint: &Endpoint<T>,
    local: &Rc<Local>,
    to: usize,
    addr: &Addr,
) -> CancelHandle<Result<Session, ConnectError>> {
    let (task, handle) = cancellable(endpoint.connect(addr));
    let local = local.clone();
    local.connecting.set(local.connecting.get() + 1);
    endpoint.spawn(async move {
        let opened = task.await;
        local.connecting.set(local.connecting.get() - 1);
        if let Some(Ok(session)) = opened {
            local.open(to, session);
        }
    });
    handle
}

/// Closes a session, whichever side opened it.
pub fn close<T: Transport>(endpoint: &Endpoint<T>, local: &Rc<Local>, random: &mut Random) {
    let Some(session) = random_session(local, random) else { return };
    let local = local.clone();
    local.closing.set(local.closing.get() + 1);
    let closing = session.close();
    endpoint.spawn(async move {
        closing.await;
        local.closing.set(local.closing.get() - 1);
    });
}

/// A session of an endpoint, opened by either side.
fn random_session(local: &Local, random: &mut Random) -> Option<Session> {
    local.outbound.borrow_mut().retain(Session::is_open);
    local.inbound.borrow_mut().retain(Session::is_open);
    let outbound = local.outbound.borrow();
    let inbound = local.inbound.borrow();
    let from = if random.chance(70) || inbound.is_empty() { &outbound } else { &inbound };
    random.pick(from).cloned()
}

/// Issues a call on one of the endpoint's sessions, if it has any. The returned handle may cancel it.
pub fn call<T: Transport>(
    endpoint: &Endpoint<T>,
    local: &Rc<Local>,
    random: &mut Random,
    message_bytes_max: usize,
) -> Option<Cancel> {
    let session = random_session(local, random)?;
    let stats = session.stats()?;
    let req_type = if random.chance(50) { handlers::DISPATCH } else { TYPES[random.index(TYPES.len())].0 };
    let uses_callback = random.chance(30);
    let timeout = (!uses_callback && random.chance(25))
        .then(|| Duration::from_nanos(*random.pick(&[0, 10_000, 1_000_000, 20_000_000, 400_000_000]).unwrap_or(&0)));
    let max = stats.message_bytes_max.min(message_bytes_max);
    let (number, bytes) = plan(local, random, req_type, stats.packet_data_bytes, max, timeout.is_some());
    if uses_callback {
        let request = payload(random, bytes);
        if let Err(failure) = session.enqueue_request(req_type, request, local.continuation(), number) {
            finish(local, number, Err(failure.error), &failure.request);
        }
        return None;
    }
    let mut options = CallOptions::default();
    options.timeout = timeout;
    let future = match random.between(0, 3) {
        0 => start(&session, req_type, bytes, options),
        1 => start(&session, req_type, bytes::Bytes::from(bytes), options),
        2 => start(&session, req_type, msgbuf(&bytes), options),
        _ => start(&session, req_type, Payload::from(bytes), options),
    };
    let (task, handle) = cancellable(future);
    let at = local.clone();
    endpoint.spawn(async move {
        if let Some(outcome) = task.await {
            finish(&at, number, outcome.result, &outcome.request);
        }
    });
    random.chance(40).then_some((number, handle))
}

/// Cancels one to four of these calls.
pub fn cancel(local: &Local, random: &mut Random, cancels: &mut Vec<Cancel>) {
    for _ in 0..random.between(1, 4) {
        if cancels.is_empty() {
            return;
        }
        let (number, handle) = cancels.swap_remove(random.index(cancels.len()));
        if handle.cancel() {
            local.ledger.borrow_mut().cancelled(number);
        }
    }
}

fn random_len(random: &mut Random, packet: usize, max: usize) -> usize {
    let len = match random.between(0, 9) {
        0 => random.index(NAMED_BYTES_MIN + 1),
        1..=5 => random.index(packet + 1),
        6 => packet * random.between(1, 4) as usize,
        7 | 8 => random.index(packet * 5),
        _ => random.index(max + 1),
    };
    len.min(max)
}

/// Records a call in the ledger, and makes its request.
fn plan(local: &Local, random: &mut Random, req_type: u8, packet: usize, max: usize, deadline: bool) -> (u64, Vec<u8>) {
    let len = random_len(random, packet, max);
    let response_len = random_len(random, packet, max);
    let behaviour =
        TYPES.iter().find(|(known, _)| *known == req_type).map_or(Behaviour::Missing, |(_, behaviour)| *behaviour);
    let record = Record {
        issuer: (local.index, local.incarnation),
        req_type,
        behaviour,
        request_len: len,
        named: len >= NAMED_BYTES_MIN,
        response_len,
        has_deadline: deadline,
        runs: 0,
        ended: None,
        cancelled: false,
    };
    let number = local.ledger.borrow_mut().add(record);
    (number, messages::request(number, len, response_len))
}

/// The same bytes in a buffer of a random kind.
pub fn payload(random: &mut Random, bytes: Vec<u8>) -> Payload {
    match random.between(0, 2) {
        0 => Payload::from(bytes),
        1 => Payload::from(bytes::Bytes::from(bytes)),
        _ => msgbuf(&bytes).into(),
    }
}

fn start<B: RequestBuffer + 'static>(
    session: &Session,
    req_type: u8,
    request: B,
    options: CallOptions,
) -> Pin<Box<dyn Future<Output = Outcome>>> {
    let call = session.call_with(req_type, request, options);
    Box::pin(async move {
        match call.await {
            Ok(reply) => Outcome { result: Ok(reply.response), request: reply.request.into() },
            Err(failure) => Outcome { result: Err(failure.error), request: failure.request.into() },
        }
    })
}

/// Checks the outcome of a call.
pub fn finish(local: &Local, number: u64, result: Result<MsgBuf, CallError>, request: &Payload) {
    if std::thread::panicking() {
        // The run has failed. Calls that end with their endpoints are expected, and a second panic would hide the
        // first.
        return;
    }
    let mut ledger = local.ledger.borrow_mut();
    let record = &ledger.records[number as usize];
    let expected = messages::request(number, request.len(), record.response_len);
    assert_eq!(request.as_slice(), expected, "call {number} gave another buffer back");
    match &result {
        Ok(response) => ledger.ended(number, Ok(response)),
        Err(error) => ledger.ended(number, Err(error.clone())),
    }
}

/// A call from inside a handler, no longer than its own caller waits.
pub async fn nested_call(local: &Rc<Local>, session: &Session, time_left: Option<Duration>) {
    let Some(stats) = session.stats() else { return };
    let (number, bytes) = {
        let random = &mut local.random.borrow_mut();
        let max = stats.message_bytes_max.min(4 * stats.packet_data_bytes);
        plan(local, random, handlers::DISPATCH, stats.packet_data_bytes, max, true)
    };
    let mut options = CallOptions::default();
    options.timeout = Some(time_left.map_or(NESTED_TIMEOUT, |left| left.min(NESTED_TIMEOUT)));
    let outcome = start(session, handlers::DISPATCH, bytes, options).await;
    finish(local, number, outcome.result, &outcome.request);
}
