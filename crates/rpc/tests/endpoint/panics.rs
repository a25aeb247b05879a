//! A panic fails what panicked and nothing else, unless the endpoint is set to propagate panics ([`crate::guards`],
//! [`crate::handlers`]).

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
use dunlin_rpc::{Call, CallError, Endpoint, EndpointConfig, OwnedRequest, Session};

use crate::pair::{Ep, Lab, config};

const DISPATCH: u8 = 1;
const BURST: u8 = 2;
const ASYNC: u8 = 3;
const LATE: u8 = 4;

/// A server that catches panics, and its client.
fn lab() -> Lab {
    let mut lab = Lab { network: LoopbackNetwork::new(LoopbackConfig::default()), endpoints: Vec::new() };
    lab.network.advance_to(1_000_000_000);
    for (node, seed) in [(1, 7), (2, 8)] {
        let config = EndpointConfig { seed: Some(seed), ..config() };
        lab.endpoints.push(Endpoint::new(lab.network.endpoint(node).unwrap(), config).unwrap());
    }
    lab
}

/// Whether a request asks for a panic.
fn is_fatal(payload: &[u8]) -> bool {
    payload == [0]
}

/// Handlers of every kind, which panic on demand.
fn register(server: &Ep) {
    let dispatch = |request: dunlin_rpc::Request<'_>| {
        assert!(!is_fatal(request.payload()), "a fault on purpose");
        request.respond(b"ok");
    };
    server.register(DISPATCH, dispatch).unwrap();
    let burst = |burst: &mut dunlin_rpc::RequestBurst<'_>| {
        for i in 0..burst.len() {
            assert!(!is_fatal(burst.payload(i)), "a fault on purpose");
            burst.respond(i, b"ok");
        }
    };
    server.register_burst(BURST, burst).unwrap();
    let at_once = |request: OwnedRequest| {
        assert!(!is_fatal(request.payload()), "a fault on purpose");
        async { b"ok".to_vec() }
    };
    server.register_async(ASYNC, at_once).unwrap();
    let timers = server.timers();
    let late = move |request: OwnedRequest| {
        let timers = timers.clone();
        async move {
            timers.sleep(Duration::from_micros(10)).await;
            assert!(!is_fatal(request.payload()), "a fault on purpose");
            b"ok".to_vec()
        }
    };
    server.register_async(LATE, late).unwrap();
}

fn result(lab: &Lab, call: Call<Vec<u8>>) -> Result<(), CallError> {
    lab.drive(1, call).map(|reply| assert_eq!(&reply.response[..], b"ok")).map_err(|failure| failure.error)
}

/// Issues calls, which reach the server in one burst.
fn burst(lab: &Lab, session: &Session, calls: &[(u8, u8)]) -> Vec<Call<Vec<u8>>> {
    let calls = calls.iter().map(|(req_type, byte)| session.call(*req_type, vec![*byte])).collect();
    lab.client().run_once();
    lab.network.advance(Duration::from_micros(20));
    calls
}

#[test]
fn a_panic_fails_its_request_and_the_rest_of_the_burst_goes_on() {
    for req_type in [DISPATCH, ASYNC, LATE] {
        let lab = lab();
        register(lab.server());
        let (session, other) = (lab.connect(), lab.connect());
        let mut calls =
            burst(&lab, &session, &[(req_type, 1), (req_type, 0), (DISPATCH, 1), (req_type, 0), (BURST, 1)]);
        calls.extend(burst(&lab, &other, &[(req_type, 1)]));
        let results: Vec<_> = calls.into_iter().map(|call| result(&lab, call)).collect();
        let failed = Err(CallError::HandlerFailed);
        assert_eq!(results, [Ok(()), failed.clone(), Ok(()), failed, Ok(()), Ok(())], "type {req_type}");
        let stats = lab.server().stats();
        assert_eq!((stats.counters.panics_caught, stats.tasks, stats.sessions), (2, 0, 2), "type {req_type}");
    }
}

/// What the handler answered before it panicked stays answered.
#[test]
fn a_burst_handler_that_panics_fails_what_it_left_unanswered() {
    let lab = lab();
    register(lab.server());
    let session = lab.connect();
    let calls = burst(&lab, &session, &[(BURST, 1), (BURST, 0), (BURST, 1), (DISPATCH, 1), (BURST, 1)]);
    let results: Vec<_> = calls.into_iter().map(|call| result(&lab, call)).collect();
    let failed = Err(CallError::HandlerFailed);
    assert_eq!(results, [Ok(()), failed.clone(), failed, Ok(()), Ok(())]);
    assert_eq!(lab.server().stats().counters.panics_caught, 1);
}

/// The request that panics came in several packets, so it is not used in place.
#[test]
fn a_panic_over_a_large_request_gives_its_memory_back() {
    let lab = lab();
    lab.server().register(DISPATCH, |_| panic!("a fault on purpose")).unwrap();
    let session = lab.connect();
    for _ in 0..20 {
        let call = session.call(DISPATCH, vec![0; 100_000]);
        assert_eq!(result(&lab, call), Err(CallError::HandlerFailed));
    }
    lab.drive(1, session.close());
    let stats = lab.server().stats();
    assert_eq!((stats.counters.panics_caught, stats.requests_held, stats.held_bytes), (20, 0, 0));
}

#[test]
fn a_task_that_panics_ends_alone() {
    struct Broken(Rc<Cell<bool>>);
    impl Drop for Broken {
        fn drop(&mut self) {
            self.0.set(true);
            panic!("another fault on purpose");
        }
    }
    let lab = lab();
    let (ran, dropped) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let broken = Broken(dropped.clone());
    lab.server().spawn(async move {
        let _broken = broken;
        pending::<()>().await;
    });
    let broken = Broken(dropped.clone());
    lab.server().spawn(async move { std::mem::drop(broken) });
    for i in 0..3 {
        let ran = ran.clone();
        lab.server().spawn(async move {
            assert!(i != 0, "a fault on purpose");
            ran.set(ran.get() + 1);
        });
    }
    lab.server().run_once();
    let stats = lab.server().stats();
    assert_eq!((ran.get(), stats.tasks, stats.counters.panics_caught), (2, 1, 2), "one waits for ever");
    assert!(dropped.get());
    // Dropping the endpoint drops the one that waits, and the dropping code gets that panic.
    let dropping = std::panic::AssertUnwindSafe(|| drop(lab));
    assert!(std::panic::catch_unwind(dropping).is_err());
}

/// `tokio::time::sleep` outside of a runtime is the panic that new users meet first.
#[test]
fn a_foreign_timer_in_a_handler_fails_its_request_only() {
    let lab = lab();
    let sleep = |_: OwnedRequest| async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        vec![]
    };
    lab.server().register_async(LATE, sleep).unwrap();
    lab.server().register(DISPATCH, |request| request.respond(b"ok")).unwrap();
    let session = lab.connect();
    let failing = session.call(LATE, vec![1]);
    assert_eq!(result(&lab, session.call(DISPATCH, vec![1])), Ok(()));
    assert_eq!(result(&lab, failing), Err(CallError::HandlerFailed));
}
