//! A cycle in words: its transactions, and the observation behind each edge.

use super::cycle::Cycle;
use super::graph::{Dependency, Edge};
use super::history::Transaction;
use super::versions::{Observations, Versions};
use crate::micros::Micros;

/// Returns the evidence for a cycle, one line for each transaction and each edge.
pub fn explain(observations: &Observations<'_>, cycle: &Cycle) -> String {
    let history = observations.history;
    let mut text = String::new();
    for (number, _) in cycle {
        text += &format!("T{number}, {}\n", history[*number]);
    }
    for (from, edge) in cycle {
        text += &format!("- T{from} comes before T{}: {}\n", edge.to, reason(observations, *from, edge));
    }
    text + &format!("so T{} would come before itself", cycle[0].0)
}

fn reason(observations: &Observations<'_>, from: usize, edge: &Edge) -> String {
    let history = observations.history;
    let to = edge.to;
    if edge.dependency == Dependency::RealTime {
        return in_time(&history[from], from, &history[to], to);
    }
    let versions = &observations.keys[edge.key];
    let key = versions.key;
    let shown = |element: Option<u64>| element.map_or("nothing".to_owned(), |element| element.to_string());
    let (before, after) = (shown(edge.before), shown(edge.after));
    match edge.dependency {
        Dependency::WriteRead => format!("T{from} appended {before} to key {key}, and T{to} read it"),
        Dependency::WriteWrite => {
            let order = place(observations, versions, edge.after);
            format!("T{from} appended {before} to key {key}, and T{to} appended {after} later: {order}")
        }
        _ => {
            let order = place(observations, versions, edge.after);
            let seen = match edge.before {
                Some(last) => format!("up to {last}"),
                None => "as empty".into(),
            };
            format!("T{from} read key {key} {seen}, and T{to} appended {after} later: {order}")
        }
    }
}

/// The evidence for the position of an element in a key's list.
fn place(observations: &Observations<'_>, versions: &Versions<'_>, element: Option<u64>) -> String {
    let append = element.and_then(|element| observations.appends.get(&(versions.key, element)));
    match append.and_then(|append| append.position) {
        Some(position) => format!("T{} read it as element {position}, from 0", versions.witness),
        None if versions.order.is_empty() => "nobody read the key other than empty".into(),
        None => format!("the longest list, which T{} read, is without it", versions.witness),
    }
}

fn in_time(one: &Transaction, from: usize, other: &Transaction, to: usize) -> String {
    let end = one.committed_at().expect("only what ended comes before something in time");
    format!("T{from} had ended at {}, and T{to} began at {}", Micros(end), Micros(other.begun))
}
