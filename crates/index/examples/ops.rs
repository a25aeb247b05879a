//! Operations per second of an index, compared with a `BTreeMap` in the same run, one thread each unless a row says
//! otherwise.
//!
//! ```text
//! cargo run --release -p dunlin-index --example ops                 1 and 10 million items of 8 + 8 bytes, 1 million of 32 + 8
//! cargo run --release -p dunlin-index --example ops -- 1000000      that many items of each
//! ```

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use dunlin_index::{Builder, Index, Order, Range, Scan, pin};
use dunlin_net::random::Random;

const BURST: usize = 16;
/// Above this size, no second index is built.
const ITEMS_TWICE_MAX: u64 = 1_000_000;
/// Each row is measured this often for this long; the median is reported.
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_millis(400);

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("--help" | "-h") => println!("ops [ITEMS]: see the head of crates/index/examples/ops.rs"),
        Some(items) => {
            let items = items.parse().expect("ITEMS is a number, as in `ops 1000000`");
            compare::<8>(items, number_key);
            compare::<32>(items, path_key);
        }
        None => {
            compare::<8>(1_000_000, number_key);
            compare::<8>(10_000_000, number_key);
            compare::<32>(1_000_000, path_key);
        }
    }
}

/// A permutation of the numbers in pseudo-random order.
fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn number_key(number: u64) -> [u8; 8] {
    mix(number).to_be_bytes()
}

/// One of 1,000 prefixes of 24 bytes, then 8 bytes.
fn path_key(number: u64) -> [u8; 32] {
    let mut key = *b"shared/prefix/of/keys000xxxxxxxx";
    let prefix = mix(number) % 1000;
    for (at, divisor) in [(21, 100), (22, 10), (23, 1)] {
        key[at] = b'0' + (prefix / divisor % 10) as u8;
    }
    key[24..].copy_from_slice(&mix(number ^ 0x5555_5555).to_be_bytes());
    key
}

/// Million operations per second, median of the rounds. `batch` returns how many operations it did.
fn rate(mut batch: impl FnMut() -> u64) -> f64 {
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (begun, mut done) = (Instant::now(), 0);
            while begun.elapsed() < ROUND {
                for _ in 0..64 {
                    done += batch();
                }
            }
            done as f64 / begun.elapsed().as_secs_f64() / 1e6
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[ROUNDS / 2]
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn row(what: &str, ours: f64, theirs: Option<f64>) {
    match theirs {
        Some(theirs) => println!("  {what:<44} {ours:>8.2} {theirs:>8.2} {:>6.1}x", ours / theirs),
        None => println!("  {what:<44} {ours:>8.2}"),
    }
}

fn compare<const KEY: usize>(items: u64, key: fn(u64) -> [u8; KEY]) {
    println!("{items} items of {KEY} + 8 bytes, million operations/s: index, BTreeMap");
    let before = resident_bytes();
    let begun = Instant::now();
    let mut map: BTreeMap<[u8; KEY], u64> = BTreeMap::new();
    for number in 0..items {
        map.insert(key(number), number);
    }
    let map_loading = items as f64 / begun.elapsed().as_secs_f64() / 1e6;
    let map_bytes = resident_bytes().saturating_sub(before) as f64 / items as f64;
    let (before, begun) = (resident_bytes(), Instant::now());
    let index = Index::new(usize::MAX).expect("there is no limit");
    for numbers in (0..items).collect::<Vec<u64>>().chunks(BURST) {
        insert_burst(&index, numbers, key);
    }
    row("insert in random order, bursts of 16", items as f64 / begun.elapsed().as_secs_f64() / 1e6, Some(map_loading));
    let index_bytes = resident_bytes().saturating_sub(before) as f64 / items as f64;
    let mut draw = Random::new(1);

    let map_get = rate(|| {
        black_box(map.get(&key(draw.below(items))));
        1
    });
    row("GET, one at a time", rate(|| get_one(&index, key(draw.below(items)))), Some(map_get));
    row("GET, bursts of 16", rate(|| get_burst::<KEY, 16>(&index, &mut draw, items, key)), Some(map_get));
    row("GET, bursts of 32", rate(|| get_burst::<KEY, 32>(&index, &mut draw, items, key)), Some(map_get));

    let map_mix = rate(|| {
        if draw.below(100) == 0 {
            black_box(map.range(key(draw.below(items))..).take(128).map(|item| item.1).sum::<u64>());
        } else {
            black_box(map.get(&key(draw.below(items))));
        }
        1
    });
    row("99 % GET, 1 % sum of 128, bursts of 16", rate(|| mixed_burst(&index, &mut draw, items, key)), Some(map_mix));

    let map_half = rate(|| {
        let number = draw.below(items);
        if draw.below(2) == 0 {
            map.insert(key(number), number);
        } else {
            black_box(map.get(&key(number)));
        }
        1
    });
    row("50 % GET, 50 % PUT, bursts of 16", rate(|| half_burst(&index, &mut draw, items, key)), Some(map_half));
    // With its own index, the second thread shows how much the two slow each other down without a shared cache line:
    // they may share a core.
    let own = (items <= ITEMS_TWICE_MAX).then(|| {
        let own = Index::new(usize::MAX).expect("there is no limit");
        (0..items).collect::<Vec<u64>>().chunks(BURST).for_each(|numbers| insert_burst(&own, numbers, key));
        own
    });
    for (whose, theirs) in [("this index", Some(&index)), ("its own", own.as_ref())] {
        let Some(theirs) = theirs else { continue };
        let mut measure = || rate(|| get_burst::<KEY, 16>(&index, &mut draw, items, key));
        let both = beside(|draw| get_burst::<KEY, 16>(theirs, draw, items, key), &mut measure);
        row(&format!("GET, bursts of 16, beside GETs of {whose}"), both.0, None);
        row("  that thread", both.1, None);
        let both = beside(|draw| half_burst(theirs, draw, items, key), &mut measure);
        row(&format!("GET, bursts of 16, beside 50/50 of {whose}"), both.0, None);
        row("  that thread", both.1, None);
    }
    in_key_order(&map);
    println!(
        "  bytes an item, resident after loading: {index_bytes:.1}, {map_bytes:.1} (too low if memory of earlier rows was used again)"
    );
    println!("  {:?}", index.statistics(&pin()));
}

/// Loads the items in key order into new indexes, in three ways.
fn in_key_order<const KEY: usize>(map: &BTreeMap<[u8; KEY], u64>) {
    let items: Vec<([u8; KEY], [u8; 8])> = map.iter().map(|(key, number)| (*key, number.to_le_bytes())).collect();
    let rate_of = |load: &dyn Fn(&Index)| {
        let mut rates = [0.0; ROUNDS].map(|_| {
            let index = Index::new(usize::MAX).expect("there is no limit");
            let begun = Instant::now();
            load(&index);
            let rate = items.len() as f64 / begun.elapsed().as_secs_f64() / 1e6;
            assert_eq!(index.len(), items.len());
            rate
        });
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    };
    let one = rate_of(&|index| {
        for (key, value) in &items {
            index.insert(key, value, &pin()).expect("there is no limit");
        }
    });
    row("load in key order, one at a time", one, None);
    let bursts = rate_of(&|index| {
        for items in items.chunks(BURST) {
            let items: ArrayVec<(&[u8], &[u8]), BURST> =
                items.iter().map(|(key, value)| (&key[..], &value[..])).collect();
            index.insert_burst(&items, &pin(), |_, old| _ = old.expect("there is no limit"));
        }
    });
    row("load in key order, bursts of 16", bursts, None);
    let built = rate_of(&|index| {
        let mut builder = Builder::new(index);
        for (key, value) in &items {
            builder.push(key, value).expect("the keys are in order");
        }
        builder.finish().expect("there is no limit");
    });
    row("load in key order, built; and one at a time", built, Some(one));
}

fn get_one<const KEY: usize>(index: &Index, key: [u8; KEY]) -> u64 {
    black_box(index.get(&key, &pin()).map(|value| value.len()));
    1
}

fn get_burst<const KEY: usize, const LEN: usize>(
    index: &Index,
    draw: &mut Random,
    items: u64,
    key: fn(u64) -> [u8; KEY],
) -> u64 {
    let keys: [[u8; KEY]; LEN] = std::array::from_fn(|_| key(draw.below(items)));
    let keys: [&[u8]; LEN] = std::array::from_fn(|at| &keys[at][..]);
    let guard = pin();
    let mut values = [None; LEN];
    index.get_burst(&keys, &guard, &mut values);
    for value in &values {
        black_box(value.as_deref().map(<[u8]>::len));
    }
    LEN as u64
}

fn mixed_burst<const KEY: usize>(index: &Index, draw: &mut Random, items: u64, key: fn(u64) -> [u8; KEY]) -> u64 {
    let keys: [[u8; KEY]; BURST] = std::array::from_fn(|_| key(draw.below(items)));
    let (mut gets, mut scans): (ArrayVec<&[u8], BURST>, ArrayVec<Scan<'_>, BURST>) = Default::default();
    for key in &keys {
        match draw.below(100) {
            0 => scans.push(Scan { range: Range::from(key), order: Order::Ascending, limit: 128 }),
            _ => gets.push(key),
        }
    }
    let guard = pin();
    let mut values = [None; BURST];
    let mut sum = 0;
    index.burst(&gets, &scans, &guard, &mut values[..gets.len()], |_, _, value| {
        sum += value.try_into().map_or(0, u64::from_le_bytes);
    });
    black_box((&values, sum));
    BURST as u64
}

fn half_burst<const KEY: usize>(index: &Index, draw: &mut Random, items: u64, key: fn(u64) -> [u8; KEY]) -> u64 {
    let (mut puts, mut gets): (ArrayVec<u64, BURST>, ArrayVec<[u8; KEY], BURST>) = Default::default();
    for _ in 0..BURST {
        let number = draw.below(items);
        if draw.below(2) == 0 { puts.push(number) } else { gets.push(key(number)) }
    }
    let guard = pin();
    let gets: ArrayVec<&[u8], BURST> = gets.iter().map(|key| &key[..]).collect();
    let mut values = [None; BURST];
    index.get_burst(&gets, &guard, &mut values[..gets.len()]);
    black_box(&values);
    insert_burst(index, &puts, key);
    BURST as u64
}

fn insert_burst<const KEY: usize>(index: &Index, numbers: &[u64], key: fn(u64) -> [u8; KEY]) {
    let items: ArrayVec<([u8; KEY], [u8; 8]), BURST> =
        numbers.iter().map(|&number| (key(number), number.to_le_bytes())).collect();
    let items: ArrayVec<(&[u8], &[u8]), BURST> = items.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    let guard = pin();
    index.insert_burst(&items, &guard, |_, old| {
        old.expect("there is no limit");
    });
}

/// The rate of `measure` while another thread repeats bursts, and the rate of that thread. Neither writes to a cache
/// line that the other uses.
fn beside(mut burst: impl FnMut(&mut Random) -> u64 + Send, measure: impl FnOnce() -> f64) -> (f64, f64) {
    let is_over = CachePadded::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let (mut draw, begun, mut done) = (Random::new(2), Instant::now(), 0);
            while !is_over.load(Ordering::Relaxed) {
                done += burst(&mut draw);
            }
            done as f64 / begun.elapsed().as_secs_f64() / 1e6
        });
        let rate = measure();
        is_over.store(true, Ordering::Relaxed);
        (rate, other.join().expect("the other thread failed"))
    })
}
