//! How each algorithm handles a bottleneck: queue, use of the link, fairness, and how it recovers from what is not
//! congestion.

use super::model::{Model, Outcome, Packets, Port};
use super::*;

const MILLI: u64 = 1_000_000;
/// As in the paper's incasts.
const CREDITS: u16 = 32;

fn swift() -> CongestionControl {
    CongestionControl::Swift(SwiftConfig::default())
}

fn timely(gradient: Gradient) -> CongestionControl {
    CongestionControl::Timely(TimelyConfig { gradient, ..TimelyConfig::default() })
}

fn dcqcn() -> CongestionControl {
    CongestionControl::Dcqcn(DcqcnConfig::default())
}

/// What `flows` senders see from 10 to 40 ms after they all started.
fn incast(port: Port, control: &CongestionControl, flows: usize) -> Outcome {
    let mut model = Model::new(port, control, flows, CREDITS);
    model.run_for(10 * MILLI);
    model.measure();
    model.run_for(30 * MILLI);
    model.measure()
}

#[test]
fn without_control_the_credits_are_the_queue() {
    let seen = incast(Port::cx4(), &CongestionControl::None, 100);
    assert!(seen.bandwidth > 24.9, "{seen:?}");
    assert!((1_100.0..1_130.0).contains(&seen.rtt_p50), "3,200 packets of 348 ns: {seen:?}");
}

#[test]
fn swift_fills_the_port_with_a_short_queue_at_any_number_of_senders() {
    for marks in [Port::cx4(), Port::cx4().without_marks()] {
        for (flows, rtt_max, fairness_min) in
            [(8, 50.0, 0.99), (20, 55.0, 0.99), (50, 60.0, 0.98), (100, 80.0, 0.95), (200, 80.0, 0.95)]
        {
            let seen = incast(marks, &swift(), flows);
            assert!(seen.bandwidth > 24.0, "{flows} flows: {seen:?}");
            assert!(seen.rtt_p99 < rtt_max, "{flows} flows: {seen:?}");
            assert!(seen.fairness > fairness_min, "{flows} flows: {seen:?}");
        }
        // Windows far below a packet.
        for flows in [500, 1_000] {
            let seen = incast(marks, &swift(), flows);
            assert!(seen.bandwidth > 22.0 && seen.rtt_p50 < 130.0, "{flows} flows: {seen:?}");
        }
    }
}

#[test]
fn timely_does_as_in_the_paper() {
    // Table 5: medians of 39, 34 and 349 us, and half the queue or more at 100 senders.
    for (flows, p50_max, p99_max) in [(20, 60.0, 200.0), (50, 80.0, 300.0)] {
        let seen = incast(Port::cx4(), &timely(Gradient::Original), flows);
        assert!(seen.rtt_p50 < p50_max && seen.rtt_p99 < p99_max && seen.bandwidth > 15.0, "{flows} flows: {seen:?}");
    }
    let seen = incast(Port::cx4(), &timely(Gradient::Original), 100);
    assert!(seen.rtt_p99 > 800.0, "with so many senders its steps up are too long: {seen:?}");
}

#[test]
fn the_patch_makes_timely_fair() {
    let original = incast(Port::cx4(), &timely(Gradient::Original), 8);
    let patched = incast(Port::cx4(), &timely(Gradient::Patched), 8);
    assert!(original.fairness < 0.9 && patched.fairness > 0.99, "{original:?} {patched:?}");
}

#[test]
fn dcqcn_holds_the_queue_where_switches_mark() {
    for (flows, p50_max) in [(2, 25.0), (8, 30.0), (20, 40.0), (50, 80.0), (100, 200.0)] {
        let seen = incast(Port::cx4(), &dcqcn(), flows);
        assert!(seen.bandwidth > 18.0 && seen.rtt_p50 < p50_max && seen.fairness > 0.98, "{flows} flows: {seen:?}");
    }
    let blind = incast(Port::cx4().without_marks(), &dcqcn(), 20);
    assert!(blind.rtt_p50 > 200.0, "without marks it does nothing: {blind:?}");
}

#[test]
fn swift_beats_the_others_at_a_hundred_senders() {
    let ours = incast(Port::cx4(), &swift(), 100);
    for control in [timely(Gradient::Original), timely(Gradient::Patched), dcqcn()] {
        let other = incast(Port::cx4(), &control, 100);
        assert!(ours.rtt_p99 < 0.5 * other.rtt_p99 && ours.bandwidth > other.bandwidth - 0.1, "{ours:?} {other:?}");
    }
}

#[test]
fn a_session_alone_keeps_all_its_credits() {
    for control in [swift(), timely(Gradient::Original), timely(Gradient::Patched), dcqcn()] {
        for port in [Port::cx4().without_marks(), Port { base_rtt: 2_000, ..Port::cx4().without_marks() }] {
            let mut model = Model::new(port, &control, 1, CREDITS);
            model.run_for(5 * MILLI);
            assert!(model.controller(0).is_unlimited(), "{}", control.name());
        }
    }
}

#[test]
fn swift_does_not_take_a_long_path_for_a_congested_one() {
    let port = Port { base_rtt: 400_000, ..Port::cx4().without_marks() };
    let mut model = Model::new(port, &swift(), 4, CREDITS);
    model.run_for(50 * MILLI);
    for flow in 0..4 {
        assert!(model.controller(flow).is_unlimited());
    }
}

#[test]
fn a_new_sender_gets_its_share_and_leaves_it() {
    let mut model = Model::new(Port::cx4(), &swift(), 8, CREDITS);
    model.set_active(7, false);
    model.run_for(10 * MILLI);
    model.set_active(7, true);
    model.run_for(5 * MILLI);
    model.measure();
    model.run_for(10 * MILLI);
    let seen = model.measure();
    assert!(seen.fairness > 0.98, "{seen:?}");
    for flow in 1..8 {
        model.set_active(flow, false);
    }
    model.run_for(MILLI);
    assert!(model.controller(0).is_unlimited(), "alone again: {:?}", model.controller(0).allowance());
}

#[test]
fn a_peer_that_did_not_run_is_not_congestion_for_long() {
    for pause in [5, 50] {
        let mut model = Model::new(Port::cx4().without_marks(), &swift(), 2, CREDITS);
        model.run_for(5 * MILLI);
        model.pause(pause * MILLI);
        // Its answers arrive all at once, and then everything is as before.
        model.run_for(pause * MILLI + MILLI);
        for flow in 0..2 {
            assert!(model.controller(flow).is_unlimited(), "{pause} ms: {:?}", model.controller(flow).allowance());
        }
    }
}

#[test]
fn pacing_alone_holds_the_queue_of_small_requests() {
    for (flows, rtt_max) in [(20, 70.0), (50, 150.0), (100, 200.0)] {
        let mut model = Model::new(Port::cx4().without_marks(), &swift(), flows, 8);
        model.packets = Packets::Requests;
        model.run_for(10 * MILLI);
        model.measure();
        model.run_for(30 * MILLI);
        let seen = model.measure();
        assert!(seen.bandwidth > 22.0 && seen.rtt_p99 < rtt_max && seen.fairness > 0.85, "{flows} flows: {seen:?}");
    }
}
