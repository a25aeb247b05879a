//! The definition itself: a search through all orders of the events of each key of a small history.

use std::collections::BTreeSet;

use super::run::{is_beyond, is_within};
use super::{Answer, End, Entry, Operation, Scan};

/// An operation on a key, or an observation of it.
struct View<'a> {
    entry: &'a Entry,
    /// What a scan showed of the key.
    shown: Option<Option<&'a [u8]>>,
}

/// Returns whether all scans keep to their bounds, limits and order, and the views of each key have an order, in
/// agreement with real time, in which all of them are right.
pub fn exist(history: &[Entry]) -> bool {
    let mut keys: BTreeSet<&[u8]> = BTreeSet::new();
    for entry in history {
        match (&entry.operation, &entry.end) {
            (Operation::Scan(scan), End::Answered(_, Answer::Items(items))) => {
                if !is_in_shape(scan, items) {
                    return false;
                }
                keys.extend(items.iter().map(|(key, _)| &key[..]));
            }
            (Operation::Put { key, .. } | Operation::Delete { key } | Operation::Get { key }, _) => {
                _ = keys.insert(key);
            }
            _ => {}
        }
    }
    keys.into_iter().all(|key| {
        let views: Vec<View<'_>> = history.iter().filter_map(|entry| view(entry, key)).collect();
        extend(&views, &mut Vec::new(), None)
    })
}

fn is_in_shape(scan: &Scan, items: &[(Vec<u8>, Vec<u8>)]) -> bool {
    let is_in_order = items.windows(2).all(|pair| is_beyond(scan, &pair[1].0, &pair[0].0));
    is_in_order
        && scan.limit.is_none_or(|limit| items.len() <= limit)
        && items.iter().all(|(key, _)| is_within(scan, key))
}

fn view<'a>(entry: &'a Entry, key: &[u8]) -> Option<View<'a>> {
    if entry.end == End::NotExecuted {
        return None;
    }
    match (&entry.operation, &entry.end) {
        (Operation::Scan(scan), End::Answered(_, Answer::Items(items))) => {
            let is_cut_off =
                scan.limit == Some(items.len()) && items.last().is_none_or(|(last, _)| is_beyond(scan, key, last));
            let value = items.iter().find(|(other, _)| other == key).map(|(_, value)| &value[..]);
            (is_within(scan, key) && !is_cut_off).then_some(View { entry, shown: Some(value) })
        }
        (Operation::Put { key: other, .. } | Operation::Delete { key: other } | Operation::Get { key: other }, _) => {
            (other == key).then_some(View { entry, shown: None })
        }
        _ => None,
    }
}

fn extend(views: &[View<'_>], order: &mut Vec<usize>, value: Option<&[u8]>) -> bool {
    let ended = |number: usize| if let End::Answered(at, _) = views[number].entry.end { Some(at) } else { None };
    let left: Vec<usize> = (0..views.len()).filter(|number| !order.contains(number)).collect();
    if left.iter().all(|number| ended(*number).is_none()) {
        return true;
    }
    left.iter().any(|next| {
        let is_late = left.iter().any(|other| ended(*other).is_some_and(|at| at < views[*next].entry.begun));
        if is_late || !is_right(&views[*next], value) {
            return false;
        }
        let after = match &views[*next].entry.operation {
            Operation::Put { value, .. } => Some(&value[..]),
            Operation::Delete { .. } => None,
            _ => value,
        };
        order.push(*next);
        let found = extend(views, order, after);
        order.pop();
        found
    })
}

fn is_right(view: &View<'_>, value: Option<&[u8]>) -> bool {
    match (&view.entry.end, view.shown) {
        (_, Some(shown)) => shown == value,
        (End::Answered(_, Answer::Existed(existed)), _) => *existed == value.is_some(),
        (End::Answered(_, Answer::Value(before)), _) => before.as_deref() == value,
        _ => true,
    }
}
