//! The RPC service and its client, over loopback on fake time.

mod manager;
mod net;
mod reserve;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::{CallError, EndpointConfig};
use dunlin_seq::wire::{Code, INFO, NEXT, encode_next};
use dunlin_seq::{Batching, ClientConfig, Counter, NUMBERS_END, RUN_MAX, SeqError, Setback};
use futures::future::join_all;

use self::net::Net;

const BOTH: [Batching; 2] = [Batching::Bursts, Batching::Single];

fn counter(start: u64) -> Arc<Counter> {
    Arc::new(Counter::starting_at(start).unwrap())
}

#[test]
fn numbers_and_runs_follow_each_other() {
    for batching in BOTH {
        let mut net = Net::new();
        net.serve(1, counter(41), batching);
        let client = net.client(&[1], ClientConfig::default());
        net.run(async {
            assert_eq!(client.next().await.unwrap(), 41);
            assert_eq!(client.run(RUN_MAX).await.unwrap(), 42..42 + u64::from(RUN_MAX));
            assert_eq!(client.next().await.unwrap(), 42 + u64::from(RUN_MAX));
            let info = client.info().await.unwrap();
            assert_eq!((info.start, info.next, info.end), (41, 43 + u64::from(RUN_MAX), NUMBERS_END));
            assert_eq!((info.numbers, info.requests, info.is_serving), (u64::from(RUN_MAX) + 2, 3, true));
        });
    }
}

/// A session carries eight requests at once: one burst, one addition.
#[test]
fn a_burst_takes_one_addition() {
    for (batching, draws) in [(Batching::Bursts, 1), (Batching::Single, 8)] {
        let mut net = Net::new();
        let service = net.serve(1, counter(0), batching);
        let endpoint = net.endpoint();
        net.run(async {
            let session = endpoint.connect(&Addr::Node(1)).await.unwrap();
            let lengths = [1, 2, 3, 4, 1, 1, 5, 1];
            let calls: Vec<_> = lengths.iter().map(|n| session.call(NEXT, encode_next(*n).to_vec())).collect();
            let answers: Vec<_> = join_all(calls).await.into_iter().map(|reply| reply.unwrap().response).collect();
            let firsts: Vec<u64> =
                answers.iter().map(|answer| u64::from_le_bytes(answer[..].try_into().unwrap())).collect();
            assert_eq!(firsts, [0, 1, 3, 6, 10, 11, 12, 17]);
        });
        let stats = service.stats();
        assert_eq!((stats.requests, stats.numbers, stats.draws), (8, 18, draws));
    }
}

#[test]
fn requests_that_cannot_be_are_named() {
    for batching in BOTH {
        let mut net = Net::new();
        let service = net.serve(1, counter(0), batching);
        let endpoint = net.endpoint();
        net.run(async {
            let session = endpoint.connect(&Addr::Node(1)).await.unwrap();
            let mut other_version = encode_next(1).to_vec();
            other_version[8] = 9;
            let long = encode_next(RUN_MAX + 1).to_vec();
            let requests = [
                (NEXT, Vec::new(), Code::Malformed),
                (NEXT, encode_next(1)[..15].to_vec(), Code::Malformed),
                (NEXT, vec![1; 5000], Code::Malformed),
                (NEXT, other_version.clone(), Code::Unknown),
                (NEXT, encode_next(0).to_vec(), Code::EmptyRun),
                (NEXT, long, Code::LongRun),
                (INFO, vec![1; 9], Code::Malformed),
                (INFO, other_version[8..].to_vec(), Code::Unknown),
            ];
            for (req_type, request, code) in requests {
                let failure = session.call(req_type, request).await.unwrap_err();
                let CallError::Application(error) = failure.error else { panic!("{failure}") };
                assert_eq!((error.code(), error.message()), (code as u32, code.message()));
            }
            let failure = session.call(0x6f, vec![1]).await.unwrap_err();
            assert_eq!(failure.error, CallError::NoHandler);
            // A valid request among invalid ones of the same burst is served.
            let calls = [&encode_next(2)[..], b"bad", &encode_next(1)].map(|r| session.call(NEXT, r.to_vec()));
            let [first, bad, second]: [_; 3] = join_all(calls).await.try_into().unwrap();
            assert_eq!((first.unwrap().response[0], second.unwrap().response[0]), (0, 2));
            assert!(bad.is_err());
        });
        assert_eq!(service.stats().bad, 9);
    }
}

#[test]
fn a_client_checks_what_it_is_asked() {
    let mut net = Net::new();
    net.serve(1, counter(0), Batching::Bursts);
    let client = net.client(&[1], ClientConfig { waiting_max: 3, batches_max: 1, ..ClientConfig::default() });
    let nowhere = net.client(&[], ClientConfig::default());
    net.run(async {
        assert!(matches!(client.run(0).await, Err(SeqError::EmptyRun)));
        assert!(matches!(client.run(RUN_MAX + 1).await, Err(SeqError::LongRun { length }) if length == RUN_MAX + 1));
        assert!(matches!(nowhere.next().await, Err(SeqError::NoServer)));
        let results = join_all((0..5).map(|_| client.next())).await;
        let refused = results.iter().filter(|result| matches!(result, Err(SeqError::TooMany { max: 3, .. }))).count();
        assert_eq!((refused, results.iter().filter(|result| result.is_ok()).count()), (2, 3));
    });
}

#[test]
fn an_exhausted_space_is_an_error_and_loses_nothing() {
    for batching in BOTH {
        let mut net = Net::new();
        let service = net.serve(1, counter(NUMBERS_END - 5), batching);
        let client = net.client(&[1], ClientConfig::default());
        net.run(async {
            assert!(matches!(client.run(6).await, Err(SeqError::Exhausted { .. })));
            assert_eq!(client.run(4).await.unwrap(), NUMBERS_END - 5..NUMBERS_END - 1);
            assert_eq!(client.next().await.unwrap(), NUMBERS_END - 1);
            let error = client.next().await.unwrap_err();
            assert!(error.to_string().contains("exhausted"), "{error}");
        });
        assert_eq!(service.stats().exhausted, 2);
    }
}

/// The last numbers go to callers that share a batch, as far as they last.
#[test]
fn the_last_numbers_are_given_to_callers_that_share() {
    let mut net = Net::new();
    net.serve(1, counter(NUMBERS_END - 4), Batching::Bursts);
    let client = net.client(&[1], ClientConfig::default());
    net.run(async {
        let results = join_all([1, 1, 9, 1, 1, 1].map(|length| client.run(length))).await;
        let firsts: Vec<Option<u64>> = results.into_iter().map(|run| run.ok().map(|run| run.start)).collect();
        let from = |at| Some(NUMBERS_END - at);
        assert_eq!(firsts, [from(4), from(3), None, from(2), from(1), None]);
    });
}

/// Callers that wait together share a batch, in their order; those that come while it is in flight share the next.
#[test]
fn callers_share_batches() {
    let mut net = Net::new();
    let service = net.serve(1, counter(0), Batching::Bursts);
    let client = net.client(&[1], ClientConfig { batches_max: 1, ..ClientConfig::default() });
    net.run(async {
        let mut first: Vec<_> = (0..10).map(|_| Box::pin(client.next())).collect();
        // All calls start at their first poll; the batch leaves in this turn.
        let numbers = join_all(first.drain(..)).await;
        assert_eq!(numbers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), (0..10).collect::<Vec<u64>>());
        let runs = join_all([3, 1, 2].map(|length| client.run(length))).await;
        assert_eq!(runs.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [10..13, 13..14, 14..16]);
    });
    assert_eq!((service.stats().requests, client.stats().batches, client.stats().calls), (2, 2, 13));
}

/// A caller that comes while a batch is in flight is not part of that batch.
#[test]
fn numbers_are_never_drawn_before_their_call_began() {
    let mut net = Net::new();
    net.serve(1, counter(0), Batching::Bursts);
    let client = net.client(&[1], ClientConfig { batches_max: 1, ..ClientConfig::default() });
    let other = net.client(&[1], ClientConfig::default());
    net.run(async {
        client.next().await.unwrap();
        other.next().await.unwrap();
        let early = client.next();
        let mut early = Box::pin(early);
        // The first batch is in flight.
        assert!(futures::poll!(early.as_mut()).is_pending());
        other.timers().sleep(Duration::from_micros(10)).await;
        let between = other.next().await.unwrap();
        let late = client.next().await.unwrap();
        assert!(late > between, "{late} was drawn before {between}");
        assert!(early.await.unwrap() < late);
    });
}

#[test]
fn long_runs_do_not_share_one_request() {
    let mut net = Net::new();
    let service = net.serve(1, counter(0), Batching::Bursts);
    let client = net.client(&[1], ClientConfig { batches_max: 2, ..ClientConfig::default() });
    net.run(async {
        let runs = join_all([RUN_MAX - 1, 2, 5, RUN_MAX].map(|length| client.run(length))).await;
        let mut runs: Vec<_> = runs.into_iter().map(Result::unwrap).collect();
        runs.sort_by_key(|run| run.start);
        assert!(runs.windows(2).all(|two| two[0].end == two[1].start));
        assert_eq!(runs[3].end, 2 * u64::from(RUN_MAX) + 6);
    });
    assert_eq!(service.stats().requests, 3);
}

/// A caller that times out, and one that is dropped, do not affect the others.
#[test]
fn callers_give_up_one_by_one() {
    let mut net = Net::new();
    let client = net.client(&[1], ClientConfig { batches_max: 1, ..ClientConfig::default() });
    let (start, service) = (counter(0), Rc::new(std::cell::RefCell::new(None)));
    let begun = net.now();
    net.run(async {
        let short = client.run_within(1, Duration::from_millis(20));
        let dropped = client.run_within(7, Duration::from_secs(1));
        let long = client.run_within(1, Duration::from_millis(1500));
        let (mut short, mut dropped, mut long) = (Box::pin(short), Box::pin(dropped), Box::pin(long));
        assert!(futures::poll!(short.as_mut()).is_pending());
        assert!(futures::poll!(dropped.as_mut()).is_pending());
        assert!(futures::poll!(long.as_mut()).is_pending());
        // There is no server yet.
        let error = short.await.unwrap_err();
        assert!(matches!(error, SeqError::TimedOut { .. }), "{error}");
        drop(dropped);
        client.timers().sleep(Duration::from_millis(30)).await;
        *service.borrow_mut() = Some(net.serve_later(1, start.clone()));
        // The batch of three was composed before: the numbers for the callers that left are a gap.
        assert!(long.await.unwrap().start <= 8);
    });
    assert!(net.now() - begun < 1_500_000_000);
}

#[test]
fn a_silent_server_is_named() {
    let mut net = Net::new();
    let client = net.client(&[1], ClientConfig { timeout: Duration::from_millis(300), ..ClientConfig::default() });
    net.run(async {
        let error = client.next().await.unwrap_err();
        let SeqError::TimedOut { last: Some(Setback::Silent(server)) } = &error else { panic!("{error:?}") };
        assert_eq!(*server, Addr::Node(1));
        assert!(client.info().await.is_err());
    });
}

/// Any client with higher numbers detects a sequencer that begins too low.
#[test]
fn a_sequencer_that_was_restarted_too_low_is_found_out() {
    let mut net = Net::new();
    let service = net.serve(1, counter(1000), Batching::Bursts);
    let client = net.client(&[1], ClientConfig::default());
    net.run(async { assert_eq!(client.next().await.unwrap(), 1000) });
    drop(service);
    net.end(1);
    net.serve(1, counter(1000), Batching::Bursts);
    net.run(async {
        let error = client.next().await.unwrap_err();
        assert!(matches!(error, SeqError::WentBack { first: 1000, seen: 1000, .. }), "{error}");
        assert_eq!(client.next().await.unwrap(), 1001, "the next number is above what this client has had");
    });
}

#[test]
fn a_client_turns_to_the_sequencer_that_serves() {
    let mut net = Net::new();
    let idle = net.serve(1, Arc::new(Counter::idle()), Batching::Bursts);
    net.serve(2, counter(7), Batching::Single);
    let client = net.client(&[1, 2], ClientConfig::default());
    net.run(async {
        assert_eq!(client.next().await.unwrap(), 7);
        assert_eq!(client.next().await.unwrap(), 8);
    });
    assert_eq!((idle.stats().not_serving, client.stats().setbacks), (1, 1));
    let client = net.client(&[1], ClientConfig { timeout: Duration::from_millis(20), ..ClientConfig::default() });
    net.run(async {
        let error = client.next().await.unwrap_err();
        let SeqError::TimedOut { last: Some(Setback::NotServing(server)) } = &error else { panic!("{error:?}") };
        assert_eq!(*server, Addr::Node(1));
        assert!(!client.info().await.unwrap().is_serving);
    });
}

#[test]
fn a_server_that_is_no_sequencer_is_named() {
    let mut net = Net::new();
    net.other(1, EndpointConfig::default());
    let client = net.client(&[1], ClientConfig::default());
    net.run(async {
        let error = client.next().await.unwrap_err();
        assert!(matches!(error, SeqError::Protocol { .. }), "{error}");
    });
}

/// One wrong address among several keeps nobody from the sequencer.
#[test]
fn a_server_that_is_no_sequencer_is_passed_over() {
    let mut net = Net::new();
    net.other(1, EndpointConfig::default());
    // An answer that is too short.
    let odd = net.start(2);
    odd.register(NEXT, |request| request.respond(b"7")).unwrap();
    net.serve(3, counter(7), Batching::Bursts);
    let client = net.client(&[1, 2, 3], ClientConfig::default());
    net.run(async {
        assert_eq!(client.next().await.unwrap(), 7);
        assert_eq!(client.next().await.unwrap(), 8);
    });
    assert_eq!(client.stats().setbacks, 2);
    let config = ClientConfig { timeout: Duration::from_millis(20), ..ClientConfig::default() };
    let client = net.client(&[1, 2], config);
    net.run(async {
        let error = client.next().await.unwrap_err();
        assert!(matches!(error, SeqError::TimedOut { last: Some(Setback::Foreign { .. }) }), "{error}");
    });
}
