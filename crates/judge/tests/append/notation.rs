//! A notation for transactions: `ax1 rx12` appends 1 to key x and then reads x as [1 2].

use super::{Op, Outcome, Transaction};

/// A committed transaction from 0 to 1,000.
pub fn t(words: &str) -> Transaction {
    let ops = words.split_whitespace().map(op).collect();
    Transaction { client: 0, begun: 0, outcome: Outcome::Committed(1_000), ops }
}

/// A committed transaction with these times.
pub fn at(begun: u64, ended: u64, words: &str) -> Transaction {
    Transaction { begun, outcome: Outcome::Committed(ended), ..t(words) }
}

/// An aborted transaction.
pub fn aborted(words: &str) -> Transaction {
    Transaction { outcome: Outcome::Aborted, ..t(words) }
}

/// A transaction with an unknown outcome.
pub fn unknown(words: &str) -> Transaction {
    Transaction { outcome: Outcome::Unknown, ..t(words) }
}

fn op(word: &str) -> Op {
    let (kind, key) = (&word[..1], u64::from(word.as_bytes()[1]));
    let digits: Vec<u64> = word[2..].chars().map(|digit| u64::from(digit.to_digit(10).expect("a digit"))).collect();
    match kind {
        "a" => Op::Append { key, element: digits[0] },
        "r" => Op::Read { key, list: Some(digits) },
        _ => panic!("no such operation: {word}"),
    }
}
