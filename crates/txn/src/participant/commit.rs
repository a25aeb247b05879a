//! Phases 3 to 5: logging, and committing at backups and primaries.

use smallvec::SmallVec;

use super::Participant;
use crate::configuration::Role;
use crate::mutation::{Mutation, is_planted};
use crate::partition::epoch_of;
use crate::wire::answer::{Refusal, put_done};
use crate::wire::log::{Append, Recorded, take_transaction};
use crate::wire::write::Write;
use crate::wire::{Header, end};

impl Participant {
    /// The writes of a record or a commit, to partitions and tables that exist, with versions that may have been
    /// issued. All are checked before the first is stored or applied.
    pub(super) fn parse_writes<'a>(&self, count: u16, mut from: &'a [u8]) -> Result<SmallVec<[Write<'a>; 4]>, Refusal> {
        let mut writes = SmallVec::new();
        for _ in 0..count {
            writes.push(Write::take(&mut from)?);
        }
        end(from)?;
        for Write { target, version, .. } in &writes {
            if target.partition.0 as usize >= self.configuration.partitions.len() {
                return Err(Refusal::NotHere(target.partition));
            }
            if usize::from(target.table.0) >= self.configuration.tables.len() {
                return Err(Refusal::NoTable(target.table));
            }
            // A copy that applied it would take everything later for old.
            if epoch_of(*version) > self.configuration.epoch {
                return Err(Refusal::Malformed);
            }
        }
        Ok(writes)
    }

    pub(super) fn append(&mut self, header: &Header, rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let Append { ended, open, record } = Append::parse(rest)?;
        // Recovery will read it: do not store a malformed record.
        self.parse_writes(header.count, record)?;
        self.log.append(&ended, open, &Recorded { transaction: header.transaction, count: header.count, record })?;
        put_done(answer);
        Ok(())
    }

    pub(super) fn commit_backup(&mut self, header: &Header, rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let writes = self.parse_writes(header.count, rest)?;
        for write in &writes {
            self.copy(write.target.partition, Role::Backup, write.target.table)?;
        }
        for write in writes.iter().skip(usize::from(is_planted(Mutation::BackupSkipsWrite))) {
            let copy = self.copy(write.target.partition, Role::Backup, write.target.table)?;
            copy.partition.apply(write);
        }
        put_done(answer);
        Ok(())
    }

    pub(super) fn commit_primary(&mut self, header: &Header, rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let writes = self.parse_writes(header.count, rest)?;
        for (index, write) in writes.iter().enumerate() {
            let partition = self.primary(write.target.partition, write.target.table)?;
            if !partition.may_commit(header.transaction, write) && !partition.has_applied(write) {
                return Err(Refusal::NotLocked(index as u16));
            }
        }
        for write in &writes {
            let partition = self.primary(write.target.partition, write.target.table)?;
            // If the lock is gone, this is a repeated commit whose answer was lost.
            if partition.may_commit(header.transaction, write) {
                partition.commit(write);
            }
        }
        put_done(answer);
        Ok(())
    }

    /// Answers what this log knows of a transaction.
    pub(super) fn outcome(&mut self, mut rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let transaction = take_transaction(&mut rest)?;
        end(rest)?;
        put_done(answer);
        answer.push(self.log.known(transaction) as u8);
        Ok(())
    }
}
