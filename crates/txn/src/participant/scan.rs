//! Range reads of ordered tables.

use super::Participant;
use crate::ids::{PartitionId, TableId};
use crate::limits::PAGE_BYTES_MAX;
use crate::partition::{PageLimits, Partition};
use crate::wire::answer::{Refusal, put_done};
use crate::wire::scan::PageRequest;
use crate::wire::{Header, end};

impl Participant {
    /// Reads a page of a range. A lock of another transaction in it is a conflict, also on an absent key.
    pub(super) fn scan(&mut self, header: &Header, mut rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let request = PageRequest::take(&mut rest)?;
        end(rest)?;
        if header.count != 1 {
            return Err(Refusal::Malformed);
        }
        let limits = PageLimits { entries_max: self.limits.page_entries(), bytes_max: PAGE_BYTES_MAX };
        let partition = self.ordered(request.partition, request.table)?;
        put_done(answer);
        let read = partition.read_page(header.transaction, &request, limits, answer);
        read.map_err(|cause| Refusal::Conflict { index: 0, cause })
    }

    /// A partition whose primary is here, for range reads of a table.
    pub(super) fn ordered(&mut self, partition: PartitionId, table: TableId) -> Result<&Partition, Refusal> {
        let partition = self.primary(partition, table)?;
        if partition.is_ordered(table) { Ok(partition) } else { Err(Refusal::NotOrdered(table)) }
    }
}
