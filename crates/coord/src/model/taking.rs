//! Takes a snapshot of a state, one piece at a time, while commands change the state.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use dunlin_smr::machine::Piece;

use super::SNAPSHOT_VERSION;
use super::state::{Leaf, State};
use crate::limits::ITEM_BYTES;
use crate::types::{Event, Revision};
use crate::wire::{Wire, put_len};

/// Bytes that an entry of a later revision counts in a piece, although it is not written: otherwise one piece might pass
/// over any number of them.
const PASSED_BYTES: usize = ITEM_BYTES;

/// The rest of a snapshot that was begun. Members, leases and epochs, of which there are few, are written first. Then
/// follow the tree, without what is set or deleted meanwhile, and the events, which are shared with the state.
#[derive(Debug, Clone)]
pub(super) struct Taking {
    /// The revision of the snapshot: entries of later ones are not in it.
    revision: Revision,
    /// Entries that are left, and the path after which they begin.
    left: usize,
    place: Bound<String>,
    /// The entries of the snapshot that were set or deleted before they were written, as they were.
    replaced: BTreeMap<String, Leaf>,
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
            revision: state.revision,
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
        let leaf = tree.get(path).filter(|leaf| leaf.version <= self.revision);
        if let Some(leaf) = leaf.filter(|_| self.left > 0 && !is_written) {
            self.replaced.insert(path.to_owned(), leaf.clone());
        }
    }

    /// Takes entries in the order of paths: those of the tree, and instead of those that were replaced what they were.
    fn take_entries(&mut self, tree: &BTreeMap<String, Leaf>, mut end: usize, out: &mut Vec<u8>) {
        let place = self.place.as_ref().map(String::as_str);
        let mut present = tree.range::<str, _>((place, Bound::Unbounded)).peekable();
        while self.left > 0 && out.len() < end {
            let next = present.peek().map(|(path, _)| *path);
            if let Some(first) = self.replaced.first_entry().filter(|first| next.is_none_or(|next| first.key() <= next))
            {
                let (path, leaf) = first.remove_entry();
                self.take_entry(path, &leaf, out);
                continue;
            }
            let Some((path, leaf)) = present.next() else { break };
            if leaf.version <= self.revision {
                self.take_entry(path.clone(), leaf, out);
            } else {
                self.place = Bound::Excluded(path.clone());
                end = end.saturating_sub(PASSED_BYTES);
            }
        }
    }

    fn take_entry(&mut self, path: String, leaf: &Leaf, out: &mut Vec<u8>) {
        path.put(out);
        leaf.put(out);
        self.place = Bound::Excluded(path);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::transaction::{Transaction, Write};

    /// Does one write.
    fn write(state: &mut State, taking: &mut Option<Taking>, write: Write) {
        let transaction = Transaction { compares: Vec::new(), writes: vec![write] };
        state.transact(&Limits::default(), transaction, taking.as_mut()).unwrap();
        state.end_step(&Limits::default());
    }

    fn set(path: impl Into<String>) -> Write {
        Write::Set { path: path.into(), value: vec![7] }
    }

    /// Returns a state with two entries, its snapshot as a whole, and one that was begun.
    fn begun() -> (State, Vec<u8>, Option<Taking>, Vec<u8>) {
        let (mut state, mut whole, mut pieces) = (State::default(), Vec::new(), Vec::new());
        ["/a", "/z"].into_iter().for_each(|path| write(&mut state, &mut None, set(path)));
        Taking::begin(&state, &mut whole).take_piece(&state.tree, usize::MAX, &mut whole);
        let taking = Taking::begin(&state, &mut pieces);
        (state, whole, Some(taking), pieces)
    }

    #[test]
    fn entries_that_come_and_go_meanwhile_take_no_memory() {
        let (mut state, _, mut taking, _) = begun();
        for number in 0..100 {
            for path in ["/z".to_owned(), format!("/m/{number}")] {
                write(&mut state, &mut taking, set(&path));
                write(&mut state, &mut taking, Write::Delete { path });
            }
        }
        assert_eq!(taking.unwrap().replaced.into_keys().collect::<Vec<_>>(), ["/z"]);
    }

    #[test]
    fn a_piece_passes_over_few_entries_that_came_meanwhile() {
        let (mut state, whole, mut taking, mut pieces) = begun();
        (0..1000).for_each(|number| write(&mut state, &mut taking, set(format!("/m/{number}"))));
        let mut taking = taking.unwrap();
        let count = (1..).find(|_| taking.take_piece(&state.tree, 10 * PASSED_BYTES, &mut pieces) == Piece::Last);
        assert!((90..120).contains(&count.unwrap()), "{count:?} pieces");
        assert_eq!(pieces, whole);
    }
}
