//! A saved snapshot fits into partitions with the same settings, however full the saved ones were.

use std::path::Path;

use dunlin_store::snapshot::{Misfit, Reader, SnapshotError, Turn, load, load_file, origin_of, save};
use dunlin_store::{
    KeyFunction, Layout, MEMORY_BYTES_MIN, Mode, Partition, PartitionConfig, Put, Refused, Store, Sweep, Visit,
};

use super::small_file;

const MIB: usize = 1 << 20;
/// Seeds of a normal test run; `DUNLIN_SEEDS` sets more.
const SEEDS: u64 = 2;

/// The output of SplitMix64 for a state.
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn bytes_of(number: u64) -> [u8; 16] {
    u128::from(number).to_be_bytes()
}

/// Longest values: for lines alone, for lines and the log, and of 3, 23, 34, 55 and 92 hundredths of a segment, which
/// is a sixteenth of [`BYTES`].
const SHAPES: [u64; 7] = [34, 300, 7_000, 60_000, 90_000, 145_000, 240_000];
const BYTES: usize = 4 * MIB;

/// Fills a store until it rejects an item, then overwrites and deletes at random and fills it again: nothing is in its
/// first place.
fn fill(store: &mut Partition, seed: u64, longest: u64) {
    fill_with(store, seed, 300, |random| (random >> 8) as usize % longest as usize);
}

/// The same, with value lengths given by a function of a random number. The store counts as full after this many
/// rejections in a row.
fn fill_with(store: &mut Partition, seed: u64, refusals: u32, length: impl Fn(u64) -> usize) {
    let mut numbers = 0;
    for round in 0..4 {
        let mut refused = 0;
        // More than one rejection: small values fit where no large one does.
        while refused < refusals {
            let random = mix(numbers ^ seed << 32 ^ round << 56);
            let bytes = bytes_of(numbers);
            let key = store.key(&bytes).unwrap();
            match store.put(&key, &vec![random as u8; length(random)], Put::default()) {
                Ok(_) => numbers += 1,
                Err(Refused::Full) => refused += 1,
                Err(other) => panic!("{other}"),
            }
            numbers += u64::from(refused > 0);
        }
        if round < 3 {
            for number in (0..numbers).filter(|&number| mix(number ^ round).is_multiple_of(5)) {
                let bytes = bytes_of(number);
                let key = store.key(&bytes).unwrap();
                match store.delete(&key, None) {
                    Ok(()) | Err(Refused::NotFound) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

fn take(partition: &mut impl Sweep, path: &Path) {
    let (mut parts, collector) = save(1, 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| collector.routed_by([7; 16]).write_to(path));
        while parts[0].turn(partition) != Turn::Over {
            std::thread::yield_now();
        }
        writer.join().unwrap().unwrap();
    });
}

#[test]
fn a_full_store_loads_its_own_snapshot() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("origin-full-{}", std::process::id()));
    let mut refused_elsewhere = 0;
    for seed in 0..seeds {
        for (longest, layout) in
            SHAPES.into_iter().flat_map(|longest| [(longest, Layout::Inline), (longest, Layout::Log)])
        {
            for segment in [None, Some(4 << 10)] {
                if segment.is_some() && longest > 7_000 {
                    continue;
                }
                let longest = if segment.is_some() { longest.min(3_000) } else { longest };
                let config = PartitionConfig { layout, segment, ..PartitionConfig::new(Mode::Store, BYTES) };
                let mut before = Partition::with_secret(config, [seed, longest]).unwrap();
                fill(&mut before, seed, longest);
                take(&mut before, &path);
                let origin = origin_of(&path).unwrap().unwrap();
                assert_eq!((origin.routing, origin.partitions.len()), ([7; 16], 1));
                let shape = &origin.partitions[0];
                assert!(shape.suits(&config).unwrap());
                // Repeatedly: what was loaded is saved and loaded again.
                for round in 0..3 {
                    let mut after = [Partition::with_shape(config, shape).unwrap()];
                    let loaded = load_file(&path, 0, &mut after, |_| Some(0), Misfit::Refuse, |_| {});
                    let loaded = loaded.unwrap_or_else(|error| {
                        panic!(
                            "seed {seed} {longest} {layout:?} {segment:?} round {round}: {error} {:?}",
                            before.stats()
                        )
                    });
                    let [after] = &mut after;
                    assert_eq!((loaded.stored, after.stats().items), (before.stats().items, before.stats().items));
                    before.visit(0..=u64::MAX, &mut |_, key, item| {
                        let found = after.peek(&after.key(key).unwrap()).map(|item| item.value);
                        assert_eq!(found, Some(item.value));
                    });
                    take(after, &path);
                }
                let mut elsewhere = [Partition::new(config).unwrap()];
                let load = load_file(&path, 0, &mut elsewhere, |_| Some(0), Misfit::Refuse, |_| {});
                refused_elsewhere += u32::from(load.is_err());
            }
        }
    }
    // Otherwise these stores are not full enough for the secret and the shape to matter.
    assert!(refused_elsewhere > 0, "a partition of another secret and shape took each of these snapshots");
    std::fs::remove_file(&path).unwrap();
}

/// The length of a value, as a function of a random number.
type Length = fn(u64) -> u64;

/// Few of these fit a segment: they pack differently in the snapshot's order than in the store's.
#[test]
fn a_full_store_of_items_that_pack_badly_loads_its_own_snapshot() {
    const HUNDREDTH: u64 = BYTES as u64 / 16 / 100;
    let lengths: [(&str, Length); 3] = [
        (
            "35 or 55 hundredths of a segment",
            |random| if random.is_multiple_of(2) { 35 * HUNDREDTH } else { 55 * HUNDREDTH },
        ),
        ("30 to 40 hundredths", |random| 30 * HUNDREDTH + random % (10 * HUNDREDTH)),
        ("55 hundredths or little", |random| if random.is_multiple_of(2) { 55 * HUNDREDTH } else { random % 3_000 }),
    ];
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("origin-large-{}", std::process::id()));
    let config = PartitionConfig::new(Mode::Store, BYTES);
    for (what, length) in lengths {
        for seed in 0..16 {
            let mut before = Partition::with_secret(config, [seed, 1]).unwrap();
            fill_with(&mut before, seed, 300, |random| length(random >> 10) as usize);
            take(&mut before, &path);
            let mut after = [Partition::with_shape(config, &before.shape()).unwrap()];
            let loaded = load_file(&path, 0, &mut after, |_| Some(0), Misfit::Refuse, |_| {});
            loaded.unwrap_or_else(|error| panic!("{what}, seed {seed}: {error} {:?}", before.stats()));
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// Shuffled repeatedly, of about a half, a third and a quarter of a segment, and mixed.
#[test]
fn a_full_store_of_large_items_in_any_order_loads_its_own_snapshot() {
    const SHUFFLES: u64 = 400;
    const BYTES: usize = MEMORY_BYTES_MIN;
    const HUNDREDTH: u64 = BYTES as u64 / 16 / 100;
    let lengths: [Length; 6] = [
        |random| (45 + random % 21) * HUNDREDTH,
        |random| (30 + random % 8) * HUNDREDTH,
        |random| (22 + random % 6) * HUNDREDTH,
        |random| (13 + random % 50) * HUNDREDTH,
        |random| if random.is_multiple_of(3) { (45 + random % 21) * HUNDREDTH } else { random % (20 * HUNDREDTH) },
        |random| ((26 + random % 4) * HUNDREDTH) << (random % 2),
    ];
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("origin-shuffled-{}", std::process::id()));
    let config = PartitionConfig::new(Mode::Store, BYTES);
    let mut refused = Vec::new();
    for seed in 0..SHUFFLES {
        let length = lengths[seed as usize % lengths.len()];
        let mut before = Partition::with_secret(config, [seed, 1]).unwrap();
        fill_with(&mut before, seed, 40, |random| length(random >> 10) as usize);
        take(&mut before, &path);
        let mut after = [Partition::with_shape(config, &before.shape()).unwrap()];
        let loaded = load_file(&path, 0, &mut after, |_| Some(0), Misfit::Refuse, |_| {});
        match loaded {
            Ok(loaded) => assert_eq!(loaded.stored, before.stats().items),
            Err(error) => refused.push((seed, error.to_string())),
        }
    }
    assert!(refused.is_empty(), "{} of {SHUFFLES}: {refused:?}", refused.len());
    std::fs::remove_file(&path).unwrap();
}

/// A store that was loaded full behaves like any full store: it rejects items, and deletions make room.
#[test]
fn a_store_that_was_loaded_full_takes_new_items_after_deletes() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("origin-goes-on-{}", std::process::id()));
    for (longest, layout) in SHAPES.into_iter().flat_map(|longest| [(longest, Layout::Inline), (longest, Layout::Log)])
    {
        let config = PartitionConfig { layout, ..PartitionConfig::new(Mode::Store, 4 * MIB) };
        let mut before = Partition::with_secret(config, [3, longest]).unwrap();
        fill(&mut before, 3, longest);
        take(&mut before, &path);
        let mut after = [Partition::with_shape(config, &before.shape()).unwrap()];
        load_file(&path, 0, &mut after, |_| Some(0), Misfit::Refuse, |_| {}).unwrap();
        let [after] = &mut after;
        let mut keys = Vec::new();
        after.visit(0..=u64::MAX, &mut |_, key, item| keys.push((key.to_vec(), item.value.len())));
        for (key, _) in keys.iter().step_by(2) {
            after.delete(&after.key(key).unwrap(), None).unwrap();
        }
        // A tenth of the deleted amount returns, under other keys.
        for (number, (_, bytes)) in keys.iter().step_by(20).enumerate() {
            let bytes_of_key = bytes_of(u64::MAX - number as u64);
            let key = after.key(&bytes_of_key).unwrap();
            let put = after.put(&key, &vec![1; *bytes], Put::default());
            put.unwrap_or_else(|refused| panic!("{longest} {layout:?} {number}: {refused} {:?}", after.stats()));
        }
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_cache_loads_its_own_snapshot_whole() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("origin-cache-{}", std::process::id()));
    for (layout, longest) in [(Layout::Inline, 34), (Layout::Inline, 300), (Layout::Log, 300)] {
        let config = PartitionConfig { layout, ..PartitionConfig::new(Mode::Cache, 4 * MIB) };
        let mut before = Partition::with_secret(config, [1, 2]).unwrap();
        for number in 0..100_000 {
            let bytes = bytes_of(number);
            let key = before.key(&bytes).unwrap();
            before.put(&key, &vec![1; (mix(number) % longest) as usize], Put::default()).unwrap();
        }
        take(&mut before, &path);
        let mut after = [Partition::with_shape(config, &before.shape()).unwrap()];
        let loaded = load_file(&path, 0, &mut after, |_| Some(0), Misfit::Count, |_| {}).unwrap();
        println!("{layout:?} {longest}: {loaded:?}");
        assert!(loaded.evicted * 1000 < loaded.stored, "{layout:?} {longest}: {loaded:?}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn other_settings_are_filled_as_far_as_they_have_room_and_say_what_is_missing() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("origin-other-{}", std::process::id()));
    let config = PartitionConfig::new(Mode::Store, 4 * MIB);
    let mut before = Partition::with_secret(config, [1, 2]).unwrap();
    fill(&mut before, 1, 300);
    take(&mut before, &path);
    let items = before.stats().items;
    let shape = before.shape();
    let load_into = |partitions: &mut [Partition]| {
        let count = partitions.len();
        load_file(&path, 0, partitions, |key| Some(usize::from(key[15]) % count), Misfit::Refuse, |_| {})
    };
    for other in [
        PartitionConfig::new(Mode::Store, 8 * MIB),
        PartitionConfig { key_function: KeyFunction::SipHash, ..PartitionConfig::new(Mode::Store, 6 * MIB) },
        PartitionConfig::new(Mode::Cache, 8 * MIB),
    ] {
        assert!(!shape.suits(&other).unwrap());
        assert_eq!(load_into(&mut [Partition::with_shape(other, &shape).unwrap()]).unwrap().stored, items);
    }
    let half = PartitionConfig::new(Mode::Store, 3 * MIB);
    assert_eq!(load_into(&mut [0, 1].map(|_| Partition::with_shape(half, &shape).unwrap())).unwrap().stored, items);
    let small = PartitionConfig::new(Mode::Store, MEMORY_BYTES_MIN);
    let error = load_into(&mut [Partition::with_shape(small, &shape).unwrap()]).unwrap_err();
    let text = error.to_string();
    let SnapshotError::NoRoom(no_room) = error else { panic!("{text}") };
    assert_eq!((no_room.of, no_room.taken_of), (items, Some((1, 4 * MIB as u64))));
    assert!(no_room.items > items / 2 && no_room.items < items, "{text}");
    assert!(text.contains("taken of 1 cores with 4194304 bytes of memory together; start with the same"), "{text}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_file_of_version_1_has_no_origin_and_is_read() {
    let (bytes, _) = small_file();
    assert_eq!(Reader::new(&bytes[..]).unwrap().origin().unwrap().partitions.len(), 2);
    // As the previous version wrote it.
    let mut writer = dunlin_store::snapshot::Writer::new(Vec::new(), 1_000).unwrap();
    let mut block = dunlin_store::snapshot::Block::default();
    block.push(&dunlin_store::snapshot::Record { key: b"a", value: b"1", flags: 0, expires: None, is_stale: false });
    writer.write(&block).unwrap();
    let mut old = writer.finish().unwrap().0;
    old[8] = 1;
    let reseal = |bytes: &mut [u8], end: usize, from: usize| {
        let checksum = crc32c::crc32c(&bytes[from..end - 4]);
        bytes[end - 4..end].copy_from_slice(&checksum.to_le_bytes());
    };
    reseal(&mut old, 32, 0);
    let headers = crc32c::crc32c(&old[..64]);
    let trailer = old.len() - 40;
    old[trailer + 32..trailer + 36].copy_from_slice(&headers.to_le_bytes());
    let end = old.len();
    reseal(&mut old, end, trailer);
    assert_eq!(Reader::new(&old[..]).unwrap().origin(), None);
    let mut found = [dunlin_store::Model::new()];
    assert_eq!(load(&old[..], 0, &mut found, |_| Some(0), Misfit::Refuse, |_| {}).unwrap().stored, 1);
}
