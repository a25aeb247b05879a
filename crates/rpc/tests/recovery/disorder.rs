//! Packets overtake others, come twice, or far too late.

use dunlin_rpc::wire::{Header, Kind};

use crate::scripted::Fate::{self, Arrives, ComesLate, ComesTwice};
use crate::stage::{DATA, Stage, only};

const LONG: usize = 128 * DATA;

/// Reverses the order of each `k` packets: the first of them comes last, `spread` nanoseconds late.
fn reversed(k: u32, spread: u64) -> impl FnMut(&Header) -> Fate {
    move |header| {
        let Some(multi) = header.multi else { return Arrives };
        ComesLate(spread * u64::from(k - 1 - multi.packet % k) / u64::from(k))
    }
}

#[test]
fn reordering_within_the_window_is_no_loss() {
    for k in [2, 3, 8, 32] {
        for spread in [3_000, 10_000, 19_000] {
            let (stage, session) = Stage::new();
            stage.on_request(reversed(k, spread));
            stage.on_answer(reversed(k, spread));
            stage.call(&session, LONG, LONG);
            let counters = stage.counters();
            assert_eq!((counters.tx_packets_again, counters.packets_lost), (0, 0), "{k} packets within {spread} ns");
            assert_eq!(counters.retransmissions, 0);
        }
    }
}

#[test]
fn patience_grows_with_the_reordering_that_is_seen() {
    let (stage, session) = Stage::new();
    let mut again = Vec::new();
    for _ in 0..6 {
        let before = stage.counters().tx_packets_again;
        let mut seen = [false; 128];
        stage.on_request(move |header| match header.multi {
            // Three round trips late, but not second copies.
            Some(multi) if multi.packet % 16 == 3 && !std::mem::replace(&mut seen[multi.packet as usize], true) => {
                ComesLate(60_000)
            }
            _ => Arrives,
        });
        stage.call(&session, LONG, 4);
        again.push(stage.counters().tx_packets_again - before);
    }
    assert!(again[0] > 0, "what is so late is lost at first: {again:?}");
    assert_eq!(again[5], 0, "{again:?}");
    assert!(stage.counters().retransmissions_spurious > 0);
}

#[test]
fn what_comes_twice_is_taken_once() {
    let (stage, session) = Stage::new();
    stage.on_request(|_| ComesTwice);
    stage.on_answer(|_| ComesTwice);
    for _ in 0..3 {
        stage.call(&session, LONG, LONG);
    }
    let counters = stage.counters();
    assert_eq!((stage.runs.get(), counters.tx_packets_again, counters.retransmissions_spurious), (3, 0, 0));
}

#[test]
fn a_response_that_comes_after_everything_was_sent_again_ends_the_call() {
    for (request, response) in [(LONG, LONG), (LONG, 4), (4, LONG)] {
        let (stage, session) = Stage::new();
        // After a tail-loss probe, and two timeouts.
        stage.on_answer(only(0, ComesLate(5_000_000), |header| header.kind == Kind::Response));
        let took = stage.call(&session, request, response);
        assert!(took < 6_000_000, "{took} ns");
        assert_eq!(stage.runs.get(), 1);
        // Packets in flight reach nobody.
        stage.call(&session, LONG, LONG);
        assert_eq!(stage.runs.get(), 2);
    }
}
