//! Handlers on worker threads.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use dunlin_rpc::{CallError, EndpointConfig, MsgBuf, WorkerPool, WorkerRequest};

use crate::pair::{Lab, config};
use crate::{ECHO, echo};

const WORK: u8 = 2;
const PANIC: u8 = 3;

/// A server whose workers wait until the test releases them.
struct Gate {
    started: Receiver<()>,
    go: Sender<()>,
}

impl Gate {
    fn wait_for_start(&self, lab: &Lab) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.started.try_recv().is_err() {
            lab.turn();
            assert!(Instant::now() < end, "no worker took the request");
        }
    }
}

fn gated(lab: &Lab, threads: usize, queue_len: usize) -> (WorkerPool, Gate) {
    let pool = WorkerPool::new(threads, queue_len).unwrap();
    let (started_tx, started) = unbounded();
    let (go, go_rx) = unbounded::<()>();
    let work = move |request: WorkerRequest| {
        started_tx.send(()).unwrap();
        go_rx.recv().unwrap();
        request.into_payload()
    };
    lab.server().register_worker(WORK, &pool, work).unwrap();
    echo(lab.server());
    (pool, Gate { started, go })
}

/// Runs until `future` is done, in real time: worker threads do not follow the test's clock.
fn drive<F: Future>(lab: &Lab, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        lab.server().run_once();
        if let Some(output) = lab.client().poll_once(future.as_mut()) {
            return output;
        }
        lab.network.advance(Duration::from_micros(1));
        assert!(Instant::now() < end, "no answer came");
        std::thread::yield_now();
    }
}

#[test]
fn a_full_queue_pushes_requests_back_and_loses_none() {
    let lab = Lab::pair();
    let (_pool, gate) = gated(&lab, 1, 2);
    let session = lab.connect();
    let mut running = Box::pin(session.call(WORK, b"running".to_vec()));
    gate.wait_for_start(&lab);
    let mut queued: Vec<_> = (0..2u8).map(|i| Box::pin(session.call(WORK, vec![i]))).collect();
    for _ in 0..20 {
        lab.turn();
    }
    // The worker has one and the queue two: the next one is pushed back.
    let failure = drive(&lab, session.call(WORK, b"one too many".to_vec())).unwrap_err();
    assert_eq!((failure.error, &failure.request[..]), (CallError::Busy, &b"one too many"[..]));
    assert_eq!(lab.server().stats().counters.requests_pushed_back, 1);
    // Dispatch-mode calls continue meanwhile.
    for _ in 0..100 {
        let reply = drive(&lab, session.call(ECHO, b"quick".to_vec())).unwrap();
        assert_eq!(&reply.response[..], b"quick");
    }
    assert!(lab.client().poll_once(running.as_mut()).is_none());
    for _ in 0..3 {
        gate.go.send(()).unwrap();
    }
    assert_eq!(&drive(&lab, running).unwrap().response[..], b"running");
    for (i, call) in queued.iter_mut().enumerate() {
        assert_eq!(&drive(&lab, call.as_mut()).unwrap().response[..], [i as u8]);
    }
    gate.go.send(()).unwrap();
    assert_eq!(&drive(&lab, session.call(WORK, b"again".to_vec())).unwrap().response[..], b"again");
}

#[test]
fn a_panic_fails_its_call_and_nothing_else() {
    let lab = Lab::pair();
    let (pool, gate) = gated(&lab, 1, 4);
    lab.server().register_worker(PANIC, &pool, |_| -> MsgBuf { panic!("as this test wants it") }).unwrap();
    let session = lab.connect();
    for _ in 0..3 {
        let failure = drive(&lab, session.call(PANIC, b"request".to_vec())).unwrap_err();
        assert_eq!((failure.error, &failure.request[..]), (CallError::HandlerFailed, &b"request"[..]));
    }
    // The thread survived.
    gate.go.send(()).unwrap();
    assert_eq!(&drive(&lab, session.call(WORK, b"fine".to_vec())).unwrap().response[..], b"fine");
}

#[test]
fn an_error_fails_its_call_and_nothing_else() {
    let lab = Lab::pair();
    let pool = WorkerPool::new(1, 4).unwrap();
    lab.server()
        .register_worker(WORK, &pool, |request| String::from_utf8(request.payload().to_vec()).map(String::into_bytes))
        .unwrap();
    let session = lab.connect();
    assert_eq!(&drive(&lab, session.call(WORK, b"text".to_vec())).unwrap().response[..], b"text");
    assert_eq!(drive(&lab, session.call(WORK, b"\xff".to_vec())).unwrap_err().error, CallError::HandlerFailed);
    assert_eq!(&drive(&lab, session.call(WORK, b"again".to_vec())).unwrap().response[..], b"again");
}

#[test]
fn the_limit_of_deferred_requests_holds_for_workers() {
    let lab = Lab::new(&[EndpointConfig { deferred_requests_max: 2, ..config() }, config()]);
    let (_pool, gate) = gated(&lab, 1, 100);
    let session = lab.connect();
    let mut calls: Vec<_> = (0..2).map(|_| Box::pin(session.call(WORK, vec![1; 3000]))).collect();
    gate.wait_for_start(&lab);
    for _ in 0..20 {
        lab.turn();
    }
    assert_eq!(drive(&lab, session.call(WORK, vec![2])).unwrap_err().error, CallError::Busy);
    for call in &mut calls {
        gate.go.send(()).unwrap();
        drive(&lab, call.as_mut()).unwrap();
    }
    gate.go.send(()).unwrap();
    drive(&lab, session.call(WORK, vec![2])).unwrap();
}

#[test]
fn the_answer_of_a_cancelled_call_goes_nowhere() {
    let lab = Lab::pair();
    let (_pool, gate) = gated(&lab, 1, 4);
    let session = lab.connect();
    let call = session.call(WORK, vec![1; 100]);
    gate.wait_for_start(&lab);
    drop(call);
    for _ in 0..20 {
        lab.turn();
    }
    gate.go.send(()).unwrap();
    gate.go.send(()).unwrap();
    let reply = drive(&lab, session.call(WORK, vec![2; 100])).unwrap();
    assert_eq!(&reply.response[..], [2; 100]);
    assert_eq!(lab.server().stats().counters.responses_orphaned, 1);
}

#[test]
fn a_pool_that_is_gone_pushes_back() {
    let lab = Lab::pair();
    let (pool, gate) = gated(&lab, 2, 4);
    let session = lab.connect();
    let call = session.call(WORK, vec![1]);
    gate.wait_for_start(&lab);
    gate.go.send(()).unwrap();
    drop(pool);
    assert_eq!(&drive(&lab, call).unwrap().response[..], [1], "what it had begun it finished");
    assert_eq!(drive(&lab, session.call(WORK, vec![2])).unwrap_err().error, CallError::Busy);
    assert_eq!(&drive(&lab, session.call(ECHO, vec![3])).unwrap().response[..], [3]);
}
