//! Nodes that fail and nodes that leave (paper, appendix B): pending calls end once with an error, buffers are
//! returned, and the results of handlers for a client that is gone are dropped and affect nobody.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use dunlin_net::{Addr, AnyTransport, PeerHealth};
use dunlin_rpc::{
    CallError, CallOptions, Completion, DeferredRequest, Endpoint, EndpointConfig, OwnedRequest, Session, WorkerPool,
    WorkerRequest,
};

use crate::pair::{Ep, Lab, address, config};
use crate::{ECHO, echo};

/// A request that the server keeps until the test answers it.
const HOLD: u8 = 2;
/// An asynchronous handler that waits for the test.
const ASYNC: u8 = 3;
const WORK: u8 = 5;

type Held = Rc<RefCell<Vec<DeferredRequest>>>;

fn hold(endpoint: &Ep) -> Held {
    let held: Held = Rc::default();
    let at = held.clone();
    endpoint.register(HOLD, move |request| at.borrow_mut().push(request.defer().unwrap())).unwrap();
    held
}

/// Collects every completion of an endpoint.
fn watch(endpoint: &Ep) -> (dunlin_rpc::ContinuationId, Rc<RefCell<Vec<Completion>>>) {
    let ended: Rc<RefCell<Vec<Completion>>> = Rc::default();
    let at = ended.clone();
    (endpoint.register_continuation(move |completion| at.borrow_mut().push(completion)), ended)
}

fn tags(ended: &RefCell<Vec<Completion>>) -> Vec<u64> {
    let mut tags: Vec<_> = ended.borrow().iter().map(|completion| completion.tag).collect();
    tags.sort();
    tags
}

#[test]
fn pending_calls_of_a_dead_peer_end_once_and_give_their_buffers_back() {
    let lab = Lab::pair();
    let held = hold(lab.server());
    let (continuation, ended) = watch(lab.client());
    let session = lab.connect();
    let before = dunlin_rpc::msgbuf::outstanding();
    // Some have a slot, one is half sent, some wait in the queue.
    for tag in 0..20 {
        let len = if tag == 3 { 100_000 } else { 10 };
        session.enqueue_request(HOLD, vec![tag as u8; len], continuation, tag).unwrap();
    }
    let futures: Vec<_> = (0..5).map(|_| session.call(HOLD, vec![1; 7])).collect();
    lab.run_until(|| held.borrow().len() >= 7);
    lab.network.set_health(1, PeerHealth::Dead);
    lab.run_until(|| lab.client().stats().sessions == 0);
    for call in futures {
        let failure = lab.drive(1, call).unwrap_err();
        assert_eq!((failure.error, failure.request), (CallError::PeerDied, vec![1; 7]));
    }
    lab.run_for(Duration::from_secs(3));
    assert_eq!(tags(&ended), (0..20).collect::<Vec<_>>());
    for completion in ended.borrow().iter() {
        assert_eq!(completion.result.as_ref().unwrap_err(), &CallError::PeerDied);
        assert_eq!(completion.request.as_slice()[0], completion.tag as u8);
    }
    let stats = lab.client().stats();
    assert_eq!((stats.calls_pending, stats.credits_reserved, stats.counters.calls_failed), (0, 0, 25));
    ended.borrow_mut().clear();
    held.borrow_mut().clear();
    lab.run_for(Duration::from_secs(3));
    assert!(dunlin_rpc::msgbuf::outstanding() <= before, "buffers were kept");
}

#[test]
fn a_handler_that_outlives_its_client_answers_nobody() {
    let mut lab = Lab::pair();
    let held = hold(lab.server());
    let (go, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let (at, count) = (go.clone(), done.clone());
    let handler = move |request: OwnedRequest| {
        let (at, count) = (at.clone(), count.clone());
        async move {
            std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                if at.get() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            assert!(!request.is_waited_for(), "its client has died");
            count.set(count.get() + 1);
            request.into_payload()
        }
    };
    lab.server().register_async(ASYNC, handler).unwrap();
    echo(lab.server());
    let session = lab.connect();
    let calls: Vec<_> = [HOLD, ASYNC, ASYNC].into_iter().map(|req_type| session.call(req_type, vec![7; 50])).collect();
    lab.run_until(|| held.borrow().len() == 1 && lab.server().stats().tasks == 2);
    // The client dies silently, and another takes its place and the same numbers.
    lab.network.set_health(2, PeerHealth::Dead);
    lab.run_until(|| lab.server().stats().sessions == 0);
    let stats = lab.server().stats();
    assert_eq!((stats.requests_held, stats.credits_reserved, stats.tasks), (0, 0, 2), "{stats}");
    drop(calls);
    drop(lab.endpoints.pop());
    lab.network.set_health(2, PeerHealth::Unknown);
    let again = lab.start(1, &EndpointConfig { seed: Some(99), ..config() });
    lab.endpoints.push(again);
    let session = lab.connect();
    let call = session.call(HOLD, b"mine".to_vec());
    lab.run_until(|| held.borrow().len() == 2);
    // The handlers of the dead client end now: the new client's request is in the slot that theirs had.
    go.set(true);
    let of_the_dead = held.borrow_mut().remove(0);
    assert!(!of_the_dead.request().is_waited_for());
    of_the_dead.enqueue_response(b"not yours".to_vec()).unwrap_err();
    lab.run_until(|| done.get() == 2);
    held.borrow_mut().remove(0).enqueue_response(b"yours".to_vec()).unwrap();
    assert_eq!(&lab.drive(1, call).unwrap().response[..], b"yours");
    assert_eq!(lab.server().stats().counters.responses_orphaned, 3);
}

#[test]
fn jobs_of_a_client_that_is_gone_are_waited_for_and_not_run() {
    let lab = Lab::pair();
    let pool = WorkerPool::by_hand(8);
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = runs.clone();
    let work = move |request: WorkerRequest| {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        request.into_payload()
    };
    lab.server().register_worker(WORK, &pool, work).unwrap();
    let session = lab.connect();
    let calls: Vec<_> = (0..3).map(|_| Box::pin(session.call(WORK, vec![7; 3000]))).collect();
    lab.run_until(|| lab.server().stats().counters.requests_handled == 3);
    lab.network.set_health(2, PeerHealth::Dead);
    lab.run_until(|| lab.server().stats().sessions == 0);
    lab.network.set_health(2, PeerHealth::Unknown);
    // A shutdown waits until the pool has given them up: a worker may be running one.
    let mut leaving = Box::pin(lab.server().shutdown(Duration::from_secs(5)));
    for _ in 0..100 {
        lab.network.advance(Duration::from_millis(1));
        assert!(lab.server().poll_once(leaving.as_mut()).is_none());
    }
    assert_eq!(pool.run_queued(), 3);
    assert!(lab.drive(0, leaving).is_nothing());
    assert_eq!(runs.load(std::sync::atomic::Ordering::Relaxed), 0);
    let stats = lab.server().stats();
    assert_eq!((stats.counters.requests_expired, stats.requests_held), (3, 0), "{stats}");
    drop(calls);
}

#[test]
fn a_shutdown_waits_for_handlers_and_pushes_others_back() {
    let lab = Lab::pair();
    let held = hold(lab.server());
    echo(lab.server());
    let session = lab.connect();
    let before = session.call(HOLD, b"begun".to_vec());
    lab.run_until(|| held.borrow().len() == 1);
    let mut leaving = Box::pin(lab.server().shutdown(Duration::from_secs(5)));
    assert!(lab.server().poll_once(leaving.as_mut()).is_none());
    // Later requests may be repeated elsewhere, and no session opens in either direction.
    assert_eq!(lab.drive(1, session.call(ECHO, vec![1])).unwrap_err().error, CallError::ShuttingDown);
    let error = lab.drive(1, lab.client().connect(&address(0))).unwrap_err().to_string();
    assert!(error.ends_with("it is shutting down"), "{error}");
    assert!(lab.drive(0, lab.server().connect(&address(1))).unwrap_err().to_string().ends_with("was shut down"));
    for _ in 0..1_000 {
        lab.network.advance(Duration::from_millis(1));
        lab.turn();
        assert!(lab.server().poll_once(leaving.as_mut()).is_none(), "a handler has a request");
    }
    held.borrow_mut().remove(0).enqueue_response(b"done".to_vec()).unwrap();
    assert_eq!(&lab.drive(1, before).unwrap().response[..], b"done");
    let unfinished = lab.drive(0, leaving);
    assert!(unfinished.is_nothing());
    assert!(!session.is_open());
    let stats = lab.server().stats();
    assert_eq!((stats.sessions, stats.credits_reserved, stats.requests_held), (0, 0, 0), "{stats}");
    assert_eq!(lab.client().stats().sessions, 0, "the other end was told");
}

#[test]
fn a_shutdown_that_loses_patience_says_what_it_left() {
    let lab = Lab::pair();
    let (served, kept) = (hold(lab.server()), hold(lab.client()));
    let session = lab.connect();
    let call = session.call(HOLD, vec![1]);
    lab.run_until(|| served.borrow().len() == 1);
    let back = served.borrow()[0].request().session().clone();
    let (continuation, ended) = watch(lab.server());
    back.enqueue_request(HOLD, vec![2], continuation, 5).unwrap();
    lab.run_until(|| kept.borrow().len() == 1);
    let start = lab.network.now();
    let unfinished = lab.drive(0, lab.server().shutdown(Duration::from_millis(300)));
    assert_eq!((unfinished.requests, unfinished.calls), (1, 1));
    let time = Duration::from_nanos(lab.network.now() - start);
    assert!((300..350).contains(&time.as_millis()), "{time:?}");
    assert_eq!(tags(&ended), [5]);
    assert_eq!(lab.drive(1, call).unwrap_err().error, CallError::Closed);
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// As when a signal handler and an operator both ask for it: each future is polled only when it was woken.
#[test]
fn two_shutdowns_both_complete() {
    let lab = Lab::pair();
    let held = hold(lab.server());
    let session = lab.connect();
    let call = session.call(HOLD, vec![1]);
    lab.run_until(|| held.borrow().len() == 1);
    let leave = || {
        let shutdown = Box::pin(lab.server().shutdown(Duration::from_secs(5)));
        (Some(shutdown), Arc::new(Flag(AtomicBool::new(true))))
    };
    let mut leaving = [leave(), leave()];
    for millis in 0..1_000 {
        if millis == 50 {
            held.borrow_mut().remove(0).enqueue_response(vec![2]).unwrap();
        }
        for (shutdown, flag) in &mut leaving {
            if let Some(future) = shutdown
                && flag.0.swap(false, Ordering::Relaxed)
                && let Poll::Ready(unfinished) =
                    future.as_mut().poll(&mut Context::from_waker(&Waker::from(flag.clone())))
            {
                assert!(unfinished.is_nothing() && millis >= 50);
                *shutdown = None;
            }
        }
        lab.network.advance(Duration::from_millis(1));
        lab.turn();
    }
    assert_eq!(leaving.map(|(shutdown, _)| shutdown.is_none()), [true, true]);
    drop(call);
}

/// An asynchronous handler that calls other servers holds its endpoint, which holds the handler; so do tasks and
/// continuations.
#[test]
fn an_endpoint_that_its_handlers_hold_is_gone_after_its_shutdown() {
    let name: Addr = format!("shm:leaving-{}", std::process::id()).parse().unwrap();
    let endpoint = Rc::new(Endpoint::new(AnyTransport::bind(&name).unwrap(), config()).unwrap());
    let at = endpoint.clone();
    let handler = move |_| {
        let at = at.clone();
        async move { at.now().to_le_bytes().to_vec() }
    };
    endpoint.register_async(HOLD, handler).unwrap();
    let at = endpoint.clone();
    endpoint.spawn(async move {
        std::future::pending::<()>().await;
        drop(at);
    });
    let at = endpoint.clone();
    endpoint.register_continuation(move |_| drop(at.stats()));
    let weak = Rc::downgrade(&endpoint);
    // The task that shuts the endpoint down, and tasks that it spawns, continue.
    let (at, done) = (weak.clone(), Rc::new(Cell::new(0)));
    let seen = done.clone();
    let leaving = endpoint.shutdown(Duration::from_secs(1));
    let timers = endpoint.timers();
    endpoint.spawn(async move {
        leaving.await;
        let count = seen.clone();
        at.upgrade().unwrap().spawn(async move { count.set(count.get() + 1) });
        timers.sleep(Duration::from_millis(1)).await;
        seen.set(seen.get() + 1);
    });
    endpoint.run_until(|| done.get() == 2);
    assert_eq!(endpoint.stats().tasks, 0);
    drop(endpoint);
    assert!(weak.upgrade().is_none());
    let again = AnyTransport::bind(&name);
    assert!(again.is_ok(), "its region is gone, and its name free: {:?}", again.err());
}

#[test]
fn continuations_run_once_when_their_endpoint_is_dropped() {
    let mut lab = Lab::pair();
    let _held = hold(lab.server());
    let (continuation, ended) = watch(lab.client());
    let session = lab.connect();
    let (again, errors) = (session.clone(), Rc::new(Cell::new(0)));
    let seen = errors.clone();
    // A continuation that issues another call, as a loop of calls does.
    let stubborn = lab.client().register_continuation(move |completion: Completion| {
        let own = dunlin_rpc::CallOptions::default();
        let repeated = again.enqueue_request_with(HOLD, completion.request, continuation, 100, own);
        assert_eq!(repeated.unwrap_err().error, CallError::Closed);
        seen.set(seen.get() + 1);
    });
    for tag in 0..20 {
        session.enqueue_request(HOLD, vec![1; 100], continuation, tag).unwrap();
    }
    session.enqueue_request(HOLD, vec![1; 100], stubborn, 0).unwrap();
    for _ in 0..50 {
        lab.turn();
    }
    drop(lab.endpoints.pop());
    assert_eq!(tags(&ended), (0..20).collect::<Vec<_>>());
    assert!(ended.borrow().iter().all(|completion| completion.result.as_ref().err() == Some(&CallError::Closed)));
    assert_eq!(errors.get(), 1);
}

#[test]
fn a_continuation_learns_that_its_deadline_has_passed() {
    let lab = Lab::pair();
    let held = hold(lab.server());
    let (continuation, ended) = watch(lab.client());
    let session = lab.connect();
    let timeout = CallOptions::timeout(Duration::from_millis(7));
    // The first eight take the slots; the others wait for one until their time is over.
    for tag in 0..12 {
        session.enqueue_request_with(HOLD, vec![tag as u8; 9], continuation, tag, timeout).unwrap();
    }
    let start = lab.network.now();
    lab.run_until(|| held.borrow().len() == 8);
    assert!(held.borrow()[0].request().time_left().unwrap() > Duration::from_millis(6));
    lab.run_until(|| ended.borrow().len() == 12);
    let time = Duration::from_nanos(lab.network.now() - start);
    assert!((7..8).contains(&time.as_millis()), "{time:?}");
    for completion in ended.borrow().iter() {
        assert_eq!(completion.result.as_ref().unwrap_err(), &CallError::DeadlineExceeded);
        assert_eq!(completion.request.as_slice(), [completion.tag as u8; 9]);
    }
}

thread_local! {
    /// The session that the owners below use.
    static COMES_BACK_TO: RefCell<Option<Session>> = const { RefCell::new(None) };
    static DROPPED: Cell<u32> = const { Cell::new(0) };
}

/// Memory whose owner uses the endpoint when it is dropped, as a pool of buffers with accounts of its own may.
struct Owner([u8; 64]);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        DROPPED.set(DROPPED.get() + 1);
        COMES_BACK_TO.with_borrow(|session| {
            if let Some(session) = session {
                session.stats();
                drop(session.call(ECHO, vec![1]));
            }
        });
    }
}

fn owned() -> Bytes {
    Bytes::from_owner(Owner([3; 64]))
}

fn dropped(lab: &Lab, expected: u32) {
    lab.run_until(|| DROPPED.get() >= expected);
    assert_eq!(DROPPED.get(), expected);
}

#[test]
fn memory_of_the_application_may_use_the_endpoint_when_it_is_dropped() {
    let lab = Lab::pair();
    echo(lab.server());
    let held = hold(lab.server());
    lab.server().register(4, |request| request.respond_from(owned()).unwrap()).unwrap();
    let session = lab.connect();
    let server_side = {
        let call = session.call(HOLD, vec![1]);
        lab.run_until(|| held.borrow().len() == 1);
        let request = held.borrow_mut().remove(0);
        let server_side = request.request().session().clone();
        request.enqueue_response(vec![1]).unwrap();
        lab.drive(1, call).unwrap();
        server_side
    };
    // Requests: one answered, one cancelled, one whose deadline passed, one whose continuation is gone with its
    // session.
    COMES_BACK_TO.set(Some(session.clone()));
    drop(lab.drive(1, session.call(ECHO, owned())).unwrap());
    dropped(&lab, 1);
    drop(session.call(HOLD, owned()));
    dropped(&lab, 2);
    drop(lab.drive(1, session.call_with(HOLD, owned(), CallOptions::timeout(Duration::from_millis(1)))).unwrap_err());
    dropped(&lab, 3);
    // Responses, on the server: released, replaced by the slot's next, orphaned.
    COMES_BACK_TO.set(Some(server_side));
    for expected in 4..8 {
        lab.drive(1, session.call(4, vec![1])).unwrap();
        dropped(&lab, expected);
    }
    held.borrow_mut().clear();
    let call = session.call(HOLD, vec![1]);
    lab.run_until(|| held.borrow().len() == 1);
    drop(call);
    for _ in 0..20 {
        lab.turn();
    }
    held.borrow_mut().remove(0).enqueue_response(owned()).unwrap_err();
    dropped(&lab, 8);
    // Also with the session.
    lab.drive(1, session.call(4, vec![1])).unwrap();
    drop(session.close());
    dropped(&lab, 9);
    COMES_BACK_TO.set(None);
}
