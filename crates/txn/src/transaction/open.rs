//! Transactions that are open at one coordinator.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The transactions of one coordinator that have begun, and have neither been dropped nor ended at all participants.
#[derive(Debug, Default)]
pub(crate) struct OpenSet {
    sequences: RefCell<BTreeSet<u64>>,
    admitted: Cell<usize>,
}

impl OpenSet {
    pub fn len(&self) -> usize {
        self.sequences.borrow().len()
    }

    pub fn lowest(&self) -> Option<u64> {
        self.sequences.borrow().first().copied()
    }
}

/// An open transaction: part of its state, and so owned by the task that ends it.
#[derive(Debug)]
pub(crate) struct Open {
    all: Rc<OpenSet>,
    sequence: u64,
    is_admitted: bool,
}

impl Open {
    pub fn new(all: &Rc<OpenSet>, sequence: u64) -> Open {
        all.sequences.borrow_mut().insert(sequence);
        Open { all: all.clone(), sequence, is_admitted: false }
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
        self.all.sequences.borrow_mut().remove(&self.sequence);
        self.all.admitted.set(self.all.admitted.get() - usize::from(self.is_admitted));
    }
}
