//! Faults injected into histories, some of them harmless.

use dunlin_net::random::Random;

use super::run::key;
use super::{Answer, End, Entry, Operation};

/// Changes something at random.
pub fn spoil(history: &mut [Entry], random: &mut Random) {
    let number = random.below(history.len() as u64) as usize;
    let entry = &mut history[number];
    match random.below(8) {
        0 => {
            let shift = random.below(20);
            entry.begun += shift;
            if let End::Answered(at, _) = &mut entry.end {
                *at += shift;
            }
        }
        1 => entry.end = End::Unknown,
        2 => entry.end = End::NotExecuted,
        3 => {
            if let Operation::Put { value, .. } = &mut entry.operation {
                *value = b"9".to_vec();
            }
        }
        _ => match &mut entry.end {
            End::Answered(_, Answer::Items(items)) => spoil_items(items, random),
            End::Answered(_, Answer::Value(value)) => {
                *value = random.chance(0.5).then(|| random.below(2).to_string().into_bytes());
            }
            End::Answered(_, Answer::Existed(existed)) => *existed = !*existed,
            _ => {}
        },
    }
}

fn spoil_items(items: &mut Vec<(Vec<u8>, Vec<u8>)>, random: &mut Random) {
    let place = random.below(items.len() as u64 + 1) as usize;
    match random.below(5) {
        0 if place < items.len() => drop(items.remove(place)),
        1 if place < items.len() => items[place].1 = random.below(3).to_string().into_bytes(),
        2 if place + 1 < items.len() => items.swap(place, place + 1),
        3 if place < items.len() => items.insert(place, items[place].clone()),
        _ => items.insert(place, (key(random.below(4)), random.below(2).to_string().into_bytes())),
    }
}
