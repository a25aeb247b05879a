//! The tree.

use etcd_client::{Compare, Txn, TxnOp};

use super::keys::path_of;
use super::work::{Work, delete, exists, foreign, get, is_of, look, page, put, revision_for_etcd};
use crate::error::CoordError;
use crate::path::{below, check_path, check_root, is_below};
use crate::types::{Condition, Entry, Happening, Listing, Revision};

/// Why a condition was not met, by the version that was found.
fn unmet(path: &str, condition: Condition, found: Option<Revision>) -> CoordError {
    match (condition, found) {
        (Condition::Absent, Some(version)) => CoordError::Exists { path: path.to_owned(), version },
        (_, Some(version)) => CoordError::Changed { path: path.to_owned(), version },
        (_, None) => CoordError::NotFound { what: path.to_owned() },
    }
}

/// What must hold of an entry for a condition to be met, in words of etcd.
fn conditions(key: &str, condition: Condition) -> Vec<Compare> {
    match condition {
        Condition::Always => Vec::new(),
        Condition::Absent => vec![exists(key, false)],
        Condition::Version { version } => vec![is_of(key, revision_for_etcd(version))],
    }
}

impl Work {
    pub async fn get(self, path: String) -> Result<Option<Entry>, CoordError> {
        check_path(&path)?;
        let seen = self.read(vec![get(self.keys.entry(&path))]).await?;
        let found = seen.one(0);
        Ok(found.map(|found| Entry { version: found.mod_revision() as Revision, value: found.value().to_vec(), path }))
    }

    pub async fn set(self, path: String, value: Vec<u8>, condition: Condition) -> Result<Revision, CoordError> {
        check_path(&path)?;
        self.limits.check_value(&value)?;
        let key = self.keys.entry(&path);
        let set = [put(key.clone(), value.clone()), self.event(Happening::Set { path: path.clone(), value })];
        self.change(&path, condition, conditions(&key, condition), set).await
    }

    pub async fn delete(self, path: String, condition: Condition) -> Result<Revision, CoordError> {
        check_path(&path)?;
        let key = self.keys.entry(&path);
        if condition == Condition::Absent {
            let seen = self.read(vec![look(key)]).await?;
            return Err(unmet(&path, condition, seen.one(0).map(|found| found.mod_revision() as Revision)));
        }
        let mut conditions = conditions(&key, condition);
        conditions.push(exists(&key, true));
        let end = [delete(key), self.event(Happening::Deleted { path: path.clone() })];
        self.change(&path, condition, conditions, end).await
    }

    async fn change(
        &self,
        path: &str,
        condition: Condition,
        conditions: Vec<Compare>,
        change: [TxnOp; 2],
    ) -> Result<Revision, CoordError> {
        let txn = Txn::new().when(conditions).and_then(change).or_else([look(self.keys.entry(path))]);
        let outcome = self.commit(txn).await?;
        if outcome.done {
            return Ok(outcome.revision);
        }
        Err(unmet(path, condition, outcome.one(0).map(|found| found.mod_revision() as Revision)))
    }

    pub async fn list(self, root: String, after: Option<String>) -> Result<Listing, CoordError> {
        check_root(&root)?;
        let prefix = self.keys.entry(&below(&root));
        let after = after.filter(|after| is_below(after, &root)).map(|after| self.keys.entry(&after));
        let seen = self.read(vec![page(&prefix, after)]).await?;
        let mut entries = Vec::with_capacity(seen.all(0).len());
        for found in seen.all(0) {
            let key = found.key_str().map_err(|error| foreign(&prefix, error))?;
            let path = path_of(key, &self.keys.entry("/")).ok_or_else(|| foreign(key, "it is in no tree"))?;
            let (version, value) = (found.mod_revision() as Revision, found.value().to_vec());
            entries.push(Entry { path: path.to_owned(), version, value });
        }
        let more_after = entries.last().filter(|_| seen.has_more(0)).map(|entry| entry.path.clone());
        Ok(Listing { revision: seen.revision, entries, more_after })
    }
}
