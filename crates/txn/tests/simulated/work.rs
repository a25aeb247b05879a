//! Random transactions on few keys, each with an invariant.

use dunlin_net::random::Random as Pauses;
use dunlin_sim::SimTransport;
use dunlin_trial::Random;
use dunlin_txn::{Mode, RetryPolicy, TableId, Transaction, TxnError};

use crate::harness::{Cluster, Core, Shape};
use crate::judge::{Done, Fate};

type Tx = Transaction<SimTransport>;

pub const ACCOUNTS: u8 = 6;
const BALANCE: u64 = 1000;
pub const REGISTERS: u8 = 8;
/// Pairs of birds; of each pair, exactly one bird is present.
const PAIRS: u8 = 3;

const ACCOUNTS_TABLE: TableId = TableId(0);
const REGISTERS_TABLE: TableId = TableId(1);
const BIRDS_TABLE: TableId = TableId(2);

fn account(number: u8) -> Vec<u8> {
    format!("account-{number}").into_bytes()
}

/// Keys of different lengths.
pub fn register(number: u8) -> Vec<u8> {
    vec![b'r'; 1 + 30 * usize::from(number)]
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
        match random.between(0, 9) {
            0..=2 => transfer(&core, &mut random).await,
            3 => audit(&core, &mut random).await,
            4 => fly(&core, &mut random).await,
            5 => look_at_birds(&core, &mut random).await,
            6 => leave(&core, &mut random).await,
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
    let keys = draw(random, REGISTERS, 2);
    for key in keys {
        if tx.get_for_update(REGISTERS_TABLE, &register(key)).await.is_err() {
            return;
        }
    }
    // Also half-way through a round.
    let key = register(0);
    let mut round = Box::pin(tx.get_for_update(REGISTERS_TABLE, &key));
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
        let value = tx.get(REGISTERS_TABLE, &register(*register_number)).await?;
        found.push((*register_number, list(value.as_deref())));
    }
    for register_number in writes {
        let key = register(*register_number);
        let value = match random.chance(70) {
            true => tx.get_for_update(REGISTERS_TABLE, &key).await?,
            false => tx.get(REGISTERS_TABLE, &key).await?,
        };
        let value = list(value.as_deref());
        match found.iter().find(|(read, _)| read == register_number) {
            Some((_, before)) => assert_eq!(*before, value, "a key that is read twice has one value"),
            None => found.push((*register_number, value)),
        }
    }
    for register_number in writes {
        let before = found.iter().find(|(read, _)| read == register_number).map_or(&[][..], |(_, list)| list);
        let mut value = (before.len() as u64 + 1).to_le_bytes().to_vec();
        before.iter().chain([&unique]).for_each(|number| value.extend(number.to_le_bytes()));
        value.resize(value.len() + random.between(0, 400) as usize, 7);
        tx.put(REGISTERS_TABLE, &register(*register_number), value)?;
    }
    let name = tx.id();
    let at = {
        let mut history = core.history.borrow_mut();
        let (fate, ended) = (Fate::Unknown, u64::MAX);
        history.done.push(Done { name, number: unique, begun, ended, reads: found, writes: writes.to_vec(), fate });
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
