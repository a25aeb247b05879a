//! The judge of histories beside one that is not ours: both must say the same of what clients saw in whole runs, and of histories that were falsified.

use std::sync::Arc;

use porcupine_rs::{Model, Operation, check_operations};

use super::history::{End, Entry, Found, Input, Output};
use super::item::{self, Item};
use crate::hunt::{kv, raft};

/// Seeds of each kind.
const SEEDS: u64 = 40;

/// An item, in the words of the other judge.
#[derive(Clone)]
struct OneItem;

impl Model for OneItem {
    type State = Option<Item>;
    type Op = Arc<Entry>;
    type Metadata = ();

    fn init() -> Option<Item> {
        None
    }

    fn step(state: &Option<Item>, entry: &Arc<Entry>) -> (bool, Option<Item>) {
        match item::apply(state, entry) {
            Some(after) => (true, after),
            // Without an answer it may have been refused.
            None => (!matches!(entry.end, End::Answered(..)), state.clone()),
        }
    }
}

/// What the other judge says. An operation without an answer ends after all others: there it may stand last, where nobody sees what it does.
fn is_linearizable(key: usize, entries: &[Entry]) -> bool {
    let history: Vec<Operation<OneItem>> = entries
        .iter()
        .filter(|entry| entry.key == key && item::counts(entry))
        .map(|entry| Operation {
            client_id: None,
            call_time: entry.begun as i64,
            return_time: if let End::Answered(at, _) = entry.end { at as i64 } else { i64::MAX },
            op: Arc::new(entry.clone()),
            metadata: None,
        })
        .collect();
    check_operations(&history)
}

/// Both judge each key of a history; says how many are linearizable, of those of which ours can say it.
fn compare(keys: usize, entries: &[Entry], what: &str) -> usize {
    let judged = (0..keys).filter(|key| match item::judge(*key, entries) {
        Ok(false) => false,
        ours => {
            assert_eq!(ours.is_ok(), is_linearizable(*key, entries), "{what}, key {key}: {ours:?}");
            ours.is_ok()
        }
    });
    judged.count()
}

/// Gives the last read that found something a token that nobody was given.
fn falsify(entries: &mut [Entry]) -> Option<usize> {
    entries.iter_mut().rev().find_map(|entry| match (&entry.input, &mut entry.end) {
        (Input::Read, End::Answered(_, Output::Item(Some(Found { token, value, .. })))) => {
            *token += 1_000_000_000;
            value.push(b'!');
            Some(entry.key)
        }
        _ => None,
    })
}

fn judge_runs(history: impl Fn(u64) -> (usize, Vec<Entry>), what: &str) {
    let (mut linearizable, mut falsified) = (0, 0);
    for seed in 0..SEEDS {
        let (keys, mut entries) = history(seed);
        linearizable += compare(keys, &entries, &format!("{what}, seed {seed}"));
        if let Some(key) = falsify(&mut entries) {
            falsified += 1;
            assert!(
                item::judge(key, &entries).is_err() && !is_linearizable(key, &entries),
                "{what}, seed {seed}, falsified"
            );
        }
    }
    assert!(linearizable as u64 > SEEDS && falsified > SEEDS / 2, "{linearizable} keys, {falsified} falsified");
}

#[test]
fn another_judge_says_the_same_of_the_key_value_service() {
    judge_runs(kv::history, "kv");
}

#[test]
fn another_judge_says_the_same_of_replicated_state_machines() {
    judge_runs(raft::history, "raft");
}
