//! Transactions.

use super::state::State;
use super::taking::Taking;
use crate::error::CoordError;
use crate::limits::Limits;
use crate::mutation::{Mutation, is_planted};
use crate::transaction::{Compare, Transaction, Write};
use crate::wire::Answer;

impl State {
    /// Does all writes of a transaction, in one step, or none. A snapshot that is being taken keeps what they replace.
    pub fn transact(
        &mut self,
        limits: &Limits,
        transaction: Transaction,
        mut taking: Option<&mut Taking>,
    ) -> Result<Answer, CoordError> {
        transaction.check(limits)?;
        transaction.compares.iter().try_for_each(|compare| self.compare(compare))?;
        self.check_room(limits, &transaction.writes)?;
        let revision = if transaction.writes.is_empty() { self.revision } else { self.next() };
        for write in transaction.writes {
            if let Some(taking) = &mut taking {
                taking.keep(&self.tree, write.path());
            }
            self.write(write);
        }
        Ok(Answer::Done { revision })
    }

    fn compare(&self, compare: &Compare) -> Result<(), CoordError> {
        match compare {
            Compare::Epoch { epoch } if *epoch != self.epoch => Err(CoordError::EpochChanged { epoch: self.epoch }),
            Compare::Epoch { .. } => Ok(()),
            Compare::Lease { name, .. }
                if is_planted(Mutation::FormerHolderWrites) && self.leases.contains_key(name) =>
            {
                Ok(())
            }
            Compare::Lease { name, token } => self.held(name, *token).map(|_| ()),
            Compare::Entry { path, condition } => self.meets(path, *condition),
        }
    }

    /// Checks that the tree has the entries to be deleted, and has room for the result of all writes.
    fn check_room(&self, limits: &Limits, writes: &[Write]) -> Result<(), CoordError> {
        let (mut entries, mut bytes) = (self.tree.len(), self.tree_bytes);
        for write in writes {
            let before = self.tree.get(write.path());
            let path_bytes = write.path().len() as u64;
            bytes -= before.map_or(0, |leaf| path_bytes + leaf.value.len() as u64);
            match (write, before) {
                (Write::Set { value, .. }, _) => {
                    entries += usize::from(before.is_none());
                    bytes += path_bytes + value.len() as u64;
                }
                (Write::Delete { .. }, Some(_)) => entries -= 1,
                (Write::Delete { path }, None) => return Err(CoordError::NotFound { what: path.clone() }),
            }
        }
        if entries > limits.entries_max && entries > self.tree.len() {
            return Err(CoordError::Full { what: "entries".into(), max: limits.entries_max as u64 });
        }
        if bytes > limits.tree_bytes_max as u64 && bytes > self.tree_bytes {
            return Err(CoordError::Full { what: "bytes in the tree".into(), max: limits.tree_bytes_max as u64 });
        }
        Ok(())
    }
}
