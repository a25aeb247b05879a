//! Faults injected into histories.

use dunlin_net::random::Random;

use super::{Op, Outcome, Transaction};

/// Changes something at random, which may be harmless.
pub fn spoil(history: &mut [Transaction], random: &mut Random) {
    let number = random.below(history.len() as u64) as usize;
    let other = random.below(history.len() as u64) as usize;
    let shift = random.below(150);
    match random.below(8) {
        // Late or early.
        0 => shift_by(&mut history[number], |at| at + shift),
        1 => shift_by(&mut history[number], |at| at.saturating_sub(shift)),
        2 => history[number].outcome = Outcome::Aborted,
        3 => history[number].outcome = Outcome::Unknown,
        // It reads the list of another read, perhaps of another key.
        4 => {
            let copied = list(&mut history[other], random).map(|list| list.clone());
            if let (Some(copied), Some(list)) = (copied, list(&mut history[number], random)) {
                *list = copied;
            }
        }
        _ => {
            if let Some(list) = list(&mut history[number], random) {
                spoil_list(list, random);
            }
        }
    }
}

/// Takes an element from the middle of a list that a committed transaction read, or swaps two: both are always wrong.
pub fn spoil_badly(history: &mut [Transaction], random: &mut Random) -> String {
    loop {
        let number = random.below(history.len() as u64) as usize;
        if !matches!(history[number].outcome, Outcome::Committed(_)) {
            continue;
        }
        let Some(list) = list(&mut history[number], random).filter(|list| list.len() > 1) else { continue };
        let place = random.below(list.len() as u64 - 1) as usize;
        if random.chance(0.5) {
            return format!("T{number} without element {}", list.remove(place));
        }
        list.swap(place, place + 1);
        return format!("T{number} with element {place} and the next one swapped");
    }
}

fn shift_by(transaction: &mut Transaction, shifted: impl Fn(u64) -> u64) {
    transaction.begun = shifted(transaction.begun);
    if let Outcome::Committed(at) = &mut transaction.outcome {
        *at = shifted(*at);
    }
}

/// A random list that a transaction read.
fn list<'t>(transaction: &'t mut Transaction, random: &mut Random) -> Option<&'t mut Vec<u64>> {
    let lists =
        transaction.ops.iter_mut().filter_map(|op| if let Op::Read { list, .. } = op { list.as_mut() } else { None });
    let mut lists: Vec<&mut Vec<u64>> = lists.collect();
    if lists.is_empty() { None } else { Some(lists.swap_remove(random.below(lists.len() as u64) as usize)) }
}

fn spoil_list(list: &mut Vec<u64>, random: &mut Random) {
    let place = random.below(list.len() as u64 + 1) as usize;
    match random.below(4) {
        // Stale.
        0 => list.truncate(place),
        1 if place < list.len() => drop(list.remove(place)),
        2 if place + 1 < list.len() => list.swap(place, place + 1),
        // An element from nowhere, from an aborted transaction, or too early.
        _ => list.insert(place, random.between(1, 8)),
    }
}
