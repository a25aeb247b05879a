//! The tree.

use etcd_client::KeyValue;

use super::keys::path_of;
use super::work::{Work, foreign, get, page};
use crate::error::CoordError;
use crate::path::{below, check_path, check_root, is_below};
use crate::types::{Entry, Listing, Revision};

impl Work {
    pub async fn get(self, path: String) -> Result<Option<Entry>, CoordError> {
        check_path(&path)?;
        let seen = self.read(vec![get(self.keys.entry(&path))]).await?;
        let found = seen.one(0);
        Ok(found.map(|found| Entry { version: found.mod_revision() as Revision, value: found.value().to_vec(), path }))
    }

    pub async fn list(self, root: String, after: Option<String>) -> Result<Listing, CoordError> {
        check_root(&root)?;
        let prefix = self.keys.entry(&below(&root));
        let after = after.filter(|after| is_below(after, &root)).map(|after| self.keys.entry(&after));
        let seen = self.read(vec![page(&prefix, after)]).await?;
        let entries = seen.all(0).iter().map(|found| self.entry(found)).collect::<Result<Vec<_>, _>>()?;
        let more_after = entries.last().filter(|_| seen.has_more(0)).map(|entry| entry.path.clone());
        Ok(Listing { revision: seen.revision, entries, more_after })
    }

    /// The entry in a key.
    pub fn entry(&self, found: &KeyValue) -> Result<Entry, CoordError> {
        let prefix = self.keys.entry("/");
        let key = found.key_str().map_err(|error| foreign(&prefix, error))?;
        let path = path_of(key, &prefix).ok_or_else(|| foreign(key, "it is in no tree"))?;
        Ok(Entry { path: path.to_owned(), version: found.mod_revision() as Revision, value: found.value().to_vec() })
    }
}
