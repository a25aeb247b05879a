//! What the application may do to itself: it panics, hoards requests, and uses the endpoint from inside its own loop.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use dunlin_rpc::{CallError, EndpointConfig};

use crate::pair::{Lab, config};

const TYPE: u8 = 1;

#[test]
fn a_handler_that_panicked_serves_the_next_request() {
    let lab = Lab::pair();
    let calls = Rc::new(Cell::new(0));
    let seen = calls.clone();
    let handler = move |request: dunlin_rpc::Request<'_>| {
        seen.set(seen.get() + 1);
        assert!(seen.get() > 1, "the first request is too much for it");
        request.respond(b"ok");
    };
    lab.server().register(TYPE, handler).unwrap();
    let session = lab.connect();
    let first = session.call(TYPE, vec![1]);
    while calls.get() == 0 {
        let _ = catch_unwind(AssertUnwindSafe(|| lab.turn()));
    }
    assert_eq!(lab.drive(1, first).unwrap_err().error, CallError::HandlerFailed);
    assert_eq!(&lab.drive(1, session.call(TYPE, vec![1])).unwrap().response[..], b"ok");
}

#[test]
fn a_handler_cannot_replace_itself_while_it_runs() {
    let lab = Lab::pair();
    let [server, _client] = <[_; 2]>::try_from(lab.endpoints).map_err(drop).unwrap();
    let server = Rc::new(server);
    let again = Rc::downgrade(&server);
    server
        .register(TYPE, move |request| {
            assert!(again.upgrade().unwrap().register(TYPE, |_| {}).is_err());
            request.respond(b"");
        })
        .unwrap();
    assert!(server.register(TYPE, |_| {}).is_err());
}

#[test]
fn tasks_may_ask_the_endpoint() {
    let lab = Lab::pair();
    let endpoint = Rc::new(lab.endpoints.into_iter().next().unwrap());
    let (at, asked) = (endpoint.clone(), Rc::new(Cell::new(false)));
    let done = asked.clone();
    endpoint.spawn(async move {
        assert!(at.now() > 0);
        assert_eq!(at.stats().sessions, 0);
        assert_eq!(at.local_addr(), dunlin_net::Addr::Node(1));
        done.set(true);
    });
    endpoint.run_once();
    assert!(asked.get());
}

#[test]
fn deferred_requests_have_a_limit() {
    let lab = Lab::new(&[
        EndpointConfig { deferred_requests_max: 4, ..config() },
        EndpointConfig { seed: Some(8), ..config() },
    ]);
    let kept = Rc::new(RefCell::new(Vec::new()));
    let at = kept.clone();
    lab.server().register(TYPE, move |request| at.borrow_mut().extend(request.defer())).unwrap();
    let session = lab.connect();
    // Callers that leave do not make room: the server still holds their requests.
    for _ in 0..20 {
        let call = session.call(TYPE, vec![1]);
        (0..20).for_each(|_| lab.turn());
        drop(call);
    }
    assert_eq!(kept.borrow().len(), 4);
    assert_eq!(lab.drive(1, session.call(TYPE, vec![1])).unwrap_err().error, CallError::Overloaded);
    kept.borrow_mut().clear();
}

#[test]
fn a_task_that_panics_does_not_take_others_with_it() {
    let lab = Lab::pair();
    let ran = Rc::new(Cell::new(0));
    for i in 0..3 {
        let ran = ran.clone();
        lab.server().spawn(async move {
            assert!(i != 0, "the first task is broken");
            ran.set(ran.get() + 1);
        });
    }
    assert!(catch_unwind(AssertUnwindSafe(|| lab.server().run_once())).is_err());
    lab.server().run_once();
    assert_eq!((ran.get(), lab.server().stats().tasks), (2, 0), "the broken one is gone, too");
}

/// A task whose wake-up is skipped because a foreign waker panics is woken in the next iteration.
#[test]
fn a_waker_that_panics_does_not_take_others_with_it() {
    struct Broken;
    impl std::task::Wake for Broken {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("as this test wants it");
        }
    }
    #[derive(Default)]
    struct Count(AtomicU32);
    impl std::task::Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    let lab = Lab::pair();
    let timers = lab.server().timers();
    let mut sleeps: Vec<_> = (0..3).map(|_| Box::pin(timers.sleep(Duration::from_millis(1)))).collect();
    let broken = std::sync::Arc::new(Broken).into();
    let count = std::sync::Arc::new(Count::default());
    let waker = count.clone().into();
    for (sleep, waker) in sleeps.iter_mut().zip([&broken, &waker, &waker]) {
        assert!(sleep.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    }
    lab.network.advance(Duration::from_millis(2));
    let iterate = || {
        lab.server().run_once();
        lab.server().run_once();
    };
    assert!(catch_unwind(AssertUnwindSafe(iterate)).is_err());
    lab.server().run_once();
    lab.server().run_once();
    assert_eq!(count.0.load(Relaxed), 2);
}

/// A call whose credits another call holds stands still with half its request sent, for longer than the server keeps
/// that.
#[test]
fn a_request_that_the_server_gave_up_ends() {
    let short = Duration::from_millis(20);
    let server = EndpointConfig { rto_max: short, peer_timeout: short, ..config() };
    let lab = Lab::new(&[server, EndpointConfig { credits: 1, seed: Some(8), ..config() }]);
    let kept = Rc::new(RefCell::new(None));
    let at = kept.clone();
    lab.server().register(1, move |request| *at.borrow_mut() = request.defer().ok()).unwrap();
    let session = lab.connect();
    let large = session.call(2, vec![7; 10_000]);
    let slow = session.call(1, vec![7; 10]);
    lab.run_until(|| kept.borrow().is_some());
    assert_eq!(lab.server().stats().requests_held, 2, "both are under way");
    lab.run_for(10 * short);
    assert_eq!(lab.server().stats().counters.requests_abandoned, 1);
    let request = kept.borrow_mut().take().unwrap();
    request.enqueue_response(vec![8]).unwrap();
    assert_eq!(lab.drive(1, slow).unwrap().response[..], [8]);
    let failure = lab.drive(1, large).unwrap_err();
    assert_eq!((failure.error, failure.request), (CallError::Busy, vec![7; 10_000]));
    assert_eq!(session.stats().unwrap().credits, 1);
}
