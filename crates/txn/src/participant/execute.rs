//! Phases 1 and 2: reading, locking, validating, and unlocking without a commit.

use super::Participant;
use crate::ids::TransactionId;
use crate::limits::{MESSAGE_BYTES_MAX, VALIDATED_MAX};
use crate::mutation::{Mutation, is_planted};
use crate::partition::{Before, NoLock, Wish};
use crate::wire::answer::{Cause, Found, Grant, Presence, Refusal, Resource, put_done};
use crate::wire::execute::{Access, Check, Target};
use crate::wire::{Header, end};

impl Participant {
    /// Reads and locks in one step. If one entry conflicts, none is locked.
    pub(super) fn execute(&mut self, header: &Header, rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let mut locked = Vec::new();
        let done = self.execute_all(header, rest, answer, &mut locked);
        if done.is_err() {
            locked.into_iter().for_each(|target| self.unlock(header.transaction, target));
        }
        done
    }

    /// Adds the new locks to `locked`.
    fn execute_all<'a>(
        &mut self,
        header: &Header,
        mut rest: &'a [u8],
        answer: &mut Vec<u8>,
        locked: &mut Vec<Target<'a>>,
    ) -> Result<(), Refusal> {
        put_done(answer);
        for index in 0..header.count {
            let (target, access) = (Target::take(&mut rest)?, Access::take(&mut rest)?);
            let grant = self.lock(header.transaction, target, access, index)?;
            if let Some((_, Before::Free)) = grant {
                locked.push(target);
            }
            let grant = grant.map(|(grant, _)| grant);
            self.read(header.transaction, target, access, grant, index)?.encode(answer);
            if answer.len() > MESSAGE_BYTES_MAX {
                return Err(Refusal::Full(Resource::Answer));
            }
        }
        Ok(end(rest)?)
    }

    fn lock(
        &mut self,
        owner: TransactionId,
        target: Target<'_>,
        access: Access,
        index: u16,
    ) -> Result<Option<(Grant, Before)>, Refusal> {
        let partition = self.primary(target.partition, target.table)?;
        let Some(lock) = access.lock() else { return Ok(None) };
        match partition.lock(&Wish { owner, table: target.table, key: target.key, lock }) {
            Ok(granted) => Ok(Some(granted)),
            Err(NoLock::Conflict(cause)) => Err(Refusal::Conflict { index, cause }),
            Err(NoLock::Full(what)) => Err(Refusal::Full(what)),
        }
    }

    fn read(
        &mut self,
        reader: TransactionId,
        target: Target<'_>,
        access: Access,
        grant: Option<Grant>,
        index: u16,
    ) -> Result<Found<'_>, Refusal> {
        let seen = self.primary(target.partition, target.table)?.look(target.table, target.key);
        if seen.is_locked_by_other(reader) {
            return Err(Refusal::Conflict { index, cause: Cause::Locked });
        }
        let presence = if seen.value.is_some() { Presence::Present } else { Presence::Absent };
        let value = seen.value.filter(|_| !matches!(access, Access::Lock(_)));
        Ok(Found { version: seen.version, grant, value, presence })
    }

    fn unlock(&mut self, owner: TransactionId, target: Target<'_>) {
        if let Ok(partition) = self.primary(target.partition, target.table) {
            partition.unlock(owner, target.table, target.key);
        }
    }

    /// Whether no item and no range of the read set has changed, or is about to. A coordinator divides its checks of
    /// ranges into messages that stay below the limit of entries.
    pub(super) fn validate(&mut self, header: &Header, mut rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let (mut visited, visited_max) = (0, VALIDATED_MAX.max(self.limits.range_entries()));
        for index in 0..header.count {
            let (target, version) = match Check::take(&mut rest)? {
                Check::Item { target, version } => (target, version),
                Check::Range(range) => {
                    let partition = self.ordered(range.partition, range.table)?;
                    let unchanged = partition.check_range(header.transaction, &range);
                    visited += unchanged.map_err(|cause| Refusal::Conflict { index, cause })?;
                    if visited > visited_max {
                        return Err(Refusal::Malformed);
                    }
                    continue;
                }
            };
            let seen = self.primary(target.partition, target.table)?.look(target.table, target.key);
            if seen.is_locked_by_other(header.transaction) && !is_planted(Mutation::LockNotValidated) {
                return Err(Refusal::Conflict { index, cause: Cause::Locked });
            }
            if seen.version != version && !is_planted(Mutation::VersionNotValidated) {
                return Err(Refusal::Conflict { index, cause: Cause::Changed });
            }
        }
        end(rest)?;
        put_done(answer);
        Ok(())
    }

    /// Unlocks the keys that the transaction has locked. Other keys stay as they are.
    pub(super) fn abort(&mut self, header: &Header, mut rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let mut all = Vec::new();
        for _ in 0..header.count {
            let target = Target::take(&mut rest)?;
            self.primary(target.partition, target.table)?;
            all.push(target);
        }
        end(rest)?;
        all.into_iter().for_each(|target| self.unlock(header.transaction, target));
        put_done(answer);
        Ok(())
    }
}
