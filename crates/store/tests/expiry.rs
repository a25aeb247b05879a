//! Expired items make room, whether or not they are accessed again.

use dunlin_store::{Layout, Mode, Partition, PartitionConfig, Put, Refused, Store};

const MIB: usize = 1 << 20;
const NOW: u32 = 1_800_000_000;
const LAYOUTS: [Layout; 2] = [Layout::Inline, Layout::Log];

fn partition(mode: Mode, layout: Layout) -> Partition {
    let config = PartitionConfig { layout, ..PartitionConfig::new(mode, 4 * MIB) };
    let mut partition = Partition::with_secret(config, [1, 2]).expect("a few MiB");
    partition.set_now(NOW);
    partition
}

fn put(partition: &mut Partition, number: u64, bytes: usize, expires: Option<u32>) -> Result<(), Refused> {
    let key = u128::from(number).to_be_bytes();
    let key = partition.key(&key).expect("16 bytes");
    partition.put(&key, &vec![7; bytes], Put { expires, ..Put::default() }).map(|_| ())
}

fn has(partition: &Partition, number: u64) -> bool {
    let key = u128::from(number).to_be_bytes();
    partition.peek(&partition.key(&key).expect("16 bytes")).is_some()
}

/// Stores items until one is refused.
fn fill(store: &mut Partition, first: u64, bytes: usize, expires: impl Fn(u64) -> Option<u32>) -> u64 {
    (first..).find(|&number| put(store, number, bytes, expires(number)).is_err()).expect("it fills") - first
}

#[test]
fn a_store_full_of_expired_items_is_empty() {
    for layout in LAYOUTS {
        for bytes in [0, 20, 100, 1000, 20_000] {
            let mut store = partition(Mode::Store, layout);
            let items = fill(&mut store, 0, bytes, |_| Some(NOW + 10));
            for round in 1..4 {
                store.set_now(NOW + 10 * round);
                let first = u64::from(round) << 32;
                let again = fill(&mut store, first, bytes, |_| Some(NOW + 10 * (round + 1)));
                assert!(again >= items * 9 / 10, "{layout:?} {bytes}: {again} items, {items} before");
                assert!((first..first + again).all(|number| has(&store, number)));
            }
        }
    }
}

#[test]
fn a_store_takes_what_fits_beside_items_that_live_on() {
    for layout in LAYOUTS {
        for bytes in [20, 100, 1000] {
            let mut store = partition(Mode::Store, layout);
            // Every other item expires, so that no line, page or segment has only expired ones.
            let items = fill(&mut store, 0, bytes, |number| (number % 2 == 0).then_some(NOW + 10));
            store.set_now(NOW + 10);
            let again = fill(&mut store, 1 << 32, bytes, |_| None);
            assert!(again >= items * 4 / 10, "{layout:?} {bytes}: {again} items of {items}");
            assert!((0..items).all(|number| has(&store, number) == (number % 2 == 1)));
            assert_eq!(store.stats().expired, items.div_ceil(2), "every one was found");
            assert_eq!(put(&mut store, 1 << 40, bytes, None), Err(Refused::Full));
        }
    }
}

#[test]
fn an_idle_store_finds_what_expired() {
    for mode in [Mode::Cache, Mode::Store] {
        for layout in LAYOUTS {
            let mut store = partition(mode, layout);
            for number in 0..20_000 {
                put(&mut store, number, 60, number.is_multiple_of(3).then_some(NOW + 10)).expect("there is room");
            }
            store.expire_some();
            assert_eq!(store.stats().items, 20_000, "nothing expired yet");
            store.set_now(NOW + 10);
            let before = store.stats().items;
            store.expire_some();
            assert!(before - store.stats().items < 2_500, "one call is bounded");
            for _ in 0..40 {
                store.expire_some();
            }
            let stats = store.stats();
            assert_eq!((stats.items, stats.expired, stats.expired_unfetched), (13_333, 6_667, 6_667));
            assert_eq!(stats.item_bytes, 13_333 * 76);
        }
    }
}

/// With as many new items as expired ones, a cache need not evict any.
#[test]
fn a_cache_evicts_no_live_item_in_place_of_an_expired_one() {
    for layout in LAYOUTS {
        for bytes in [20, 100, 1000] {
            let mut cache = partition(Mode::Cache, layout);
            let full = {
                let mut other = partition(Mode::Cache, layout);
                (0..).find(|&number| {
                    put(&mut other, number, bytes, None).expect("a cache is never full");
                    other.stats().evicted_log + other.stats().evicted_index > 0
                })
            };
            let items = full.expect("it fills") * 95 / 100;
            for number in 0..items {
                put(&mut cache, number, bytes, (number % 2 == 0).then_some(NOW + 10)).expect("a cache is never full");
            }
            cache.set_now(NOW + 10);
            // A core calls it regularly.
            for number in 0..items * 4 / 10 {
                put(&mut cache, 1 << 32 | number, bytes, None).expect("a cache is never full");
                if number % 100 == 0 {
                    cache.expire_some();
                }
            }
            let lost = (0..items).filter(|&number| number % 2 == 1 && !has(&cache, number)).count() as u64;
            // Where each item has its pointer in the index, which grows meanwhile and takes segments of the log.
            let percent = if layout == Layout::Inline { 1 } else { 10 };
            assert!(lost * 100 <= items * percent, "{layout:?} {bytes}: {lost} of {items}: {:?}", cache.stats());
        }
    }
}

/// If one item in 50,000 has expired, a store of many items finds it in as many seconds as a small one.
#[test]
fn a_large_store_finds_few_expired_items_among_many_within_a_minute() {
    /// Calls are counted in tenths of a second.
    const TICKS: u32 = 10 * 60;
    const ONE_OF: u64 = 50_000;
    for layout in LAYOUTS {
        let config = PartitionConfig { layout, ..PartitionConfig::new(Mode::Store, 128 * MIB) };
        let mut store = Partition::with_secret(config, [1, 2]).expect("128 MiB");
        store.set_now(NOW);
        let items = fill(&mut store, 0, 8, |number| number.is_multiple_of(ONE_OF).then_some(NOW + 10));
        assert!(items > 1_000_000, "{layout:?}: {items} items");
        store.set_now(NOW + 10);
        let expired = items.div_ceil(ONE_OF);
        let mut ticks = 0;
        while store.stats().expired < expired {
            ticks += 1;
            assert!(ticks <= TICKS, "{layout:?}: {} of {expired} in {items} found", store.stats().expired);
            let mut calls = 1;
            while store.expire_some() > calls {
                calls += 1;
            }
        }
    }
}

/// An item about to be rejected makes the search continue past a part of the index where nothing has expired.
#[test]
fn an_item_finds_room_behind_many_that_live_on() {
    for layout in LAYOUTS {
        let mut store = partition(Mode::Store, layout);
        // The sweep has examined some items already, and the next ones may all be live.
        let items = fill(&mut store, 0, 200, |number| number.is_multiple_of(6_000).then_some(NOW + 10));
        store.set_now(NOW + 10);
        put(&mut store, 1 << 32, 200, None).unwrap_or_else(|why| panic!("{layout:?}: {why}, {items} items"));
    }
}

/// If a few of many items are about to expire, there may be room anywhere, and each rejected item searches for it.
#[test]
fn a_burst_of_refused_items_looks_at_a_bounded_number_of_others() {
    const BURST: u64 = 512;
    /// 16,384 without success, and 64 for each expired one.
    const SWEPT_MAX: u64 = 16_384 + 3 * 4_096;
    for layout in LAYOUTS {
        let config = PartitionConfig { layout, ..PartitionConfig::new(Mode::Store, 32 * MIB) };
        let mut store = Partition::with_secret(config, [1, 2]).expect("32 MiB");
        store.set_now(NOW);
        let items = fill(&mut store, 0, 8, |number| number.is_multiple_of(20_000).then_some(NOW + 10));
        assert!(items > 200_000, "{layout:?}: {items} items");
        store.set_now(NOW + 10);
        for tick in 0..3 {
            let (before, first) = (store.stats(), (1 << 32) + tick * BURST);
            let refused = (first..first + BURST).filter(|&number| put(&mut store, number, 8, None).is_err()).count();
            let (swept, expired) = (store.stats().swept - before.swept, store.stats().expired - before.expired);
            assert!(refused > 100, "{layout:?}: {refused} of {BURST} were refused");
            // Each new item also makes the sweep examine eight others.
            assert!(swept <= SWEPT_MAX + 8 * BURST + 64 * expired, "{layout:?}: {swept} items, {expired} had expired");
            assert!(swept > 10_000, "{layout:?}: with each call from outside it looks again");
            store.expire_some();
        }
    }
}
