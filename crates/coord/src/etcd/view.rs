//! Members, leases and a subtree at one revision.

use etcd_client::KeyValue;

use super::leases::held_lease;
use super::work::{Outcome, Work, foreign, get, page, page_at};
use crate::error::CoordError;
use crate::path::{below, check_root};
use crate::types::{VIEW_BYTES_MAX, VIEW_ITEM_BYTES, View};

impl Work {
    pub async fn view(self, root: String) -> Result<View, CoordError> {
        check_root(&root)?;
        let (keys, mut gets) = (&self.keys, self.look_at_members());
        let (leases, entries) = (keys.lease(&below(&root)), keys.entry(&below(&root)));
        // There is no entry at `/` itself.
        let at = [get(keys.lease(&root)), get(keys.entry(&root))];
        gets.extend([page(&leases, None), page(&entries, None)]);
        gets.extend(at.into_iter().filter(|_| root != "/"));
        let seen = self.read(gets).await?;
        let leases = self.all_from(&seen, 4, &leases).await?;
        let entries = self.all_from(&seen, 5, &entries).await?;
        let (Some(leases), Some(entries)) = (leases, entries) else { return Err(View::too_large(&root)) };
        let leases = seen.all(6).iter().chain(&leases).map(|found| held_lease(found, &keys.leases()));
        let entries = seen.all(7).iter().chain(&entries).map(|found| self.entry(found));
        let view = View {
            members: self.members_in(&seen)?,
            leases: leases.collect::<Result<_, _>>()?,
            entries: entries.collect::<Result<_, _>>()?,
        };
        view.check_bytes(&root)
    }

    /// All keys with a prefix, as of the revision at which the first page was read. `None` if they exceed the limit of
    /// a view; then no more pages are read.
    async fn all_from(&self, seen: &Outcome, place: usize, prefix: &str) -> Result<Option<Vec<KeyValue>>, CoordError> {
        let (mut all, mut has_more) = (seen.all(place).to_vec(), seen.has_more(place));
        while let Some(last) = all.last().filter(|_| has_more) {
            if all.iter().map(|found| VIEW_ITEM_BYTES + found.value().len()).sum::<usize>() > VIEW_BYTES_MAX {
                return Ok(None);
            }
            let last = last.key_str().map_err(|error| foreign(prefix, error))?.to_owned();
            let page = self.read(vec![page_at(prefix, last, seen.revision)]).await?;
            all.extend_from_slice(page.all(0));
            has_more = page.has_more(0);
        }
        Ok(Some(all))
    }
}
