//! Errors of the application: handlers of every kind return them, and callers get code and message.

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::wire::failure::MESSAGE_BYTES_MAX;
use dunlin_rpc::{ApplicationError, CallError, EndpointConfig, RespondError, WorkerPool};

use crate::pair::{Lab, config};

const DISPATCH: u8 = 1;
const BURST: u8 = 2;
const ASYNC: u8 = 3;
const BOXED: u8 = 4;
const WORKER: u8 = 5;
const DEFERRED: u8 = 6;
const DEFERRED_REPLY: u8 = 7;
const NESTED: u8 = 8;

const TEXT: &str = "no such bird";

/// The error of a call of this type.
fn outcome(lab: &Lab, req_type: u8, request: Vec<u8>) -> CallError {
    let session = lab.connect();
    lab.drive(1, session.call(req_type, request)).expect_err("the handler answers with an error").error
}

fn application(error: CallError) -> ApplicationError {
    assert!(error.may_have_run());
    let CallError::Application(error) = error else { panic!("{error:?}") };
    error
}

#[test]
fn handlers_of_every_kind_answer_with_code_and_message() {
    let lab = Lab::pair();
    let pool = WorkerPool::new(1, 4).unwrap();
    let server = lab.server();
    server.register(DISPATCH, |request| request.fail(u32::from(DISPATCH), TEXT)).unwrap();
    server.register_burst(BURST, |burst| burst.fail(0, u32::from(BURST), TEXT)).unwrap();
    server
        .register_async(ASYNC, |_| async { Err::<Vec<u8>, _>(ApplicationError::new(u32::from(ASYNC), TEXT)) })
        .unwrap();
    server
        .register_async(BOXED, |_| async {
            Err::<Vec<u8>, Box<dyn Error>>(ApplicationError::new(u32::from(BOXED), TEXT).into())
        })
        .unwrap();
    server
        .register_worker(WORKER, &pool, |_| {
            Err::<Vec<u8>, Box<dyn Error + Send + Sync>>(ApplicationError::new(u32::from(WORKER), TEXT).into())
        })
        .unwrap();
    server.register(DEFERRED, |request| request.defer().unwrap().fail(u32::from(DEFERRED), TEXT).unwrap()).unwrap();
    server
        .register_burst(DEFERRED_REPLY, |burst| {
            burst.defer_reply(0).unwrap().fail(u32::from(DEFERRED_REPLY), TEXT).unwrap();
        })
        .unwrap();
    for req_type in DISPATCH..=DEFERRED_REPLY {
        let error = application(outcome(&lab, req_type, vec![1; 5_000]));
        assert_eq!((error.code(), error.message()), (u32::from(req_type), TEXT));
        assert_eq!(error.to_string(), format!("no such bird (code {req_type})"));
    }
}

/// An error of another service that a handler called does not become its own.
#[test]
fn other_errors_fail_the_handler() {
    let lab = Lab::pair();
    lab.client().register(DISPATCH, |request| request.fail(7, TEXT)).unwrap();
    lab.server()
        .register_async(NESTED, |request: dunlin_rpc::OwnedRequest| async move {
            request.session().call(DISPATCH, vec![1]).await.map(|reply| reply.response)
        })
        .unwrap();
    assert_eq!(outcome(&lab, NESTED, vec![1]), CallError::HandlerFailed);
}

#[test]
fn a_message_is_cut_to_its_limit_and_to_a_packet() {
    let text = "ü".repeat(MESSAGE_BYTES_MAX);
    for (mtu, kept) in [(1472, MESSAGE_BYTES_MAX), (256, 220)] {
        let network = LoopbackConfig { mtu, ..LoopbackConfig::default() };
        let lab = Lab::over(network, &[config(), EndpointConfig { seed: Some(8), message_bytes_max: 100, ..config() }]);
        let long = text.clone();
        lab.server().register(DISPATCH, move |request| request.fail(u32::MAX, &long)).unwrap();
        let error = application(outcome(&lab, DISPATCH, vec![1]));
        assert_eq!((error.code(), error.message()), (u32::MAX, &text[..kept]), "whatever the longest message is");
    }
}

/// The error is kept like a response: a caller whose network loses it gets it all the same.
#[test]
fn an_error_that_is_lost_comes_again() {
    let network = LoopbackConfig::default();
    let lab = Lab::over(network, &[config(), EndpointConfig { seed: Some(8), ..config() }]);
    let runs = Rc::new(RefCell::new(0));
    let ran = runs.clone();
    lab.server()
        .register(DISPATCH, move |request| {
            *ran.borrow_mut() += 1;
            request.fail(3, TEXT);
        })
        .unwrap();
    let session = lab.connect();
    let mut call = Box::pin(session.call(DISPATCH, vec![1; 100]));
    // The client sleeps through its own timeout, and retransmits before it sees the answer.
    lab.client().run_once();
    lab.network.advance(Duration::from_millis(50));
    lab.server().run_once();
    let error = lab.drive(1, call.as_mut()).unwrap_err().error;
    assert_eq!((application(error).message(), *runs.borrow()), (TEXT, 1));
}

#[test]
fn nobody_is_told_who_does_not_wait() {
    let lab = Lab::pair();
    let kept = Rc::new(RefCell::new(Vec::new()));
    let keep = kept.clone();
    lab.server().register(DEFERRED, move |request| keep.borrow_mut().extend(request.defer())).unwrap();
    let session = lab.connect();
    let call = session.call(DEFERRED, vec![1]);
    lab.run_until(|| kept.borrow().len() == 1);
    drop(call);
    for _ in 0..20 {
        lab.turn();
    }
    let request = kept.borrow_mut().remove(0);
    assert_eq!(request.fail(1, TEXT), Err(RespondError::Orphaned));
    assert_eq!(lab.server().stats().counters.responses_orphaned, 1);
}
