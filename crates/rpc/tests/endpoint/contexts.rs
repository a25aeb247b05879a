//! What handlers of all kinds know about their requests, and jobs whose callers no longer wait.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dunlin_net::AnyTransport;
use dunlin_rpc::{
    Call, CallError, CallOptions, DeferredRequest, Endpoint, EndpointConfig, OwnedRequest, RequestContext, WorkerPool,
    WorkerRequest,
};
use futures::FutureExt;

use crate::pair::{Lab, address};

const WORK: u8 = 2;

/// A server whose workers count, and run when the test says so.
fn counted(lab: &Lab) -> (WorkerPool, Arc<AtomicU32>) {
    let (pool, ran) = (WorkerPool::by_hand(100), Arc::new(AtomicU32::new(0)));
    let at = ran.clone();
    let work = move |_| {
        at.fetch_add(1, Relaxed);
        vec![1]
    };
    lab.server().register_worker(WORK, &pool, work).unwrap();
    (pool, ran)
}

#[test]
fn expired_jobs_do_not_run() {
    let lab = Lab::pair();
    let (pool, ran) = counted(&lab);
    let session = lab.connect();
    let timeout = CallOptions::timeout(Duration::from_millis(1));
    let (expired, patient) = (session.call_with(WORK, vec![1], timeout), session.call(WORK, vec![2]));
    lab.run_for(Duration::from_micros(100));
    // The server receives nothing from the client for longer than that.
    lab.network.advance(Duration::from_secs(3600));
    lab.server().run_once();
    assert_eq!((pool.run_queued(), ran.load(Relaxed)), (2, 1));
    assert_eq!(lab.drive(1, expired).unwrap_err().error, CallError::DeadlineExceeded);
    assert_eq!(&lab.drive(1, patient).unwrap().response[..], [1]);
}

#[test]
fn cancelled_jobs_do_not_run() {
    let lab = Lab::pair();
    let (pool, ran) = counted(&lab);
    let (session, other) = (lab.connect(), lab.connect());
    let (cancelled, cut_off, patient) =
        (session.call(WORK, vec![1]), other.call(WORK, vec![2]), session.call(WORK, vec![3]));
    lab.run_for(Duration::from_micros(100));
    drop(cancelled);
    drop(other.close());
    lab.run_for(Duration::from_millis(100));
    assert_eq!((pool.run_queued(), ran.load(Relaxed)), (3, 1));
    assert_eq!(&lab.drive(1, patient).unwrap().response[..], [1]);
    assert_eq!(lab.drive(1, cut_off).unwrap_err().error, CallError::Closed);
}

/// Every kind of handler gets the same context.
#[test]
fn all_handlers_have_the_same_context() {
    let lab = Lab::pair();
    let seen: Arc<Mutex<Vec<RequestContext>>> = Arc::default();
    let pool = WorkerPool::by_hand(10);
    let at = seen.clone();
    lab.server()
        .register(3, move |request| {
            at.lock().unwrap().push(request.context());
            request.respond(b"");
        })
        .unwrap();
    let at = seen.clone();
    lab.server()
        .register_burst(4, move |burst| {
            at.lock().unwrap().push(burst.context(0));
            burst.respond(0, b"");
        })
        .unwrap();
    let at = seen.clone();
    lab.server()
        .register_async(5, move |request: OwnedRequest| {
            at.lock().unwrap().push(request.context().clone());
            async { vec![] }
        })
        .unwrap();
    let at = seen.clone();
    let work = move |request: WorkerRequest| {
        at.lock().unwrap().push(request.context().clone());
        vec![]
    };
    lab.server().register_worker(6, &pool, work).unwrap();
    let session = lab.connect();
    for req_type in 3..7 {
        for timeout in [None, Some(Duration::from_millis(1))] {
            let options = timeout.map(CallOptions::timeout).unwrap_or_default();
            let mut call = Box::pin(session.call_with(req_type, vec![1], options));
            let reply = loop {
                lab.turn();
                pool.run_queued();
                // It reads the time that the event loop published.
                if let Some(context) = seen.lock().unwrap().last()
                    && context.req_type() == req_type
                    && context.is_waited_for()
                {
                    assert_eq!(context.time_left().is_some(), timeout.is_some());
                }
                if let Some(reply) = lab.client().poll_once(call.as_mut()) {
                    break reply;
                }
            };
            reply.unwrap();
            let context = seen.lock().unwrap().pop().unwrap();
            assert_eq!((context.req_type(), context.peer()), (req_type, Some(&address(1))));
            assert!(!context.is_waited_for(), "it was answered");
            let back = lab.server().session(context.session()).unwrap();
            assert_eq!(back.id(), context.session());
            assert!(back.is_open());
        }
    }
    lab.drive(1, session.close());
    assert!(lab.client().session(session.id()).is_none());
}

/// A handler that keeps its request or its context sees its caller leave, in every way.
#[test]
fn a_context_tells_when_nobody_waits_any_more() {
    let lab = Lab::pair();
    let kept: Rc<RefCell<Vec<DeferredRequest>>> = Rc::default();
    let at = kept.clone();
    lab.server().register(3, move |request| at.borrow_mut().push(request.defer().unwrap())).unwrap();
    // The caller still holds the call.
    let keep = |_: &Call<Vec<u8>>| {
        lab.run_until(|| !kept.borrow().is_empty());
        let request = kept.borrow_mut().pop().unwrap();
        let context = request.request().context().clone();
        assert!(context.is_waited_for() && request.request().is_waited_for());
        (request, context)
    };
    let session = lab.connect();
    // By its deadline, without any message to the server.
    let call = session.call_with(3, vec![1], CallOptions::timeout(Duration::from_millis(3)));
    let (_request, context) = keep(&call);
    let left = context.time_left().unwrap();
    assert!(left > Duration::from_millis(2) && left <= Duration::from_millis(3), "{left:?}");
    lab.network.advance(Duration::from_millis(5));
    lab.server().run_once();
    assert!(!context.is_waited_for());
    assert_eq!(context.time_left(), Some(Duration::ZERO));
    drop(call);
    // By cancelling.
    let call = session.call(3, vec![1]);
    let (_request, context) = keep(&call);
    assert_eq!(context.time_left(), None);
    drop(call);
    lab.run_for(Duration::from_millis(1));
    assert!(!context.is_waited_for());
    // By its answer.
    let call = session.call(3, vec![1]);
    let (request, context) = keep(&call);
    request.enqueue_response(vec![2]).unwrap();
    assert!(!context.is_waited_for());
    lab.drive(1, call).unwrap();
    // By closing, at either end.
    let call = session.call(3, vec![1]);
    let (_request, context) = keep(&call);
    drop(lab.server().session(context.session()).unwrap().close());
    assert!(!context.is_waited_for());
    let session = lab.connect();
    let call = session.call(3, vec![1]);
    let (_request, context) = keep(&call);
    lab.network.set_health(2, dunlin_net::PeerHealth::Dead);
    lab.run_until(|| !context.is_waited_for());
    kept.borrow_mut().clear();
}

/// The ways in which the caller of a request leaves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Leave {
    Cancels,
    Closes,
    TimesOut,
    Dies,
}

/// A handler that awaits its caller's end is woken by each way in which that happens, and by nothing else.
#[test]
fn a_handler_is_woken_when_its_caller_is_gone() {
    for leave in [Leave::Cancels, Leave::Closes, Leave::TimesOut, Leave::Dies] {
        let lab = Lab::pair();
        let (begun, woken) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let (at, seen, timers) = (begun.clone(), woken.clone(), lab.server().timers());
        let handler = move |request: OwnedRequest| {
            at.set(true);
            let (seen, timers) = (seen.clone(), timers.clone());
            async move {
                // Clones see the same, and a dropped future is not in the way.
                drop(request.gone());
                let context = request.context().clone();
                if leave == Leave::TimesOut {
                    request.gone().await;
                } else {
                    futures::join!(request.gone(), context.gone());
                }
                seen.set(timers.now());
                context.gone().await;
                vec![]
            }
        };
        lab.server().register_async(5, handler).unwrap();
        let session = lab.connect();
        let timeout = Duration::from_millis(5);
        let options = if leave == Leave::TimesOut { CallOptions::timeout(timeout) } else { CallOptions::default() };
        let call = session.call_with(5, vec![1], options);
        lab.run_until(|| begun.get());
        let start = lab.network.now();
        if leave != Leave::TimesOut {
            lab.run_for(Duration::from_millis(20));
        }
        assert_eq!(woken.get(), 0, "{leave:?}: nothing happened yet");
        match leave {
            Leave::Cancels => drop(call),
            Leave::Closes => drop(session.close()),
            Leave::Dies => lab.network.set_health(2, dunlin_net::PeerHealth::Dead),
            Leave::TimesOut => {
                // The server sees the deadline itself, without any message from its client.
                while woken.get() == 0 {
                    lab.network.advance(Duration::from_micros(10));
                    lab.server().run_once();
                    assert!(lab.network.now() < start + 10_000_000, "nobody woke the handler");
                }
                let waited = Duration::from_nanos(woken.get() - start);
                assert!(waited > timeout * 9 / 10 && waited < timeout * 11 / 10, "{waited:?}");
            }
        }
        lab.run_until(|| woken.get() != 0 && lab.server().stats().tasks == 0);
    }
}

/// After the answer the caller no longer waits, and the answer wakes the waiting tasks, in any runtime.
#[test]
fn an_answer_ends_the_wait_for_the_caller() {
    #[derive(Default)]
    struct Flag(AtomicU32);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    let lab = Lab::pair();
    let kept: Rc<RefCell<Option<DeferredRequest>>> = Rc::default();
    let at = kept.clone();
    lab.server().register(3, move |request| *at.borrow_mut() = request.defer().ok()).unwrap();
    let session = lab.connect();
    let call = session.call(3, vec![1]);
    lab.run_until(|| kept.borrow().is_some());
    let request = kept.borrow_mut().take().unwrap();
    let mut gone = request.request().context().gone();
    let flag = Arc::new(Flag::default());
    let waker = flag.clone().into();
    for _ in 0..3 {
        assert!(gone.poll_unpin(&mut std::task::Context::from_waker(&waker)).is_pending());
    }
    request.enqueue_response(vec![2]).unwrap();
    lab.drive(1, call).unwrap();
    assert_eq!(flag.0.load(Relaxed), 1, "once, however often it was asked");
    assert!(gone.poll_unpin(&mut std::task::Context::from_waker(&waker)).is_ready());
}

/// With threads and a transport whose clock they can read: the event loop does not run while the deadline passes.
#[test]
fn a_thread_reads_the_clock_itself() {
    let server = AnyTransport::bind(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
    let server = Endpoint::new(server, EndpointConfig::default()).unwrap();
    let client = AnyTransport::for_peer(&server.local_addr()).unwrap();
    let client = Endpoint::new(client, EndpointConfig::default()).unwrap();
    let pool = WorkerPool::new(1, 4).unwrap();
    let (told, seen) = crossbeam_channel::unbounded();
    let work = move |request: WorkerRequest| {
        assert!(request.context().is_waited_for());
        while request.context().is_waited_for() {
            std::thread::yield_now();
        }
        told.send(request.context().time_left()).unwrap();
        vec![]
    };
    server.register_worker(WORK, &pool, work).unwrap();
    let (mut connecting, address) = (None, server.local_addr());
    let session = loop {
        server.run_once();
        let connecting = connecting.get_or_insert_with(|| Box::pin(client.connect(&address)));
        if let Some(session) = client.poll_once(connecting.as_mut()) {
            break session.unwrap();
        }
    };
    let _call = session.call_with(WORK, vec![1], CallOptions::timeout(Duration::from_millis(200)));
    while server.stats().counters.requests_handled == 0 {
        client.run_once();
        server.run_once();
    }
    // Neither end's event loop runs now.
    assert_eq!(seen.recv(), Ok(Some(Duration::ZERO)));
}
