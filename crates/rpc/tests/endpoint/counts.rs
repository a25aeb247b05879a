//! The counts of an endpoint for its handlers.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_rpc::wire::Status;
use dunlin_rpc::{EndpointConfig, HandlerStats, OwnedRequest, Switch, WorkerPool};

use crate::pair::{Lab, config};
use crate::{ECHO, echo};

const FAILS: u8 = 2;
const SLOW: u8 = 3;
const WORKER: u8 = 4;
const KEPT: u8 = 5;
const MISSING: u8 = 99;

fn of(lab: &Lab, req_type: u8) -> HandlerStats {
    let found = lab.server().stats().handlers.into_iter().find(|handler| handler.req_type == req_type);
    found.unwrap_or_else(|| panic!("no request of type {req_type} was counted"))
}

#[test]
fn requests_and_answers_are_counted_exactly() {
    let lab = Lab::pair();
    echo(lab.server());
    let mut turn = 0;
    lab.server()
        .register(FAILS, move |request| {
            turn += 1;
            match turn % 3 {
                0 => request.fail(1, "as this test wants it"),
                1 => request.push_back(),
                _ => drop(request),
            }
        })
        .unwrap();
    let session = lab.connect();
    assert!(lab.server().stats().handlers.is_empty());
    for _ in 0..100 {
        lab.drive(1, session.call(ECHO, vec![1; 3_000])).unwrap();
    }
    for _ in 0..9 {
        lab.drive(1, session.call(FAILS, vec![1])).unwrap_err();
    }
    lab.drive(1, session.call(MISSING, vec![1])).unwrap_err();
    let echoes = of(&lab, ECHO);
    assert_eq!((echoes.requests, echoes.answered(Status::Ok), echoes.answers.iter().sum()), (100, 100, 100u64));
    let fails = of(&lab, FAILS);
    let by_status = [Status::Application, Status::Busy, Status::HandlerFailed].map(|status| fails.answered(status));
    assert_eq!((fails.requests, by_status), (9, [3; 3]));
    assert_eq!(of(&lab, MISSING).answered(Status::NoHandler), 1);
}

/// Each deferred answer is timed, and a sample of the others.
#[test]
fn handlers_are_timed() {
    let lab = Lab::pair();
    echo(lab.server());
    let timers = lab.server().timers();
    lab.server()
        .register_async(SLOW, move |_: OwnedRequest| {
            let sleep = timers.sleep(Duration::from_millis(3));
            async move {
                sleep.await;
                b"late".to_vec()
            }
        })
        .unwrap();
    let session = lab.connect();
    for _ in 0..32 {
        lab.drive(1, session.call(ECHO, vec![1])).unwrap();
    }
    lab.drive(1, session.call(SLOW, vec![1])).unwrap();
    let (echoes, slow) = (of(&lab, ECHO).in_handler, of(&lab, SLOW).in_handler);
    assert_eq!((echoes.count(), slow.count()), (2, 1));
    assert!(echoes.sum() < Duration::from_micros(100), "{echoes:?}");
    assert!((Duration::from_millis(3)..Duration::from_millis(4)).contains(&slow.sum()), "{slow:?}");
}

#[test]
fn waiting_for_a_worker_is_told_from_its_work() {
    let lab = Lab::pair();
    let pool = WorkerPool::by_hand(4);
    lab.server().register_worker(WORKER, &pool, |request| request.into_payload()).unwrap();
    let session = lab.connect();
    let mut call = Box::pin(session.call(WORKER, vec![1]));
    lab.run_for(Duration::from_millis(5));
    assert_eq!(pool.run_queued(), 1);
    lab.drive(1, call.as_mut()).unwrap();
    let worker = of(&lab, WORKER);
    assert_eq!((worker.in_queue.count(), worker.in_handler.count()), (1, 1));
    assert!(worker.in_queue.sum() > Duration::from_millis(4), "{worker:?}");
    assert!(worker.in_handler.sum() < Duration::from_millis(1), "{worker:?}");
}

/// A request whose caller went away is not counted as answered, and not timed.
#[test]
fn what_nobody_waits_for_is_not_answered() {
    let lab = Lab::pair();
    let kept = Rc::new(RefCell::new(Vec::new()));
    let keep = kept.clone();
    lab.server().register(KEPT, move |request| keep.borrow_mut().extend(request.defer())).unwrap();
    let session = lab.connect();
    let call = session.call(KEPT, vec![1]);
    lab.run_until(|| kept.borrow().len() == 1);
    drop(call);
    lab.run_for(Duration::from_millis(1));
    kept.borrow_mut().clear();
    let stats = of(&lab, KEPT);
    assert_eq!((stats.requests, stats.answers.iter().sum::<u64>(), stats.in_handler.count()), (1, 0, 0));
}

#[test]
fn times_can_be_switched_off() {
    let server = EndpointConfig { time_handlers: Switch::Off, ..config() };
    let lab = Lab::new(&[server, EndpointConfig { seed: Some(8), ..config() }]);
    echo(lab.server());
    let session = lab.connect();
    for _ in 0..40 {
        lab.drive(1, session.call(ECHO, vec![1])).unwrap();
    }
    let stats = of(&lab, ECHO);
    assert_eq!((stats.requests, stats.in_handler.count()), (40, 0));
}
