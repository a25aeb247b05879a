//! Transactions that hold locks or records for too long: their coordinators hang, are cut off, or are gone.

use std::collections::BTreeSet;

use super::Participant;
use crate::configuration::Role;
use crate::ids::TransactionId;
use crate::wire::answer::{Refusal, put_done};
use crate::wire::end;
use crate::wire::log::take_transaction;

impl Participant {
    /// Transactions of this epoch that have a lock or a record here, and already had it at the last call.
    pub(crate) fn overdue(&mut self) -> BTreeSet<TransactionId> {
        let epoch = self.epoch();
        let primaries = self.copies.iter_mut().flatten().filter(|copy| copy.role == Role::Primary);
        let owners = primaries.flat_map(|copy| copy.partition.old_locks()).filter(|owner| owner.epoch == epoch);
        let mut overdue: BTreeSet<TransactionId> = owners.collect();
        overdue.extend(self.log.old_records(epoch));
        overdue
    }

    /// Releases the locks of a transaction that has ended.
    pub(crate) fn release(&mut self, ended: TransactionId) {
        for copy in self.copies.iter_mut().flatten().filter(|copy| copy.role == Role::Primary) {
            copy.partition.release_of(|owner| owner == ended);
        }
    }

    /// Answers which record its log has of a transaction, and refuses further records of it from now on.
    pub(super) fn fence(&mut self, mut rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let transaction = take_transaction(&mut rest)?;
        end(rest)?;
        let (known, record) = self.log.fence(transaction)?;
        put_done(answer);
        answer.push(known as u8);
        if let Some(record) = record {
            record.encode(answer);
        }
        Ok(())
    }

    /// Drops the record of a transaction that all copies have applied.
    pub(super) fn end(&mut self, mut rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let transaction = take_transaction(&mut rest)?;
        end(rest)?;
        self.log.end(transaction);
        put_done(answer);
        Ok(())
    }
}
