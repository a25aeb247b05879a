//! The timing wheel, with as many timers as there are slots in a busy endpoint.

use divan::{Bencher, black_box};
use dunlin_rpc::timer::{TICK_NANOS, TimerId, Wheel};

fn main() {
    divan::main();
}

const TIMERS: u64 = 1024;
const MILLISECOND: u64 = 1_000_000;

/// A wheel whose timers are due at different times within the next 5 ms.
fn wheel() -> (Wheel, Vec<TimerId>) {
    let mut wheel = Wheel::new(0);
    let ids: Vec<TimerId> = (0..TIMERS).map(|token| wheel.create(token)).collect();
    for (i, id) in ids.iter().enumerate() {
        wheel.arm(*id, MILLISECOND + i as u64 * 4_000);
    }
    (wheel, ids)
}

/// Moving an armed timer.
#[divan::bench]
fn arm(bencher: Bencher<'_, '_>) {
    let (mut wheel, ids) = wheel();
    let mut i = 0;
    bencher.bench_local(|| {
        i += 1;
        wheel.arm(ids[i % ids.len()], black_box(MILLISECOND + (i as u64 * 7_919) % (5 * MILLISECOND)));
    });
}

/// What a stream of small calls does instead: the timer is already due soon enough.
#[divan::bench]
fn arm_by_that_changes_nothing(bencher: Bencher<'_, '_>) {
    let (mut wheel, ids) = wheel();
    let mut i = 0;
    bencher.bench_local(|| {
        i += 1;
        wheel.arm_by(ids[i % ids.len()], black_box(60 * MILLISECOND));
    });
}

/// Time advances by one tick, and nothing is due.
#[divan::bench]
fn expire_nothing(bencher: Bencher<'_, '_>) {
    let mut wheel = Wheel::new(0);
    let far = wheel.create(1);
    let (mut now, mut fired) = (0, Vec::new());
    bencher.bench_local(|| {
        now += TICK_NANOS;
        wheel.arm_by(far, now + 500 * MILLISECOND);
        wheel.expire(now, &mut fired);
    });
    assert!(fired.len() < 1_000_000);
}

/// A timer is armed and fires.
#[divan::bench]
fn arm_and_fire(bencher: Bencher<'_, '_>) {
    let mut wheel = Wheel::new(0);
    let id = wheel.create(1);
    let (mut now, mut fired) = (0, Vec::new());
    bencher.bench_local(|| {
        wheel.arm(id, now + 5 * MILLISECOND);
        now += 6 * MILLISECOND;
        wheel.expire(now, &mut fired);
        fired.clear();
    });
}
