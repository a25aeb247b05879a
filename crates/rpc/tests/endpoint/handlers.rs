//! How handlers of one receive burst affect each other, and what callers may conclude from their errors.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use dunlin_rpc::{CallError, CannotDefer, EndpointConfig, Session};

use crate::pair::{Lab, config};

const TYPE: u8 = 1;
const OTHER: u8 = 2;

/// Makes all packets in flight arrive at the server in one burst.
fn gather(lab: &Lab) {
    lab.client().run_once();
    lab.network.advance(Duration::from_micros(20));
}

/// Sends a request of each type, and gathers them at the server.
fn burst(lab: &Lab, session: &Session, req_types: &[u8]) -> Vec<dunlin_rpc::Call<Vec<u8>>> {
    let calls = req_types.iter().enumerate().map(|(i, req_type)| session.call(*req_type, vec![i as u8; 4])).collect();
    gather(lab);
    calls
}

/// Runs an iteration of the server, in which a handler may panic.
fn survive(lab: &Lab) -> bool {
    catch_unwind(AssertUnwindSafe(|| lab.server().run_once())).is_err()
}

#[test]
fn a_panic_strands_no_other_request_of_its_burst() {
    let lab = Lab::pair();
    let ran = Rc::new(Cell::new(0));
    let at = ran.clone();
    lab.server()
        .register(TYPE, move |request| {
            at.set(at.get() + 1);
            assert!(at.get() != 2, "the second request is too much for it");
            request.respond(b"ok");
        })
        .unwrap();
    lab.server().register(OTHER, |request| request.respond(b"other")).unwrap();
    let session = lab.connect();
    let calls = burst(&lab, &session, &[TYPE, TYPE, TYPE, OTHER, TYPE]);
    assert!(survive(&lab), "the application sees its panic");
    let results: Vec<_> = calls.into_iter().map(|call| lab.drive(1, call)).collect();
    assert_eq!(&results[0].as_ref().unwrap().response[..], b"ok");
    assert_eq!(results[1].as_ref().unwrap_err().error, CallError::HandlerFailed);
    for result in &results[2..] {
        assert_eq!(result.as_ref().unwrap_err().error, CallError::Busy, "nothing ran for it");
    }
    assert_eq!(ran.get(), 2);
    assert_eq!(lab.server().stats().requests_held, 5, "all are answered, and kept until they are released");
}

/// A CLOSE that arrives together with a request whose handler panics still closes its session.
#[test]
fn a_panic_loses_no_control_packet_of_its_burst() {
    let lab = Lab::pair();
    lab.server().register(TYPE, |_| panic!("as this test wants it")).unwrap();
    let (first, second) = (lab.connect(), lab.connect());
    let call = first.call(TYPE, vec![1]);
    let closing = second.close();
    gather(&lab);
    assert!(survive(&lab));
    assert_eq!(lab.server().stats().sessions, 1);
    lab.drive(1, closing);
    assert_eq!(lab.drive(1, call).unwrap_err().error, CallError::HandlerFailed);
}

#[test]
fn a_panic_in_a_burst_handler_answers_all_that_it_had() {
    let lab = Lab::pair();
    lab.server()
        .register_burst(TYPE, |burst| {
            burst.respond(1, b"ok");
            panic!("as this test wants it");
        })
        .unwrap();
    lab.server().register(OTHER, |request| request.respond(b"other")).unwrap();
    let session = lab.connect();
    let calls = burst(&lab, &session, &[TYPE, TYPE, TYPE, OTHER]);
    assert!(survive(&lab));
    let errors: Vec<_> =
        calls.into_iter().map(|call| lab.drive(1, call).map_err(|failure| failure.error).err()).collect();
    let failed = Some(CallError::HandlerFailed);
    assert_eq!(errors, [failed.clone(), None, failed, Some(CallError::Busy)]);
}

/// The handler of the first request closes the session on which the whole burst came.
#[test]
fn a_session_that_closes_starts_no_handler() {
    let lab = Lab::pair();
    let ran = Rc::new(Cell::new(0));
    let at = ran.clone();
    lab.server()
        .register(TYPE, move |request| {
            at.set(at.get() + 1);
            drop(request.session().close());
            request.respond(b"nobody hears it");
        })
        .unwrap();
    let session = lab.connect();
    let calls = burst(&lab, &session, &[TYPE; 4]);
    lab.server().run_once();
    assert_eq!(ran.get(), 1);
    for call in calls {
        assert_eq!(lab.drive(1, call).unwrap_err().error, CallError::Closed);
    }
    assert_eq!(lab.server().stats().requests_held, 0);
}

/// Requests that come after CLOSE was sent, and before it arrived.
#[test]
fn requests_on_a_closing_session_start_no_handler() {
    let lab = Lab::pair();
    let ran = Rc::new(Cell::new(0));
    let (at, inbound) = (ran.clone(), Rc::new(RefCell::new(None)));
    let met = inbound.clone();
    lab.server()
        .register(TYPE, move |request| {
            at.set(at.get() + 1);
            *met.borrow_mut() = Some(request.session());
            request.respond(b"ok");
        })
        .unwrap();
    let session = lab.connect();
    lab.drive(1, session.call(TYPE, vec![1])).unwrap();
    let closing = inbound.borrow_mut().take().map(|session| session.close());
    let calls = burst(&lab, &session, &[TYPE, TYPE]);
    lab.server().run_once();
    assert_eq!(ran.get(), 1);
    for call in calls {
        assert_eq!(lab.drive(1, call).unwrap_err().error, CallError::Closed);
    }
    lab.drive(0, closing.unwrap());
}

/// Whatever a handler did before it found that it cannot keep its request, its caller must not conclude that nothing
/// ran.
#[test]
fn a_handler_that_cannot_defer_has_run() {
    let lab = Lab::new(&[
        EndpointConfig { deferred_requests_max: 1, ..config() },
        EndpointConfig { seed: Some(8), ..config() },
    ]);
    let (done, kept) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
    let (at, keep) = (done.clone(), kept.clone());
    lab.server()
        .register(TYPE, move |request| {
            at.set(at.get() + 1);
            keep.borrow_mut().extend(request.defer());
        })
        .unwrap();
    let session = lab.connect();
    let _first = session.call(TYPE, vec![1]);
    let failure = lab.drive(1, session.call(TYPE, vec![2])).unwrap_err();
    assert_eq!(done.get(), 2, "it changed something");
    assert_eq!(failure.error, CallError::Overloaded, "and not that nothing ran");
    let counters = lab.server().stats().counters;
    assert_eq!((counters.requests_overloaded, counters.requests_pushed_back), (1, 0));
    kept.borrow_mut().clear();
}

#[test]
fn a_request_that_was_kept_may_be_pushed_back() {
    let lab = Lab::new(&[config(), EndpointConfig { seed: Some(8), ..config() }]);
    let kept = Rc::new(Cell::new(None));
    let keep = kept.clone();
    lab.server().register(TYPE, move |request| keep.set(request.defer().ok())).unwrap();
    let session = lab.connect();
    let call = burst(&lab, &session, &[TYPE]).remove(0);
    lab.server().run_once();
    kept.take().unwrap().push_back();
    assert_eq!(lab.drive(1, call).unwrap_err().error, CallError::Busy);
    assert_eq!(lab.server().stats().counters.requests_pushed_back, 1);
}

/// A handler that got its request back may say that it did nothing, or answer at once; and so for each request of a
/// burst.
#[test]
fn a_handler_that_cannot_defer_may_answer() {
    let server = EndpointConfig { deferred_requests_max: 1, ..config() };
    let lab = Lab::new(&[server, EndpointConfig { seed: Some(8), ..config() }]);
    let kept = Rc::new(RefCell::new(Vec::new()));
    let keep = kept.clone();
    let defer = move |request: dunlin_rpc::Request<'_>| match request.defer() {
        Ok(deferred) => keep.borrow_mut().push(deferred),
        Err(request) if request.payload()[0] == 1 => request.push_back(),
        Err(request) => request.respond(b"at once"),
    };
    lab.server().register(TYPE, defer).unwrap();
    lab.server()
        .register_burst(OTHER, |burst| {
            assert_eq!(burst.defer(0).err(), Some(CannotDefer));
            assert!(burst.defer_reply(1).is_err() && burst.defer_reply(2).is_err() && burst.defer(3).is_err());
            burst.push_back(1);
            burst.respond(2, b"at once");
        })
        .unwrap();
    let session = lab.connect();
    let mut calls = burst(&lab, &session, &[TYPE, TYPE, TYPE, OTHER, OTHER, OTHER, OTHER]).into_iter();
    let _kept = calls.next();
    let at_once = Ok(b"at once".to_vec());
    let expected = [
        Err(CallError::Busy),
        at_once.clone(),
        Err(CallError::Overloaded),
        Err(CallError::Busy),
        at_once,
        Err(CallError::Overloaded),
    ];
    for (call, expected) in calls.zip(expected) {
        let result = lab.drive(1, call).map(|reply| reply.response.to_vec()).map_err(|failure| failure.error);
        assert_eq!(result, expected);
    }
    kept.borrow_mut().clear();
}
