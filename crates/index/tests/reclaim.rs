//! Overwritten and removed memory returns while threads work, and when they stop.
//!
//! No other test may hold a guard meanwhile, so these run one at a time in their own process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dunlin_index::{Index, Range, Refused, pin};

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees memory that threads of earlier tests left.
fn flush() {
    (0..4096).for_each(|_| pin().flush());
}

/// Overwrites 16 values of 300 bytes at a time, under one guard each, and returns the peak memory of the index.
fn overwrite(index: &Index, bursts: u32) -> usize {
    let value = [7; 300];
    let mut most = 0;
    for burst in 0..bursts {
        let keys: [[u8; 4]; 16] = std::array::from_fn(|at| ((16 * burst + at as u32) % 100).to_be_bytes());
        let items = keys.each_ref().map(|key| (&key[..], &value[..]));
        index.insert_burst(&items, &pin(), |_, old| {
            old.expect("room");
        });
        most = most.max(index.memory_bytes());
    }
    most
}

#[test]
fn bursts_of_overwrites_do_not_outrun_reclamation() {
    let _alone = alone();
    let index = Index::new(1 << 30).expect("room");
    let most = overwrite(&index, 200_000);
    assert!(most < 10 << 20, "{most} bytes");
}

#[test]
fn nor_do_those_of_two_threads() {
    let _alone = alone();
    let index = Index::new(1 << 30).expect("room");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| overwrite(&index, 50_000));
        }
    });
    // The peak depends on the system: it may suspend a thread that has a guard. What the other one retired meanwhile is
    // freed here, and is a small part of all.
    (0..256).for_each(|_| pin().flush());
    let left = index.memory_bytes();
    assert!(left < 10 << 20, "{left} bytes");
}

/// A range removal does not hold one guard throughout.
#[test]
fn a_removed_range_returns_while_it_is_removed() {
    let _alone = alone();
    flush();
    let index = Index::new(1 << 30).expect("room");
    for number in 0..20_000u32 {
        index.insert(&number.to_be_bytes(), &[7; 1000], &pin()).expect("room");
    }
    let before = index.memory_bytes();
    assert_eq!(index.remove_range(Range::ALL), 20_000);
    let left = index.memory_bytes();
    assert!(left < before / 10, "{left} of {before} bytes are left");
}

#[test]
fn a_thread_that_stops_writing_strands_little() {
    let _alone = alone();
    flush();
    for one_guard in [false, true] {
        let index = Index::new(1 << 30).expect("room");
        let value = vec![7; 1 << 20];
        for number in 0..60u8 {
            index.insert(&[number], &value, &pin()).expect("room");
        }
        let outer = one_guard.then(pin);
        for number in 0..60u8 {
            assert!(index.remove(&[number], &pin()).is_some());
        }
        drop(outer);
        let left = index.memory_bytes();
        assert!(left < 4 << 20, "{left} bytes are left, one guard: {one_guard}");
    }
}

/// A guard that is refreshed in a loop works as well as many.
#[test]
fn a_refreshed_guard_lets_memory_return() {
    let _alone = alone();
    flush();
    let index = Index::new(1 << 30).expect("room");
    let mut guard = pin();
    let mut most = 0;
    for number in 0..100_000u32 {
        index.insert(&(number % 100).to_be_bytes(), &[7; 300], &guard).expect("room");
        if number % 16 == 0 {
            guard.refresh();
        }
        most = most.max(index.memory_bytes());
    }
    assert!(most < 1 << 20, "{most} bytes");
}

/// Two keys that share a long prefix need a layer for each eight bytes of it.
#[test]
fn a_refused_write_consumes_nothing() {
    let _alone = alone();
    flush();
    let index = Index::new(100_000).expect("room");
    let long = |last| [vec![b'k'; 10_000], vec![last]].concat();
    index.insert(&long(1), b"one", &pin()).expect("room");
    let before = index.memory_bytes();
    for last in 2..10 {
        assert_eq!(index.insert(&long(last), b"another", &pin()), Err(Refused::Full { budget: 100_000 }));
        assert_eq!(index.memory_bytes(), before);
    }
    // The memory that the attempts took and returned is available to others.
    index.insert(b"other", &[7; 80_000], &pin()).expect("room");
    assert_eq!(index.verify(&pin()), Ok(2));
}

/// The new key needs more than its layers, which do not stay if the rest is refused.
#[test]
fn layers_of_a_refused_key_do_not_stay() {
    let _alone = alone();
    flush();
    let index = Index::new(50_000).expect("room");
    let long = |last| [vec![b'k'; 1000], vec![last]].concat();
    index.insert(&long(1), b"one", &pin()).expect("room");
    let before = index.memory_bytes();
    assert!(index.insert(&long(2), &[7; 40_000], &pin()).is_err());
    assert_eq!(index.memory_bytes(), before);
}

#[test]
fn memory_of_nodes_is_there_for_values_and_for_other_nodes() {
    let _alone = alone();
    for budget in [100_000, 1 << 20] {
        flush();
        let index = Index::new(budget).expect("room");
        for round in 0..3 {
            // A page with a node on it stays. Full-size leaves and interior nodes; then small layers; then large
            // values.
            let mut inline = 0u64;
            while index.insert(&inline.to_be_bytes(), b"value", &pin()).is_ok() {
                inline += 1;
            }
            assert!(inline > 100, "round {round}: {inline} inline items");
            assert_eq!(index.remove_range(Range::ALL), inline as usize);
            flush();
            assert!(index.memory_bytes() < 2000, "round {round}: {} bytes are left", index.memory_bytes());
            let mut layered = 0u64;
            while index.insert(&[&[b'k'; 64][..], &layered.to_be_bytes()].concat(), b"value", &pin()).is_ok() {
                layered += 1;
            }
            assert!(layered > 10, "round {round}: {layered} items in layers");
            assert_eq!(index.remove_range(Range::ALL), layered as usize);
            flush();
            index.insert(b"large", &vec![7; budget / 2], &pin()).expect("room");
            assert_eq!(index.verify(&pin()), Ok(1));
            assert_eq!(index.remove_range(Range::ALL), 1);
            flush();
        }
    }
}
