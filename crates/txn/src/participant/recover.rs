//! The requests of recovery, in this order. `Collect` returns a participant's records of earlier epochs. `Spread`
//! stores the records of the others, so that every later recovery decides the same, whichever member fails meanwhile.
//! `Replay` applies all of them to its copies. Once all copies have done so, `Open` unlocks and serves. If a primary
//! opened sooner, it would tell a backup that versions are old which that backup has yet to replay.
//!
//! A request handles one slice of the log ([`RecoverySlice`](crate::limits::RecoverySlice)), because the event loop
//! serves nothing else meanwhile. The client that recovers asks for one slice after the other, and says where the next
//! one begins: a participant keeps no state between them. Each request may be repeated.

use bytes::BufMut;

use super::{Copy, Participant, Service};
use crate::configuration::Role;
use crate::limits::SliceFill;
use crate::wire::answer::{Refusal, put_done};
use crate::wire::log::{Recorded, put_transaction, take_transaction};
use crate::wire::write::Write;
use crate::wire::{Header, end};

impl Participant {
    /// Answers the next slice of its records of earlier epochs after a transaction.
    pub(super) fn collect(&mut self, header: &Header, mut rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let after = take_transaction(&mut rest)?;
        end(rest)?;
        put_done(answer);
        let records = self.log.records_before(header.transaction.epoch, after, self.limits.recovery_slice);
        answer.put_u32_le(records.len() as u32);
        records.iter().for_each(|recorded| recorded.encode(answer));
        self.stats.recovered += records.len() as u64;
        Ok(())
    }

    pub(super) fn spread(&mut self, header: &Header, mut rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let mut all = Vec::new();
        for _ in 0..header.count {
            let recorded = Recorded::take(&mut rest)?;
            self.parse_writes(recorded.count, recorded.record)?;
            all.push(recorded);
        }
        end(rest)?;
        all.iter().for_each(|recorded| self.log.adopt(recorded));
        self.stats.recovered += all.len() as u64;
        put_done(answer);
        Ok(())
    }

    /// Applies the next slice of its records of earlier epochs after a transaction. Answers the last one that it
    /// applied, or the same transaction if none is left.
    pub(super) fn replay(&mut self, mut rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let mut last = take_transaction(&mut rest)?;
        end(rest)?;
        for recorded in self.log.records_before(self.configuration.epoch, last, self.limits.recovery_slice) {
            // It was checked before it was stored.
            for write in Write::take_all(recorded.count.into(), &mut &*recorded.record)? {
                let copy = self.copies.get_mut(write.target.partition.0 as usize).and_then(Option::as_mut);
                // A new copy gets older writes with the pages that fill it. A deletion that followed them may be
                // forgotten.
                let is_older = |copy: &Copy| recorded.transaction.epoch < copy.since;
                if let Some(copy) = copy.filter(|copy| !is_older(copy)) {
                    copy.partition.apply(&write);
                }
            }
            last = recorded.transaction;
            self.stats.recovered += 1;
        }
        put_done(answer);
        put_transaction(answer, last);
        Ok(())
    }

    /// Drops the records that all copies have applied, then releases the locks of earlier epochs and opens partitions:
    /// a slice of these. Answers whether more of them are left.
    pub(super) fn open(&mut self, rest: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        end(rest)?;
        let mut fill = self.limits.recovery_slice.begin();
        let is_open = self.open_slice(&mut fill);
        if is_open {
            self.opened = self.epoch();
        }
        self.stats.recovered += fill.records() as u64;
        put_done(answer);
        answer.push(u8::from(!is_open));
        Ok(())
    }

    fn open_slice(&mut self, fill: &mut SliceFill) -> bool {
        let epoch = self.epoch();
        if !self.log.end_before(epoch, fill) {
            return false;
        }
        for copy in self.copies.iter_mut().flatten().filter(|copy| copy.role == Role::Primary) {
            if !copy.partition.release_before(epoch, fill) {
                return false;
            }
            if copy.service == Service::Recovering {
                copy.partition.promote(epoch);
                copy.service = Service::Open;
            }
        }
        true
    }
}
