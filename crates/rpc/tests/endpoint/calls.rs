//! Deadlines, cancellation, back-pressure, and calls in either direction.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use dunlin_net::PollPolicy;
use dunlin_rpc::{
    Call, CallError, CallOptions, DeferredRequest, EndpointConfig, MsgBuf, Payload, RequestBuffer, Session,
};

use crate::pair::{Lab, address, config};
use crate::{ECHO, echo};

/// A request that the server keeps until the test answers it.
const HOLD: u8 = 2;

type Held = Rc<RefCell<Vec<DeferredRequest>>>;

fn hold(lab: &Lab) -> Held {
    let held: Held = Rc::default();
    let at = held.clone();
    lab.server().register(HOLD, move |request| at.borrow_mut().push(request.defer().unwrap())).unwrap();
    held
}

fn is_ready(call: &mut Pin<Box<Call<MsgBuf>>>) -> bool {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn small() -> MsgBuf {
    MsgBuf::copy_from(b"small").unwrap()
}

#[test]
fn the_deadline_reaches_the_handler_and_its_nested_calls() {
    let third = EndpointConfig { seed: Some(9), ..config() };
    let lab = Lab::new(&[config(), EndpointConfig { seed: Some(8), ..config() }, third]);
    let seen: Rc<RefCell<Vec<Option<Duration>>>> = Rc::default();
    let at = seen.clone();
    let last = move |request: dunlin_rpc::Request<'_>| {
        at.borrow_mut().push(request.time_left());
        request.respond(b"done");
    };
    lab.endpoints[2].register(ECHO, last).unwrap();
    let onward = lab.drive(0, lab.server().connect(&address(2))).unwrap();
    let at = seen.clone();
    let middle = move |request: dunlin_rpc::OwnedRequest| {
        let (onward, at) = (onward.clone(), at.clone());
        async move {
            let left = request.time_left();
            at.borrow_mut().push(left);
            let mut options = CallOptions::default();
            options.timeout = left;
            onward.call_with(ECHO, request.into_payload(), options).await.unwrap().response
        }
    };
    lab.server().register_async(ECHO, middle).unwrap();
    let session = lab.connect();
    let timeout = Duration::from_millis(20);
    let reply = lab.drive(1, session.call_with(ECHO, small(), CallOptions::timeout(timeout))).unwrap();
    assert_eq!(&reply.response[..], b"done");
    lab.drive(1, session.call(ECHO, small())).unwrap();
    let seen = seen.borrow();
    let (first, second) = (seen[0].unwrap(), seen[1].unwrap());
    assert!(second <= first && first <= timeout, "{seen:?}");
    assert!(second > timeout - Duration::from_millis(1), "{seen:?}");
    assert_eq!(seen[2..], [None, None], "without a deadline there is none");
}

#[test]
fn a_deadline_ends_a_call_on_time_wherever_it_is() {
    let lab = Lab::new(&[config(), EndpointConfig { slots: 1, ..config() }]);
    let held = hold(&lab);
    let session = lab.connect();
    let start = lab.network.now();
    let in_slot = session.call_with(HOLD, small(), CallOptions::timeout(Duration::from_millis(3)));
    let queued = session.call_with(HOLD, small(), CallOptions::timeout(Duration::from_millis(2)));
    assert_eq!(lab.drive(1, queued).unwrap_err().error, CallError::DeadlineExceeded);
    let first = lab.network.now() - start;
    let failure = lab.drive(1, in_slot).unwrap_err();
    let second = lab.network.now() - start;
    assert_eq!((failure.error, &failure.request[..]), (CallError::DeadlineExceeded, &b"small"[..]));
    assert!((2_000_000..2_100_000).contains(&first), "{first}");
    assert!((3_000_000..3_100_000).contains(&second), "{second}");
    // The server knows the deadline, and its client reported it, too.
    lab.run_until(|| held.borrow().iter().all(|request| !request.request().is_waited_for()));
    assert_eq!(held.borrow().len(), 1, "the queued one was never sent");
    lab.run_for(Duration::from_micros(100));
    assert!(held.borrow_mut().pop().unwrap().enqueue_response(vec![1]).is_err());
    assert_eq!(lab.server().stats().counters.responses_orphaned, 1);
}

#[test]
fn nothing_runs_for_a_caller_whose_time_is_over() {
    let lab = Lab::pair();
    let runs = Rc::new(Cell::new(0));
    let at = runs.clone();
    let count = move |request: dunlin_rpc::Request<'_>| {
        at.set(at.get() + 1);
        request.respond(&[]);
    };
    lab.server().register(ECHO, count).unwrap();
    let session = lab.connect();
    let call = session.call_with(ECHO, small(), CallOptions::timeout(Duration::ZERO));
    assert_eq!(lab.drive(1, call).unwrap_err().error, CallError::DeadlineExceeded);
    lab.run_for(Duration::from_millis(10));
    assert_eq!(runs.get(), 0);
}

#[test]
fn a_dropped_call_frees_its_slot_at_once() {
    let lab = Lab::new(&[config(), EndpointConfig { slots: 2, queued_calls_max: 4, ..config() }]);
    let held = hold(&lab);
    echo(lab.server());
    let session = lab.connect();
    let before = dunlin_rpc::msgbuf::outstanding();
    let calls: Vec<_> = (0..6).map(|_| session.call(HOLD, MsgBuf::with_len(9000).unwrap())).collect();
    lab.run_until(|| held.borrow().len() == 2);
    assert_eq!(session.room(), 0);
    drop(calls);
    // Even before the event loop runs again, slots, credits and buffers are free.
    let stats = session.stats().unwrap();
    assert_eq!((stats.calls_in_progress, stats.calls_queued), (0, 0));
    assert_eq!(stats.credits, stats.credits_max);
    assert_eq!((session.room(), lab.client().stats().calls_pending), (6, 0));
    assert_eq!(lab.client().stats().counters.calls_cancelled, 6);
    let held_by_server = 2;
    assert_eq!(dunlin_rpc::msgbuf::outstanding(), before + held_by_server);
    // The late responses are dropped, and the slots work.
    let reply = lab.drive(1, session.call(ECHO, small())).unwrap();
    assert_eq!(&reply.response[..], b"small");
    for request in held.borrow_mut().drain(..) {
        assert!(!request.request().is_waited_for());
        assert!(request.enqueue_response(vec![1; 5000]).is_err());
    }
    lab.run_for(Duration::from_millis(100));
    assert_eq!(lab.server().stats().requests_held, 0);
}

#[test]
fn a_full_queue_gives_the_buffer_back() {
    let lab = Lab::new(&[config(), EndpointConfig { slots: 1, queued_calls_max: 2, ..config() }]);
    let held = hold(&lab);
    let session = lab.connect();
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(session.call(HOLD, small()))).collect();
    assert_eq!(session.room(), 0);
    let failure = lab.drive(1, session.call(HOLD, vec![1, 2, 3])).unwrap_err();
    assert_eq!((failure.error, failure.request), (CallError::QueueFull, vec![1, 2, 3]));
    let continuation = lab.client().register_continuation(|_| panic!("nothing was enqueued"));
    let failure = session.enqueue_request(HOLD, Bytes::from_static(b"bytes"), continuation, 0).unwrap_err();
    assert_eq!((failure.error, failure.request.as_slice()), (CallError::QueueFull, &b"bytes"[..]));
    // They run one after the other.
    for call in &mut calls {
        lab.run_until(|| !held.borrow().is_empty());
        held.borrow_mut().pop().unwrap().enqueue_response(vec![7]).unwrap();
        assert_eq!(&lab.drive(1, call.as_mut()).unwrap().response[..], [7]);
    }
    assert_eq!(session.room(), 3);
}

#[test]
fn a_call_gives_back_the_buffer_that_it_was_given() {
    let lab = Lab::pair();
    echo(lab.server());
    let session = lab.connect();
    let vec = vec![5; 3000];
    let place = vec.as_ptr();
    let reply = lab.drive(1, session.call(ECHO, vec)).unwrap();
    assert_eq!((reply.request.as_ptr(), &reply.response[..]), (place, &[5; 3000][..]));
    // One buffer, sent to many sessions at the same time.
    let bytes = Bytes::from(vec![6; 100_000]);
    let sessions: Vec<Session> = (0..5).map(|_| lab.connect()).collect();
    let mut calls: Vec<_> = sessions.iter().map(|session| Box::pin(session.call(ECHO, bytes.clone()))).collect();
    for call in &mut calls {
        let reply = lab.drive(1, call.as_mut()).unwrap();
        assert_eq!(reply.request.as_ptr(), bytes.as_ptr());
        assert_eq!(&reply.response[..], &bytes[..]);
    }
    let reply = lab.drive(1, session.call(ECHO, Payload::from(small()))).unwrap();
    assert!(MsgBuf::from_payload(reply.request).is_some());
}

#[test]
fn either_end_calls_the_other() {
    let lab = Lab::pair();
    echo(lab.client());
    let caller: Rc<RefCell<Option<Session>>> = Rc::default();
    let at = caller.clone();
    let call_back = move |request: dunlin_rpc::OwnedRequest| {
        *at.borrow_mut() = Some(request.session().clone());
        async move {
            let session = request.session().clone();
            session.call(ECHO, request.into_payload()).await.unwrap().response
        }
    };
    lab.server().register_async(9, call_back).unwrap();
    let session = lab.connect();
    for len in [0, 10, 50_000] {
        let reply = lab.drive(1, session.call(9, vec![3; len])).unwrap();
        assert_eq!(&reply.response[..], vec![3; len]);
    }
    // Also without a call in progress.
    let back = caller.borrow_mut().take().unwrap();
    let reply = lab.drive(0, back.call(ECHO, small())).unwrap();
    assert_eq!(&reply.response[..], b"small");
    assert_eq!(lab.server().stats().sessions, 1);
}

#[test]
fn no_reverse_credits_means_no_calls_back() {
    let lab = Lab::new(&[config(), EndpointConfig { reverse_credits: 0, ..config() }]);
    let call_back = |request: dunlin_rpc::OwnedRequest| async move {
        let session = request.session().clone();
        let failure = session.call(ECHO, request.into_payload()).await.unwrap_err();
        assert_eq!(&failure.request[..], b"small");
        failure.error.to_string().into_bytes()
    };
    lab.server().register_async(9, call_back).unwrap();
    let session = lab.connect();
    let reply = lab.drive(1, session.call(9, small())).unwrap();
    assert_eq!(&reply.response[..], CallError::NoReverseCredits.to_string().as_bytes());
    assert_eq!(lab.server().stats().credits_reserved, 8);
}

#[test]
fn the_callers_errors_say_what_happened() {
    let lab = Lab::new(&[EndpointConfig { message_bytes_max: 1000, ..config() }, config()]);
    lab.server().register(3, |_| {}).unwrap();
    lab.server().register(4, |request| assert!(request.respond_from(vec![0; 1001]).is_err())).unwrap();
    lab.server().register(5, |request| request.respond(&[0; 1001])).unwrap();
    let session = lab.connect();
    let error_of = |req_type, len| lab.drive(1, session.call(req_type, vec![0; len])).unwrap_err().error;
    assert_eq!(error_of(200, 0), CallError::NoHandler);
    assert_eq!(error_of(3, 0), CallError::HandlerFailed);
    assert_eq!(error_of(4, 0), CallError::ResponseTooLarge);
    assert_eq!(error_of(5, 0), CallError::ResponseTooLarge);
    assert_eq!(error_of(3, 1001), CallError::RequestTooLarge);
}

#[test]
fn a_small_call_is_not_held_up_by_large_ones() {
    // One credit: the call that gets it decides which one continues.
    let lab = Lab::new(&[config(), EndpointConfig { credits: 1, ..config() }]);
    echo(lab.server());
    let session = lab.connect();
    let stop = Rc::new(Cell::new(false));
    for _ in 0..2 {
        let (session, stop) = (session.clone(), stop.clone());
        lab.client().spawn(async move {
            let mut request = vec![1; 200_000];
            while !stop.get() {
                request = session.call(ECHO, request).await.unwrap().request;
            }
        });
    }
    lab.run_for(Duration::from_millis(1));
    let start = lab.network.now();
    lab.drive(1, session.call(ECHO, small())).unwrap();
    let time = Duration::from_nanos(lab.network.now() - start);
    assert!(time < Duration::from_millis(1), "a small call took {time:?}");
    stop.set(true);
    lab.run_until(|| lab.client().stats().tasks == 0);
}

#[test]
fn a_call_outlives_its_endpoint_with_an_error() {
    let mut lab = Lab::pair();
    let held = hold(&lab);
    let session = lab.connect();
    let mut calls: Vec<_> = (0..12).map(|_| Box::pin(session.call(HOLD, small()))).collect();
    lab.run_until(|| held.borrow().len() == 8);
    let mut connecting = Box::pin(lab.client().connect(&address(0)));
    drop(lab.endpoints.pop());
    assert!(calls.iter_mut().all(is_ready));
    assert!(connecting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(!session.is_open() && session.stats().is_none());
    assert!(is_ready(&mut Box::pin(session.call(HOLD, small()))));
    // The server has learned of it.
    lab.run_until(|| lab.server().stats().sessions == 0);
    assert!(held.borrow().iter().all(|request| !request.request().is_waited_for()));
}

thread_local! {
    /// The session that the wakers below use.
    static COMES_BACK_TO: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// A waker that uses the endpoint whenever it is woken, as those of some executors do when they drop a task.
struct ComesBack(std::sync::atomic::AtomicU32);

impl std::task::Wake for ComesBack {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        COMES_BACK_TO.with_borrow(|session| {
            let session = session.as_ref().unwrap();
            assert!(session.stats().is_some());
            drop(session.call(ECHO, small()));
        });
    }
}

#[test]
fn a_waker_may_use_the_endpoint_that_wakes_it() {
    let lab = Lab::pair();
    echo(lab.server());
    let session = lab.connect();
    COMES_BACK_TO.set(Some(session.clone()));
    let woken = std::sync::Arc::new(ComesBack(0.into()));
    let waker = Waker::from(woken.clone());
    let mut call = Box::pin(session.call(ECHO, small()));
    assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    lab.run_until(|| woken.0.load(std::sync::atomic::Ordering::Relaxed) > 0);
    assert!(is_ready(&mut call));
    COMES_BACK_TO.set(None);
}

/// A waker that uses the endpoint when it is dropped, as one does that owns the last handle to something of it.
struct ComesBackAtLast;

impl std::task::Wake for ComesBackAtLast {
    fn wake(self: std::sync::Arc<Self>) {}
}

impl Drop for ComesBackAtLast {
    fn drop(&mut self) {
        COMES_BACK_TO.with_borrow(|session| assert!(session.as_ref().unwrap().stats().is_some()));
    }
}

#[test]
fn the_waker_of_an_abandoned_opening_may_use_the_endpoint_when_it_is_dropped() {
    let lab = Lab::pair();
    COMES_BACK_TO.set(Some(lab.connect()));
    for is_sent in [false, true] {
        let mut opening = Box::pin(lab.client().connect(&address(0)));
        let waker = Waker::from(std::sync::Arc::new(ComesBackAtLast));
        assert!(opening.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        if is_sent {
            lab.client().run_once();
        }
        drop(opening);
        lab.run_for(Duration::from_millis(20));
    }
    COMES_BACK_TO.set(None);
}

#[test]
fn an_observed_session_counts_for_itself() {
    let lab = Lab::pair();
    echo(lab.server());
    let (session, other) = (lab.connect(), lab.connect());
    session.observe();
    for _ in 0..80 {
        lab.drive(1, session.call(ECHO, small())).unwrap();
        lab.drive(1, other.call(ECHO, small())).unwrap();
    }
    let observed = session.stats().unwrap().observed.unwrap();
    assert_eq!(observed.samples(), 10, "one call of a slot in eight");
    let (median, longest) = (observed.percentile(50.0), observed.percentile(100.0));
    assert!(
        Duration::from_micros(1) < median && median <= longest && longest < Duration::from_micros(20),
        "{median:?}"
    );
    assert_eq!(observed.dropped(dunlin_rpc::DropReason::Stale), 0);
    assert_eq!(other.stats().unwrap().observed, None);
    let text = session.stats().unwrap().to_string();
    assert!(text.contains("dropped: stale 0") && text.contains("10 samples"), "{text}");
    // A response whose caller no longer waits is stale, and counted for this session.
    let call = session.call(ECHO, small());
    lab.client().run_once();
    lab.network.advance(Duration::from_micros(2));
    lab.server().run_once();
    drop(call);
    (0..20).for_each(|_| lab.turn());
    let observed = session.stats().unwrap().observed.unwrap();
    assert_eq!(observed.dropped(dunlin_rpc::DropReason::Stale), 1);
    assert_eq!(lab.client().stats().counters.dropped_stale, 1);
}

#[test]
fn sessions_are_observed_from_the_start_where_the_settings_say_so() {
    let observing = EndpointConfig { observe_sessions: dunlin_rpc::Switch::On, seed: Some(8), ..config() };
    let lab = Lab::new(&[config(), observing]);
    echo(lab.server());
    let (used, idle) = (lab.connect(), lab.connect());
    lab.drive(1, used.call(ECHO, small())).unwrap();
    assert_eq!(used.stats().unwrap().observed.unwrap().samples(), 1);
    assert_eq!(idle.stats().unwrap().observed, None, "what is never called costs nothing");
}

#[test]
fn a_round_trip_ends_when_its_answer_is_seen_not_when_the_clock_was_read_last() {
    let away = Duration::from_millis(3);
    let spinning = EndpointConfig { poll: PollPolicy::Spin, seed: Some(8), ..config() };
    let lab = Lab::new(&[config(), spinning]);
    echo(lab.server());
    let session = lab.connect();
    let call = session.call(ECHO, MsgBuf::copy_from(b"hello").unwrap());
    lab.client().run_once();
    lab.network.advance(away);
    lab.server().run_once();
    lab.network.advance(away);
    // The answer is there already when the client gets its processor back.
    lab.client().run_once();
    let rtt = lab.client().stats().rtt;
    assert_eq!(rtt.samples(), 1);
    // The histogram has two digits.
    assert!(rtt.percentile(50.0) >= away * 2 - away / 50, "{:?}", rtt.percentile(50.0));
    lab.drive(1, call).unwrap();
}
