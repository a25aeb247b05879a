//! Partitions of hundreds of segments: with the default segment size, that is from a gigabyte on.

use dunlin_store::{
    Layout, MEMORY_BYTES_MIN, Mode, Partition, PartitionConfig, PartitionError, Put, Refused, SEGMENT_BYTES_MIN, Store,
    Sweep, Visit,
};

const MIB: usize = 1 << 20;
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output of SplitMix64 for a state.
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn partition(mode: Mode, layout: Layout, memory: usize, seed: u64) -> Partition {
    let config = PartitionConfig { layout, segment: Some(SEGMENT_BYTES_MIN), ..PartitionConfig::new(mode, memory) };
    Partition::with_secret(config, [seed, !seed]).expect("a few MiB")
}

fn put(partition: &mut Partition, number: u64, value: &[u8]) -> Result<(), Refused> {
    let bytes = u128::from(number).to_be_bytes();
    let key = partition.key(&bytes).expect("16 bytes");
    partition.put(&key, value, Put::default()).map(|_| ())
}

fn visited(partition: &Partition) -> u64 {
    let mut items = 0;
    partition.visit(0..=u64::MAX, &mut |_, _, _| items += 1);
    items
}

#[test]
fn a_segment_is_a_power_of_two_and_a_sixteenth_of_the_memory_at_most() {
    let make = |bytes| {
        let config = PartitionConfig { segment: Some(bytes), ..PartitionConfig::new(Mode::Cache, MEMORY_BYTES_MIN) };
        Partition::new(config)
    };
    for bytes in [0, 1, SEGMENT_BYTES_MIN / 2, 3 * SEGMENT_BYTES_MIN, MEMORY_BYTES_MIN / 8] {
        assert!(matches!(make(bytes), Err(PartitionError::Segment { .. })), "{bytes}");
    }
    for bytes in [SEGMENT_BYTES_MIN, MEMORY_BYTES_MIN / 16] {
        make(bytes).expect("a good size");
    }
}

/// The index must give back what it takes for a growth that is then declined: it meets the same segments at the next
/// attempt.
#[test]
fn an_index_grows_past_segments_that_it_could_not_use_before() {
    let mixes = [(400, 10), (400, 20), (400, 50), (1000, 20), (1000, 100), (1000, 200), (3500, 20), (3500, 200)];
    for (memory, segment) in
        [(2 * MIB, SEGMENT_BYTES_MIN), (2 * MIB, 4 * SEGMENT_BYTES_MIN), (8 * MIB, 4 * SEGMENT_BYTES_MIN)]
    {
        for (large, one_in) in mixes {
            for layout in [Layout::Inline, Layout::Log] {
                let config =
                    PartitionConfig { layout, segment: Some(segment), ..PartitionConfig::new(Mode::Cache, memory) };
                let mut cache = Partition::with_secret(config, [1, 2]).expect("a few MiB");
                for number in 0..memory as u64 / 50 {
                    let bytes = if mix(number).is_multiple_of(one_in) { large } else { 16 };
                    put(&mut cache, number, &vec![7; bytes]).expect("a cache is never full");
                }
                let stats = cache.stats();
                assert_eq!(visited(&cache), stats.items);
                assert!(stats.memory_bytes <= stats.memory_bytes_max, "{stats:?}");
            }
        }
    }
}

/// A nearly full store in which different items are deleted in turn.
#[test]
fn a_store_grows_its_index_after_deletes_near_full() {
    for seed in 0..6 {
        for layout in [Layout::Inline, Layout::Log] {
            let mut store = partition(Mode::Store, layout, 4 * MIB, seed);
            let mut held = std::collections::VecDeque::new();
            let mut refused = 0;
            for number in 0..200_000u64 {
                let random = mix(number ^ seed << 40);
                let bytes = if random.is_multiple_of(50) { 800 } else { 16 };
                match put(&mut store, number, &vec![7; bytes]) {
                    Ok(()) => held.push_back(number),
                    Err(Refused::Full) => {
                        refused += 1;
                        for _ in 0..random >> 32 & 7 {
                            let Some(oldest) = held.pop_front() else { break };
                            let bytes = u128::from(oldest).to_be_bytes();
                            let key = store.key(&bytes).expect("16 bytes");
                            store.delete(&key, None).expect("it is there");
                        }
                    }
                    Err(other) => panic!("{other}"),
                }
                if number % 20_000 == 0 {
                    assert_eq!(visited(&store), held.len() as u64);
                }
            }
            assert!(refused > 0);
            assert_eq!((visited(&store), store.stats().items), (held.len() as u64, held.len() as u64));
        }
    }
}

/// The index takes a hundred segments of the default size; the log begins above them, past 32-bit offsets. Touches
/// about 450 MB.
#[test]
fn a_store_of_four_gibibytes_grows_and_finds_everything() {
    const ITEMS: u64 = 3_000_000;
    let config = PartitionConfig::new(Mode::Store, 4096 * MIB);
    let mut store = Partition::with_secret(config, [1, 2]).expect("memory that is reserved, and mostly not touched");
    let value = |number: u64| vec![number as u8; if number.is_multiple_of(50) { 1000 } else { 20 }];
    for number in 0..ITEMS {
        put(&mut store, number, &value(number)).expect("there is room");
    }
    assert_eq!(store.stats().items, ITEMS);
    let index_bytes = store.shape().index_bytes();
    assert!(index_bytes > 50 << 20, "the index took few segments: {index_bytes} bytes");
    for number in (0..ITEMS).step_by(7) {
        let bytes = u128::from(number).to_be_bytes();
        let key = store.key(&bytes).expect("16 bytes");
        assert_eq!(store.peek(&key).map(|item| item.value), Some(&value(number)[..]), "{number}");
    }
}
