//! One packet is lost.

use std::time::Duration;

use dunlin_rpc::wire::Kind;
use dunlin_rpc::{EndpointConfig, Optimizations, Switch};

use crate::scripted::Fate::{Arrives, IsLost};
use crate::stage::{DATA, Stage, config, go_back_n, is_packet, only};

const PACKETS: u32 = 128;
const LONG: usize = PACKETS as usize * DATA;
/// Minimum retransmission timeout, in nanoseconds.
const RTO_MIN: u64 = 1_000_000;

fn without_cumulation() -> EndpointConfig {
    let optimizations = Optimizations {
        cumulative_credit_returns: Switch::Off,
        cumulative_requests: Switch::Off,
        ..Optimizations::default()
    };
    EndpointConfig { optimizations, ..config() }
}

#[test]
fn one_hole_is_sent_again_alone() {
    for settings in [config(), without_cumulation()] {
        let (stage, session) = Stage::with(settings.clone(), settings);
        let lossless = stage.call(&session, LONG, 4);
        for packet in [0, 1, 16, 31, 64, PACKETS - 40] {
            let before = stage.counters();
            stage.requests.borrow_mut().sent.clear();
            stage.on_request(only(0, IsLost, is_packet(Kind::Request, packet)));
            let took = stage.call(&session, LONG, 4);
            let after = stage.counters();
            for other in 0..PACKETS {
                assert_eq!(stage.copies(other), 1 + usize::from(other == packet), "packet {other} of {packet}");
            }
            assert_eq!(after.packets_lost - before.packets_lost, 1);
            assert_eq!((after.retransmissions, after.tail_probes), (0, 0), "no timer was needed");
            assert_eq!(after.retransmissions_spurious, 0);
            assert!(took < lossless + lossless / 2, "packet {packet} was lost: {took} ns after {lossless} ns");
        }
    }
}

#[test]
fn several_holes_of_a_window_are_sent_again_alone() {
    let (stage, session) = Stage::new();
    let lost = [3, 4, 17, 31, 32, 33, 90];
    let mut seen = [0; PACKETS as usize];
    stage.on_request(move |header| {
        let Some(multi) = header.multi.filter(|_| header.kind == Kind::Request) else { return Arrives };
        seen[multi.packet as usize] += 1;
        // Packet 31 is lost twice.
        let copies = 1 + u32::from(multi.packet == 31);
        if lost.contains(&multi.packet) && seen[multi.packet as usize] <= copies { IsLost } else { Arrives }
    });
    stage.call(&session, LONG, 4);
    for packet in 0..PACKETS {
        let copies = 1 + usize::from(lost.contains(&packet)) + usize::from(packet == 31);
        assert_eq!(stage.copies(packet), copies, "packet {packet}");
    }
    let counters = stage.counters();
    assert_eq!((counters.packets_lost, counters.tx_packets_again), (8, 8));
    assert_eq!((counters.retransmissions, counters.retransmissions_spurious, stage.runs.get()), (0, 0, 1));
}

#[test]
fn the_last_packet_of_a_request_does_not_wait_for_a_timeout() {
    let (stage, session) = Stage::new();
    for packet in [PACKETS - 1, PACKETS - 2] {
        let before = stage.counters();
        stage.on_request(only(0, IsLost, is_packet(Kind::Request, packet)));
        let took = stage.call(&session, LONG, 4);
        assert!(took < RTO_MIN, "{took} ns");
        let after = stage.counters();
        assert_eq!(after.tx_packets_again - before.tx_packets_again, 1);
        assert_eq!(after.retransmissions, 0);
    }
    assert_eq!(stage.counters().tail_probes, 1, "of the two, only the very last needs one");
}

/// The timer of a call's entry may be armed for an earlier small call, whose timeout is much later than a probe.
#[test]
fn the_tail_of_a_long_call_is_probed_in_time_after_a_small_one() {
    let patient =
        EndpointConfig { rto_min: Duration::from_millis(20), rto_initial: Duration::from_millis(20), ..config() };
    let (stage, session) = Stage::with(config(), patient);
    stage.call(&session, 4, 4);
    stage.on_request(only(0, IsLost, is_packet(Kind::Request, PACKETS - 1)));
    let took = stage.call(&session, LONG, 4);
    assert_eq!(stage.counters().tail_probes, 1);
    // A quarter of the minimum timeout, and the call itself.
    assert!(took < 7_000_000, "{took}");
    // The same for a long answer to a small call.
    stage.call(&session, 4, 4);
    stage.on_answer(only(0, IsLost, is_packet(Kind::Response, PACKETS - 1)));
    let took = stage.call(&session, 4, LONG);
    assert_eq!(stage.counters().tail_probes, 2);
    assert!(took < 7_000_000, "{took}");
}

#[test]
fn a_whole_window_is_lost() {
    let (stage, session) = Stage::new();
    let mut left = 40;
    stage.on_request(move |header| {
        let hits = header.kind == Kind::Request && header.multi.is_some_and(|multi| multi.packet >= 40) && left > 0;
        left -= i32::from(hits);
        if hits { IsLost } else { Arrives }
    });
    stage.call(&session, LONG, 4);
    let counters = stage.counters();
    assert!((40..=44).contains(&counters.tx_packets_again), "{counters:?}");
    assert_eq!(counters.retransmissions_spurious, 0);
}

#[test]
fn lost_credit_returns_cost_nothing() {
    for settings in [config(), without_cumulation()] {
        let (stage, session) = Stage::with(settings.clone(), settings);
        let mut count = 0;
        stage.on_answer(move |header| {
            count += u32::from(header.kind == Kind::CreditReturn);
            if header.kind == Kind::CreditReturn && count % 3 == 0 { IsLost } else { Arrives }
        });
        stage.call(&session, LONG, 4);
        assert_eq!(stage.counters().tx_packets_again, 0);
    }
    // With go-back-N too.
    let (stage, session) = Stage::with(go_back_n(), go_back_n());
    stage.on_answer(only(5, IsLost, |header| header.kind == Kind::CreditReturn));
    stage.call(&session, LONG, 4);
    assert_eq!(stage.counters().tx_packets_again, 0);
}

#[test]
fn a_lost_question_is_asked_again() {
    for (settings, nth) in [(config(), 0), (config(), 2), (without_cumulation(), 40)] {
        let (stage, session) = Stage::with(settings.clone(), settings);
        stage.on_request(only(nth, IsLost, |header| header.kind == Kind::RequestForResponse));
        let took = stage.call(&session, 4, LONG);
        let counters = stage.counters();
        assert!(counters.tx_packets_again > 0 && counters.tx_packets_again <= 33, "{counters:?}");
        assert_eq!((counters.retransmissions, counters.retransmissions_spurious), (0, 0));
        assert!(took < RTO_MIN, "{took} ns for {counters:?}");
    }
}

#[test]
fn questions_are_asked_together() {
    let (stage, session) = Stage::new();
    stage.call(&session, LONG, LONG);
    let count = |script: &crate::scripted::SharedScript, kind| {
        script.borrow().sent.iter().filter(|header| header.kind == kind).count()
    };
    let (questions, returns) =
        (count(&stage.requests, Kind::RequestForResponse), count(&stage.answers, Kind::CreditReturn));
    assert!(
        questions < PACKETS as usize / 4 && returns < PACKETS as usize / 4,
        "{questions} questions, {returns} returns"
    );
}

#[test]
fn one_response_packet_is_sent_again_alone() {
    let (stage, session) = Stage::new();
    let lossless = stage.call(&session, 4, LONG);
    for packet in [1, 2, 50, 100, PACKETS - 1] {
        let before = stage.counters();
        stage.answers.borrow_mut().sent.clear();
        stage.on_answer(only(0, IsLost, is_packet(Kind::Response, packet)));
        let took = stage.call(&session, 4, LONG);
        let responses = stage.answers.borrow().sent.iter().filter(|header| header.kind == Kind::Response).count();
        assert_eq!(responses, PACKETS as usize + 1, "packet {packet} was lost");
        assert_eq!(stage.counters().tx_packets_again - before.tx_packets_again, 1);
        assert_eq!(stage.counters().retransmissions, 0);
        assert!(took < lossless + RTO_MIN / 2, "packet {packet} was lost: {took} ns after {lossless} ns");
    }
    // The first one comes again because the last packet of the request is retransmitted.
    stage.on_answer(only(0, IsLost, is_packet(Kind::Response, 0)));
    stage.call(&session, LONG, LONG);
    assert_eq!((stage.counters().retransmissions, stage.runs.get()), (0, 7));
}

#[test]
fn either_recovery_talks_to_the_other() {
    for (server, client) in [(config(), go_back_n()), (go_back_n(), config()), (go_back_n(), go_back_n())] {
        let (stage, session) = Stage::with(server, client);
        let (mut there, mut back) = (0, 0);
        stage.on_request(move |_| {
            there += 1;
            if there % 37 == 0 { IsLost } else { Arrives }
        });
        stage.on_answer(move |_| {
            back += 1;
            if back % 41 == 0 { IsLost } else { Arrives }
        });
        for _ in 0..5 {
            stage.call(&session, LONG, LONG);
        }
        assert_eq!(stage.runs.get(), 5);
    }
}
