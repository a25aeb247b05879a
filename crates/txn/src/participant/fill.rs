//! Filling new copies: pages of a primary for others, and those that come for the copies here.

use bytes::BufMut;

use super::{Copy, Participant};
use crate::configuration::Role;
use crate::ids::{Epoch, PartitionId};
use crate::limits::PAGE_BYTES_MAX;
use crate::partition::epoch_of;
use crate::wire::answer::{Refusal, Resource, put_done};
use crate::wire::execute::Target;
use crate::wire::fill::{BEGINNING, FillPage, FillRequest};
use crate::wire::write::Write;
use crate::wire::{Header, WireError, end};

/// Copies that are filled from one core at a time.
const DONATIONS_MAX: usize = 4;

/// A copy of a partition, in numbers that are at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyState {
    /// The partition.
    pub partition: PartitionId,
    /// Its role.
    pub role: Role,
    /// Whether it has all items.
    pub is_complete: bool,
    /// Bytes of its items, and of room that is reserved.
    pub bytes: usize,
    /// Locks that are held.
    pub locks: usize,
    /// Keys that were fetched while it was filled, and keys that its primary noted.
    pub progress: (u64, u64),
}

impl Participant {
    /// Answers a page of a partition whose primary is here.
    pub(super) fn give_page(&mut self, header: &Header, mut rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let FillRequest { partition, node, from } = FillRequest::take(&mut rest)?;
        end(rest)?;
        let (not_here, items_max) = (Refusal::NotHere(partition), self.limits.page_entries_max);
        let since = self.configuration.filling_since(partition, node).ok_or(not_here)?;
        // Before, a record that is older than the new copy may be in a log: it would come neither as a write nor in a
        // page.
        if header.count != 1 || self.opened < since {
            return Err(Refusal::Recovering(partition));
        }
        let name = (partition, node);
        if from == BEGINNING {
            self.donations.remove(&name);
            if self.donations.len() >= DONATIONS_MAX {
                return Err(Refusal::Full(Resource::Donations));
            }
            let donation = self.whole_primary(partition)?.donate();
            self.donations.insert(name, donation);
        }
        let donation = self.donations.remove(&name).ok_or(not_here)?;
        let primary = self.whole_primary(partition)?;
        put_done(answer);
        let head = answer.len();
        answer.put_bytes(0, FillPage::BYTES);
        let mut count = 0;
        let items_max = items_max.clamp(1, u32::MAX as usize) as u32;
        let next = primary.page(&donation, from.try_into().unwrap_or(usize::MAX), |table, key, version, value| {
            if count >= items_max || (count > 0 && answer.len() + value.len() > PAGE_BYTES_MAX) {
                return false;
            }
            count += 1;
            let target = Target { partition, table, key };
            Write { target, version, low: 0, value: Some(value) }.encode(answer);
            true
        });
        let keys = donation.len();
        FillPage::encode_head(next as u64, keys as u64, count, &mut answer[head..]);
        if next < keys {
            self.donations.insert(name, donation);
        }
        Ok(())
    }

    /// The copies here.
    pub fn copies(&self) -> impl Iterator<Item = CopyState> {
        self.copies.iter().enumerate().filter_map(|(number, copy)| {
            let (partition, copy) = (PartitionId(number as u32), copy.as_ref()?);
            let Copy { role, is_complete, progress, .. } = **copy;
            let (bytes, locks) = (copy.partition.bytes(), copy.partition.locks());
            Some(CopyState { partition, role, is_complete, bytes, locks, progress })
        })
    }

    /// Those that are not complete.
    pub fn filling(&self) -> impl Iterator<Item = CopyState> {
        self.copies().filter(|copy| !copy.is_complete)
    }

    fn filling_copy(&mut self, partition: PartitionId) -> Option<&mut Copy> {
        let copy = self.copies.get_mut(partition.0 as usize)?.as_deref_mut()?;
        (copy.role == Role::Backup && !copy.is_complete).then_some(copy)
    }

    /// Begins to wait for a page. Returns false if the copy needs none.
    pub(crate) fn await_page(&mut self, partition: PartitionId) -> bool {
        let Some(copy) = self.filling_copy(partition) else { return false };
        copy.partition.await_page();
        true
    }

    /// Takes the page that answered a request of this epoch. Returns where the next begins; `None` if the copy is
    /// complete, or is filled no more.
    pub(crate) fn take_page(
        &mut self,
        partition: PartitionId,
        epoch: Epoch,
        from: u64,
        answer: &[u8],
    ) -> Result<Option<u64>, WireError> {
        let page = FillPage::parse(answer)?;
        let (ours, tables) = (self.epoch(), self.configuration.tables.len());
        let is_alien = |write: &Write<'_>| {
            let Target { partition: of, table, .. } = write.target;
            of != partition || usize::from(table.0) >= tables || epoch_of(write.version) > ours
        };
        if (page.next <= from && page.next < page.keys) || page.items.iter().any(is_alien) {
            return Err(WireError::Unknown { field: "item of a page", value: from });
        }
        let Some(copy) = self.filling_copy(partition).filter(|_| epoch == ours) else { return Ok(None) };
        page.items.iter().for_each(|write| copy.partition.fill(write));
        copy.progress = (page.next, page.keys);
        if page.next < page.keys {
            return Ok(Some(page.next));
        }
        copy.is_complete = true;
        copy.partition.filled();
        Ok(None)
    }
}
