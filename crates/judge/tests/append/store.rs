//! Histories from seeds: of a store that executes one transaction at a time while clients overlap, and of no store at
//! all.

use std::collections::HashMap;

use dunlin_net::random::Random;

use super::{Op, Outcome, Transaction};

/// The work of clients.
pub struct Workload {
    pub transactions: usize,
    pub keys: u64,
    /// Each has one transaction at a time.
    pub clients: usize,
}

/// Maximum time between two commits.
const GAP_MAX: u64 = 20;
/// Maximum time from a beginning to the commit, and from there to the end.
const DELAY_MAX: u64 = 100;

/// The lists of a serial store, and the next element for each key.
#[derive(Default)]
struct Store {
    lists: HashMap<u64, Vec<u64>>,
    elements: HashMap<u64, u64>,
}

/// Runs a workload; about one transaction in ten aborts, and one in ten has an unknown outcome.
pub fn run(workload: &Workload, random: &mut Random) -> Vec<Transaction> {
    let mut store = Store::default();
    let mut free_at = vec![0; workload.clients];
    let mut now = DELAY_MAX;
    let mut history = Vec::with_capacity(workload.transactions);
    for _ in 0..workload.transactions {
        now += random.below(GAP_MAX);
        let client = random.below(workload.clients as u64) as usize;
        now = now.max(free_at[client] + 1);
        let begun = (now - random.below(DELAY_MAX)).max(free_at[client] + 1);
        let end = now + random.below(DELAY_MAX);
        let (outcome, is_executed) = match random.below(20) {
            0 | 1 => (Outcome::Aborted, false),
            2 => (Outcome::Unknown, true),
            3 => (Outcome::Unknown, false),
            _ => (Outcome::Committed(end), true),
        };
        let mut ops = store.execute(workload.keys, is_executed, random);
        if outcome == Outcome::Unknown && random.chance(0.5) {
            ops.iter_mut().for_each(forget);
        }
        history.push(Transaction { client, begun, outcome, ops });
        free_at[client] = end;
    }
    history
}

/// A history of up to seven transactions.
pub fn small(random: &mut Random) -> Vec<Transaction> {
    let transactions = random.between(2, 7) as usize;
    let workload = Workload { transactions, keys: random.between(1, 3), clients: random.between(1, 4) as usize };
    run(&workload, random)
}

/// Three transactions that overlap at random and read random lists, which no store had.
pub fn scribbled(random: &mut Random) -> Vec<Transaction> {
    let mut next = 0;
    let mut transaction = |number: u64| {
        let begun = random.below(30);
        let outcome = match random.below(8) {
            0 => Outcome::Aborted,
            1 => Outcome::Unknown,
            _ => Outcome::Committed(begun + random.below(30)),
        };
        let ops = (0..random.between(1, 3)).map(|_| {
            let key = random.below(2);
            if random.chance(0.5) {
                next += 1;
                return Op::Append { key, element: next };
            }
            let list = (0..random.below(3)).map(|_| random.between(1, 4)).collect();
            Op::Read { key, list: Some(list) }
        });
        Transaction { client: number as usize, begun, outcome, ops: ops.collect() }
    };
    (0..3).map(&mut transaction).collect()
}

fn forget(op: &mut Op) {
    if let Op::Read { list, .. } = op {
        *list = None;
    }
}

impl Store {
    /// Executes a transaction of one to four operations, and undoes it unless `is_executed`.
    fn execute(&mut self, keys: u64, is_executed: bool, random: &mut Random) -> Vec<Op> {
        let mut undo = Vec::new();
        let mut ops = Vec::new();
        for _ in 0..random.between(1, 4) {
            let key = random.below(keys);
            let list = self.lists.entry(key).or_default();
            if random.chance(0.5) {
                let element = self.elements.entry(key).or_default();
                *element += 1;
                list.push(*element);
                undo.push(key);
                ops.push(Op::Append { key, element: *element });
            } else {
                ops.push(Op::Read { key, list: Some(list.clone()) });
            }
        }
        if !is_executed {
            for key in undo {
                self.lists.get_mut(&key).expect("it was appended to").pop();
            }
        }
        ops
    }
}
