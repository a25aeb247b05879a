use super::*;

fn fired(wheel: &mut Wheel, now: u64) -> Vec<u64> {
    let mut tokens = Vec::new();
    wheel.expire(now, &mut tokens);
    tokens.sort_unstable();
    tokens
}

#[test]
fn fires_once_and_never_early() {
    let mut wheel = Wheel::new(1_000_000);
    let id = wheel.create(7);
    wheel.arm(id, 6_000_000);
    assert_eq!(fired(&mut wheel, 5_999_999), []);
    assert_eq!(wheel.due(id), Some(6_000_640));
    assert_eq!(fired(&mut wheel, 6_000_640), [7]);
    assert_eq!(wheel.due(id), None);
    assert_eq!(fired(&mut wheel, u64::MAX / 4), []);
    assert_eq!(wheel.next_due(), None);
}

#[test]
fn the_end_of_time_can_be_armed() {
    let mut wheel = Wheel::new(5_000_000_000);
    for at in [u64::MAX, u64::MAX - 1, u64::MAX - TICK_NANOS] {
        let id = wheel.create(7);
        wheel.arm(id, at);
        wheel.arm_by(id, at);
        assert!(wheel.due(id).is_some_and(|due| due > u64::MAX - 2 * TICK_NANOS));
    }
    assert_eq!(fired(&mut wheel, 100 * 3_600_000_000_000), []);
    assert!(wheel.next_due().is_some());
}

#[test]
fn arm_by_moves_only_to_an_earlier_time() {
    let mut wheel = Wheel::new(0);
    let id = wheel.create(1);
    wheel.arm_by(id, 1_000_000);
    wheel.arm_by(id, 2_000_000);
    assert!(wheel.due(id).unwrap() < 1_002_000);
    wheel.arm_by(id, 500_000);
    assert!(wheel.due(id).unwrap() < 502_000);
    wheel.disarm(id);
    assert_eq!(fired(&mut wheel, 10_000_000), []);
    wheel.remove(id);
    assert_eq!(wheel.create(9), id);
}

/// Compares the wheel with a sorted list, over random operations and jumps of time.
#[test]
fn agrees_with_a_sorted_list() {
    for seed in 1..40u64 {
        let mut state = seed;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut now = random() % (1 << 50);
        let mut wheel = Wheel::new(now);
        let ids: Vec<TimerId> = (0..50).map(|token| wheel.create(token)).collect();
        let mut model: Vec<Option<u64>> = vec![None; ids.len()];
        for _ in 0..2000 {
            let which = (random() % 50) as usize;
            match random() % 4 {
                0 | 1 => {
                    let at = now + random() % (1 << (random() % 48));
                    wheel.arm(ids[which], at);
                    model[which] = Some(at.div_ceil(TICK_NANOS).max(now / TICK_NANOS + 1));
                }
                2 => {
                    wheel.disarm(ids[which]);
                    model[which] = None;
                }
                _ => {
                    now += random() % (1 << (random() % 46));
                    if let Some(first) = model.iter().flatten().min() {
                        assert!(wheel.next_due().unwrap() <= first * TICK_NANOS, "seed {seed}");
                    }
                    let mut expected = Vec::new();
                    for (token, due) in model.iter_mut().enumerate() {
                        if due.is_some_and(|due| due <= now / TICK_NANOS) {
                            expected.push(token as u64);
                            *due = None;
                        }
                    }
                    assert_eq!(fired(&mut wheel, now), expected, "seed {seed}");
                }
            }
        }
    }
}
