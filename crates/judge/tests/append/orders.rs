//! The definition itself: a search through all orders of a small history.

use std::collections::HashMap;

use super::{Op, Outcome, Transaction};

/// Returns whether some order of all committed and some of the unknown transactions, in agreement with real time,
/// explains every read.
pub fn exists(history: &[Transaction]) -> bool {
    extend(history, &mut Vec::new(), &HashMap::new())
}

fn extend(history: &[Transaction], order: &mut Vec<usize>, lists: &HashMap<u64, Vec<u64>>) -> bool {
    let left = || (0..history.len()).filter(|number| history[*number].outcome != Outcome::Aborted);
    let left: Vec<usize> = left().filter(|number| !order.contains(number)).collect();
    let end = |number: usize| if let Outcome::Committed(at) = history[number].outcome { Some(at) } else { None };
    if left.iter().all(|number| end(*number).is_none()) {
        return true;
    }
    left.iter().any(|next| {
        let is_late = left.iter().any(|other| end(*other).is_some_and(|at| at < history[*next].begun));
        let Some(lists) = after(lists, &history[*next]).filter(|_| !is_late) else { return false };
        order.push(*next);
        let found = extend(history, order, &lists);
        order.pop();
        found
    })
}

/// The lists after a transaction; `None` if it read anything else than the lists.
fn after(lists: &HashMap<u64, Vec<u64>>, transaction: &Transaction) -> Option<HashMap<u64, Vec<u64>>> {
    let mut lists = lists.clone();
    for op in &transaction.ops {
        match op {
            Op::Append { key, element } => lists.entry(*key).or_default().push(*element),
            Op::Read { list: None, .. } => {}
            Op::Read { key, list: Some(list) } => {
                if lists.get(key).map_or(&[][..], |list| list) != &list[..] {
                    return None;
                }
            }
        }
    }
    Some(lists)
}
