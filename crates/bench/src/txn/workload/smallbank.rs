//! SmallBank, as H-Store defines it: six transactions over savings and checking accounts. 4 % of the accounts are used
//! by 90 % of the transactions, as in FaSST (section 6.3). No account is chosen for its place.
//!
//! Both tables have the same keys, so both accounts of a customer are in one partition.

use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_txn::{Client, Configuration, Mode, Place, RetryPolicy, Table, TableId, Transaction, TxnError};
use serde::{Deserialize, Serialize};

use super::{Done, Item, KEY_BYTES, Workload, draw_kind, key_of, missing, number};

const SAVINGS: TableId = TableId(0);
const CHECKING: TableId = TableId(1);
const PART: u64 = 256;
/// Cents of each account at first.
const BALANCE: i64 = 1_000_000;
/// The hot accounts among all, and the transactions that use them, in percent.
const HOT_ACCOUNTS: u64 = 4;
const HOT_TRANSACTIONS: u64 = 90;
/// Cents that transactions move.
const DEPOSIT: i64 = 130;
const PAYMENT: i64 = 500;
const SAVING: i64 = 2_020;
const CHECK: i64 = 500;
const PENALTY: i64 = 100;

/// The transactions, in the order of [`SHARES`].
const KINDS: [&str; 6] =
    ["AMALGAMATE", "BALANCE", "DEPOSIT_CHECKING", "SEND_PAYMENT", "TRANSACT_SAVINGS", "WRITE_CHECK"];
/// Their shares, in percent: 85 % update.
const SHARES: [u64; 6] = [15, 15, 15, 25, 15, 15];

/// SmallBank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SmallBank {
    /// Customers, each with two accounts.
    pub accounts: u64,
}

/// The state of one task.
pub struct Worker(Random);

impl SmallBank {
    fn draw(&self, random: &mut Random) -> u64 {
        let hot = (self.accounts * HOT_ACCOUNTS / 100).max(2);
        if random.below(100) < HOT_TRANSACTIONS || hot >= self.accounts {
            random.below(hot)
        } else {
            random.between(hot, self.accounts - 1)
        }
    }
}

impl Workload for SmallBank {
    type Worker = Worker;

    fn tables(&self) -> Vec<Table> {
        vec!["savings".into(), "checking".into()]
    }

    fn kinds(&self) -> Vec<&'static str> {
        KINDS.to_vec()
    }

    fn parts(&self) -> u64 {
        self.accounts.div_ceil(PART)
    }

    fn load(&self, part: u64, to: &mut Vec<Item>) {
        for account in part * PART..((part + 1) * PART).min(self.accounts) {
            for table in [SAVINGS, CHECKING] {
                to.push((table, key_of(account).to_vec(), BALANCE.to_le_bytes().to_vec()));
            }
        }
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
        let kind = draw_kind(random, &SHARES);
        let first = self.draw(random);
        let mut second = self.draw(random);
        while second == first {
            second = self.draw(random);
        }
        let (first, second) = (key_of(first), key_of(second));
        let change = client.run(retry, async |tx| transact(tx, kind, &first, &second).await).await?;
        Ok(Done { kind, is_successful: change.is_some(), change: change.unwrap_or(0) })
    }

    /// Its balance.
    fn weight(&self, _: TableId, _: &[u8], value: &[u8]) -> i64 {
        number(value)
    }
}

type Key = [u8; KEY_BYTES];

/// What the transaction adds to the sum of all accounts; `None` if a balance does not allow it.
async fn transact<T: Transport + 'static>(
    tx: &mut Transaction<T>,
    kind: usize,
    first: &Key,
    second: &Key,
) -> Result<Option<i64>, TxnError> {
    use Mode::{Read, Update};
    match KINDS[kind] {
        "AMALGAMATE" => {
            let [savings, checking, to] =
                balances(tx, [(SAVINGS, first, Update), (CHECKING, first, Update), (CHECKING, second, Update)]).await?;
            set(tx, SAVINGS, first, 0)?;
            set(tx, CHECKING, first, 0)?;
            set(tx, CHECKING, second, to + savings + checking)?;
            Ok(Some(0))
        }
        "BALANCE" => {
            balances(tx, [(SAVINGS, first, Read), (CHECKING, first, Read)]).await?;
            Ok(Some(0))
        }
        "DEPOSIT_CHECKING" => {
            let [checking] = balances(tx, [(CHECKING, first, Update)]).await?;
            set(tx, CHECKING, first, checking + DEPOSIT)?;
            Ok(Some(DEPOSIT))
        }
        "SEND_PAYMENT" => {
            let [from, to] = balances(tx, [(CHECKING, first, Update), (CHECKING, second, Update)]).await?;
            if from < PAYMENT {
                tx.abort().await;
                return Ok(None);
            }
            set(tx, CHECKING, first, from - PAYMENT)?;
            set(tx, CHECKING, second, to + PAYMENT)?;
            Ok(Some(0))
        }
        "TRANSACT_SAVINGS" => {
            let [savings] = balances(tx, [(SAVINGS, first, Update)]).await?;
            set(tx, SAVINGS, first, savings + SAVING)?;
            Ok(Some(SAVING))
        }
        _ => {
            let [savings, checking] = balances(tx, [(SAVINGS, first, Read), (CHECKING, first, Update)]).await?;
            let paid = if savings + checking < CHECK { CHECK + PENALTY } else { CHECK };
            set(tx, CHECKING, first, checking - paid)?;
            Ok(Some(-paid))
        }
    }
}

async fn balances<T: Transport + 'static, const N: usize>(
    tx: &mut Transaction<T>,
    accounts: [(TableId, &Key, Mode); N],
) -> Result<[i64; N], TxnError> {
    let asked = accounts.map(|(table, key, mode)| (table, &key[..], mode));
    let mut found = [0; N];
    for (balance, value) in found.iter_mut().zip(tx.execute_each(&asked).await?) {
        *balance = number(&value.ok_or_else(missing)?);
    }
    Ok(found)
}

fn set<T: Transport + 'static>(
    tx: &mut Transaction<T>,
    table: TableId,
    key: &Key,
    balance: i64,
) -> Result<(), TxnError> {
    tx.put(table, key, balance.to_le_bytes().to_vec())
}
