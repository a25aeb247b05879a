//! Single-packet calls that are lost together.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use dunlin_rpc::congestion::SwiftConfig;
use dunlin_rpc::wire::{Header, Kind};
use dunlin_rpc::{CongestionControl, EndpointConfig, PeerLimits, Session};

use crate::scripted::Fate::{Arrives, IsLost};
use crate::stage::{SIZED, Stage, config, request};

const SLOTS: usize = 8;

const MILLISECOND: Duration = Duration::from_millis(1);

fn swift() -> CongestionControl {
    CongestionControl::Swift(SwiftConfig::default())
}

/// Makes a call in every slot; returns when each call ended, in nanoseconds from now.
fn call_all(stage: &Stage, session: &Session) -> Vec<u64> {
    let start = stage.network.now();
    let mut calls: Vec<_> = (0..SLOTS).map(|_| Box::pin(session.call(SIZED, request(4, 4)))).collect();
    let ends = Rc::new(RefCell::new(Vec::new()));
    stage.drive(std::future::poll_fn(|context| {
        calls.retain_mut(|call| match call.as_mut().poll(context) {
            std::task::Poll::Ready(reply) => {
                assert_eq!(reply.unwrap().response.len(), 4);
                ends.borrow_mut().push(stage.network.now() - start);
                false
            }
            std::task::Poll::Pending => true,
        });
        if calls.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    }));
    ends.take()
}

#[test]
fn calls_that_are_lost_together_come_back_together() {
    // The last of these calls also lose the first packet that is sent again, which probes for all of them.
    let cases = [
        (MILLISECOND, CongestionControl::None, 0),
        (20 * MILLISECOND, swift(), 0),
        (MILLISECOND, swift(), 0),
        (MILLISECOND, swift(), 1),
        (MILLISECOND, CongestionControl::None, 1),
    ];
    for (rto_min, congestion, lost_probes) in cases {
        for answers_are_lost in [false, true] {
            let rto_initial = rto_min.max(config().rto_initial);
            let client = EndpointConfig { rto_min, rto_initial, congestion, ..config() };
            let (stage, session) = Stage::with(config(), client);
            for _ in 0..50 {
                call_all(&stage, &session);
            }
            // Of as many calls.
            let round_trip = call_all(&stage, &session)[SLOTS - 1];
            let before = stage.counters();
            for _ in 0..5 {
                let mut left = SLOTS + lost_probes;
                let lose = move |header: &Header| {
                    let hits = matches!(header.kind, Kind::Request | Kind::Response) && left > 0;
                    left -= usize::from(hits);
                    if hits { IsLost } else { Arrives }
                };
                if answers_are_lost {
                    stage.on_answer(lose)
                } else {
                    stage.on_request(lose)
                }
                let ends = call_all(&stage, &session);
                // Each probe waits twice as long as the one before.
                let probed_after = ((1 << (lost_probes + 1)) - 1) * rto_min.as_nanos() as u64;
                assert!(ends[0] < probed_after + probed_after / 4, "the first of {ends:?}");
                let behind = ends[SLOTS - 1] - ends[0];
                // After the first answer, the others may be right behind it for half of a round trip.
                assert!(behind <= 2 * round_trip, "the last is {behind} ns behind the first: {ends:?}");
                // A new round-trip sample ends the back-off at once.
                call_all(&stage, &session);
                assert_eq!(session.stats().unwrap().rto, rto_min);
            }
            let again = stage.counters().tx_packets_again - before.tx_packets_again;
            assert_eq!(again as usize, 5 * (SLOTS + lost_probes), "each was sent again once");
            if lost_probes == 0 {
                assert_eq!(stage.counters().pings_sent, before.pings_sent, "nobody doubts that the server lives");
            }
            assert_eq!(stage.counters().congestion_onsets, before.congestion_onsets);
        }
    }
}

/// Karn's rule must not preserve a timeout that is too short for ever.
#[test]
fn a_handler_that_became_slower_than_the_timeout_is_learnt() {
    let (stage, session) = Stage::new();
    for _ in 0..20 {
        stage.call(&session, 4, 4);
    }
    let mut again = Vec::new();
    for _ in 0..6 {
        let before = stage.counters().tx_packets_again;
        stage.answers.borrow_mut().set(|header| match header.kind {
            Kind::Response => crate::scripted::Fate::ComesLate(5_000_000),
            _ => Arrives,
        });
        stage.call(&session, 4, 4);
        again.push(stage.counters().tx_packets_again - before);
    }
    assert_eq!(again[1..], [0; 5], "{again:?}");
    assert!(session.stats().unwrap().rto > Duration::from_millis(5));
}

#[test]
fn a_response_that_was_given_up_ends_its_call() {
    // Two responses are most of what the client's host may make the server hold.
    let peer_limits = PeerLimits { held_bytes_max: 150_000, ..PeerLimits::default() };
    let server = EndpointConfig { message_bytes_max: 65_000, peer_limits, ..config() };
    let (stage, session) = Stage::with(server, config());
    // The server lives, but no request for response arrives.
    stage.on_request(|header| if header.kind == Kind::RequestForResponse { IsLost } else { Arrives });
    let mut calls = [0; 2].map(|_| Box::pin(session.call(SIZED, request(4, 60_000))));
    while stage.server.stats().counters.responses_expired == 0 {
        stage.turn();
        stage.network.advance(Duration::from_micros(50));
        assert!(calls.iter_mut().all(|call| stage.client.poll_once(call.as_mut()).is_none()));
    }
    stage.on_request(|_| Arrives);
    let mut results =
        calls.map(|call| stage.drive(call).map(|reply| reply.response.len()).map_err(|failure| failure.error));
    results.sort_unstable_by_key(Result::is_ok);
    // One was dropped to make room, and the other could stay.
    assert_eq!(results, [Err(dunlin_rpc::CallError::ResponseTooLarge), Ok(60_000)]);
    let stats = session.stats().unwrap();
    assert_eq!(stats.credits, stats.credits_max);
    stage.call(&session, 4, 60_000);
}
