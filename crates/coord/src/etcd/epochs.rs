//! The members that came and went in each epoch: one key for each.

use etcd_client::{DeleteOptions, KeyValue, Txn, TxnOp};

use super::keys::number_of;
use super::work::{Work, first, foreign, get, number, page, put};
use crate::error::CoordError;
use crate::types::{EpochChange, Epochs, Happening, Revision};
use crate::wire::Wire;

impl Work {
    /// Writes the changes of an epoch. Belongs in the transaction that begins it.
    pub fn epoch_change(&self, epoch: u64, changes: &[Happening]) -> TxnOp {
        put(self.keys.epoch_change(epoch), changes.to_vec().to_bytes())
    }

    pub async fn epochs(self, after: u64) -> Result<Epochs, CoordError> {
        let keys = &self.keys;
        let (prefix, from) = (keys.epoch_changes(), keys.epoch_change(after));
        let seen = self.read(vec![page(&prefix, Some(from)), first(&prefix), get(keys.epoch())]).await?;
        let now = seen.number(2)?;
        let oldest = seen.one(1).map(|found| self.change(found)).transpose()?;
        let cut = oldest.map_or(now, |oldest| oldest.epoch - 1);
        if after < cut {
            return Err(CoordError::EpochsCut { epoch: cut });
        }
        let epochs = seen.all(0).iter().map(|found| self.change(found)).collect::<Result<_, _>>()?;
        Ok(Epochs { epochs, has_more: seen.has_more(0) })
    }

    pub async fn cut_epochs(self, up_to: u64) -> Result<(), CoordError> {
        let keys = &self.keys;
        let epoch = self.read(vec![get(keys.epoch())]).await?;
        let epoch = epoch.one(0).map_or(Ok(0), number)?;
        if up_to > epoch {
            return Err(CoordError::EpochAhead { asked: up_to, epoch });
        }
        let first = keys.epoch_change(0);
        // A range excludes its end.
        let range = DeleteOptions::new().with_range(keys.epoch_change(up_to.saturating_add(1)));
        // Epochs only rise, so this may be sent again.
        self.repeat(Txn::new().and_then([TxnOp::delete(first, Some(range))])).await.map(|_| ())
    }

    fn change(&self, found: &KeyValue) -> Result<EpochChange, CoordError> {
        let prefix = self.keys.epoch_changes();
        let key = found.key_str().map_err(|error| foreign(&prefix, error))?;
        let epoch = number_of(key, &prefix).filter(|epoch| *epoch > 0);
        let epoch = epoch.ok_or_else(|| foreign(key, "it ends in no number"))?;
        let changes = Vec::from_bytes(found.value()).map_err(|error| foreign(key, error))?;
        Ok(EpochChange { epoch, revision: found.mod_revision() as Revision, changes })
    }
}
