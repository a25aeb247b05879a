//! Random transactions on few keys, each with an invariant.

use std::collections::BTreeMap;

use bytes::Bytes;
use dunlin_net::random::Random as Pauses;
use dunlin_sim::SimTransport;
use dunlin_trial::Random;
use dunlin_txn::{Mode, Range, RetryPolicy, Table, TableId, Transaction, TransactionId, TxnError};

use super::harness::{Cluster, Core, Shape};
use super::judge::{Done, Fate};

type Tx = Transaction<SimTransport>;

pub const ACCOUNTS: u8 = 6;
const BALANCE: u64 = 1000;
pub const REGISTERS: u8 = 8;
/// Registers on the shelf, which range reads read.
pub const SHELF: u8 = 32;
const BRANCHES: u8 = 2;
/// Places of a branch, on which one bird may sit.
const PLACES: u8 = 8;
/// Pairs of birds; of each pair, exactly one bird is present.
const PAIRS: u8 = 3;

const ACCOUNTS_TABLE: TableId = TableId(0);
const REGISTERS_TABLE: TableId = TableId(1);
const BIRDS_TABLE: TableId = TableId(2);
const SHELF_TABLE: TableId = TableId(3);
const PERCHES_TABLE: TableId = TableId(4);

fn account(number: u8) -> Vec<u8> {
    format!("account-{number}").into_bytes()
}

pub fn tables() -> Vec<Table> {
    let shelf = Table::ordered("shelf", [shelved(10), b"shelf-22".to_vec()]);
    // The second branch is in two partitions.
    let perches = Table::ordered("perches", [perch(1, 0), perch(1, 4)]);
    vec!["accounts".into(), "registers".into(), "birds".into(), shelf, perches]
}

/// Table and key of a register. Keys have different lengths; those behind the first [`REGISTERS`] are on the shelf, in
/// the order of their numbers.
pub fn register(number: u8) -> (TableId, Vec<u8>) {
    match number.checked_sub(REGISTERS) {
        None => (REGISTERS_TABLE, vec![b'r'; 1 + 30 * usize::from(number)]),
        Some(place) => (SHELF_TABLE, shelved(place)),
    }
}

fn shelved(place: u8) -> Vec<u8> {
    format!("shelf-{place:02}{}", "-long".repeat(usize::from(place % 5))).into_bytes()
}

fn perch(branch: u8, place: u8) -> Vec<u8> {
    vec![b'p', branch, place]
}

fn bird(pair: u8, side: u8) -> Vec<u8> {
    vec![pair, side, b'b']
}

/// The numbers written to a register, in order.
pub fn list(value: Option<&[u8]>) -> Vec<u64> {
    let Some((count, numbers)) = value.and_then(|value| value.split_first_chunk()) else { return Vec::new() };
    numbers.chunks_exact(8).take(u64::from_le_bytes(*count) as usize).map(number).collect()
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

/// Stores the initial state.
pub fn prepare(cluster: &mut Cluster) {
    let core = cluster.cores[0].clone();
    cluster.run_here(0, async move {
        let policy = RetryPolicy { attempts_max: 100, ..RetryPolicy::default() };
        let stored = core.client.run(&policy, async |tx: &mut Tx| {
            for number in 0..ACCOUNTS {
                tx.insert(ACCOUNTS_TABLE, &account(number), BALANCE.to_le_bytes().to_vec())?;
            }
            for pair in 0..PAIRS {
                tx.insert(BIRDS_TABLE, &bird(pair, 0), b"here".to_vec())?;
            }
            Ok(())
        });
        stored.await.unwrap();
    });
}

/// A mix of all kinds of transactions.
pub async fn mixed(core: Core, shape: Shape, seed: u64) {
    let mut random = Random::new(seed);
    for round in 0..shape.transactions {
        match random.between(0, 13) {
            0..=2 => transfer(&core, &mut random).await,
            3 => audit(&core, &mut random).await,
            4 => fly(&core, &mut random).await,
            5 => look_at_birds(&core, &mut random).await,
            6 => leave(&core, &mut random).await,
            7..=8 => sit(&core, &mut random).await,
            9..=10 => shelve(&core, &mut random, shape.writes_min, (seed << 20) | (u64::from(round) + 1)).await,
            _ => registers(&core, &mut random, shape.writes_min, (seed << 20) | (u64::from(round) + 1)).await,
        }
        if random.chance(30) {
            core.timers().sleep(std::time::Duration::from_micros(random.between(0, 300))).await;
        }
    }
}

async fn again(core: &Core, attempt: u64, random: &mut Random) {
    let longest = 5_000 << attempt.min(8);
    let pause = Pauses::new(random.next()).below(longest);
    core.timers().sleep(std::time::Duration::from_nanos(pause)).await;
}

/// Whether to retry a failed transaction: after a conflict, or a transient error.
fn passes(error: &TxnError) -> bool {
    assert!(error.may_be_repeated() || error.may_have_committed(), "{error}");
    error.may_be_repeated()
}

fn draw(random: &mut Random, from: u8, count: u64) -> Vec<u8> {
    let mut drawn: Vec<u8> = (0..from).collect();
    while drawn.len() as u64 > count {
        drawn.swap_remove(random.index(drawn.len()));
    }
    drawn
}

/// Transfers money between accounts: the sum is invariant.
async fn transfer(core: &Core, random: &mut Random) {
    let count = random.between(2, 3);
    let accounts = draw(random, ACCOUNTS, count);
    let keys: Vec<Vec<u8>> = accounts.iter().map(|number| account(*number)).collect();
    for attempt in 0..40 {
        let way = random.between(0, 2);
        let amount = random.between(0, 5);
        match try_transfer(core, &keys, way, amount).await {
            Err(error) if passes(&error) => again(core, attempt, random).await,
            _ => return,
        }
    }
}

async fn try_transfer(core: &Core, keys: &[Vec<u8>], way: u64, amount: u64) -> Result<(), TxnError> {
    let mut tx = core.client.begin();
    let mut balances = Vec::new();
    let named: Vec<(TableId, &[u8])> = keys.iter().map(|key| (ACCOUNTS_TABLE, &key[..])).collect();
    match way {
        0 => balances = tx.execute(&named, Mode::Update).await?,
        1 => balances = tx.execute(&named, Mode::Read).await?,
        _ => {
            for (table, key) in named {
                balances.push(tx.get(table, key).await?);
            }
        }
    }
    let mut sums: Vec<u64> = balances.iter().map(|value| number(value.as_ref().unwrap())).collect();
    let moved = amount.min(sums[0]);
    sums[0] -= moved;
    *sums.last_mut().unwrap() += moved;
    for (key, sum) in keys.iter().zip(sums) {
        tx.put(ACCOUNTS_TABLE, key, sum.to_le_bytes().to_vec())?;
    }
    tx.commit().await
}

/// Reads all accounts: a snapshot shows the invariant sum.
async fn audit(core: &Core, random: &mut Random) {
    for attempt in 0..20 {
        let at_once = random.chance(50);
        match try_audit(core, at_once).await {
            Ok(sum) => assert_eq!(sum, u64::from(ACCOUNTS) * BALANCE, "money was made or lost"),
            Err(error) if passes(&error) => {
                again(core, attempt, random).await;
                continue;
            }
            Err(_) => {}
        }
        return;
    }
}

async fn try_audit(core: &Core, at_once: bool) -> Result<u64, TxnError> {
    let keys: Vec<Vec<u8>> = (0..ACCOUNTS).map(account).collect();
    let named: Vec<(TableId, &[u8])> = keys.iter().map(|key| (ACCOUNTS_TABLE, &key[..])).collect();
    let mut tx = core.client.begin();
    let mut values = Vec::new();
    if at_once {
        values = tx.execute(&named, Mode::Read).await?;
    } else {
        for (table, key) in named {
            values.push(tx.get(table, key).await?);
        }
    }
    tx.commit().await?;
    Ok(values.iter().map(|value| number(value.as_ref().unwrap())).sum())
}

/// One bird of a pair leaves and the other comes: never both are present, or none.
async fn fly(core: &Core, random: &mut Random) {
    let pair = random.between(0, u64::from(PAIRS) - 1) as u8;
    for attempt in 0..40 {
        match try_fly(core, pair).await {
            Err(error) if passes(&error) => again(core, attempt, random).await,
            _ => return,
        }
    }
}

async fn try_fly(core: &Core, pair: u8) -> Result<(), TxnError> {
    let mut tx = core.client.begin();
    let (left, right) = (bird(pair, 0), bird(pair, 1));
    let here = tx.get(BIRDS_TABLE, &left).await?;
    let (goes, comes) = if here.is_some() { (left, right) } else { (right, left) };
    tx.delete(BIRDS_TABLE, &goes)?;
    // This key was not read: the insertion alone asserts that it was absent.
    tx.insert(BIRDS_TABLE, &comes, b"here".to_vec())?;
    tx.commit().await
}

async fn look_at_birds(core: &Core, random: &mut Random) {
    for attempt in 0..20 {
        match try_look(core).await {
            Ok(found) => assert!(found.iter().all(|here| *here == 1), "birds of each pair: {found:?}"),
            Err(error) if passes(&error) => {
                again(core, attempt, random).await;
                continue;
            }
            Err(_) => {}
        }
        return;
    }
}

async fn try_look(core: &Core) -> Result<Vec<usize>, TxnError> {
    let mut tx = core.client.begin();
    let mut found = Vec::new();
    for pair in 0..PAIRS {
        let left = tx.get(BIRDS_TABLE, &bird(pair, 0)).await?.is_some();
        let right = tx.get(BIRDS_TABLE, &bird(pair, 1)).await?.is_some();
        found.push(usize::from(left) + usize::from(right));
    }
    tx.commit().await?;
    Ok(found)
}

/// Locks keys and stops without releasing them: that must block no other transaction.
async fn leave(core: &Core, random: &mut Random) {
    let mut tx = core.client.begin();
    let keys = draw(random, REGISTERS + SHELF, 2);
    for key in keys {
        let (table, key) = register(key);
        if tx.get_for_update(table, &key).await.is_err() {
            return;
        }
    }
    // Also half-way through a round.
    let (table, key) = register(0);
    let mut round = Box::pin(tx.get_for_update(table, &key));
    if random.chance(50) {
        let _ = futures::poll!(round.as_mut());
    }
}

/// Reads some registers and writes others, for the judge.
async fn registers(core: &Core, random: &mut Random, writes_min: u64, first: u64) {
    for attempt in 0..30 {
        let written = random.between(writes_min, 2);
        let writes = draw(random, REGISTERS, written);
        let count = random.between(1, 3);
        let reads = draw(random, REGISTERS, count);
        let unique = first | (attempt << 12);
        match try_registers(core, random, &reads, &writes, unique).await {
            Err(error) if passes(&error) => again(core, attempt, random).await,
            _ => return,
        }
    }
}

async fn try_registers(
    core: &Core,
    random: &mut Random,
    reads: &[u8],
    writes: &[u8],
    unique: u64,
) -> Result<(), TxnError> {
    let begun = core.now();
    let mut tx = core.client.begin();
    let mut found: Vec<(u8, Vec<u64>)> = Vec::new();
    for register_number in reads {
        let (table, key) = register(*register_number);
        let value = tx.get(table, &key).await?;
        found.push((*register_number, list(value.as_deref())));
    }
    for register_number in writes {
        let (table, key) = register(*register_number);
        let value = match random.chance(70) {
            true => tx.get_for_update(table, &key).await?,
            false => tx.get(table, &key).await?,
        };
        let value = list(value.as_deref());
        match found.iter().find(|(read, _)| read == register_number) {
            Some((_, before)) => assert_eq!(*before, value, "a key that is read twice has one value"),
            None => found.push((*register_number, value)),
        }
    }
    for register_number in writes {
        append(&mut tx, random, &found, *register_number, unique)?;
    }
    commit(core, tx, Done { begun, ..done(unique, found, writes) }).await
}

/// Appends a number to the list of a register, which was read.
fn append(
    tx: &mut Tx,
    random: &mut Random,
    found: &[(u8, Vec<u64>)],
    number: u8,
    unique: u64,
) -> Result<Vec<u8>, TxnError> {
    let before = found.iter().find(|(read, _)| *read == number).map_or(&[][..], |(_, list)| list);
    let mut value = (before.len() as u64 + 1).to_le_bytes().to_vec();
    before.iter().chain([&unique]).for_each(|number| value.extend(number.to_le_bytes()));
    value.resize(value.len() + random.between(0, 400) as usize, 7);
    let (table, key) = register(number);
    tx.put(table, &key, value.clone())?;
    Ok(value)
}

fn done(number: u64, reads: Vec<(u8, Vec<u64>)>, writes: &[u8]) -> Done {
    let name = TransactionId { epoch: 0, coordinator: 0, sequence: 0 };
    Done { name, number, begun: 0, ended: u64::MAX, reads, writes: writes.to_vec(), fate: Fate::Unknown }
}

/// Commits a transaction and adds it to the history.
async fn commit(core: &Core, tx: Tx, done: Done) -> Result<(), TxnError> {
    let at = {
        let mut history = core.history.borrow_mut();
        history.done.push(Done { name: tx.id(), ..done });
        history.done.len() - 1
    };
    let result = tx.commit().await;
    let done = &mut core.history.borrow_mut().done[at];
    match &result {
        Ok(()) => (done.fate, done.ended) = (Fate::Committed, core.now()),
        Err(error) if error.may_have_committed() => {}
        Err(_) => done.fate = Fate::Aborted,
    }
    result
}

/// Reads a range of the shelf and appends to some of its registers, which may be absent, for the judge.
async fn shelve(core: &Core, random: &mut Random, writes_min: u64, first: u64) {
    for attempt in 0..30 {
        match try_shelve(core, random, writes_min, first | (attempt << 12)).await {
            Err(error) if passes(&error) => again(core, attempt, random).await,
            _ => return,
        }
    }
}

/// The items of the shelf between two places, by their places.
async fn look_at_shelf(tx: &mut Tx, places: (u8, u8), limit: usize) -> Result<Vec<(u8, Bytes)>, TxnError> {
    let keys = [shelved(places.0), shelved(places.1)];
    let found = tx.scan(SHELF_TABLE, Range::between(&keys[0], &keys[1]), limit).await?;
    assert!(found.is_sorted_by(|(key, _), (next, _)| key < next), "a range is read in order: {found:?}");
    let place = |key: &[u8]| (0..SHELF).find(|place| *shelved(*place) == *key).unwrap();
    let found: Vec<(u8, Bytes)> = found.into_iter().map(|(key, value)| (place(&key), value)).collect();
    assert!(found.len() <= limit && found.iter().all(|(place, _)| (places.0..places.1).contains(place)), "{found:?}");
    Ok(found)
}

async fn try_shelve(core: &Core, random: &mut Random, writes_min: u64, unique: u64) -> Result<(), TxnError> {
    let begun = core.now();
    let mut tx = core.client.begin();
    let low = random.between(0, u64::from(SHELF) - 1) as u8;
    let high = random.between(u64::from(low) + 1, u64::from(SHELF)) as u8;
    let limit = if random.chance(60) { usize::MAX } else { random.between(1, 4) as usize };
    let shown = look_at_shelf(&mut tx, (low, high), limit).await?;
    // A range read is a read of all keys in it, up to the last that was found if the limit ended it.
    let end = shown.last().filter(|_| shown.len() == limit).map_or(high, |(last, _)| last + 1);
    let shown_at = |place: u8| shown.iter().find(|(shown, _)| *shown == place).map(|(_, value)| &**value);
    let mut found: Vec<(u8, Vec<u64>)> = (low..end).map(|place| (REGISTERS + place, list(shown_at(place)))).collect();
    let mut expected: BTreeMap<u8, Bytes> = shown.iter().cloned().collect();
    let written = random.between(writes_min, 2);
    let mut writes: Vec<u8> = draw(random, REGISTERS + SHELF, written);
    for number in &mut writes {
        // Usually within the range, and otherwise any register.
        if random.chance(70) {
            *number = REGISTERS + random.between(low.into(), u64::from(end) - 1) as u8;
        }
    }
    writes.sort_unstable();
    writes.dedup();
    for number in &writes {
        if !found.iter().any(|(read, _)| read == number) {
            let (table, key) = register(*number);
            let value = tx.get(table, &key).await?;
            found.push((*number, list(value.as_deref())));
        }
        let value = append(&mut tx, random, &found, *number, unique)?;
        if (REGISTERS + low..REGISTERS + end).contains(number) {
            expected.insert(number - REGISTERS, value.into());
        }
    }
    let seen_again = match random.chance(30) {
        true => Some(look_at_shelf(&mut tx, (low, end), usize::MAX).await?),
        false => None,
    };
    commit(core, tx, Done { begun, ..done(unique, found, &writes) }).await?;
    if let Some(again) = seen_again {
        assert_eq!(again, Vec::from_iter(expected), "what a committed transaction saw with its own writes");
    }
    Ok(())
}

/// A bird comes to an empty branch, or leaves one, or moves on it: there never are two on one branch. Birds that come
/// choose different places, so only the range reads conflict.
async fn sit(core: &Core, random: &mut Random) {
    let branch = random.between(0, u64::from(BRANCHES) - 1) as u8;
    for attempt in 0..40 {
        let (place, way) = (random.between(0, u64::from(PLACES) - 1) as u8, random.between(0, 3));
        match try_sit(core, &perch(branch, 0)[..2], &perch(branch, place), way).await {
            Ok(birds) => assert!(birds <= 1, "{birds} birds are on branch {branch}"),
            Err(error) if passes(&error) => {
                again(core, attempt, random).await;
                continue;
            }
            Err(_) => {}
        }
        return;
    }
}

async fn try_sit(core: &Core, branch: &[u8], place: &[u8], way: u64) -> Result<usize, TxnError> {
    let mut tx = core.client.begin();
    let birds = tx.scan(PERCHES_TABLE, Range::prefix(branch), usize::MAX).await?;
    if let (Some((bird, _)), 1..) = (birds.first(), way) {
        tx.delete(PERCHES_TABLE, bird)?;
    }
    if birds.is_empty() || way == 3 {
        tx.put(PERCHES_TABLE, place, b"bird".to_vec())?;
    }
    tx.commit().await?;
    Ok(birds.len())
}
