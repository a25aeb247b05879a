//! Infinite durations: a program that passes `Duration::MAX` means "for ever".

use std::task::Poll;
use std::time::Duration;

use dunlin_net::PollPolicy;
use dunlin_rpc::congestion::DcqcnConfig;
use dunlin_rpc::{CallError, CallOptions, CongestionControl, EndpointConfig, Recovery, WorkerPool};

use crate::pair::{Lab, address, config};
use crate::{ECHO, echo};

/// Durations that do not fit 64 bits of nanoseconds, or only just.
const ENDLESS: [Duration; 4] = [
    Duration::MAX,
    Duration::from_nanos(u64::MAX),
    Duration::from_nanos(u64::MAX - 1),
    Duration::from_secs(u64::MAX / 1_000_000_000 + 1),
];

#[test]
fn a_connection_may_take_for_ever() {
    for connect_timeout in ENDLESS {
        let lab = Lab::new(&[config(), EndpointConfig { connect_timeout, seed: Some(8), ..config() }]);
        lab.connect();
    }
}

#[test]
fn a_call_may_take_for_ever() {
    for timeout in ENDLESS {
        let lab = Lab::pair();
        echo(lab.server());
        let session = lab.connect();
        for len in [10, 30_000] {
            // Normally, and again after a while without answers.
            let call = session.call_with(ECHO, vec![7; len], CallOptions::timeout(timeout));
            assert_eq!(lab.drive(1, call).unwrap().response.len(), len, "{timeout:?}");
            let call = session.call_with(ECHO, vec![7; len], CallOptions::timeout(timeout));
            for _ in 0..20 {
                lab.client().run_once();
                lab.network.advance(Duration::from_millis(10));
            }
            assert_eq!(lab.drive(1, call).unwrap().response.len(), len, "{timeout:?}");
        }
    }
}

#[test]
fn a_peer_may_be_silent_for_ever() {
    for (peer_timeout, recovery) in
        ENDLESS.into_iter().zip([Recovery::Selective, Recovery::GoBackN].into_iter().cycle())
    {
        let endless = EndpointConfig { peer_timeout, recovery, ..config() };
        let lab = Lab::new(&[endless.clone(), EndpointConfig { seed: Some(8), ..endless }]);
        echo(lab.server());
        let session = lab.connect();
        let call = session.call(ECHO, vec![7; 100]);
        // An hour without the server.
        for _ in 0..3600 {
            lab.client().run_once();
            lab.network.advance(Duration::from_secs(1));
        }
        assert_eq!(lab.drive(1, call).unwrap().response.len(), 100);
    }
}

#[test]
fn every_other_time_may_be_for_ever() {
    for time in ENDLESS {
        let congestion = CongestionControl::Dcqcn(DcqcnConfig {
            mark_interval: time,
            alpha_timer: time,
            increase_timer: time,
            ..DcqcnConfig::default()
        });
        let poll = PollPolicy::Adaptive { spin: time };
        let endless = EndpointConfig { rto_min_local: time, congestion, poll, ..config() };
        let lab = Lab::new(&[endless.clone(), EndpointConfig { seed: Some(8), ..endless }]);
        echo(lab.server());
        let session = lab.connect();
        assert_eq!(lab.drive(1, session.call(ECHO, vec![7; 30_000])).unwrap().response.len(), 30_000);
        // A sleep, and a shutdown that waits for a call.
        let timers = lab.client().timers();
        let mut sleep = Box::pin(timers.sleep(time));
        for _ in 0..100 {
            lab.turn();
            lab.network.advance(Duration::from_secs(3600));
            assert!(lab.client().poll_once(sleep.as_mut()).is_none());
        }
        drop(sleep);
        let mut leaving = Box::pin(lab.client().shutdown(time));
        lab.run_until(|| lab.client().poll_once(leaving.as_mut()).is_some());
    }
}

/// The loop runs until something ends it; here that is a panic of a task.
#[test]
fn the_event_loop_runs_for_ever() {
    for time in ENDLESS {
        let lab = Lab::pair();
        let mut polls = 0;
        lab.server().spawn(std::future::poll_fn(move |context| {
            polls += 1;
            assert!(polls < 1000, "it runs");
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        let run = std::panic::AssertUnwindSafe(|| lab.server().run_for(time));
        let panic = std::panic::catch_unwind(run).expect_err("it ends by the task only");
        assert!(
            panic.downcast_ref::<&str>().is_some_and(|why| why.contains("it runs")) || panic.is::<String>(),
            "{time:?}"
        );
        assert!(address(0) == lab.server().local_addr());
    }
}

/// A deadline beyond the 71 minutes that a packet can hold: the server does not know it, and does not give up before
/// the caller.
#[test]
fn a_deadline_that_no_packet_can_tell_is_the_callers_alone() {
    let lab = Lab::pair();
    let pool = WorkerPool::by_hand(4);
    lab.server().register_worker(2, &pool, |request| request.into_payload()).unwrap();
    let session = lab.connect();
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let patient = session.call_with(2, vec![1], CallOptions::timeout(hours(3)));
    let impatient = session.call_with(2, vec![2], CallOptions::timeout(hours(1)));
    let end = lab.network.now() + 2 * 3_600_000_000_000;
    while lab.network.now() < end {
        lab.turn();
        lab.network.advance(Duration::from_millis(100));
    }
    assert_eq!(pool.run_queued(), 2);
    assert_eq!(lab.drive(1, patient).unwrap().response[..], [1]);
    assert_eq!(lab.drive(1, impatient).unwrap_err().error, CallError::DeadlineExceeded);
    let counters = lab.server().stats().counters;
    assert_eq!(counters.requests_expired, 1, "the pool left out one of them");
}
