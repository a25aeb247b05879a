//! The tree.

use std::ops::Bound;

use super::PAGE_BYTES_MAX;
use super::state::{Leaf, State};
use crate::error::CoordError;
use crate::limits::Limits;
use crate::mutation::{Mutation, is_planted};
use crate::path::{below, check_path, check_root, is_below};
use crate::types::{Condition, Entry, Happening, Listing};
use crate::wire::Answer;

/// What an entry counts in a page beyond its path and value.
const ENTRY_BYTES: usize = 16;

impl State {
    fn meets(&self, path: &str, condition: Condition) -> Result<(), CoordError> {
        let version = self.tree.get(path).map(|leaf| leaf.version);
        match (condition, version) {
            (Condition::Absent, Some(version)) => Err(CoordError::Exists { path: path.to_owned(), version }),
            (Condition::Version { .. }, None) => Err(CoordError::NotFound { what: path.to_owned() }),
            (Condition::Version { version: wanted }, Some(version))
                if wanted < version && is_planted(Mutation::OlderVersionAccepted) =>
            {
                Ok(())
            }
            (Condition::Version { version: wanted }, Some(version)) if wanted != version => {
                Err(CoordError::Changed { path: path.to_owned(), version })
            }
            _ => Ok(()),
        }
    }

    pub fn set(
        &mut self,
        limits: &Limits,
        path: String,
        value: Vec<u8>,
        condition: Condition,
    ) -> Result<Answer, CoordError> {
        check_path(&path)?;
        limits.check_value(&value)?;
        self.meets(&path, condition)?;
        let before = self.tree.get(&path).map(|leaf| (path.len() + leaf.value.len()) as u64);
        if before.is_none() && self.tree.len() >= limits.entries_max {
            return Err(CoordError::Full { what: "entries".into(), max: limits.entries_max as u64 });
        }
        let bytes = self.tree_bytes - before.unwrap_or(0) + (path.len() + value.len()) as u64;
        if bytes > limits.tree_bytes_max as u64 {
            return Err(CoordError::Full { what: "bytes in the tree".into(), max: limits.tree_bytes_max as u64 });
        }
        self.tree_bytes = bytes;
        let version = self.next();
        self.tree.insert(path.clone(), Leaf { version, value: value.clone() });
        Ok(Answer::Done { revision: self.happen(Happening::Set { path, value }) })
    }

    pub fn delete(&mut self, path: String, condition: Condition) -> Result<Answer, CoordError> {
        check_path(&path)?;
        self.meets(&path, condition)?;
        let Some(leaf) = self.tree.remove(&path) else { return Err(CoordError::NotFound { what: path }) };
        self.tree_bytes -= (path.len() + leaf.value.len()) as u64;
        Ok(Answer::Done { revision: self.happen(Happening::Deleted { path }) })
    }

    pub fn get(&self, path: String) -> Result<Answer, CoordError> {
        check_path(&path)?;
        let leaf = self.tree.get(&path);
        let entry = leaf.map(|leaf| Entry { path, version: leaf.version, value: leaf.value.clone() });
        Ok(Answer::Found { entry })
    }

    /// A page of the entries strictly below a path.
    pub fn list(&self, root: &str, after: Option<String>) -> Result<Answer, CoordError> {
        check_root(root)?;
        let start = match after.filter(|after| is_below(after, root)) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Excluded(below(root)),
        };
        let (mut entries, mut bytes, mut more_after) = (Vec::<Entry>::new(), 0, None);
        for (path, leaf) in self.tree.range((start, Bound::Unbounded)).take_while(|(path, _)| is_below(path, root)) {
            bytes += ENTRY_BYTES + path.len() + leaf.value.len();
            if bytes > PAGE_BYTES_MAX && !entries.is_empty() {
                more_after = entries.last().map(|entry| entry.path.clone());
                break;
            }
            entries.push(Entry { path: path.clone(), version: leaf.version, value: leaf.value.clone() });
        }
        Ok(Answer::Listing { listing: Listing { revision: self.revision, entries, more_after } })
    }
}
