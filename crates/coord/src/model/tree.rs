//! The tree.

use std::ops::Bound;

use super::PAGE_BYTES_MAX;
use super::state::{Leaf, State};
use crate::error::CoordError;
use crate::mutation::{Mutation, is_planted};
use crate::path::{below, check_path, check_root, is_below};
use crate::transaction::Write;
use crate::types::{Condition, Entry, Happening, Listing};
use crate::wire::Answer;

/// Bytes that an entry counts in a page, beyond its path and value.
const ENTRY_BYTES: usize = 16;

impl State {
    /// Whether an entry meets a condition.
    pub fn meets(&self, path: &str, condition: Condition) -> Result<(), CoordError> {
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

    /// Executes a write whose room was checked.
    pub fn write(&mut self, write: Write) {
        let version = self.next();
        match write {
            Write::Set { path, value } => {
                self.tree_bytes += (path.len() + value.len()) as u64;
                let before = self.tree.insert(path.clone(), Leaf { version, value: value.clone() });
                self.tree_bytes -= before.map_or(0, |leaf| (path.len() + leaf.value.len()) as u64);
                self.happen(Happening::Set { path, value });
            }
            Write::Delete { path } => {
                let leaf = self.tree.remove(&path);
                self.tree_bytes -= leaf.map_or(0, |leaf| (path.len() + leaf.value.len()) as u64);
                self.happen(Happening::Deleted { path });
            }
        }
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
