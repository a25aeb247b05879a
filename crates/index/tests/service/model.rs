//! Random work on a served index and on a `BTreeMap`, side by side: both must give the same answers.
//!
//! `DUNLIN_SEEDS` runs more seeds, `DUNLIN_SEED` a single one.

use std::collections::BTreeMap;

use dunlin_index::wire::{LONG_PAGE, PageLimits, SHORT_PAGE};
use dunlin_index::{ClientConfig, Gap, IndexError, Order, Range, pin};
use dunlin_trial::Random;

use crate::net::{Net, TestClient, shared};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const STEPS: u64 = 1500;

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    match number("DUNLIN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DUNLIN_SEEDS").unwrap_or(6),
    }
}

/// Few different ones, of one to three slices, many with common slices.
fn key(random: &mut Random) -> Vec<u8> {
    let slices = [&b""[..], b"12345678", b"1234567812345678"];
    let mut key = slices[random.index(3)].to_vec();
    key.extend((0..random.between(0, 4)).map(|_| [0, 1, 255][random.index(3)]));
    key
}

/// Some of them longer than a short page.
fn value(random: &mut Random) -> Vec<u8> {
    let len = match random.between(0, 99) {
        0 => random.between(10_000, 30_000),
        1..20 => random.between(9, 400),
        _ => random.between(0, 8),
    };
    vec![random.next() as u8; len as usize]
}

fn gap<'k>(random: &mut Random, key: &'k [u8]) -> Gap<'k> {
    [Gap::Before(key), Gap::After(key), Gap::AfterPrefix(key)][random.index(3)]
}

fn limits(random: &mut Random) -> PageLimits {
    let most = if random.chance(50) { SHORT_PAGE } else { LONG_PAGE };
    let items = if random.chance(50) { random.between(1, 10) } else { random.between(1, most.items.into()) };
    let bytes = if random.chance(20) { random.between(1, 300) } else { random.between(1, most.bytes.into()) };
    PageLimits { items: items as u32, bytes: bytes as u32 }
}

async fn scan(client: &TestClient, model: &Model, random: &mut Random, seed: u64) {
    let (low, high, limits) = (key(random), key(random), limits(random));
    let range = if random.chance(20) { Range::ALL } else { Range { low: gap(random, &low), high: gap(random, &high) } };
    let order = [Order::Ascending, Order::Descending][random.index(2)];
    let mut expected: Vec<(&[u8], &[u8])> =
        model.iter().filter(|(key, _)| range.contains(key)).map(|(key, value)| (&key[..], &value[..])).collect();
    let mut pages = match client.scan_with(range, order, limits) {
        Ok(pages) => pages,
        Err(IndexError::Reversed) => {
            assert!(expected.is_empty() && range.is_reversed(), "seed {seed}: {range:?} is not reversed");
            return;
        }
        Err(error) => panic!("seed {seed}: {error}"),
    };
    if order == Order::Descending {
        expected.reverse();
    }
    let mut found = Vec::new();
    while let Some(page) = pages.next().await.unwrap_or_else(|error| panic!("seed {seed}: {error}")) {
        let bytes: usize = page.items().map(|(key, value)| 8 + key.len() + value.len()).sum();
        assert!(page.len() <= limits.items as usize, "seed {seed}: {limits:?}, {} items", page.len());
        assert!(page.len() == 1 || bytes <= limits.bytes as usize, "seed {seed}: {limits:?}, {bytes} bytes");
        assert!(!page.is_empty() || !page.has_more(), "seed {seed}: a page without progress");
        found.extend(page.items().map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    let found: Vec<(&[u8], &[u8])> = found.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    assert!(found == expected, "seed {seed}: {range:?} {order:?} {limits:?}: {} items", found.len());
}

async fn step(client: &TestClient, model: &mut Model, random: &mut Random, seed: u64) {
    match random.between(0, 99) {
        0..40 => {
            let (key, value) = (key(random), value(random));
            let existed = client.put(&key, &value).await.unwrap();
            assert_eq!(existed, model.insert(key.clone(), value).is_some(), "seed {seed}: put of {key:?}");
        }
        40..60 => {
            let key = key(random);
            let existed = client.delete(&key).await.unwrap();
            assert_eq!(existed, model.remove(&key).is_some(), "seed {seed}: removal of {key:?}");
        }
        60..75 => {
            let key = key(random);
            let found = client.get(&key).await.unwrap();
            assert_eq!(found.as_deref(), model.get(&key).map(|value| &value[..]), "seed {seed}: {key:?}");
        }
        75..90 => {
            let keys: Vec<Vec<u8>> = (0..random.between(0, 80)).map(|_| key(random)).collect();
            let found = client.get_many(&keys).await.unwrap();
            let found: Vec<Option<&[u8]>> = found.iter().map(Option::as_deref).collect();
            let expected: Vec<Option<&[u8]>> = keys.iter().map(|key| model.get(key).map(|value| &value[..])).collect();
            assert!(found == expected, "seed {seed}: many of {keys:?}");
        }
        90 => {
            let (low, high) = (key(random), key(random));
            let range = Range { low: gap(random, &low), high: gap(random, &high) };
            let before = model.len();
            match client.delete_range(range).await {
                Ok(removed) => {
                    model.retain(|key, _| !range.contains(key));
                    assert_eq!(removed as usize, before - model.len(), "seed {seed}: removal of {range:?}");
                }
                Err(IndexError::Reversed) => assert!(range.is_reversed(), "seed {seed}: {range:?}"),
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        _ => scan(client, model, random, seed).await,
    }
}

#[test]
fn a_served_index_answers_as_a_btreemap_does() {
    for seed in seeds() {
        println!("seed {seed}");
        let (net, shared) = (Net::new(), shared(seed + 1));
        let service = net.serve(1, &shared);
        let client = net.client(1, ClientConfig::default());
        let (mut model, mut random) = (Model::new(), Random::new(seed));
        net.run(async {
            for _ in 0..STEPS {
                step(&client, &mut model, &mut random, seed).await;
            }
        });
        shared.index().verify(&pin()).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong:?}"));
        let stats = service.stats();
        assert_eq!((stats.bad, stats.full), (0, 0), "seed {seed}");
        assert!(stats.short_pages > 50 && stats.long_pages > 50, "seed {seed}: {stats:?}");
        assert!(stats.gets > 3 * stats.get_bursts, "seed {seed}: {stats:?}");
    }
}
