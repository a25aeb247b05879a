//! A snapshot of partitions that change meanwhile holds the items as of its start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dunlin_store::snapshot::{Misfit, Part, SaveError, Turn, load_file, save};
use dunlin_store::{
    Condition, Delta, Layout, MEMORY_BYTES_MIN, Mode, Model, Moment, Partition, PartitionConfig, Put, Side, Store,
    Sweep, Visit,
};

/// Seeds of a normal test run; `DUNLIN_SEEDS` sets more.
const SEEDS: u64 = 60;
/// The time at which partitions begin, in seconds since 1970.
const NOW: u32 = 1_000;

/// xorshift64*: enough for tests.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// Items by key: value, flags, expiry, and whether stale.
type Items = BTreeMap<Vec<u8>, (Vec<u8>, u32, Option<u32>, bool)>;

fn items(partition: &impl Visit) -> Items {
    let mut items = Items::new();
    partition.visit(0..=u64::MAX, &mut |_, key, item| {
        let before = items.insert(key.to_vec(), (item.value.to_vec(), item.flags, item.expires, item.marks.is_stale));
        assert!(before.is_none(), "{key:?} is visited twice");
    });
    items
}

fn live(items: &Items, now: u32) -> Items {
    items
        .iter()
        .filter(|(_, item)| item.2.is_none_or(|at| at > now))
        .map(|(key, item)| (key.clone(), item.clone()))
        .collect()
}

/// Does any operation that changes a partition, or reads it.
fn act(partition: &mut impl Sweep, random: &mut Random, now: &mut u32, keys: u64) {
    let text = format!("key-{}", random.below(keys));
    let key = partition.key(text.as_bytes()).unwrap();
    let expires = (random.below(4) == 0).then(|| *now + random.below(20) as u32);
    let cas = partition.peek(&key).map(|item| item.cas);
    // Most are rejected now and then; that is as good a test.
    match random.below(12) {
        0..=3 => {
            let value = vec![random.below(256) as u8; random.below(3_000) as usize];
            let condition =
                [Condition::Always, Condition::Absent, Condition::Present, Condition::Unchanged(cas.unwrap_or(0))];
            let condition = condition[random.below(4) as usize];
            let put = Put {
                flags: random.below(9) as u32,
                expires,
                condition,
                is_stale: random.below(5) == 0,
                ..Put::default()
            };
            let _ = partition.put(&key, &value, put);
        }
        4 => _ = partition.put(&key, b"41", Put::default()),
        5 => _ = partition.extend(&key, b"more", if random.below(2) == 0 { Side::End } else { Side::Start }, None),
        6 => _ = partition.count(&key, Delta::Up(random.below(100)), None),
        7 => _ = partition.touch(&key, expires),
        8 => {
            let stale = partition.peek(&key).map(|item| item.marks).unwrap_or_default();
            let _ = partition.mark(
                &key,
                dunlin_store::Marks { is_stale: !stale.is_stale, ..stale },
                dunlin_store::Token::Keep,
            );
        }
        9 => _ = partition.delete(&key, None),
        10 => _ = partition.get(&key).map(|item| item.cas),
        _ => {
            *now += random.below(2) as u32;
            partition.set_now(*now);
        }
    }
}

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("snapshot-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Takes a snapshot of two partitions in one thread, with random operations between the turns, and compares it with
/// their contents at the meeting.
fn snapshot_under_change<P: Sweep>(seed: u64, partitions: &mut [P; 2], keys: u64, path: &Path) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut now = NOW;
    for partition in &mut *partitions {
        partition.set_now(now);
        (0..random.below(4 * keys)).for_each(|_| act(partition, &mut random, &mut now, keys));
    }
    partitions.iter_mut().for_each(|partition| partition.set_now(now));
    let (mut parts, collector) = save(1, now);
    let (mut others, other_collector) = save(1, now);
    parts.append(&mut others);
    let paths = [path.with_extension("0"), path.with_extension("1")];
    let writers: Vec<_> = [collector, other_collector]
        .into_iter()
        .zip(paths.clone())
        .map(|(collector, path)| std::thread::spawn(move || collector.write_to(&path)))
        .collect();
    let start = now;
    for at in 0..2 {
        let (partition, part): (&mut P, &mut Part) = (&mut partitions[at], &mut parts[at]);
        // With one core, the first turn is the meeting.
        let expected = live(&items(partition), start);
        assert_eq!(part.turn(partition), Turn::Again);
        assert_eq!(live(&items(partition), start), expected);
        let changes = random.below(60);
        loop {
            (0..random.below(changes + 1)).for_each(|_| act(partition, &mut random, &mut now, keys));
            match part.turn(partition) {
                Turn::Again => {}
                Turn::Wait => std::thread::yield_now(),
                Turn::Over => break,
            }
        }
        let expires_meanwhile = |item: &(Vec<u8>, u32, Option<u32>, bool)| item.2.is_some_and(|at| at <= now);
        let mut found = [Model::new()];
        // The writer may still be busy; the other partition has another writer.
        while !paths[at].exists() {
            std::thread::yield_now();
        }
        let loaded = load_file(&paths[at], start, &mut found, |_| Some(0), Misfit::Refuse, |_| {}).unwrap();
        let found = items(&found[0]);
        assert_eq!(loaded.stored, found.len() as u64, "seed {seed}: a key is there twice");
        for (key, item) in &found {
            assert_eq!(expected.get(key), Some(item), "seed {seed}: {key:?} is not as it was");
        }
        for (key, item) in &expected {
            assert!(found.contains_key(key) || expires_meanwhile(item), "seed {seed}: {key:?} is missing");
        }
    }
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

#[test]
fn the_model_is_saved_as_it_was_at_the_start() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let directory = directory("model");
    for seed in 1..=seeds {
        let keys = [3, 50, 600][seed as usize % 3];
        snapshot_under_change(seed, &mut [Model::new(), Model::new()], keys, &directory.join("file"));
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Small enough that caches evict, stores are full, and the index grows meanwhile.
#[test]
fn partitions_are_saved_as_they_were_at_the_start() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let directory = directory("partition");
    let (mut evicted, mut items_max) = (0, 0);
    for seed in 1..=seeds {
        let mode = if seed % 2 == 0 { Mode::Cache } else { Mode::Store };
        let layout = if seed % 3 == 0 { Layout::Log } else { Layout::Inline };
        let config = PartitionConfig { layout, ..PartitionConfig::new(mode, MEMORY_BYTES_MIN) };
        let mut partitions = [0, 1].map(|core| Partition::with_secret(config, [seed, core]).unwrap());
        let keys = [50, 600, 2_000][seed as usize % 3];
        snapshot_under_change(seed, &mut partitions, keys, &directory.join("file"));
        for stats in partitions.map(|partition| partition.stats()) {
            evicted += stats.evicted_log + stats.evicted_index;
            items_max = items_max.max(stats.items);
        }
    }
    println!("{evicted} items were evicted; up to {items_max} were in a partition");
    assert!(evicted > 0);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Two threads write to their partitions, in each step first one, then the other. No snapshot has an effect without its
/// cause.
#[test]
fn all_cores_begin_at_one_instant() {
    let directory = directory("instant");
    let path = directory.join("file");
    for round in 0..5 {
        let (parts, collector) = save(2, NOW);
        let writer = {
            let path = path.clone();
            std::thread::spawn(move || collector.write_to(&path))
        };
        // The first thread counts up; the second stores the count that it sees, which is never more.
        let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let threads: Vec<_> = parts
            .into_iter()
            .enumerate()
            .map(|(core, mut part)| {
                let count = count.clone();
                std::thread::spawn(move || {
                    let mut partition = Model::new();
                    loop {
                        for _ in 0..20 {
                            let text = if core == 0 {
                                let next = count.load(std::sync::atomic::Ordering::SeqCst) + 1;
                                let key = partition.key(b"cause").unwrap();
                                partition.put(&key, next.to_string().as_bytes(), Put::default()).unwrap();
                                count.store(next, std::sync::atomic::Ordering::SeqCst);
                                continue;
                            } else {
                                count.load(std::sync::atomic::Ordering::SeqCst).to_string()
                            };
                            let key = partition.key(b"effect").unwrap();
                            partition.put(&key, text.as_bytes(), Put::default()).unwrap();
                        }
                        match part.turn(&mut partition) {
                            Turn::Over => break,
                            Turn::Again | Turn::Wait => std::thread::yield_now(),
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let report = writer.join().unwrap().unwrap();
        assert_eq!(report.totals.records, 2);
        let mut found = [Model::new()];
        load_file(&path, NOW, &mut found, |_| Some(0), Misfit::Refuse, |_| {}).unwrap();
        let number = |key: &[u8]| -> u64 {
            let key = found[0].key(key).unwrap();
            String::from_utf8(found[0].peek(&key).unwrap().value.to_vec()).unwrap().parse().unwrap()
        };
        assert!(
            number(b"effect") <= number(b"cause"),
            "round {round}: {} after {}",
            number(b"effect"),
            number(b"cause")
        );
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// The wall clock was set after the partition was first given the time. The file has the wall clock's times, and the
/// loading process has a clock of its own.
#[test]
fn times_in_a_file_are_those_of_the_wall_clock() {
    let directory = directory("wall");
    let path = directory.join("file");
    let start = 1_000_000;
    for (ahead_then, ahead_now) in [(0, 0), (86_400, 0), (-500, 0), (0, 1_000), (-500, 86_400)] {
        let mut partition = Model::new();
        partition.set_now(start);
        for (text, expires) in [("a", Some(start + 60)), ("b", Some(start + 5)), ("c", None)] {
            let key = partition.key(text.as_bytes()).unwrap();
            partition.put(&key, b"v", Put { expires, ..Put::default() }).unwrap();
        }
        let taken_at = Moment { now: start, wall_ahead: ahead_then };
        let (mut parts, collector) = save(1, taken_at);
        let writer = std::thread::spawn({
            let path = path.clone();
            move || collector.write_to(&path)
        });
        while parts[0].turn(&mut partition) != Turn::Over {
            std::thread::yield_now();
        }
        writer.join().unwrap().unwrap();
        // Ten seconds later by the wall clock.
        let wall = i64::from(taken_at.to_wall(start)) + 10;
        let now = Moment { now: (wall - ahead_now) as u32, wall_ahead: ahead_now };
        let mut found = [Model::new()];
        let loaded = load_file(&path, now, &mut found, |_| Some(0), Misfit::Refuse, |_| {}).unwrap();
        assert_eq!((i64::from(loaded.taken_at), loaded.stored, loaded.expired), (wall - 10, 2, 1));
        let expires = |key: &[u8]| found[0].peek(&found[0].key(key).unwrap()).unwrap().expires;
        assert_eq!((expires(b"a"), expires(b"c")), (Some(now.now + 50), None));
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn deleting_everything_ends_a_snapshot_and_leaves_the_old_file() {
    let directory = directory("flush");
    let path = directory.join("file");
    std::fs::write(&path, "old").unwrap();
    let mut partition = Model::new();
    let (mut parts, collector) = save(1, NOW);
    assert_eq!(parts[0].turn(&mut partition), Turn::Again);
    partition.flush();
    assert_eq!(parts[0].turn(&mut partition), Turn::Over);
    assert!(matches!(collector.write_to(&path), Err(SaveError::Flushed)));
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert!(!path.with_file_name("file.tmp").exists());
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_core_that_goes_away_ends_it_for_all() {
    let directory = directory("away");
    let mut partition = Model::new();
    let (mut parts, collector) = save(2, NOW);
    assert_eq!(parts[0].turn(&mut partition), Turn::Again);
    drop(parts.pop());
    assert_eq!(parts[0].turn(&mut partition), Turn::Over);
    assert!(matches!(collector.write_to(&directory.join("file")), Err(SaveError::Abandoned)));
    std::fs::remove_dir_all(&directory).unwrap();
}
