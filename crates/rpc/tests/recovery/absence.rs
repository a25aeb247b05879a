//! A thread is descheduled for milliseconds, because another took its core.

use std::time::Duration;

use dunlin_rpc::wire::Kind;

use crate::stage::{DATA, SIZED, Stage, go_back_n, request};

const LONG: usize = 128 * DATA;
const AWAY: Duration = Duration::from_millis(20);

#[test]
fn an_answer_that_waited_for_its_caller_beats_its_retransmission() {
    for len in [4, LONG] {
        let (stage, session) = Stage::new();
        for _ in 0..20 {
            stage.call(&session, len, 4);
        }
        let mut call = Box::pin(session.call(SIZED, request(len, 4)));
        // The request is in flight, and its answer comes while the caller is away: between its poll of the queue and
        // its reading of the clock.
        stage.client.run_once();
        for _ in 0..15 {
            stage.network.advance(Duration::from_micros(1));
            stage.server.run_once();
        }
        stage.requests.borrow_mut().absence = Some(AWAY);
        let reply = loop {
            stage.turn();
            if let Some(reply) = stage.client.poll_once(call.as_mut()) {
                break reply;
            }
        };
        assert_eq!(reply.unwrap().response.len(), 4);
        let counters = stage.counters();
        assert_eq!(
            (counters.retransmissions, counters.tail_probes, counters.tx_packets_again),
            (0, 0, 0),
            "{len} bytes"
        );
    }
}

#[test]
fn a_server_that_stops_gets_a_few_packets_again_and_runs_each_request_once() {
    for len in [4, LONG] {
        let (stage, session) = Stage::new();
        for round in 1..=10 {
            let before = stage.counters();
            let calls: Vec<_> = (0..8).map(|_| Box::pin(session.call(SIZED, request(len, 4)))).collect();
            for _ in 0..30 {
                stage.turn();
            }
            stage.stopped_until.set(stage.network.now() + AWAY.as_nanos() as u64);
            for call in calls {
                stage.drive(call).unwrap();
            }
            assert_eq!(stage.runs.get(), 8 * round);
            let again = stage.counters().tx_packets_again - before.tx_packets_again;
            // For the eight calls together, at 1, 3, 7 and 15 ms; and each long one has its tail-loss probe.
            let most = if len == LONG { 16 } else { 6 };
            assert!(again <= most, "{again} packets again");
        }
        let stale = stage.counters().dropped_stale + stage.server.stats().counters.dropped_duplicate;
        assert!(stage.counters().tx_packets_again == 0 || stale > 0, "what was sent for nothing is counted somewhere");
    }
}

#[test]
fn go_back_n_sends_a_stopped_server_whole_windows() {
    let (stage, session) = Stage::with(go_back_n(), go_back_n());
    let call = Box::pin(session.call(SIZED, request(LONG, 4)));
    for _ in 0..15 {
        stage.turn();
    }
    stage.stopped_until.set(stage.network.now() + AWAY.as_nanos() as u64);
    stage.drive(call).unwrap();
    assert!(stage.counters().tx_packets_again >= 32, "{:?}", stage.counters());
    let requests = stage.requests.borrow().sent.iter().filter(|header| header.kind == Kind::Request).count();
    assert!(requests > 128 + 32, "{requests}");
    assert_eq!(stage.runs.get(), 1);
}
