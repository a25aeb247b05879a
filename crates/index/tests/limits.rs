//! Limits: lengths, the memory budget, the depth of layers.

use dunlin_index::{Index, KEY_BYTES_MAX, Order, Range, Refused, VALUE_BYTES_MAX, pin};

#[test]
fn lengths_have_limits() {
    let index = Index::new(16 << 20).expect("room");
    let guard = pin();
    let (key, value) = (vec![b'k'; KEY_BYTES_MAX + 1], vec![b'v'; VALUE_BYTES_MAX + 1]);
    assert_eq!(index.insert(&key, b"", &guard), Err(Refused::KeyTooLong { len: KEY_BYTES_MAX + 1 }));
    assert_eq!(index.insert(b"k", &value, &guard), Err(Refused::ValueTooLong { len: VALUE_BYTES_MAX + 1 }));
    assert_eq!(index.insert(&key[1..], &value[1..], &guard), Ok(None));
    assert_eq!(index.get(&key[1..], &guard).as_deref(), Some(&value[1..]));
    // Looking up keys longer than an item may have does no harm.
    assert_eq!(index.get(&key, &guard), None);
    assert_eq!(index.remove(&key, &guard), None);
    assert_eq!(index.count(Range::from(&key), &guard), 0);
    assert_eq!(index.verify(&guard), Ok(1));
}

/// The two keys make thousands of layers, through which a walk, a scan and the removal pass without recursion.
#[test]
fn the_longest_keys_that_differ_in_the_last_byte() {
    let index = Index::new(64 << 20).expect("room");
    let mut keys = [vec![b'k'; KEY_BYTES_MAX], vec![b'k'; KEY_BYTES_MAX]];
    keys[1][KEY_BYTES_MAX - 1] = b'l';
    for key in &keys {
        index.insert(key, &key[..9], &pin()).expect("room");
    }
    assert_eq!(index.verify(&pin()), Ok(2));
    assert_eq!(index.statistics(&pin()).layers, KEY_BYTES_MAX / 8);
    for order in [Order::Ascending, Order::Descending] {
        let mut found = Vec::new();
        index.scan(Range::ALL, order, 10, &pin(), |key, _| found.push(key.to_vec()));
        if order == Order::Descending {
            found.reverse();
        }
        assert!(found == keys, "{order:?}");
    }
    for key in &keys {
        assert!(index.remove(key, &pin()).is_some());
    }
    assert_eq!(index.verify(&pin()), Ok(0));
    assert_eq!(index.statistics(&pin()).layers, 1);
}

#[test]
fn a_full_index_refuses_and_keeps_what_it_has() {
    for (budget, value) in
        [(256, &b"short"[..]), (4096, b"short"), (1 << 20, b"short"), (1 << 20, &[b'v'; 500]), (2 << 20, b"short")]
    {
        let index = Index::new(budget).expect("room");
        let mut accepted = Vec::new();
        let mut refused = 0;
        for number in 0..100_000u64 {
            // Short keys, and long ones that make layers.
            let mut key = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).to_be_bytes().to_vec();
            if number.is_multiple_of(3) {
                key.extend(format!("and so on {number}").bytes());
            }
            match index.insert(&key, value, &pin()) {
                Ok(_) => accepted.push(key),
                Err(error) => {
                    assert_eq!(error, Refused::Full { budget });
                    refused += 1;
                }
            }
            assert!(index.memory_bytes() <= budget);
        }
        assert!(refused > 0 && !accepted.is_empty(), "budget {budget}: {} accepted", accepted.len());
        let guard = pin();
        accepted.sort();
        accepted.dedup();
        assert_eq!(index.verify(&guard), Ok(accepted.len()));
        assert!(accepted.iter().all(|key| index.get(key, &guard).as_deref() == Some(value)));
        // Values that fit in place of the former ones are accepted, and removals make room.
        for key in accepted.iter().filter(|key| value.len() <= 8 && key.len() == 8) {
            assert_eq!(index.insert(key, b"other", &guard).map(|old| old.as_deref() == Some(value)), Ok(true));
        }
        drop(guard);
        assert_eq!(index.remove_range(Range::ALL), accepted.len());
        // Threads of other tests may hold guards for a while.
        let begun = std::time::Instant::now();
        while index.insert(b"key", value, &pin()).is_err() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "budget {budget}: removals made no room");
            pin().flush();
        }
    }
}

#[test]
fn a_budget_without_room_for_the_first_nodes_is_refused() {
    assert_eq!(Index::new(255).err(), Some(Refused::Full { budget: 255 }));
    let said = Refused::Full { budget: 255 }.to_string();
    assert!(said.contains("255 bytes") && said.contains("give it more memory"), "{said}");
}

/// Values that are overwritten continually do not use up the budget.
#[test]
fn what_is_overwritten_returns() {
    let index = Index::new(1 << 20).expect("room");
    for round in 0..50_000u32 {
        let value = [round as u8; 300];
        let mut guard = pin();
        while index.insert(&(round % 100).to_be_bytes(), &value, &guard).is_err() {
            guard.flush();
            guard.refresh();
        }
    }
    assert_eq!(index.verify(&pin()), Ok(100));
}

/// A split without memory for its second node returns the first one, and nothing writes to it afterwards: debug builds
/// check that free nodes are not written to.
#[test]
fn a_split_without_memory_leaves_no_trace() {
    for spare in 0..40 {
        // To split, a layer of 28 items needs another leaf and an interior node: 512 and 1,088 bytes.
        let budget = 2 * 128 + 256 + 512 + 64 * spare;
        let index = Index::new(budget).expect("room");
        let mut accepted = 0;
        for number in 0..200u64 {
            accepted += usize::from(index.insert(&number.to_be_bytes(), b"value", &pin()).is_ok());
            assert!(index.memory_bytes() <= budget);
        }
        assert_eq!(index.verify(&pin()), Ok(accepted));
    }
}
