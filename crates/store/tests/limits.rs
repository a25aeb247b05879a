//! A partition at its limits, and one step past them.

use dunlin_store::{
    KEY_BYTES_MAX, KeyError, Layout, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, Marks, Mode, Partition, PartitionConfig,
    PartitionError, Prefault, Put, Refused, Side, Store, StoreStats, Token, VALUE_BYTES_MAX, Visit,
};

const MIB: usize = 1 << 20;
const LAYOUTS: [Layout; 2] = [Layout::Inline, Layout::Log];

fn partition(mode: Mode, layout: Layout, memory: usize) -> Partition {
    Partition::with_secret(PartitionConfig { layout, ..PartitionConfig::new(mode, memory) }, [1, 2]).expect("a few MiB")
}

fn put(partition: &mut Partition, number: u64, value: &[u8]) -> Result<(), Refused> {
    let bytes = key(number);
    let key = partition.key(&bytes).expect("16 bytes");
    partition.put(&key, value, Put::default()).map(|_| ())
}

fn key(number: u64) -> [u8; 16] {
    u128::from(number).to_be_bytes()
}

fn has(partition: &Partition, number: u64, value: &[u8]) -> bool {
    partition.peek(&partition.key(&key(number)).expect("16 bytes")).is_some_and(|item| item.value == value)
}

fn evicted(stats: StoreStats) -> u64 {
    stats.evicted_index + stats.evicted_log
}

#[test]
fn memory_has_a_least_and_a_most() {
    let make = |memory| Partition::new(PartitionConfig::new(Mode::Cache, memory));
    assert!(matches!(make(MEMORY_BYTES_MIN - 1), Err(PartitionError::TooSmall { .. })));
    assert!(make(MEMORY_BYTES_MIN).is_ok());
    assert!(matches!(make(MEMORY_BYTES_MAX + 1), Err(PartitionError::TooLarge { .. })));
    let prefaulted = PartitionConfig { prefault: Prefault::AtStart, ..PartitionConfig::new(Mode::Store, 3 * MIB + 1) };
    let stats = Partition::new(prefaulted).expect("3 MiB").stats();
    assert!(stats.memory_bytes_max <= 3 * MIB as u64 && stats.memory_bytes_max > 2 * MIB as u64);
}

#[test]
fn keys_have_1_to_250_bytes() {
    let mut partition = partition(Mode::Store, Layout::Inline, MIB);
    assert_eq!(partition.key(b"").err(), Some(KeyError::Empty));
    assert_eq!(partition.key(&[b'k'; KEY_BYTES_MAX + 1]).err(), Some(KeyError::TooLong { len: KEY_BYTES_MAX + 1 }));
    for len in [1, 15, 16, 17, 52, 53, KEY_BYTES_MAX] {
        let bytes = vec![b'k'; len];
        let key = partition.key(&bytes).expect("a good length");
        for value in [&b""[..], b"v"] {
            partition.put(&key, value, Put::default()).expect("there is room");
            assert_eq!(partition.peek(&key).map(|item| item.value), Some(value));
        }
    }
    assert_eq!(partition.stats().items, 7);
}

#[test]
fn the_longest_value_is_kept_whole_and_one_byte_more_is_refused() {
    for mode in [Mode::Cache, Mode::Store] {
        for (memory, expected) in [(64 * MIB, VALUE_BYTES_MAX), (MIB, 65_256)] {
            let mut partition = partition(mode, Layout::Inline, memory);
            let max = partition.stats().value_bytes_max as usize;
            assert_eq!(max, expected);
            let long_key = [b'k'; KEY_BYTES_MAX];
            let key = partition.key(&long_key).expect("250 bytes");
            let value: Vec<u8> = (0..=max).map(|at| (at % 251) as u8).collect();
            assert_eq!(partition.put(&key, &value, Put::default()), Err(Refused::TooLarge { len: max + 1, max }));
            partition.put(&key, &value[..max], Put::default()).expect("the longest there may be");
            assert_eq!(partition.extend(&key, b"x", Side::End, None), Err(Refused::TooLarge { len: max + 1, max }));
            assert_eq!(partition.get(&key).map(|item| item.value == &value[..max]), Some(true));
            partition.put(&key, &value[1..max], Put::default()).expect("one less");
            partition.extend(&key, &value[..1], Side::Start, None).expect("back to the longest");
            assert_eq!(partition.get(&key).map(|item| item.value == &value[..max]), Some(true));
        }
    }
}

#[test]
fn a_cache_loses_next_to_nothing_at_90_percent_and_counts_it() {
    for layout in LAYOUTS {
        // The number of small items that fit is found by filling the partition.
        let mut full = partition(Mode::Cache, layout, 4 * MIB);
        (0..200_000).for_each(|number| put(&mut full, number, &[7; 32]).expect("a cache is never full"));
        assert!(evicted(full.stats()) > 100_000 && full.stats().items < 80_000);
        let items = full.stats().items * 9 / 10;
        let mut cache = partition(Mode::Cache, layout, 4 * MIB);
        (0..items).for_each(|number| put(&mut cache, number, &[7; 32]).expect("a cache is never full"));
        let lost = (0..items).filter(|&number| !has(&cache, number, &[7; 32])).count() as u64;
        println!("{layout:?}: {lost} of {items} lost, {:?}", cache.stats());
        assert_eq!(lost, evicted(cache.stats()));
        assert!(lost * 1000 < items, "{lost} of {items} are lost");
        if layout == Layout::Inline {
            let bytes = cache.stats().memory_bytes as f64 / items as f64;
            assert!(bytes < 90.0, "{bytes} bytes an item");
        }
    }
}

#[test]
fn a_store_is_overwritten_for_ever_once_it_is_full() {
    for layout in LAYOUTS {
        for value_bytes in [10, 100, 1000, 7000] {
            let mut store = partition(Mode::Store, layout, 2 * MIB);
            let items =
                (0..).find(|&number| put(&mut store, number, &vec![0; value_bytes]).is_err()).expect("it fills");
            assert_eq!(store.stats().items, items);
            // Other sizes up to that one, so that nothing is overwritten in place.
            for round in 0..4 * items {
                let number = round.wrapping_mul(7919) % items;
                let value = vec![number as u8; value_bytes - (round % 9) as usize];
                put(&mut store, number, &value)
                    .unwrap_or_else(|refused| panic!("{layout:?} {value_bytes} {round}: {refused}"));
                assert!(has(&store, number, &value));
            }
            assert!((0..items).all(|number| store.peek(&store.key(&key(number)).expect("16 bytes")).is_some()));
            assert_eq!((store.stats().items, evicted(store.stats())), (items, 0));
        }
    }
}

#[test]
fn what_is_deleted_makes_room() {
    for layout in LAYOUTS {
        let mut store = partition(Mode::Store, layout, MIB);
        let fill =
            |store: &mut Partition| (0..).find(|&number| put(store, number, &[1; 500]).is_err()).expect("it fills");
        let items = fill(&mut store);
        assert_eq!(put(&mut store, items, &[1; 500]), Err(Refused::Full));
        for number in (0..items).step_by(2) {
            store.delete(&store.key(&key(number)).expect("16 bytes"), None).expect("it is there");
        }
        for number in (0..items).step_by(2) {
            put(&mut store, number, &[2; 500]).expect("as much room as was left");
        }
        assert!((0..items).all(|number| has(&store, number, &[1 + (number % 2 == 0) as u8; 500])));
        store.flush();
        assert_eq!((store.stats().items, store.stats().item_bytes), (0, 0));
        assert!(!has(&store, 1, &[1; 500]));
        let again = fill(&mut store);
        assert!(again.abs_diff(items) <= items / 50, "{again} items, {items} before");
    }
}

#[test]
fn a_full_store_says_so_when_an_item_has_no_room_for_an_expiry() {
    for change in [Change::Touch, Change::Mark] {
        let mut store = partition(Mode::Store, Layout::Inline, MIB);
        // Key and value fill a line, so that there is no room in it for further fields.
        let value = [5; 36];
        let items = (0..).find(|&number| put(&mut store, number, &value).is_err()).expect("it fills");
        let before: Vec<_> = (0..items).map(|number| seen(&store, number)).collect();
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        for number in 0..items {
            match change.make(&mut store, number) {
                Ok(()) => done.push(number),
                Err(Refused::Full) => refused.push(number),
                Err(other) => panic!("item {number} is there: {other}"),
            }
        }
        assert!(refused.len() > 100, "{change:?}: {} of {items} refused", refused.len());
        assert!(done.iter().all(|&number| seen(&store, number) == change.expected()));
        assert!(refused.iter().all(|&number| seen(&store, number) == before[number as usize]), "it stays as it was");
        assert!((0..items).all(|number| has(&store, number, &value)));
        let none = key(items);
        assert_eq!(store.touch(&store.key(&none).expect("16 bytes"), None), Err(Refused::NotFound));
        // Room is all that is needed.
        for number in (0..items).filter(|&number| number != refused[0]).step_by(2) {
            store.delete(&store.key(&key(number)).expect("16 bytes"), None).expect("it is there");
        }
        change.make(&mut store, refused[0]).expect("there is room now");
        assert_eq!(seen(&store, refused[0]), change.expected());
    }
}

/// A change that needs more bytes than the item had.
#[derive(Debug, Clone, Copy)]
enum Change {
    Touch,
    Mark,
}

impl Change {
    const EXPIRES: u32 = u32::MAX;
    const WIDE_TOKEN: u64 = u64::MAX;

    fn make(self, store: &mut Partition, number: u64) -> Result<(), Refused> {
        let bytes = key(number);
        let key = store.key(&bytes).expect("16 bytes");
        match self {
            Change::Touch => store.touch(&key, Some(Change::EXPIRES)),
            Change::Mark => store.mark(&key, Marks::default(), Token::Exactly(Change::WIDE_TOKEN)),
        }
    }

    /// Returns what [`seen`] shows of a changed item.
    fn expected(self) -> (Option<u32>, bool) {
        match self {
            Change::Touch => (Some(Change::EXPIRES), false),
            Change::Mark => (None, true),
        }
    }
}

/// Returns the expiry of an existing item, and whether its token is the wide one.
fn seen(store: &Partition, number: u64) -> (Option<u32>, bool) {
    let item = store.peek(&store.key(&key(number)).expect("16 bytes")).expect("it is there");
    (item.expires, item.cas == Change::WIDE_TOKEN)
}

#[test]
fn a_second_chance_keeps_what_is_read() {
    let mut cache = partition(Mode::Cache, Layout::Inline, 2 * MIB);
    (0..20).for_each(|number| put(&mut cache, number, &[9; 400]).expect("a cache is never full"));
    for number in 20..40_000 {
        put(&mut cache, number, &[9; 400]).expect("a cache is never full");
        let bytes = key(number % 20);
        let read = cache.key(&bytes).expect("16 bytes");
        assert!(cache.get(&read).is_some(), "item {} was read all the time and is gone after {number}", number % 20);
    }
    assert!(cache.stats().evicted_log > 30_000);
}

#[test]
fn what_was_visited_comes_back_after_a_flush() {
    const ITEMS: u64 = 20_000;
    for (layout, value_bytes) in [(Layout::Inline, 20), (Layout::Inline, 64), (Layout::Log, 20)] {
        let mut store = partition(Mode::Store, layout, 16 * MIB);
        for number in 0..ITEMS {
            put(&mut store, number, &vec![9; value_bytes]).expect("there is room");
        }
        // In hash order, as a dump has them.
        let mut visited = Vec::new();
        store.visit(0..=u64::MAX, &mut |_, key, item| visited.push((key.to_vec(), item.value.to_vec())));
        assert_eq!(visited.len() as u64, ITEMS);
        for _ in 0..3 {
            store.flush();
            for (number, (key, value)) in visited.iter().enumerate() {
                let key = store.key(key).expect("16 bytes");
                let put = store.put(&key, value, Put::default());
                put.unwrap_or_else(|refused| panic!("item {number} of {layout:?}: {refused}"));
            }
            assert_eq!(store.stats().items, ITEMS);
        }
    }
}

#[test]
fn a_stretch_of_the_index_that_is_crowded_is_no_full_store() {
    // Secrets under which some place of the index had no free line within reach, although there were thousands
    // elsewhere: two of 4000.
    for seed in [2429, 4380] {
        let config = PartitionConfig::new(Mode::Store, 128 * MIB);
        let mut store = Partition::with_secret(config, [mix(seed), mix(seed ^ 77)]).expect("some MiB");
        for number in 0..70_000 {
            let bytes = [mix(number).to_le_bytes(), (mix(number) ^ GOLDEN).to_le_bytes()].concat();
            let key = store.key(&bytes).expect("16 bytes");
            let put = store.put(&key, &[7; 64], Put { cas: Some(1), ..Put::default() });
            put.unwrap_or_else(|refused| panic!("seed {seed}, item {number}: {refused}"));
        }
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output of SplitMix64 for a state.
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Nothing is evicted while there is room: of a million items in a gibibyte, none.
#[test]
fn a_cache_with_room_evicts_nothing() {
    for (layout, value_bytes, items) in
        [(Layout::Inline, 0, 1_000_000), (Layout::Log, 0, 400_000), (Layout::Inline, 60, 400_000)]
    {
        for secret in 0..3 {
            let config = PartitionConfig { layout, ..PartitionConfig::new(Mode::Cache, 1024 * MIB) };
            let mut cache = Partition::with_secret(config, [secret, 77]).expect("a GiB that is mostly not touched");
            for number in 0..items {
                put(&mut cache, number, &vec![7; value_bytes]).expect("a cache is never full");
            }
            let stats = cache.stats();
            println!("{layout:?} {value_bytes} {stats:?}");
            assert_eq!((evicted(stats), stats.items), (0, items), "{layout:?} {value_bytes} {secret}");
        }
    }
}

#[test]
fn an_item_that_was_just_rewritten_is_not_evicted_first() {
    for layout in LAYOUTS {
        for value_bytes in [20, 100, 400] {
            let mut cache = partition(Mode::Cache, layout, 2 * MIB);
            // Full, so that further items evict others.
            let items = 60_000;
            (0..items)
                .for_each(|number| put(&mut cache, number, &vec![1; value_bytes]).expect("a cache is never full"));
            let held: Vec<u64> = (0..items).filter(|&number| has(&cache, number, &vec![1; value_bytes])).collect();
            // One in a hundred is rewritten again and again, beginning with the oldest, while new items amount to a
            // quarter of all.
            let rewritten = &held[..held.len() / 100];
            let mut lost = 0;
            for (at, new) in (items..items + held.len() as u64 / 4).enumerate() {
                put(&mut cache, new, &vec![3; value_bytes]).expect("a cache is never full");
                let number = rewritten[at % rewritten.len()];
                lost += u32::from(at >= rewritten.len() && !has(&cache, number, &vec![2; value_bytes]));
                put(&mut cache, number, &vec![2; value_bytes]).expect("a cache is never full");
            }
            println!("{layout:?} {value_bytes}: {lost} of {}", held.len() / 4);
            assert!(lost * 400 <= held.len() as u32 / 4, "{layout:?} {value_bytes}: {lost} of {}", held.len() / 4);
        }
    }
}
