//! Readers, scanners and writers on threads, with judges of their observations. `DUNLIN_SEEDS=100` runs more.
//!
//! The system decides how the steps of threads interleave, so a seed determines the work and not the run.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dunlin_index::{Gap, Index, Order, Range, pin};
use dunlin_judge::map::{self, Answer, Direction, End, Entry, Operation};
use dunlin_net::random::Random;

fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("DUNLIN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2)
}

/// All retired memory returns when no thread has a guard. Other tests may have guards for some seconds.
fn assert_nothing_leaks(index: &Index) {
    let begun = Instant::now();
    while index.retired_nodes(&pin()) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} nodes never return", index.retired_nodes(&pin()));
        pin().flush();
        std::thread::yield_now();
    }
}

/// The keys of a test, by number and in order: of one to three slices, many with common slices.
fn key(number: u64) -> Vec<u8> {
    let mut key = format!("{:06}", number / 8).into_bytes();
    match number % 8 {
        0 => {}
        1 => key.push(0),
        2 => key.extend_from_slice(b"aa"),
        3 => key.extend_from_slice(b"aa\0"),
        more => {
            key.extend_from_slice(b"aabcdefgh");
            key.push(more as u8);
            key.extend_from_slice(b"behind");
        }
    }
    key
}

fn number_of(key: &[u8]) -> u64 {
    let group: u64 = std::str::from_utf8(&key[..6]).expect("digits").parse().expect("a number");
    let within = match key.len() {
        6 => 0,
        7 => 1,
        8 => 2,
        9 => 3,
        _ => u64::from(key[15]),
    };
    8 * group + within
}

/// Values of 8 to 40 bytes, so that some are in blocks.
fn value(version: u64) -> Vec<u8> {
    let mut value = version.to_le_bytes().to_vec();
    value.resize(8 + (version % 5 * 8) as usize, version as u8);
    value
}

fn version_of(value: &[u8]) -> u64 {
    let version = u64::from_le_bytes(value[..8].try_into().expect("8 bytes"));
    assert_eq!(value, self::value(version), "the bytes of a value do not belong together");
    version
}

/// Each key has one writer, which records its progress before and after each write. Odd versions are values, even ones
/// mean that the key is absent. A look-up must find a version between the last one completed when it began and the last
/// one begun when it ended.
struct Registers {
    index: Index,
    begun: Vec<AtomicU64>,
    done: Vec<AtomicU64>,
}

impl Registers {
    fn new(keys: u64) -> Registers {
        let zeros = || (0..keys).map(|_| AtomicU64::new(0)).collect();
        Registers { index: Index::new(1 << 30).expect("room"), begun: zeros(), done: zeros() }
    }

    fn write(&self, number: u64) {
        let at = number as usize;
        let version = self.done[at].load(Ordering::SeqCst) + 1;
        self.begun[at].store(version, Ordering::SeqCst);
        let guard = pin();
        let old = match version % 2 {
            1 => self.index.insert(&key(number), &value(version), &guard).expect("room"),
            _ => self.index.remove(&key(number), &guard),
        };
        let expected = version.is_multiple_of(2).then(|| version - 1);
        assert_eq!(old.map(|old| version_of(&old)), expected, "what write {version} of key {number} replaced");
        self.done[at].store(version, Ordering::SeqCst);
    }

    /// The earliest version that a look-up beginning now may find.
    fn earliest(&self, number: u64) -> u64 {
        self.done[number as usize].load(Ordering::SeqCst)
    }

    /// Judges a completed look-up.
    fn judge(&self, number: u64, earliest: u64, found: Option<&[u8]>) {
        let latest = self.begun[number as usize].load(Ordering::SeqCst);
        match found {
            Some(value) => {
                let version = version_of(value);
                assert!((earliest..=latest).contains(&version), "key {number}: {version}, not {earliest} to {latest}");
            }
            None => {
                assert!(
                    earliest.is_multiple_of(2) || earliest < latest,
                    "key {number} was there all the time: {earliest}"
                )
            }
        }
    }

    fn read_burst(&self, random: &mut Random) {
        let keys = self.begun.len() as u64;
        let numbers: Vec<u64> = (0..1 + random.below(20)).map(|_| random.below(keys)).collect();
        let bytes: Vec<Vec<u8>> = numbers.iter().map(|&number| key(number)).collect();
        let bytes: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let earliest: Vec<u64> = numbers.iter().map(|&number| self.earliest(number)).collect();
        let (guard, mut values) = (pin(), vec![None; numbers.len()]);
        self.index.get_burst(&bytes, &guard, &mut values);
        for ((&number, &earliest), value) in numbers.iter().zip(&earliest).zip(&values) {
            self.judge(number, earliest, value.as_deref());
        }
    }

    fn read(&self, number: u64) {
        let (earliest, guard) = (self.earliest(number), pin());
        let found = self.index.get(&key(number), &guard);
        self.judge(number, earliest, found.as_deref());
    }

    /// A scan must be in order, and right for each key that was present, or absent, throughout the scan.
    fn scan(&self, random: &mut Random) {
        let keys = self.begun.len() as u64;
        let low = random.below(keys);
        let high = (low + 1 + random.below(300)).min(keys - 1);
        let order = if random.below(2) == 0 { Order::Ascending } else { Order::Descending };
        let earliest: Vec<u64> = (low..=high).map(|number| self.earliest(number)).collect();
        let (low_key, high_key) = (key(low), key(high));
        let range = Range { low: Gap::Before(&low_key), high: Gap::After(&high_key) };
        let mut found = Vec::new();
        self.index.scan(range, order, usize::MAX, &pin(), |key, value| {
            found.push((number_of(key), key.to_vec(), value.to_vec()))
        });
        if order == Order::Descending {
            found.reverse();
        }
        assert!(found.windows(2).all(|pair| pair[0].1 < pair[1].1), "out of order");
        assert!(
            found.iter().all(|(number, bytes, _)| *bytes == key(*number) && (low..=high).contains(number)),
            "a key that never was"
        );
        let found: HashMap<u64, Vec<u8>> = found.into_iter().map(|(number, _, value)| (number, value)).collect();
        for (number, earliest) in (low..=high).zip(earliest) {
            self.judge(number, earliest, found.get(&number).map(Vec::as_slice));
        }
    }
}

fn run_registers(seed: u64, keys: u64, writers: u64, writes: u64) {
    println!("seed {seed}, {keys} keys, {writers} writers");
    let registers = Registers::new(keys);
    let writing = AtomicU64::new(writers);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (registers, writing) = (&registers, &writing);
            scope.spawn(move || {
                let mut random = Random::new(seed << 8 | writer);
                for write in 0..writes {
                    // For a while in one region only, so that nodes there fill up and empty.
                    let region = write / 2000 * 7919 % keys;
                    let number = (region + random.below(keys.min(600))) % keys;
                    registers.write(number - number % writers + writer);
                }
                writing.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for reader in 0..2 {
            let (registers, writing) = (&registers, &writing);
            scope.spawn(move || {
                let mut random = Random::new(seed << 8 | 0x80 | reader);
                while writing.load(Ordering::SeqCst) > 0 {
                    match random.below(4) {
                        0 => registers.scan(&mut random),
                        1 => registers.read_burst(&mut random),
                        _ => registers.read(random.below(keys)),
                    }
                }
            });
        }
    });
    let there = registers.done.iter().filter(|done| done.load(Ordering::SeqCst) % 2 == 1).count();
    assert_eq!(registers.index.verify(&pin()), Ok(there));
    assert_nothing_leaks(&registers.index);
}

#[test]
fn reads_and_scans_see_what_was_written() {
    for seed in seeds() {
        run_registers(seed, 24, 2, 60_000);
        run_registers(seed, 960, 3, 60_000);
        run_registers(seed, 24_000, 2, 60_000);
    }
}

/// Many writers of the same keys: each value ever written is replaced once, or is there in the end.
#[test]
fn each_value_is_replaced_once() {
    const KEYS: u64 = 40;
    const WRITERS: u64 = 3;
    const WRITES: u64 = 60_000;
    for seed in seeds() {
        println!("seed {seed}");
        let index = Index::new(1 << 30).expect("room");
        let write = |writer: u64| {
            let (mut random, mut replaced, mut written) = (Random::new(seed << 8 | writer), Vec::new(), Vec::new());
            for at in 0..WRITES {
                let (number, version, guard) = (random.below(KEYS), at * WRITERS + writer, pin());
                let old = match random.below(3) {
                    0 => index.remove(&key(number), &guard),
                    _ => {
                        written.push((number, version));
                        index.insert(&key(number), &value(version), &guard).expect("room")
                    }
                };
                replaced.extend(old.map(|old| (number, version_of(&old))));
            }
            (replaced, written)
        };
        let (mut replaced, mut written) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            let write = &write;
            let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
            for writer in writers {
                let of_one = writer.join().expect("a writer failed");
                replaced.extend(of_one.0);
                written.extend(of_one.1);
            }
        });
        let guard = pin();
        for number in 0..KEYS {
            replaced.extend(index.get(&key(number), &guard).map(|last| (number, version_of(&last))));
        }
        replaced.sort_unstable();
        written.sort_unstable();
        assert!(
            replaced == written,
            "seed {seed}: {} values were replaced or left, {} written",
            replaced.len(),
            written.len()
        );
        index.verify(&guard).expect("the invariants hold");
        drop(guard);
        assert_nothing_leaks(&index);
    }
}

/// Layers come and go during concurrent writes. Each key has one writer, which knows its expected state.
#[test]
fn layers_come_and_go() {
    // Longer and longer paths, each ending in one key that always exists.
    let path = |depth: u64, last: u8| [vec![b'p'; 8 * depth as usize + 3], vec![last]].concat();
    let write = |index: &Index, seed: u64, writer: u8| {
        let (mut random, mut there) = (Random::new(seed << 8 | u64::from(writer)), BTreeMap::new());
        for version in 0..40_000u64 {
            let path = path(random.below(12), b'b' + 2 * random.below(20) as u8 + writer);
            let (value, guard) = ([&[writer][..], &version.to_be_bytes()].concat(), pin());
            let (old, expected) = match random.below(2) {
                0 => (index.insert(&path, &value, &guard).expect("room"), there.insert(path, value)),
                _ => (index.remove(&path, &guard), there.remove(&path)),
            };
            assert_eq!(old.as_deref(), expected.as_deref());
        }
        there
    };
    for seed in seeds() {
        println!("seed {seed}");
        let index = Index::new(1 << 30).expect("room");
        let is_over = AtomicBool::new(false);
        let mut expected: BTreeMap<Vec<u8>, Vec<u8>> =
            (0..12).map(|depth| (path(depth, b'a'), b"always".to_vec())).collect();
        for (key, value) in &expected {
            index.insert(key, value, &pin()).expect("room");
        }
        std::thread::scope(|scope| {
            let (index, is_over) = (&index, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    for order in [Order::Ascending, Order::Descending] {
                        let (mut always, mut last) = (0, None);
                        index.scan(Range::ALL, order, usize::MAX, &pin(), |key, value| {
                            match (value, key[key.len() - 1]) {
                                (b"always", b'a') => always += 1,
                                (_, last) => assert!(value.len() == 9 && b'b' + value[0] <= last, "{key:?}: {value:?}"),
                            }
                            let is_behind = |last: &Vec<u8>| (&last[..] < key) == (order == Order::Ascending);
                            assert!(last.as_ref().is_none_or(is_behind), "out of order");
                            last = Some(key.to_vec());
                        });
                        assert_eq!(always, 12, "seed {seed}, {order:?}");
                    }
                }
            });
            let writers = [0, 1].map(|writer| scope.spawn(move || write(index, seed, writer)));
            let written = writers.map(|writer| writer.join());
            is_over.store(true, Ordering::SeqCst);
            written.into_iter().for_each(|written| expected.extend(written.expect("a writer failed")));
        });
        let guard = pin();
        assert_eq!(index.verify(&guard), Ok(expected.len()));
        let mut left = expected.into_iter();
        index.scan(Range::ALL, Order::Ascending, usize::MAX, &guard, |key, value| {
            assert_eq!(Some((key.to_vec(), value.to_vec())), left.next());
        });
        assert_eq!(left.next(), None);
        drop(guard);
        assert_nothing_leaks(&index);
    }
}

/// One thread's operations on an index, recorded for a judge.
struct Recorder<'a> {
    index: &'a Index,
    clock: Instant,
    client: usize,
    random: Random,
    keys: &'a [Vec<u8>],
    history: Vec<Entry>,
}

impl Recorder<'_> {
    fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    fn record(&mut self, begun: u64, operation: Operation, answer: Answer) {
        let end = End::Answered(self.now(), answer);
        self.history.push(Entry { client: self.client, begun, operation, end });
    }

    fn key(&mut self) -> Vec<u8> {
        self.keys[self.random.below(self.keys.len() as u64) as usize].clone()
    }

    /// `version` is unique for each step of all threads.
    fn step(&mut self, version: u64) {
        let (index, guard, key) = (self.index, pin(), self.key());
        let owned = |value: Option<dunlin_index::Value<'_>>| Answer::Value(value.map(|value| value.to_vec()));
        let kind = self.random.below(100);
        let begun = self.now();
        match kind {
            0..35 => {
                let value = value(version);
                let old = owned(index.insert(&key, &value, &guard).expect("room"));
                self.record(begun, Operation::Put { key, value }, old);
            }
            35..55 => {
                let old = owned(index.remove(&key, &guard));
                self.record(begun, Operation::Delete { key }, old);
            }
            55..85 => {
                let found = owned(index.get(&key, &guard));
                self.record(begun, Operation::Get { key }, found);
            }
            85..91 => {
                let keys = [key, self.key(), self.key()];
                let (keys_now, mut values) = (keys.each_ref().map(Vec::as_slice), [None; 3]);
                let begun = self.now();
                index.get_burst(&keys_now, &guard, &mut values);
                let end = self.now();
                for (key, value) in keys.into_iter().zip(values) {
                    let end = End::Answered(end, owned(value));
                    self.history.push(Entry { client: self.client, begun, operation: Operation::Get { key }, end });
                }
            }
            91..99 => self.scan(key),
            // Recorded as a delete of each key of the range, each at some moment.
            _ => {
                let high = self.key();
                let begun = self.now();
                index.remove_range(Range::between(&key, &high));
                for key in self.keys.iter().filter(|other| (&key..&high).contains(other)) {
                    let (operation, end) =
                        (Operation::Delete { key: key.clone() }, End::Answered(self.now(), Answer::Done));
                    self.history.push(Entry { client: self.client, begun, operation, end });
                }
            }
        }
    }

    fn scan(&mut self, from: Vec<u8>) {
        let (order, direction) = match self.random.below(2) {
            0 => (Order::Ascending, Direction::Forward),
            _ => (Order::Descending, Direction::Backward),
        };
        let (limit, begun, mut items) = (1 + self.random.below(20) as usize, self.now(), Vec::new());
        self.index
            .scan(Range::from(&from), order, limit, &pin(), |key, value| items.push((key.to_vec(), value.to_vec())));
        let scan = map::Scan { from: Bound::Included(from), to: Bound::Unbounded, direction, limit: Some(limit) };
        self.record(begun, Operation::Scan(scan), Answer::Items(items));
    }
}

/// All observations of the threads are linearizable key by key, and scans miss nothing: also two reads of one thread in
/// sequence, and during range removals.
#[test]
fn a_judge_finds_no_fault_in_what_threads_saw() {
    for seed in seeds() {
        // In one leaf; in several leaves; in layers.
        for (keys, steps) in [(6, 4000), (96, 4000), (500, 8000)] {
            println!("seed {seed}, {keys} keys");
            let keys: Vec<Vec<u8>> = (0..keys).map(key).collect();
            let (index, clock) = (Index::new(1 << 30).expect("room"), Instant::now());
            let run = |client: usize| {
                let random = Random::new(seed << 8 | client as u64);
                let (index, keys) = (&index, &keys);
                let mut recorder = Recorder { index, clock, client, random, keys, history: Vec::new() };
                (0..steps).for_each(|step| recorder.step(4 * step + client as u64));
                recorder.history
            };
            let history: Vec<Entry> = std::thread::scope(|scope| {
                let run = &run;
                let threads = [0, 1, 2, 3].map(|client| scope.spawn(move || run(client)));
                threads.into_iter().flat_map(|thread| thread.join().expect("a thread failed")).collect()
            });
            let report = map::check(&history).expect("it is well recorded");
            assert!(report.is_right(), "seed {seed}: {report}");
            index.verify(&pin()).expect("the invariants hold");
            assert_nothing_leaks(&index);
        }
    }
}
