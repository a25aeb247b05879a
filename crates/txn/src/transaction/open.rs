//! Transactions that are open at one coordinator.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use slab::Slab;

/// The transactions of one coordinator that have begun, and have neither been dropped nor ended at all participants.
#[derive(Debug, Default)]
pub(crate) struct OpenSet {
    list: RefCell<List>,
    admitted: Cell<usize>,
}

/// They begin in the order of their sequences, so the first of a list is the lowest.
#[derive(Debug, Default)]
struct List {
    nodes: Slab<Node>,
    first: Option<usize>,
    last: Option<usize>,
}

#[derive(Debug)]
struct Node {
    sequence: u64,
    before: Option<usize>,
    behind: Option<usize>,
}

impl List {
    fn push(&mut self, sequence: u64) -> usize {
        let place = self.nodes.insert(Node { sequence, before: self.last, behind: None });
        match self.last {
            Some(last) => self.nodes[last].behind = Some(place),
            None => self.first = Some(place),
        }
        self.last = Some(place);
        place
    }

    fn remove(&mut self, place: usize) {
        let Node { before, behind, .. } = self.nodes.remove(place);
        match before {
            Some(before) => self.nodes[before].behind = behind,
            None => self.first = behind,
        }
        match behind {
            Some(behind) => self.nodes[behind].before = before,
            None => self.last = before,
        }
    }
}

impl OpenSet {
    pub fn len(&self) -> usize {
        self.list.borrow().nodes.len()
    }

    pub fn lowest(&self) -> Option<u64> {
        let list = self.list.borrow();
        list.first.map(|first| list.nodes[first].sequence)
    }
}

/// An open transaction: part of its state, and so owned by the task that ends it.
#[derive(Debug)]
pub(crate) struct Open {
    all: Rc<OpenSet>,
    place: usize,
    is_admitted: bool,
}

impl Open {
    /// The sequence must be higher than all before it.
    pub fn new(all: &Rc<OpenSet>, sequence: u64) -> Open {
        let place = all.list.borrow_mut().push(sequence);
        Open { all: all.clone(), place, is_admitted: false }
    }

    /// Whether it may send messages: it already may, or fewer than `max` others may.
    pub fn admit(&mut self, max: usize) -> bool {
        if !self.is_admitted && self.all.admitted.get() < max {
            self.all.admitted.set(self.all.admitted.get() + 1);
            self.is_admitted = true;
        }
        self.is_admitted
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.all.list.borrow_mut().remove(self.place);
        self.all.admitted.set(self.all.admitted.get() - usize::from(self.is_admitted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_is_known_whatever_ends_first() {
        let all = Rc::<OpenSet>::default();
        let mut open: Vec<Open> = (1..=5).map(|sequence| Open::new(&all, sequence)).collect();
        for (ends, lowest) in [(2, Some(1)), (0, Some(2)), (0, Some(4)), (1, Some(4)), (0, None)] {
            drop(open.remove(ends));
            assert_eq!((all.lowest(), all.len()), (lowest, open.len()));
        }
        let again = Open::new(&all, 9);
        assert_eq!((all.lowest(), all.len()), (Some(9), 1));
        drop(again);
    }

    #[test]
    fn a_limited_number_is_admitted() {
        let all = Rc::<OpenSet>::default();
        let mut open: Vec<Open> = (1..=3).map(|sequence| Open::new(&all, sequence)).collect();
        let admitted: Vec<bool> = open.iter_mut().map(|open| open.admit(2)).collect();
        assert_eq!(admitted, [true, true, false]);
        drop(open.remove(0));
        assert!(open[1].admit(2));
    }
}
