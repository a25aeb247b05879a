//! TATP, a benchmark of a telephone company (TATP benchmark description, version 1.0, IBM 2009): seven transactions over
//! subscribers, their access and facilities, and calls that are forwarded. Subscribers are drawn non-uniformly, as the
//! standard says. Numbers of subscribers are found by a table of their own, which is a secondary index.
//!
//! Rows are not placed together: a transaction of several rows asks several cores, as in FaSST (section 6).

use std::collections::HashSet;

use arrayvec::ArrayVec;
use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_txn::{Client, Configuration, Mode, Place, RetryPolicy, Table, TableId, Transaction, TxnError};
use serde::{Deserialize, Serialize};

use super::{Done, Item, Kept, Workload, draw_kind, missing};

const SUBSCRIBER: TableId = TableId(0);
/// From the number of a subscriber, 15 digits, to its key.
const BY_NUMBER: TableId = TableId(1);
const ACCESS_INFO: TableId = TableId(2);
const SPECIAL_FACILITY: TableId = TableId(3);
const CALL_FORWARDING: TableId = TableId(4);

/// Subscribers of a part.
const PART: u64 = 32;
/// Bytes of a subscriber's row: bits, hex and byte fields, and two locations.
const SUBSCRIBER_BYTES: usize = 40;
const BITS: usize = 0;
const VLR_LOCATION: usize = 36;
const ACCESS_INFO_BYTES: usize = 16;
/// Whether it is active, its error control, `data_a` and `data_b`.
const FACILITY_BYTES: usize = 8;
const IS_ACTIVE: usize = 0;
const DATA_A: usize = 2;
/// The end of the time, and the number to call.
const FORWARDING_BYTES: usize = 16;
/// Times at which forwarding may begin, and the last at which it may end.
const STARTS: [u8; 3] = [0, 8, 16];
const END_MAX: u64 = 24;
/// Share of active facilities, in percent.
const ACTIVE: u64 = 85;
const NUMBER_BYTES: usize = 15;
/// Seed of the rows, which depend on nothing else.
const SEED: u64 = 0x7a79;

/// The transactions, in the order of [`SHARES`].
pub(crate) const KINDS: [&str; 7] = [
    "GET_SUBSCRIBER_DATA",
    "GET_NEW_DESTINATION",
    "GET_ACCESS_DATA",
    "UPDATE_SUBSCRIBER_DATA",
    "UPDATE_LOCATION",
    "INSERT_CALL_FORWARDING",
    "DELETE_CALL_FORWARDING",
];
/// Their shares, in percent.
const SHARES: [u64; 7] = [35, 10, 35, 2, 14, 2, 2];
/// The share of each that finds its rows, in percent, by the standard's rules for the rows that are loaded. A facility
/// exists with 62.5 % and is active with 85 %, and each forwarding of an existing one is there with 50 %.
///
/// For `GET_NEW_DESTINATION` the standard prints 23.9 %, without saying how that was found. Its rules give 14.79 %: a
/// row that is loaded ends one to eight hours after its start, and the time that is asked for is any hour. Rows that
/// `INSERT_CALL_FORWARDING` adds end at any hour. When these have replaced all others, the share is
/// [`NEW_DESTINATION_LATER`].
pub(crate) const SUCCESSES: [f64; 7] = [100.0, 14.79, 62.5, 62.5, 100.0, 31.25, 31.25];
/// The number of `GET_NEW_DESTINATION`.
pub(crate) const NEW_DESTINATION: usize = 1;
/// What its share rises to while call forwardings are replaced, in percent.
pub(crate) const NEW_DESTINATION_LATER: f64 = 20.43;
/// The number of `UPDATE_LOCATION`.
pub(crate) const UPDATE_LOCATION: usize = 4;

/// TATP.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tatp {
    /// Subscribers.
    pub subscribers: u64,
    /// The only transaction that is run, by its number; all in their shares if there is none.
    pub only: Option<usize>,
}

/// The state of one task.
pub struct Worker(Random);

impl Tatp {
    /// A constant of the standard's distribution.
    fn spread(&self) -> u64 {
        match self.subscribers {
            ..=1_000_000 => 65_535,
            1_000_001..=10_000_000 => 1_048_575,
            _ => 2_097_151,
        }
    }

    /// Draws a subscriber, from 1, as the standard says.
    fn draw(&self, random: &mut Random) -> u64 {
        (random.between(0, self.spread()) | random.between(1, self.subscribers)) % self.subscribers + 1
    }

    fn load_one(subscriber: u64, to: &mut Vec<Item>) {
        let mut random = Random::new(SEED ^ subscriber << 20);
        let mut row = vec![0; SUBSCRIBER_BYTES];
        row.iter_mut().for_each(|byte| *byte = random.next() as u8);
        to.push((SUBSCRIBER, key(subscriber).to_vec(), row));
        to.push((BY_NUMBER, digits(subscriber).to_vec(), key(subscriber).to_vec()));
        for kind in types(&mut random) {
            to.push((ACCESS_INFO, key_of(subscriber, kind).to_vec(), vec![kind; ACCESS_INFO_BYTES]));
        }
        for kind in types(&mut random) {
            let mut facility = vec![0; FACILITY_BYTES];
            facility[IS_ACTIVE] = u8::from(random.below(100) < ACTIVE);
            facility[DATA_A] = random.next() as u8;
            to.push((SPECIAL_FACILITY, key_of(subscriber, kind).to_vec(), facility));
            let mut starts = STARTS;
            shuffle(&mut random, &mut starts);
            for start in &starts[..random.below(4) as usize] {
                let row = forwarding(start + random.between(1, 8) as u8);
                to.push((CALL_FORWARDING, forwarding_key(subscriber, kind, *start).to_vec(), row));
            }
        }
    }
}

impl Workload for Tatp {
    type Worker = Worker;

    fn tables(&self) -> Vec<Table> {
        ["subscriber", "subscriber by number", "access info", "special facility", "call forwarding"]
            .map(Table::from)
            .to_vec()
    }

    fn kinds(&self) -> Vec<&'static str> {
        KINDS.to_vec()
    }

    fn parts(&self) -> u64 {
        self.subscribers.div_ceil(PART)
    }

    fn load(&self, part: u64, to: &mut Vec<Item>) {
        let all = part * PART + 1..=((part + 1) * PART).min(self.subscribers);
        all.for_each(|subscriber| Tatp::load_one(subscriber, to));
    }

    fn worker(&self, _: &Configuration, _: Option<Place>, seed: u64) -> Worker {
        Worker(Random::new(seed))
    }

    async fn run<T: Transport + 'static>(
        &self,
        worker: &mut Worker,
        client: &Client<T>,
        retry: &RetryPolicy,
    ) -> Result<Done, TxnError> {
        let random = &mut worker.0;
        let kind = self.only.unwrap_or_else(|| draw_kind(random, &SHARES));
        let drawn = Drawn::new(self.draw(random), random);
        let subscriber = drawn.subscriber;
        match KINDS[kind] {
            "GET_SUBSCRIBER_DATA" => {
                let key = key(subscriber);
                let row = client.run(retry, async |tx| tx.get(SUBSCRIBER, &key).await).await?;
                Ok(Done::read(kind, row.is_some()))
            }
            "GET_ACCESS_DATA" => {
                let key = key_of(subscriber, drawn.kind);
                let row = client.run(retry, async |tx| tx.get(ACCESS_INFO, &key).await).await?;
                Ok(Done::read(kind, row.is_some()))
            }
            "GET_NEW_DESTINATION" => {
                let found = client.run(retry, async |tx| drawn.new_destination(tx).await).await?;
                Ok(Done::read(kind, found))
            }
            "UPDATE_SUBSCRIBER_DATA" => {
                let found = client.run(retry, async |tx| drawn.update_subscriber(tx).await).await?;
                Ok(Done::read(kind, found))
            }
            "UPDATE_LOCATION" => {
                let found = client.run(retry, async |tx| drawn.update_location(tx).await).await?;
                Ok(Done::read(kind, found))
            }
            "INSERT_CALL_FORWARDING" => {
                let is_successful = client.run(retry, async |tx| drawn.insert_forwarding(tx).await).await?;
                Ok(Done { kind, is_successful, change: i64::from(is_successful) })
            }
            _ => {
                let is_successful = client.run(retry, async |tx| drawn.delete_forwarding(tx).await).await?;
                Ok(Done { kind, is_successful, change: -i64::from(is_successful) })
            }
        }
    }

    /// The number of call forwardings.
    fn weight(&self, table: TableId, _: &[u8], _: &[u8]) -> i64 {
        i64::from(table == CALL_FORWARDING)
    }

    fn keeps(&self, _: TableId) -> bool {
        true
    }

    /// Every forwarding has its facility, every other row its subscriber, and every number leads to its subscriber.
    fn check(&self, kept: &Kept) -> Result<(), String> {
        let subscribers: HashSet<&[u8]> =
            kept.keys().filter(|(table, _)| *table == SUBSCRIBER).map(|(_, key)| &key[..]).collect();
        if subscribers.len() as u64 != self.subscribers {
            return Err(format!("{} subscribers are left of {}", subscribers.len(), self.subscribers));
        }
        let is_there = |table: TableId, key: &[u8]| kept.contains_key(&(table, key.to_vec()));
        let wrong = kept.iter().find(|((table, key), value)| match *table {
            BY_NUMBER => !subscribers.contains(&value[..]) || key[..] != digits(number(value)),
            ACCESS_INFO | SPECIAL_FACILITY => !subscribers.contains(&key[..8]),
            CALL_FORWARDING => !is_there(SPECIAL_FACILITY, &key[..9]),
            _ => false,
        });
        wrong.map_or(Ok(()), |((table, key), _)| Err(format!("a row of table {} lacks another: {key:?}", table.0)))
    }
}

/// What a transaction is about.
struct Drawn {
    subscriber: u64,
    kind: u8,
    start: u8,
    end: u8,
    noise: u64,
}

impl Drawn {
    fn new(subscriber: u64, random: &mut Random) -> Drawn {
        Drawn {
            subscriber,
            kind: random.between(1, 4) as u8,
            start: STARTS[random.below(3) as usize],
            end: random.between(1, END_MAX) as u8,
            noise: random.next(),
        }
    }

    /// The keys of the forwardings that begin no later.
    fn begun(&self) -> impl Iterator<Item = [u8; 10]> {
        let begun = STARTS.into_iter().filter(|start| *start <= self.start);
        begun.map(|start| forwarding_key(self.subscriber, self.kind, start))
    }

    /// Whether a forwarding ends later.
    fn is_in_time(&self, forwarding: &[u8]) -> bool {
        self.end < forwarding[0]
    }

    /// The facility, and then the forwardings that may apply.
    async fn new_destination<T: Transport + 'static>(&self, tx: &mut Transaction<T>) -> Result<bool, TxnError> {
        let facility = tx.get(SPECIAL_FACILITY, &key_of(self.subscriber, self.kind)).await?;
        if !facility.is_some_and(|row| is_active(&row)) {
            return Ok(false);
        }
        let keys: ArrayVec<_, { STARTS.len() }> = self.begun().collect();
        let asked: ArrayVec<_, { STARTS.len() }> = keys.iter().map(|key| (CALL_FORWARDING, &key[..])).collect();
        let found = tx.execute(&asked, Mode::Read).await?;
        Ok(found.iter().flatten().any(|row| self.is_in_time(row)))
    }

    async fn update_subscriber<T: Transport + 'static>(&self, tx: &mut Transaction<T>) -> Result<bool, TxnError> {
        let (subscriber, facility) = (key(self.subscriber), key_of(self.subscriber, self.kind));
        let asked = [(SUBSCRIBER, &subscriber[..]), (SPECIAL_FACILITY, &facility[..])];
        let found = tx.execute(&asked, Mode::Update).await?;
        let [Some(row), facility_row] = &found[..] else { return Err(missing()) };
        let Some(facility_row) = facility_row else {
            tx.abort().await;
            return Ok(false);
        };
        let (mut row, mut facility_row) = (row.to_vec(), facility_row.to_vec());
        row[BITS] ^= self.noise as u8 & 1;
        facility_row[DATA_A] = self.noise as u8;
        tx.put(SUBSCRIBER, &subscriber, row)?;
        tx.put(SPECIAL_FACILITY, &facility, facility_row)?;
        Ok(true)
    }

    async fn find<T: Transport + 'static>(&self, tx: &mut Transaction<T>) -> Result<u64, TxnError> {
        let found = tx.get(BY_NUMBER, &digits(self.subscriber)).await?;
        Ok(number(&found.ok_or_else(missing)?))
    }

    async fn update_location<T: Transport + 'static>(&self, tx: &mut Transaction<T>) -> Result<bool, TxnError> {
        let key = key(self.find(tx).await?);
        let mut row = tx.get_for_update(SUBSCRIBER, &key).await?.ok_or_else(missing)?.to_vec();
        row[VLR_LOCATION..].copy_from_slice(&(self.noise as u32).to_le_bytes());
        tx.put(SUBSCRIBER, &key, row)?;
        Ok(true)
    }

    async fn insert_forwarding<T: Transport + 'static>(&self, tx: &mut Transaction<T>) -> Result<bool, TxnError> {
        let subscriber = self.find(tx).await?;
        let (facility, key) = (key_of(subscriber, self.kind), forwarding_key(subscriber, self.kind, self.start));
        let asked = [(SPECIAL_FACILITY, &facility[..], Mode::Read), (CALL_FORWARDING, &key[..], Mode::Update)];
        let found = tx.execute_each(&asked).await?;
        if found[0].is_none() || found[1].is_some() {
            tx.abort().await;
            return Ok(false);
        }
        tx.insert(CALL_FORWARDING, &key, forwarding(self.end))?;
        Ok(true)
    }

    async fn delete_forwarding<T: Transport + 'static>(&self, tx: &mut Transaction<T>) -> Result<bool, TxnError> {
        let key = forwarding_key(self.find(tx).await?, self.kind, self.start);
        if tx.get_for_update(CALL_FORWARDING, &key).await?.is_none() {
            tx.abort().await;
            return Ok(false);
        }
        tx.delete(CALL_FORWARDING, &key)?;
        Ok(true)
    }
}

fn is_active(facility: &[u8]) -> bool {
    facility[IS_ACTIVE] != 0
}

fn number(key: &[u8]) -> u64 {
    key.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn key(subscriber: u64) -> [u8; 8] {
    subscriber.to_le_bytes()
}

/// The key of an access or a facility of a subscriber.
fn key_of(subscriber: u64, kind: u8) -> [u8; 9] {
    let mut key = [kind; 9];
    key[..8].copy_from_slice(&subscriber.to_le_bytes());
    key
}

/// The key of a call forwarding.
fn forwarding_key(subscriber: u64, kind: u8, start: u8) -> [u8; 10] {
    let mut key = [start; 10];
    key[..9].copy_from_slice(&key_of(subscriber, kind));
    key
}

/// The number of a subscriber, 15 digits.
fn digits(subscriber: u64) -> [u8; NUMBER_BYTES] {
    let (mut digits, mut left) = ([b'0'; NUMBER_BYTES], subscriber);
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    digits
}

fn forwarding(end: u8) -> Vec<u8> {
    let mut row = vec![b'7'; FORWARDING_BYTES];
    row[0] = end;
    row
}

/// One to four of the four types of a row.
fn types(random: &mut Random) -> Vec<u8> {
    let mut all = [1, 2, 3, 4];
    shuffle(random, &mut all);
    all[..random.between(1, 4) as usize].to_vec()
}

fn shuffle(random: &mut Random, all: &mut [u8]) {
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_as_many_as_the_standard_says() {
        let (tatp, mut items) = (Tatp { subscribers: 20_000, only: None }, Vec::new());
        (0..tatp.parts()).for_each(|part| tatp.load(part, &mut items));
        let share = |table| items.iter().filter(|(it, _, _)| *it == table).count() as f64 / 20_000.0;
        assert_eq!((share(SUBSCRIBER), share(BY_NUMBER)), (1.0, 1.0));
        for (table, expected) in [(ACCESS_INFO, 2.5), (SPECIAL_FACILITY, 2.5), (CALL_FORWARDING, 3.75)] {
            assert!((share(table) - expected).abs() < 0.05, "{table:?}: {}", share(table));
        }
        let kept: Kept = items.into_iter().map(|(table, key, value)| ((table, key), value)).collect();
        assert_eq!(tatp.check(&kept), Ok(()));
        let mut broken = kept.clone();
        broken.retain(|(table, key), _| *table != SPECIAL_FACILITY || key[0] != 7);
        assert!(tatp.check(&broken).is_err());
    }

    /// The share of `GET_NEW_DESTINATION` that finds a row, in percent.
    fn destinations(kept: &Kept, subscribers: u64) -> f64 {
        const DRAWN: u32 = 300_000;
        let row = |table: TableId, key: &[u8]| kept.get(&(table, key.to_vec()));
        let mut random = Random::new(5);
        let found = (0..DRAWN).filter(|_| {
            let drawn = Drawn::new(random.between(1, subscribers), &mut random);
            let facility = row(SPECIAL_FACILITY, &key_of(drawn.subscriber, drawn.kind));
            facility.is_some_and(|row| is_active(row))
                && drawn.begun().any(|key| row(CALL_FORWARDING, &key).is_some_and(|row| drawn.is_in_time(row)))
        });
        100.0 * found.count() as f64 / f64::from(DRAWN)
    }

    #[test]
    fn destinations_are_found_as_often_as_the_rules_say() {
        let (tatp, mut items) = (Tatp { subscribers: 20_000, only: None }, Vec::new());
        (0..tatp.parts()).for_each(|part| tatp.load(part, &mut items));
        let mut kept: Kept = items.into_iter().map(|(table, key, value)| ((table, key), value)).collect();
        let loaded = destinations(&kept, tatp.subscribers);
        assert!((loaded - SUCCESSES[NEW_DESTINATION]).abs() < 0.5, "{loaded}");
        // As insertions and deletions leave it: they come to all places equally often.
        let mut random = Random::new(6);
        let facilities: Vec<Vec<u8>> =
            kept.keys().filter(|(table, _)| *table == SPECIAL_FACILITY).map(|(_, key)| key.clone()).collect();
        kept.retain(|(table, _), _| *table != CALL_FORWARDING);
        for (facility, start) in facilities.iter().flat_map(|facility| STARTS.map(|start| (facility, start))) {
            if random.below(2) == 0 {
                let key = [&facility[..], &[start]].concat();
                kept.insert((CALL_FORWARDING, key), forwarding(random.between(1, END_MAX) as u8));
            }
        }
        let later = destinations(&kept, tatp.subscribers);
        assert!((later - NEW_DESTINATION_LATER).abs() < 0.5, "{later}");
    }

    #[test]
    fn subscribers_are_drawn_non_uniformly_and_all_exist() {
        let (tatp, mut random) = (Tatp { subscribers: 100_000, only: None }, Random::new(1));
        let drawn: Vec<u64> = (0..100_000).map(|_| tatp.draw(&mut random)).collect();
        assert!(drawn.iter().all(|subscriber| (1..=100_000).contains(subscriber)));
        // 37 % are different from all before if they are uniform: 63 % of all are drawn.
        let different = drawn.iter().collect::<HashSet<_>>().len();
        assert!(different < 50_000, "{different}");
    }

    #[test]
    fn keys_are_what_they_say() {
        assert_eq!(&digits(120_345), b"000000000120345");
        let key = forwarding_key(7, 2, 16);
        assert_eq!((number(&key), key[8], key[9]), (7, 2, 16));
    }
}
