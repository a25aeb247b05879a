//! Takes a snapshot of a state, one piece at a time, while commands change the state.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use dunlin_smr::machine::Piece;

use super::SNAPSHOT_VERSION;
use super::state::{Leaf, State};
use crate::types::Event;
use crate::wire::{Wire, put_len};

/// The rest of a snapshot that was begun. Members, leases and epochs, of which there are few, are written first. Then
/// follow the tree, without what is set or deleted meanwhile, and the events, which are shared with the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taking {
    /// Entries that are left, and the path after which they begin.
    left: usize,
    place: Bound<String>,
    /// The entries that were set or deleted before they were written, as they were; `None` if there was none.
    replaced: BTreeMap<String, Option<Leaf>>,
    tree_bytes: u64,
    history: VecDeque<Arc<Event>>,
    history_bytes: u64,
}

impl Taking {
    /// Begins a snapshot.
    pub fn begin(state: &State, out: &mut Vec<u8>) -> Taking {
        SNAPSHOT_VERSION.put(out);
        [state.revision, state.epoch, state.reign, state.failure_timeout_ms].iter().for_each(|number| number.put(out));
        state.epochs.put(out);
        state.members.put(out);
        state.leases.put(out);
        put_len(state.tree.len(), out);
        let mut taking = Taking {
            left: state.tree.len(),
            place: Bound::Unbounded,
            replaced: BTreeMap::new(),
            tree_bytes: state.tree_bytes,
            history: state.history().clone(),
            history_bytes: state.history_bytes(),
        };
        taking.end_tree(out);
        taking
    }

    /// Appends about `bytes` more.
    pub fn take_piece(&mut self, tree: &BTreeMap<String, Leaf>, bytes: usize, out: &mut Vec<u8>) -> Piece {
        let end = out.len().saturating_add(bytes);
        if self.left > 0 {
            self.take_entries(tree, end, out);
            self.end_tree(out);
        }
        while self.left == 0 && out.len() < end {
            let Some(event) = self.history.pop_front() else {
                self.history_bytes.put(out);
                return Piece::Last;
            };
            event.put(out);
        }
        Piece::Another
    }

    /// Keeps an entry that is about to be set or deleted.
    pub fn keep(&mut self, tree: &BTreeMap<String, Leaf>, path: &str) {
        let is_written = matches!(&self.place, Bound::Excluded(last) if path <= last.as_str());
        if self.left > 0 && !is_written && !self.replaced.contains_key(path) {
            self.replaced.insert(path.to_owned(), tree.get(path).cloned());
        }
    }

    /// Takes entries in the order of paths: those of the tree, and instead of those that were replaced what they were.
    fn take_entries(&mut self, tree: &BTreeMap<String, Leaf>, end: usize, out: &mut Vec<u8>) {
        let place = self.place.as_ref().map(String::as_str);
        let mut present = tree.range::<str, _>((place, Bound::Unbounded)).peekable();
        while self.left > 0 && out.len() < end {
            let next = present.peek().map(|(path, _)| *path);
            match self.replaced.first_entry().filter(|first| next.is_none_or(|next| first.key() <= next)) {
                Some(first) => {
                    present.next_if(|(path, _)| *path == first.key());
                    if let (path, Some(leaf)) = first.remove_entry() {
                        self.take_entry(&path, &leaf, out);
                    }
                }
                None => match present.next() {
                    Some((path, leaf)) => self.take_entry(path, leaf, out),
                    None => break,
                },
            }
        }
    }

    fn take_entry(&mut self, path: &String, leaf: &Leaf, out: &mut Vec<u8>) {
        path.put(out);
        leaf.put(out);
        self.place = Bound::Excluded(path.clone());
        self.left -= 1;
    }

    /// Writes what follows the last entry.
    fn end_tree(&mut self, out: &mut Vec<u8>) {
        if self.left == 0 {
            self.tree_bytes.put(out);
            put_len(self.history.len(), out);
        }
    }
}
