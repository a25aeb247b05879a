//! What a replica passes on to one that is filled: the items of some partitions, from memory and from the tier.
//!
//! An item may move between memory and the tier at any time, but its hash stays what it is. So a scan goes by ranges of
//! hashes and takes what both have of a range. Records that have to be read are looked for again, by their hashes, as
//! each read ends: what has returned to memory by then is found there.

use std::ops::RangeInclusive;
use std::rc::Rc;

use dunlin_rpc::{DeferredRequest, Request};
use dunlin_store::tier::{Ticket, Tier};
use dunlin_store::{Item, KeyHash, Store, Visit};

use super::late::{Gather, Together};
use super::replica::Replica;
use super::scan::{RANGES_MAX, range_of};
use super::wall::in_wall_time;
use crate::cluster::{partition_of, partitions_of_label};
use crate::memcached::HostName;
use crate::shard::Shard;
use crate::tier::{Hold, Reserved, desk};
use crate::wire::{PartitionScan, PartitionScanWriter, SCAN_BYTES, Status, VersionedItem, Waited};

/// Bytes of the records that a scan reads, at most, unless the first is longer: as many as memory adds to an answer.
const READ_BYTES_MAX: usize = SCAN_BYTES;
/// Records that a scan reads, at most: a device under load takes long for each, and the request must end in time.
const READS_MAX: usize = 64;

/// Returns the number of bits for which 2^bits ranges have few enough items for one request, in memory and in the tier.
/// Finer ranges than those of memory tell more of the hashes: to other replicas.
pub(super) fn range_bits(store: &(impl Store + Visit)) -> u32 {
    store.range_bits().max(store.tier().map_or(0, Tier::range_bits))
}

/// Answers a scan, at once if the device has nothing of what is wanted.
pub(super) fn scan<S: Store + Visit + 'static>(shard: &Rc<Shard<S>>, replica: &Rc<Replica>, request: Request<'_>) {
    let Some(wanted) = PartitionScan::parse(request.payload()) else {
        shard.count_stray(false);
        return request.respond(&[Status::Malformed as u8]);
    };
    let Some(fill) = replica.filled_by() else { return request.respond(&[Status::Closed as u8]) };
    let Found { answer, tickets, next } = find(shard, replica.partitions(), &wanted);
    let Some(desk) = shard.desk().filter(|_| !tickets.is_empty()) else {
        return request.respond(&answer.finish(next));
    };
    let copier = desk.copier(request.context().peer().map(HostName::from));
    let Some(reserved) = desk.reserve_copy(copier, &tickets, answer.bytes()) else { return request.push_back() };
    match request.defer() {
        Ok(request) => {
            let copy = Copy { replica: replica.clone(), fill, answer, next };
            Together::push(shard, desk, request, tickets.len(), &tickets, reserved, copy);
        }
        Err(request) => request.push_back(),
    }
    desk::advance(shard);
}

/// What a scan has found.
struct Found {
    /// What is in memory.
    answer: PartitionScanWriter,
    /// What must be read.
    tickets: Vec<Ticket>,
    /// The hash from which the next scan goes on.
    next: Option<u64>,
}

fn find<S: Store + Visit>(shard: &Shard<S>, partitions: u32, wanted: &PartitionScan<'_>) -> Found {
    let store = &*shard.store.borrow();
    let (mut answer, mut tickets) = (PartitionScanWriter::new(), Vec::new());
    let mut push = |key: &[u8], item: &Item<'_>| {
        if wanted.wants(partition_of(key, partitions)) {
            answer.push(&VersionedItem::of_store(key, &in_wall_time(item, shard.moment())));
        }
        answer.is_full()
    };
    let (mut start, bits) = (wanted.from, range_bits(store));
    for _ in 0..RANGES_MAX {
        let (range, records) = records_from(store.tier(), shard.now(), bits, start, |label| {
            partitions_of_label(label, partitions).any(|partition| wanted.wants(partition))
        });
        if !tickets.is_empty() && is_too_much(&[&tickets, &records]) {
            break;
        }
        let mut is_full = false;
        store.visit(range.clone(), &mut |_, key, item| is_full |= push(key, item));
        for record in records {
            match store.tier().and_then(|tier| tier.item(record.hash(), shard.now())) {
                Some((key, item)) => is_full |= push(key, &item),
                None => tickets.push(record),
            }
        }
        match range.end().checked_add(1) {
            Some(next) => start = next,
            None => return Found { answer, tickets, next: None },
        }
        if is_full {
            break;
        }
    }
    Found { answer, tickets, next: Some(start) }
}

/// Returns the one of 2^`bits` ranges that contains a hash, and the live records of wanted labels in it: so few that
/// they can be read together. The range is halved until that is so.
fn records_from(
    tier: Option<&Tier>,
    now: u32,
    mut bits: u32,
    start: u64,
    wants: impl Fn(u16) -> bool,
) -> (RangeInclusive<u64>, Vec<Ticket>) {
    loop {
        let range = range_of(start, bits);
        let mut records = Vec::new();
        if let Some(tier) = tier {
            tier.visit(&range, |record| {
                if record.expires.is_none_or(|at| at > now) && wants(record.label) {
                    records.push(record.ticket);
                }
            });
        }
        // Of one hash there is one record.
        if records.len() <= 1 || !is_too_much(&[&records]) {
            return (range, records);
        }
        bits += 1;
    }
}

/// Whether these are more records than one request may read.
fn is_too_much(tickets: &[&[Ticket]]) -> bool {
    let tickets = || tickets.iter().copied().flatten();
    tickets().count() > READS_MAX || tickets().map(Ticket::bytes).sum::<usize>() > READ_BYTES_MAX
}

/// An answer that waits for records.
struct Copy {
    replica: Rc<Replica>,
    /// What the replica had when the scan began.
    fill: u64,
    answer: PartitionScanWriter,
    next: Option<u64>,
}

impl<S: Store + Visit> Gather<S> for Copy {
    fn arrived(&mut self, shard: &Shard<S>, request: &DeferredRequest, hash: KeyHash, hold: Option<Hold>) {
        // It was parsed before.
        let Some(wanted) = PartitionScan::parse(request.request().payload()) else { return };
        let (store, partitions) = (shard.store.borrow(), self.replica.partitions());
        let mut push = |key: &[u8], item: &Item<'_>| {
            if wanted.wants(partition_of(key, partitions)) {
                self.answer.push(&VersionedItem::whole(key, &in_wall_time(item, shard.moment())));
            }
        };
        match store.tier().and_then(|tier| tier.item(hash, shard.now())) {
            Some((key, item)) => push(key, &item),
            // It may have returned to memory.
            None => store.visit(hash.0..=hash.0, &mut |_, key, item| push(key, item)),
        }
        drop(store);
        drop(hold);
    }

    fn answer(self, _: &Shard<S>, request: DeferredRequest, _: Waited, _: Reserved) {
        // If it was filled anew meanwhile, some of the answer is of what it had before.
        let is_current = self.replica.filled_by() == Some(self.fill);
        let response = if is_current { self.answer.finish(self.next) } else { vec![Status::Closed as u8] };
        // The caller may have given up.
        let _ = request.enqueue_response(response);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dunlin_store::tier::TierConfig;
    use dunlin_store::{Mode, Partition, PartitionConfig, Put};

    use super::*;

    #[test]
    fn ranges_are_halved_until_a_request_can_read_their_records() {
        // Few long records, and many short ones: one range of hashes has all of them.
        for (keys, len) in [(150, 30_000), (4_000, 600)] {
            let mut store = Partition::with_secret(PartitionConfig::new(Mode::Cache, 1 << 20), [1, 2]).unwrap();
            assert!(store.attach_tier(TierConfig::new(8 << 20, 5)));
            for number in 0..keys {
                let name = format!("key_{number}");
                let key = store.key(name.as_bytes()).unwrap();
                store.put(&key, &vec![7; len], Put::default()).unwrap();
                let tier = store.tier_mut().unwrap();
                while let Some(block) = tier.take_write() {
                    tier.written(block.number, true);
                }
            }
            let (mut found, mut requests, mut next) = (BTreeSet::new(), 0, Some(0));
            while let Some(start) = next {
                let (range, records) = records_from(store.tier(), 0, 0, start, |_| true);
                assert_eq!(*range.start(), start, "nothing is left out");
                assert!(records.len() <= 1 || !is_too_much(&[&records]), "{} records", records.len());
                for record in &records {
                    assert!(range.contains(&record.hash().0) && found.insert(record.hash().0), "each once");
                }
                requests += usize::from(!records.is_empty());
                next = range.end().checked_add(1);
            }
            assert_eq!(found.len() as u64, store.tier().unwrap().stats().items);
            assert!(found.len() > keys / 4 && requests > found.len() * len / READ_BYTES_MAX, "{requests} requests");
        }
    }
}
