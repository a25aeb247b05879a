//! Members, leases and a subtree at one revision.

use super::leases::held_lease;
use super::work::{Work, get, get_all};
use crate::error::CoordError;
use crate::path::{below, check_root};
use crate::types::View;

impl Work {
    pub async fn view(self, root: String) -> Result<View, CoordError> {
        check_root(&root)?;
        let (keys, mut gets) = (&self.keys, self.look_at_members());
        // Nothing is at `/` itself.
        let at = [get(keys.lease(&root)), get(keys.entry(&root))];
        gets.extend([get_all(keys.lease(&below(&root))), get_all(keys.entry(&below(&root)))]);
        gets.extend(at.into_iter().filter(|_| root != "/"));
        let seen = self.read(gets).await?;
        let leases = seen.all(6).iter().chain(seen.all(4)).map(|found| held_lease(found, &keys.leases()));
        let entries = seen.all(7).iter().chain(seen.all(5)).map(|found| self.entry(found));
        let view = View {
            members: self.members_in(&seen)?,
            leases: leases.collect::<Result<_, _>>()?,
            entries: entries.collect::<Result<_, _>>()?,
        };
        view.check_bytes(&root)
    }
}
