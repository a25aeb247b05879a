//! Transactions: each is one transaction of etcd.

use etcd_client::{Compare as Condition, CompareOp, Txn, TxnOp};

use super::work::{Outcome, Work, delete, exists, get, is_of, look, put, revision_for_etcd};
use crate::error::CoordError;
use crate::transaction::{Compare, Transaction, Write};
use crate::types::{Condition as EntryCondition, Happening, Revision};

/// Why a condition does not hold, given the version that was found. `None` if it holds.
fn unmet(path: &str, condition: EntryCondition, found: Option<Revision>) -> Option<CoordError> {
    match (condition, found) {
        (EntryCondition::Absent, Some(version)) => Some(CoordError::Exists { path: path.to_owned(), version }),
        (EntryCondition::Version { version: wanted }, Some(version)) if wanted != version => {
            Some(CoordError::Changed { path: path.to_owned(), version })
        }
        (EntryCondition::Version { .. }, None) => Some(CoordError::NotFound { what: path.to_owned() }),
        _ => None,
    }
}

impl Work {
    pub async fn transact(self, transaction: Transaction) -> Result<Revision, CoordError> {
        transaction.check(&self.limits)?;
        let conditions = self.conditions(&transaction);
        loop {
            let txn = Txn::new().when(conditions.clone());
            let txn = txn.and_then(self.changes(&transaction)).or_else(self.look_at(&transaction));
            // A transaction without writes leaves no trace, however often it is sent.
            let outcome =
                if transaction.writes.is_empty() { self.repeat(txn).await? } else { self.commit(txn).await? };
            if outcome.done {
                return Ok(outcome.revision);
            }
            if let Some(why) = self.refusal(&transaction, &outcome)? {
                return Err(why);
            }
        }
    }

    /// The compares, as comparisons of etcd.
    fn conditions(&self, transaction: &Transaction) -> Vec<Condition> {
        let (keys, mut conditions) = (&self.keys, Vec::new());
        for compare in &transaction.compares {
            match compare {
                // There is no key before the first epoch.
                Compare::Epoch { epoch: 0 } => conditions.push(exists(&keys.epoch(), false)),
                Compare::Epoch { epoch } => {
                    conditions.push(Condition::value(keys.epoch(), CompareOp::Equal, epoch.to_string()));
                }
                Compare::Lease { name, token } => conditions.push(is_of(&keys.lease(name), revision_for_etcd(*token))),
                Compare::Entry { condition: EntryCondition::Always, .. } => {}
                Compare::Entry { path, condition: EntryCondition::Absent } => {
                    conditions.push(exists(&keys.entry(path), false));
                }
                Compare::Entry { path, condition: EntryCondition::Version { version } } => {
                    conditions.push(is_of(&keys.entry(path), revision_for_etcd(*version)));
                }
            }
        }
        let deleted = transaction.writes.iter().filter(|write| matches!(write, Write::Delete { .. }));
        conditions.extend(deleted.map(|write| exists(&keys.entry(write.path()), true)));
        conditions
    }

    fn changes(&self, transaction: &Transaction) -> Vec<TxnOp> {
        let change = |write: &Write| match write {
            Write::Set { path, value } => put(self.keys.entry(path), value.clone()),
            Write::Delete { path } => delete(self.keys.entry(path)),
        };
        let happening = |write: &Write| match write.clone() {
            Write::Set { path, value } => Happening::Set { path, value },
            Write::Delete { path } => Happening::Deleted { path },
        };
        let mut changes: Vec<TxnOp> = transaction.writes.iter().map(change).collect();
        if !changes.is_empty() {
            changes.push(self.events(&transaction.writes.iter().map(happening).collect::<Vec<_>>()));
        }
        changes
    }

    /// Reads for all compares, in order, then for all writes.
    fn look_at(&self, transaction: &Transaction) -> Vec<TxnOp> {
        let compared = transaction.compares.iter().map(|compare| match compare {
            Compare::Epoch { .. } => get(self.keys.epoch()),
            Compare::Lease { name, .. } => look(self.keys.lease(name)),
            Compare::Entry { path, .. } => look(self.keys.entry(path)),
        });
        compared.chain(transaction.writes.iter().map(|write| look(self.keys.entry(write.path())))).collect()
    }

    /// The first compare that does not hold.
    fn refusal(&self, transaction: &Transaction, seen: &Outcome) -> Result<Option<CoordError>, CoordError> {
        let version = |place| Some(seen.mod_revision(place) as Revision).filter(|version| *version > 0);
        for (place, compare) in transaction.compares.iter().enumerate() {
            let why = match compare {
                Compare::Epoch { epoch } => {
                    let now = seen.number(place)?;
                    (now != *epoch).then_some(CoordError::EpochChanged { epoch: now })
                }
                Compare::Lease { name, token } if version(place) != Some(*token) => {
                    Some(CoordError::LeaseLost { name: name.clone(), token: *token })
                }
                Compare::Lease { .. } => None,
                Compare::Entry { path, condition } => unmet(path, *condition, version(place)),
            };
            if why.is_some() {
                return Ok(why);
            }
        }
        let is_missing = |(place, write): &(usize, &Write)| {
            matches!(write, Write::Delete { .. }) && version(transaction.compares.len() + place).is_none()
        };
        let missing = transaction.writes.iter().enumerate().find(is_missing);
        Ok(missing.map(|(_, write)| CoordError::NotFound { what: write.path().to_owned() }))
    }
}
