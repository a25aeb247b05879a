//! The space that a coordinator uses in its log replicas. It counts like the logs, so that no record is ever refused
//! for lack of room.

use std::collections::BTreeMap;

use crate::ids::Epoch;
use crate::log::record_bytes;
use crate::wire::log::ENDED_MAX;

/// Records of one coordinator in one epoch.
#[derive(Debug, Default)]
pub(super) struct Quota {
    epoch: Epoch,
    /// Bytes of records that may be in the logs.
    bytes: usize,
    /// By transaction: those not yet committed at all copies.
    under_way: BTreeMap<u64, usize>,
    /// Those committed at all copies that the logs do not know of yet.
    ended: Vec<(u64, usize)>,
}

/// Transactions that a message reports to the logs as ended.
#[derive(Debug, Default)]
pub(super) struct Told {
    epoch: Epoch,
    ended: Vec<(u64, usize)>,
}

impl Told {
    pub fn sequences(&self) -> Vec<u64> {
        self.ended.iter().map(|(sequence, _)| *sequence).collect()
    }
}

impl Quota {
    /// In a new epoch, logs start empty.
    fn enter(&mut self, epoch: Epoch) {
        if epoch > self.epoch {
            *self = Quota { epoch, ..Quota::default() };
        }
    }

    /// Counts the record of a transaction, if there is room for it.
    pub fn reserve(&mut self, epoch: Epoch, sequence: u64, writes: usize, bytes_max: usize) -> Result<(), NoRoom> {
        self.enter(epoch);
        let bytes = record_bytes(writes);
        if epoch != self.epoch || self.bytes + bytes > bytes_max {
            return Err(NoRoom);
        }
        self.bytes += bytes;
        self.under_way.insert(sequence, bytes);
        Ok(())
    }

    /// Notes that a transaction is committed at all copies.
    pub fn end(&mut self, epoch: Epoch, sequence: u64) {
        if epoch == self.epoch {
            self.ended.extend(self.under_way.remove(&sequence).map(|bytes| (sequence, bytes)));
        }
    }

    /// Removes a transaction that has no record anywhere, and will have none.
    pub fn withdraw(&mut self, epoch: Epoch, sequence: u64) {
        if epoch == self.epoch {
            self.bytes -= self.under_way.remove(&sequence).unwrap_or(0);
        }
    }

    /// Takes the transactions that the next message to the logs of an epoch reports.
    pub fn tell(&mut self, epoch: Epoch) -> Told {
        self.enter(epoch);
        if epoch != self.epoch {
            return Told::default();
        }
        let left = self.ended.split_off(self.ended.len().min(ENDED_MAX));
        Told { epoch, ended: std::mem::replace(&mut self.ended, left) }
    }

    /// All logs know of them, and have dropped the records.
    pub fn was_told(&mut self, told: &Told) {
        if told.epoch == self.epoch {
            self.bytes -= told.ended.iter().map(|(_, bytes)| bytes).sum::<usize>();
        }
    }

    /// Some log may have missed the message: report them again.
    pub fn was_not_told(&mut self, told: Told) {
        if told.epoch == self.epoch {
            self.ended.extend(told.ended);
        }
    }

    /// Number of transactions to report.
    pub fn untold(&self) -> usize {
        self.ended.len()
    }
}

/// The logs have no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoRoom;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_when_all_logs_know_that_a_transaction_has_ended() {
        let mut quota = Quota::default();
        let max = 2 * record_bytes(100);
        quota.reserve(1, 1, 100, max).unwrap();
        quota.reserve(1, 2, 100, max).unwrap();
        assert_eq!(quota.reserve(1, 3, 100, max), Err(NoRoom));
        quota.end(1, 1);
        let told = quota.tell(1);
        assert_eq!((&told.sequences()[..], quota.reserve(1, 3, 100, max)), (&[1][..], Err(NoRoom)));
        quota.was_told(&told);
        assert_eq!(quota.reserve(1, 3, 100, max), Ok(()));
        quota.withdraw(1, 3);
        assert_eq!(quota.reserve(1, 4, 100, max), Ok(()));
        assert_eq!(quota.reserve(2, 5, 200, max), Ok(()), "another epoch begins with empty logs");
        quota.end(1, 2);
        assert_eq!((quota.untold(), quota.reserve(1, 6, 1, max)), (0, Err(NoRoom)));
    }
}
