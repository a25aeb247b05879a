//! Partitions with a tier on a device in memory, against a map: whatever is found is the last version that was stored,
//! and what was missed once does not come back.

use std::collections::HashMap;

use super::*;
use crate::{Condition, Delta, Mode, Partition, PartitionConfig, Put, Refused, Side, Store, Stored};

const MEMORY_BYTES: usize = 1 << 20;
const TIER_BYTES: u64 = 1 << 20;
const KEYS: u64 = 6_000;
const STEPS: usize = 50_000;
const NOW: UnixSeconds = 1_800_000_000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// What goes wrong with the device: one in this many reads or writes. Zero for never.
#[derive(Clone, Copy)]
struct Faults {
    failed_reads: u64,
    wrong_reads: u64,
    failed_writes: u64,
    lost_writes: u64,
}

const NO_FAULTS: Faults = Faults { failed_reads: 0, wrong_reads: 0, failed_writes: 0, lost_writes: 0 };

/// A file in memory whose writes and reads end late and in any order.
struct Device {
    bytes: Vec<u8>,
    writes: Vec<BlockWrite>,
    reads: Vec<Ticket>,
    faults: Faults,
}

impl Device {
    fn is(random: &mut Random, one_in: u64) -> bool {
        one_in > 0 && random.one_in(one_in)
    }

    fn end_a_write(&mut self, tier: &mut Tier, random: &mut Random) {
        if self.writes.is_empty() {
            return;
        }
        let write = self.writes.swap_remove(random.below(self.writes.len() as u64) as usize);
        let fails = Device::is(random, self.faults.failed_writes);
        if !fails && !Device::is(random, self.faults.lost_writes) {
            let at = write.offset as usize;
            self.bytes[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
        }
        tier.written(write.number, !fails);
    }

    fn end_a_read(&mut self, tier: &mut Tier, random: &mut Random) -> Option<Ticket> {
        if self.reads.is_empty() {
            return None;
        }
        let ticket = self.reads.swap_remove(random.below(self.reads.len() as u64) as usize);
        let at = tier.offset(&ticket) as usize;
        let mut bytes = self.bytes[at..at + ticket.bytes()].to_vec();
        if Device::is(random, self.faults.wrong_reads) {
            let bit = random.below(8 * bytes.len() as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let bytes = (!Device::is(random, self.faults.failed_reads)).then_some(bytes);
        (tier.arrived(&ticket, bytes, 1) == Arrival::Staged).then_some(ticket)
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Version {
    value: Vec<u8>,
    flags: u32,
    cas: u64,
    expires: Option<UnixSeconds>,
}

struct World {
    store: Partition,
    device: Device,
    random: Random,
    model: HashMap<u64, Version>,
    now: UnixSeconds,
    /// Records held for later, as a multiget does.
    held: Vec<Ticket>,
}

fn label(key: &[u8]) -> u16 {
    u16::from(key[key.len() - 1]) << 4
}

impl World {
    fn new(seed: u64, faults: Faults) -> World {
        let config = PartitionConfig::new(Mode::Cache, MEMORY_BYTES);
        let label = Some(label as Label);
        let tier = TierConfig { items_max: 4_000, label, ..TierConfig::new(TIER_BYTES, seed) };
        let mut store = Partition::with_secret(config, [seed, 1]).unwrap();
        assert!(store.attach_tier(tier));
        store.set_now(NOW);
        let device = Device { bytes: vec![0; TIER_BYTES as usize], writes: Vec::new(), reads: Vec::new(), faults };
        World { store, device, random: Random(seed * 77 + 1), model: HashMap::new(), now: NOW, held: Vec::new() }
    }

    fn key_of(number: u64) -> Vec<u8> {
        format!("key {number}").into_bytes()
    }

    /// Makes sure that an operation finds the item if it exists, as a server does. Other reads and writes end meanwhile.
    fn fetch(&mut self, key: &[u8]) {
        let hash = self.store.key(key).unwrap().hash();
        for _ in 0..100 {
            let Located::Device(ticket) = self.store.tier().unwrap().locate(hash, self.now) else { return };
            if !self.device.reads.contains(&ticket) {
                self.device.reads.push(ticket);
            }
            let tier = self.store.tier_mut().unwrap();
            if let Some(staged) = self.device.end_a_read(tier, &mut self.random) {
                self.held.push(staged);
            }
        }
        panic!("a read never ends");
    }

    fn live(&mut self, number: u64) -> Option<Version> {
        let now = self.now;
        if self.model.get(&number)?.expires.is_some_and(|at| at <= now) {
            self.model.remove(&number);
        }
        self.model.get(&number).cloned()
    }

    fn stored(&mut self, number: u64, result: Result<Stored, Refused>, version: Version) {
        if let Ok(Stored { cas }) = result {
            self.model.insert(number, Version { cas, ..version });
        }
    }

    /// The index has the token of an item that was not read, and its label.
    fn check_indexed(&self, key: &[u8], before: Option<&Version>) {
        let (key, tier) = (self.store.key(key).unwrap(), self.store.tier().unwrap());
        if let Some(token) = tier.token(key.hash(), self.now) {
            assert_eq!(Some(token), before.map(|before| before.cas), "an outdated token");
            let mut visited = Vec::new();
            tier.visit(&(key.hash().0..=key.hash().0), |record| visited.push(*record));
            let [record] = visited[..] else { panic!("{visited:?}") };
            assert_eq!((record.label, record.ticket.hash()), (label(key.bytes()), key.hash()));
        }
    }

    fn step(&mut self) {
        let number = self.random.below(if self.random.0 & 1 == 0 { KEYS } else { KEYS / 20 });
        let key = World::key_of(number);
        let what = self.random.below(100);
        // Some overwrite and delete without having looked.
        if what < 60 {
            self.fetch(&key);
        }
        let before = self.live(number);
        self.check_indexed(&key, before.as_ref());
        // Not a number.
        let mut value = vec![self.random.next() as u8; 100 + self.random.below(1_900) as usize];
        value[0] = b'x';
        let flags = self.random.next() as u32;
        let expires = self.random.one_in(4).then(|| self.now + 1 + self.random.below(50) as u32);
        let put = Put { flags, expires, ..Put::default() };
        let version = Version { value: value.clone(), flags, cas: 0, expires };
        let key = self.store.key(&key).unwrap();
        match what {
            0..30 => {
                let found = self.store.get(&key).map(|item| Version {
                    value: item.value.to_vec(),
                    flags: item.flags,
                    cas: item.cas,
                    expires: item.expires,
                });
                match found {
                    Some(found) => assert_eq!(Some(found), before, "an outdated item"),
                    None => _ = self.model.remove(&number),
                }
            }
            30..36 => {
                let result = self.store.put(&key, &value, Put { condition: Condition::Absent, ..put });
                match result {
                    Err(Refused::Exists) => assert!(before.is_some(), "it comes back"),
                    _ => self.stored(number, result, version),
                }
            }
            36..42 => {
                let token = before.as_ref().map_or(1, |before| before.cas + self.random.below(2));
                let result = self.store.put(&key, &value, Put { condition: Condition::Unchanged(token), ..put });
                match result {
                    Ok(_) => assert_eq!(before.unwrap().cas, token),
                    Err(Refused::Changed) => assert_ne!(before.unwrap().cas, token),
                    Err(Refused::NotFound) => _ = self.model.remove(&number),
                    Err(_) => {}
                }
                self.stored(number, result, version);
            }
            42..48 => match self.store.extend(&key, b"more", Side::End, None) {
                Ok(Stored { cas }) => {
                    let before = before.expect("it comes back");
                    let value = [&before.value[..], b"more"].concat();
                    self.model.insert(number, Version { value, cas, ..before });
                }
                Err(Refused::NotFound) => _ = self.model.remove(&number),
                Err(_) => assert!(before.is_some(), "it comes back"),
            },
            48..52 => match self.store.touch(&key, expires) {
                Ok(()) => _ = self.model.insert(number, Version { expires, ..before.expect("it comes back") }),
                Err(Refused::NotFound) => _ = self.model.remove(&number),
                Err(_) => assert!(before.is_some(), "it comes back"),
            },
            52..54 => match self.store.count(&key, Delta::Up(1), None) {
                Err(Refused::NotANumber) => assert!(before.is_some(), "it comes back"),
                Err(Refused::NotFound) => _ = self.model.remove(&number),
                other => panic!("{other:?}"),
            },
            54..60 => {
                let token = before.as_ref().map(|before| before.cas);
                match self.store.delete(&key, token) {
                    Err(Refused::Changed) => panic!("an outdated item"),
                    _ => _ = self.model.remove(&number),
                }
            }
            60..90 => {
                let result = self.store.put(&key, &value, put);
                self.stored(number, result, version);
            }
            90..97 => {
                let is_deleted = self.store.delete(&key, None).is_ok();
                assert!(!is_deleted || before.is_some(), "it comes back: {} at {}", number, self.now);
                self.model.remove(&number);
            }
            97 => {
                self.now += 1;
                self.store.set_now(self.now);
                self.store.expire_some();
            }
            98 => {
                if let Some(held) = self.held.pop() {
                    self.store.tier_mut().unwrap().release(&held);
                }
            }
            _ => {
                if self.random.one_in(200) {
                    self.store.flush();
                    self.model.clear();
                }
            }
        }
        self.attend();
    }

    /// Writes and reads go on.
    fn attend(&mut self) {
        let tier = self.store.tier_mut().unwrap();
        self.device.writes.extend(std::iter::from_fn(|| tier.take_write()));
        if self.random.one_in(40) {
            self.device.end_a_write(tier, &mut self.random);
        }
        if self.random.one_in(10)
            && let Some(staged) = self.device.end_a_read(tier, &mut self.random)
        {
            tier.release(&staged);
        }
        while self.held.len() > 10 {
            tier.release(&self.held.remove(0));
        }
    }

    fn run(seed: u64, faults: Faults) -> TierStats {
        let mut world = World::new(seed, faults);
        (0..STEPS).for_each(|_| world.step());
        let tier = world.store.tier_mut().unwrap();
        while !world.device.reads.is_empty() || !world.device.writes.is_empty() {
            if let Some(staged) = world.device.end_a_read(tier, &mut world.random) {
                tier.release(&staged);
            }
            world.device.end_a_write(tier, &mut world.random);
        }
        world.held.iter().for_each(|held| tier.release(held));
        assert_eq!((tier.staged.len(), tier.staged_bytes, tier.writing), (0, 0, 0), "all memory returns");
        tier.stats()
    }
}

#[test]
fn what_is_found_is_the_last_version() {
    for seed in 1..=4 {
        let stats = World::run(seed, NO_FAULTS);
        assert!(stats.hits > 200 && stats.recalled > 100 && stats.reads > 200, "seed {seed}: {stats:?}");
        assert!(stats.evicted > 20, "seed {seed}: blocks are used again: {stats:?}");
        assert_eq!((stats.read_errors, stats.write_errors, stats.corrupt, stats.lost), (0, 0, 0, 0), "seed {seed}");
    }
}

#[test]
fn a_device_that_fails_or_lies_loses_items_and_returns_no_others() {
    let faults = Faults { failed_reads: 10, wrong_reads: 10, failed_writes: 5, lost_writes: 5 };
    for seed in 1..=4 {
        let stats = World::run(seed, faults);
        assert!(stats.read_errors > 10 && stats.corrupt > 10 && stats.write_errors > 2, "seed {seed}: {stats:?}");
        assert!(stats.hits > 100, "seed {seed}: {stats:?}");
    }
}

/// Stores items in a partition without any turn of the device.
fn fill(store: &mut Partition, items: std::ops::Range<u64>) {
    for number in items {
        let key = World::key_of(number);
        let key = store.key(&key).unwrap();
        store.put(&key, &[7; 600], Put::default()).unwrap();
    }
}

#[test]
fn a_device_that_hangs_costs_items_and_no_memory() {
    let mut world = World::new(1, NO_FAULTS);
    fill(&mut world.store, 0..20_000);
    let tier = world.store.tier().unwrap();
    let stats = tier.stats();
    assert!(stats.dropped > 1_000, "{stats:?}");
    let blocks = (tier.config.writes_max + 1) * tier.config.block_bytes;
    let most = blocks + tier.config.items_max * TIER_LABELLED_ITEM_BYTES;
    assert!(stats.memory_bytes <= most as u64, "{stats:?}, at most {most}");
}

#[test]
fn a_block_is_spared_for_evictions_that_may_have_it() {
    let mut world = World::new(1, NO_FAULTS);
    let most = world.store.tier().unwrap().config.writes_max;
    world.store.tier_mut().unwrap().spare_writes(1);
    fill(&mut world.store, 0..10_000);
    let tier = world.store.tier_mut().unwrap();
    assert_eq!((tier.writing, tier.is_behind(), tier.has_room()), (most - 1, true, false));
    tier.spare_writes(0);
    assert!(!tier.is_behind());
    let mut number = 10_000;
    while world.store.tier().unwrap().has_room() {
        fill(&mut world.store, number..number + 1);
        number += 1;
    }
    let tier = world.store.tier().unwrap();
    assert_eq!(tier.writing, most);
    assert!(tier.open.len() > tier.config.block_bytes / 4, "only {} bytes", tier.open.len());
}

#[test]
fn the_index_has_a_limit() {
    let mut world = World::new(1, NO_FAULTS);
    let config = TierConfig { items_max: 300, writes_max: 4, ..TierConfig::new(TIER_BYTES, 1) };
    world.store = Partition::with_secret(PartitionConfig::new(Mode::Cache, MEMORY_BYTES), [1, 1]).unwrap();
    assert!(world.store.attach_tier(config));
    for part in 0..200 {
        fill(&mut world.store, part * 40..(part + 1) * 40);
        (0..100).for_each(|_| world.attend());
    }
    let stats = world.store.tier().unwrap().stats();
    assert!(stats.items <= 300 && stats.items > 100 && stats.evicted > 0, "{stats:?}");
}

#[test]
fn small_values_and_those_longer_than_a_block_are_lost() {
    let config = PartitionConfig::new(Mode::Cache, MEMORY_BYTES);
    let tier = TierConfig { block_bytes: 4096, ..TierConfig::new(TIER_BYTES, 1) };
    let mut store = Partition::with_secret(config, [1, 1]).unwrap();
    assert!(store.attach_tier(tier));
    for number in 0..20_000 {
        let key = World::key_of(number);
        let key = store.key(&key).unwrap();
        store.put(&key, &vec![1; if number % 2 == 0 { 100 } else { 5_000 }], Put::default()).unwrap();
    }
    let stats = store.tier().unwrap().stats();
    assert!(stats.unsuited > 1_000 && stats.stored == 0, "{stats:?}");
}

#[test]
fn a_read_for_the_second_time_brings_an_item_back_to_memory_with_all_it_had() {
    let mut world = World::new(3, NO_FAULTS);
    let (name, put) = (World::key_of(0), Put { flags: 5, expires: Some(NOW + 100), ..Put::default() });
    let key = world.store.key(&name).unwrap();
    let cas = world.store.put(&key, &[9; 300], put).unwrap().cas;
    for number in 1..20_000 {
        let other = World::key_of(number);
        let other = world.store.key(&other).unwrap();
        world.store.put(&other, &[7; 600], Put::default()).unwrap();
        if world.store.tier().unwrap().locate(key.hash(), NOW) != Located::Nowhere {
            break;
        }
    }
    for is_fetched in [false, true] {
        world.fetch(&name);
        let item = world.store.get(&key).unwrap();
        assert_eq!((item.value, item.flags, item.cas, item.expires), (&[9; 300][..], 5, cas, Some(NOW + 100)));
        assert_eq!(item.marks.is_fetched, is_fetched);
    }
    assert_eq!(world.store.tier().unwrap().locate(key.hash(), NOW), Located::Nowhere);
    assert_eq!(world.store.tier().unwrap().stats().recalled, 1);
    assert!(world.store.get(&key).unwrap().marks.is_fetched);
    // An item expires in the tier as elsewhere.
    world.store.set_now(NOW + 100);
    assert!(world.store.get(&key).is_none());
}

/// The index has room for fewer records than a block.
#[test]
fn an_index_that_is_full_before_the_first_block_does_not_end_the_tier() {
    let mut tier = Tier::new(TierConfig { items_max: 50, ..TierConfig::new(64 << 20, 1) });
    let evict = |tier: &mut Tier, number: u64| {
        let item = Item { value: &[7; 200], flags: 0, cas: 1, expires: None, last_access: 0, marks: Marks::default() };
        tier.evicted(KeyHash(number), &number.to_be_bytes(), &item);
    };
    for number in 1..=10_000 {
        evict(&mut tier, number);
        while let Some(write) = tier.take_write() {
            tier.written(write.number, true);
        }
    }
    let stats = tier.stats();
    assert!(stats.stored > 9_000, "{stats:?}");
    assert_ne!(tier.locate(KeyHash(10_000), 0), Located::Nowhere, "the last one is kept");
}
