//! The log of one core: commit records of the coordinators that have it as one of their f + 1 log replicas.
//!
//! A record stays until its transaction is committed at all copies, which the coordinator reports with a later message.
//! The space of each coordinator is limited in bytes. The coordinator counts with the same limit before it begins to
//! log, so no record is ever refused for lack of room.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;

use crate::ids::{Epoch, TransactionId};
use crate::limits::{Limits, RecoverySlice, SliceFill};
use crate::wire::answer::{Known, Refusal, Resource};
use crate::wire::log::Recorded;

/// Outcomes of one coordinator in one epoch that are kept because an older transaction is open.
const OPEN_OUTCOMES_MAX: usize = 1 << 14;
/// Epochs of one coordinator whose outcomes are kept.
const EPOCHS_MAX: usize = 8;
/// Coordinators of which only the last outcome is kept.
const MARKS_MAX: usize = 1 << 16;

/// A transaction of a known coordinator.
type Name = (Epoch, u64);

/// A record, as it was received.
#[derive(Debug)]
struct Record {
    count: u16,
    writes: Box<[u8]>,
    /// Bytes that count against its coordinator's limit: zero if recovery brought it.
    counted: usize,
    /// Whether it was already here at the last search for old records.
    is_old: bool,
}

/// The ended transactions of one coordinator in one epoch.
#[derive(Debug, Default)]
struct Ended {
    /// Transactions that are committed and whose records are dropped.
    committed: BTreeSet<u64>,
    /// The last committed transaction that was forgotten.
    forgotten: u64,
    /// The lowest transaction that may be undecided, as reported by the coordinator. Zero if this is not a log of the
    /// coordinator in the epoch.
    open: u64,
}

impl Ended {
    /// Outcomes after an open transaction are kept, so that the outcome of that one can be determined.
    fn add(&mut self, sequence: u64, outcomes_max: usize) {
        self.committed.insert(sequence);
        while self.committed.len() > outcomes_max {
            let is_needed = self.committed.first().is_none_or(|lowest| *lowest >= self.open);
            if is_needed && self.committed.len() <= OPEN_OUTCOMES_MAX {
                return;
            }
            self.forgotten = self.forgotten.max(self.committed.pop_first().unwrap_or(0));
        }
    }

    fn last(&self) -> u64 {
        self.committed.last().copied().unwrap_or(0).max(self.forgotten)
    }
}

/// The entries of one coordinator.
#[derive(Debug, Default)]
struct Entries {
    records: BTreeMap<Name, Record>,
    /// The epoch that it logs in.
    epoch: Epoch,
    /// Bytes of the records of that epoch. Records of earlier epochs are dropped when they are recovered.
    bytes: usize,
    ended: BTreeMap<Epoch, Ended>,
    /// Outcomes up to this one may be forgotten.
    forgotten: Option<Name>,
    /// When it was last used, by the count of messages.
    used: u64,
}

impl Entries {
    /// Resets the count if the epoch is a later one.
    fn enter(&mut self, epoch: Epoch) {
        if epoch > self.epoch {
            (self.epoch, self.bytes) = (epoch, 0);
        }
    }

    fn ended_in(&mut self, epoch: Epoch) -> &mut Ended {
        if self.ended.len() >= EPOCHS_MAX && !self.ended.contains_key(&epoch) {
            let oldest = self.ended.pop_first().map(|(epoch, _)| (epoch, u64::MAX));
            self.forgotten = self.forgotten.max(oldest);
        }
        self.ended.entry(epoch).or_default()
    }

    /// Drops the record of a committed transaction.
    fn end(&mut self, name: Name, outcomes_max: usize) {
        let Some(record) = self.records.remove(&name) else { return };
        if name.0 == self.epoch {
            self.bytes -= record.counted;
        }
        self.ended_in(name.0).add(name.1, outcomes_max);
    }

    fn known(&self, name: Name) -> Known {
        if self.records.contains_key(&name) {
            return Known::Recorded;
        }
        match self.ended.get(&name.0) {
            Some(ended) if ended.committed.contains(&name.1) => Known::Committed,
            Some(ended) if name.1 <= ended.forgotten => Known::Forgotten,
            _ if self.forgotten.is_some_and(|last| name <= last) => Known::Forgotten,
            Some(ended) if ended.open > 0 => Known::Absent,
            _ => Known::Nothing,
        }
    }

    /// Its last transaction here that has ended.
    fn last(&self) -> Option<Name> {
        let last = self.ended.iter().map(|(epoch, ended)| (*epoch, ended.last())).max();
        last.filter(|(_, sequence)| *sequence > 0).max(self.forgotten)
    }
}

/// Bytes that a record counts, given the bytes of its writes: the same at its coordinator and in the log.
pub(crate) fn record_bytes(writes: usize) -> usize {
    Recorded::BYTES + writes
}

/// The log.
#[derive(Debug)]
pub(crate) struct Log {
    coordinators: BTreeMap<u64, Entries>,
    /// Messages so far.
    messages: u64,
    /// Evicted coordinators, each with its last transaction.
    marks: HashMap<u64, Name>,
    /// The same, in order of eviction.
    marked: VecDeque<u64>,
    /// The last epoch of a mark that was itself evicted.
    forgotten: Option<Epoch>,
    /// Coordinators that were fenced in this epoch, each with its last fenced transaction: records of it and of earlier
    /// ones are refused.
    fenced: HashMap<u64, Name>,
    limits: Limits,
}

impl Log {
    pub fn new(limits: Limits) -> Log {
        Log {
            coordinators: BTreeMap::new(),
            messages: 0,
            marks: HashMap::new(),
            marked: VecDeque::new(),
            forgotten: None,
            fenced: HashMap::new(),
            limits,
        }
    }

    /// Makes room for a coordinator, if another one has no records.
    fn make_place(&mut self, coordinator: u64, epoch: Epoch) -> Result<(), Refusal> {
        while self.coordinators.len() >= self.limits.coordinators_max && !self.coordinators.contains_key(&coordinator) {
            self.forget_idle(epoch)?;
        }
        Ok(())
    }

    fn entries(&mut self, coordinator: u64) -> &mut Entries {
        self.messages += 1;
        let forgotten = self.forgotten_of(coordinator);
        let fresh = || Entries { forgotten, ..Entries::default() };
        let entries = self.coordinators.entry(coordinator).or_insert_with(fresh);
        if !self.marks.is_empty() {
            self.marks.remove(&coordinator);
        }
        entries.used = self.messages;
        entries
    }

    /// The last forgotten transaction of a coordinator without entries.
    fn forgotten_of(&self, coordinator: u64) -> Option<Name> {
        let all = self.forgotten.map(|epoch| (epoch, u64::MAX));
        self.marks.get(&coordinator).copied().or(all)
    }

    /// Evicts the coordinator that has been without records for longest: coordinators do not announce that they leave.
    /// A mark stays, so that its transactions are not mistaken for ones that never existed. One that was fenced in this
    /// epoch stays: it may yet send again what was committed for it, and must not be told that nothing was.
    fn forget_idle(&mut self, epoch: Epoch) -> Result<(), Refusal> {
        let is_fenced = |coordinator| self.fenced.get(coordinator).is_some_and(|last| last.0 >= epoch);
        let idle = self.coordinators.iter().filter(|(it, entries)| entries.records.is_empty() && !is_fenced(it));
        let oldest = idle.min_by_key(|(_, entries)| entries.used).map(|(coordinator, _)| *coordinator);
        let coordinator = oldest.ok_or(Refusal::Full(Resource::Coordinators))?;
        let last = self.coordinators.remove(&coordinator).and_then(|entries| entries.last());
        if let Some(last) = last {
            self.marks.insert(coordinator, last);
            self.marked.push_back(coordinator);
        }
        if self.marked.len() > MARKS_MAX {
            let dropped = self.marked.pop_front().and_then(|coordinator| self.marks.remove(&coordinator));
            self.forgotten = self.forgotten.max(dropped.map(|(epoch, _)| epoch));
        }
        Ok(())
    }

    /// Drops the records of transactions that have ended, and appends a record if it has writes. `open` is the lowest
    /// transaction of the coordinator that may be undecided.
    ///
    /// Only the first message of a coordinator is refused when there is no place. A registered coordinator may have
    /// been evicted since, while other logs have its record: it is accepted beyond the limit if necessary.
    pub fn append(&mut self, ended: &[u64], open: u64, recorded: &Recorded<'_>) -> Result<(), Refusal> {
        let Limits { log_bytes_max, outcomes_max, .. } = self.limits;
        let TransactionId { epoch, coordinator, sequence } = recorded.transaction;
        let is_fenced = self.fenced.get(&coordinator).is_some_and(|last| (epoch, sequence) <= *last);
        let place = self.make_place(coordinator, epoch);
        if recorded.count == 0 && ended.is_empty() {
            place?;
        }
        let entries = self.entries(coordinator);
        entries.enter(epoch);
        let known = entries.ended_in(epoch);
        known.open = known.open.max(open);
        // A repeated message: the answer was lost, or it is so late that the transaction has ended.
        let is_old = sequence < known.open || known.committed.contains(&sequence);
        let is_known = is_old || entries.records.contains_key(&(epoch, sequence));
        let is_kept = recorded.count > 0 && !is_known;
        if is_kept && is_fenced {
            return Err(Refusal::Fenced);
        }
        let counted = record_bytes(recorded.record.len());
        // As nearly always, there is room without what the ended transactions give back.
        if is_kept && entries.bytes + counted > log_bytes_max {
            let counted_of = |sequence| entries.records.get(&(epoch, sequence)).map_or(0, |record| record.counted);
            let given_back: usize = ended.iter().copied().collect::<BTreeSet<u64>>().into_iter().map(counted_of).sum();
            if entries.bytes - given_back + counted > log_bytes_max {
                return Err(Refusal::Full(Resource::Log));
            }
        }
        for sequence in ended {
            entries.end((epoch, *sequence), outcomes_max);
        }
        if is_kept {
            entries.bytes += counted;
            entries.keep((epoch, sequence), recorded, counted);
        }
        Ok(())
    }

    /// Refuses further records of a transaction, and returns the record that it has.
    pub fn fence(&mut self, transaction: TransactionId) -> Result<(Known, Option<Recorded<'_>>), Refusal> {
        let TransactionId { epoch, coordinator, sequence } = transaction;
        if self.fenced.len() >= MARKS_MAX && !self.fenced.contains_key(&coordinator) {
            // Records of earlier epochs are refused anyway.
            self.fenced.retain(|_, last| last.0 >= epoch);
            if self.fenced.len() >= MARKS_MAX {
                return Err(Refusal::Full(Resource::Coordinators));
            }
        }
        let last = self.fenced.entry(coordinator).or_default();
        *last = (*last).max((epoch, sequence));
        let record = self.coordinators.get(&coordinator).and_then(|it| it.records.get_key_value(&(epoch, sequence)));
        Ok((self.known(transaction), record.map(|record| recorded(coordinator, record))))
    }

    /// Transactions of an epoch whose records were already here at the last call: their coordinators have not reported
    /// an end.
    pub fn old_records(&mut self, epoch: Epoch) -> impl Iterator<Item = TransactionId> {
        self.coordinators.iter_mut().flat_map(move |(coordinator, entries)| {
            let old = entries.records.range_mut((epoch, 0)..=(epoch, u64::MAX));
            old.filter_map(|((epoch, sequence), record)| {
                let name = TransactionId { epoch: *epoch, coordinator: *coordinator, sequence: *sequence };
                std::mem::replace(&mut record.is_old, true).then_some(name)
            })
        })
    }

    /// Drops the record of a transaction that is committed at all copies.
    pub fn end(&mut self, transaction: TransactionId) {
        let outcomes_max = self.limits.outcomes_max;
        if let Some(entries) = self.coordinators.get_mut(&transaction.coordinator) {
            entries.end((transaction.epoch, transaction.sequence), outcomes_max);
        }
    }

    /// Stores a record of another log, without regard to limits: recovery brings it, and there are few.
    pub fn adopt(&mut self, recorded: &Recorded<'_>) {
        let TransactionId { epoch, coordinator, sequence } = recorded.transaction;
        // It is stored even without a place.
        let _ = self.make_place(coordinator, epoch);
        let entries = self.entries(coordinator);
        // An earlier recovery attempt may have brought it, and dropped it.
        let name = (epoch, sequence);
        if !matches!(entries.known(name), Known::Recorded | Known::Committed) {
            entries.keep(name, recorded, 0);
        }
    }

    /// A slice of the records of epochs before this one, in order, starting after a transaction. It ends with an epoch
    /// at the latest, so that it costs no more than the coordinators and its records; it is empty only if no record is
    /// left.
    pub fn records_before(&self, epoch: Epoch, after: TransactionId, slice: RecoverySlice) -> Vec<Recorded<'_>> {
        let next_of = |(coordinator, entries): (&u64, &Entries)| {
            let from = match coordinator.cmp(&after.coordinator) {
                Ordering::Less => Bound::Excluded((after.epoch, u64::MAX)),
                Ordering::Equal => Bound::Excluded((after.epoch, after.sequence)),
                Ordering::Greater => Bound::Included((after.epoch, 0)),
            };
            let ((epoch, sequence), _) = entries.records.range((from, Bound::Unbounded)).next()?;
            Some(TransactionId { epoch: *epoch, coordinator: *coordinator, sequence: *sequence })
        };
        let next = self.coordinators.iter().filter_map(next_of).min();
        let Some(first) = next.filter(|first| first.epoch < epoch) else { return Vec::new() };
        let in_epoch = self.coordinators.range(first.coordinator..).flat_map(|(coordinator, entries)| {
            let sequence = if *coordinator == first.coordinator { first.sequence } else { 0 };
            let records = entries.records.range((first.epoch, sequence)..=(first.epoch, u64::MAX));
            records.map(|record| recorded(*coordinator, record))
        });
        let mut fill = slice.begin();
        in_epoch.take_while(|recorded| fill.add(record_bytes(recorded.record.len()))).collect()
    }

    /// Drops the records of earlier epochs, as many as fit a slice: recovery has applied them everywhere, so they are
    /// committed. Returns whether none is left.
    pub fn end_before(&mut self, epoch: Epoch, fill: &mut SliceFill) -> bool {
        let outcomes_max = self.limits.outcomes_max;
        for entries in self.coordinators.values_mut() {
            while let Some((name, record)) = entries.records.first_key_value().filter(|(name, _)| name.0 < epoch) {
                if !fill.add(record_bytes(record.writes.len())) {
                    return false;
                }
                let name = *name;
                entries.end(name, outcomes_max);
            }
        }
        true
    }

    pub fn known(&self, transaction: TransactionId) -> Known {
        let name = (transaction.epoch, transaction.sequence);
        match self.coordinators.get(&transaction.coordinator) {
            Some(entries) => entries.known(name),
            None if self.forgotten_of(transaction.coordinator).is_some_and(|last| name <= last) => Known::Forgotten,
            None => Known::Nothing,
        }
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.coordinators.values().map(|entries| entries.records.len()).sum()
    }
}

impl Entries {
    fn keep(&mut self, name: Name, recorded: &Recorded<'_>, counted: usize) {
        let record = Record { count: recorded.count, writes: recorded.record.into(), counted, is_old: false };
        self.records.insert(name, record);
    }
}

fn recorded<'a>(coordinator: u64, ((epoch, sequence), record): (&Name, &'a Record)) -> Recorded<'a> {
    let transaction = TransactionId { epoch: *epoch, coordinator, sequence: *sequence };
    Recorded { transaction, count: record.count, record: &record.writes }
}

#[cfg(test)]
mod tests {
    use dunlin_trial::Random;

    use super::*;

    const BEGINNING: TransactionId = TransactionId { epoch: 0, coordinator: 0, sequence: 0 };

    /// A slice that takes all of a small log.
    fn all() -> RecoverySlice {
        RecoverySlice::default()
    }

    fn name(sequence: u64) -> TransactionId {
        TransactionId { epoch: 1, coordinator: 5, sequence }
    }

    fn record(sequence: u64, bytes: &[u8]) -> Recorded<'_> {
        Recorded { transaction: name(sequence), count: 1, record: bytes }
    }

    #[test]
    fn records_stay_until_their_transactions_end() {
        let mut log = Log::new(Limits { outcomes_max: 2, ..Limits::default() });
        for _ in 0..2 {
            log.append(&[], 1, &record(1, b"one")).unwrap();
        }
        assert_eq!((log.known(name(1)), log.known(name(2))), (Known::Recorded, Known::Absent));
        log.append(&[1], 1, &record(2, b"two")).unwrap();
        assert_eq!((log.known(name(1)), log.known(name(2)), log.len()), (Known::Committed, Known::Recorded, 1));
        log.append(&[2], 1, &record(3, b"three")).unwrap();
        log.append(&[3], 4, &Recorded { transaction: name(0), count: 0, record: b"" }).unwrap();
        assert_eq!((log.known(name(1)), log.known(name(3)), log.len()), (Known::Forgotten, Known::Committed, 0));
    }

    #[test]
    fn bytes_and_coordinators_are_limited() {
        let mut log = Log::new(Limits { log_bytes_max: 100, coordinators_max: 1, ..Limits::default() });
        log.append(&[], 1, &record(1, &[0; 40])).unwrap();
        assert_eq!(log.append(&[], 1, &record(2, &[0; 40])), Err(Refusal::Full(Resource::Log)));
        assert_eq!(log.append(&[1], 1, &record(2, &[0; 40])), Ok(()), "what ended makes room");
        let other =
            Recorded { transaction: TransactionId { epoch: 1, coordinator: 6, sequence: 1 }, count: 1, record: b"" };
        assert_eq!(log.append(&[], 1, &Recorded { count: 0, ..other }), Err(Refusal::Full(Resource::Coordinators)));
        log.append(&[2], 1, &Recorded { transaction: name(0), count: 0, record: b"" }).unwrap();
        assert_eq!(log.append(&[], 1, &other), Ok(()), "a coordinator without records makes place for another");
        assert_eq!((log.known(name(2)), log.known(other.transaction)), (Known::Forgotten, Known::Recorded));
    }

    /// Its coordinator may have lost the answer, and send the record again.
    #[test]
    fn what_was_committed_for_a_fenced_coordinator_is_not_refused_after_an_eviction() {
        let mut log = Log::new(Limits { coordinators_max: 1, ..Limits::default() });
        log.append(&[], 1, &record(1, b"one")).unwrap();
        log.fence(name(1)).unwrap();
        log.end(name(1));
        let other = TransactionId { epoch: 1, coordinator: 6, sequence: 1 };
        let begins = Recorded { transaction: other, count: 0, record: b"" };
        assert_eq!(log.append(&[], 1, &begins), Err(Refusal::Full(Resource::Coordinators)));
        log.append(&[], 1, &Recorded { count: 1, ..begins }).unwrap();
        assert_eq!(log.append(&[], 1, &record(1, b"one")), Ok(()), "it is committed");
        assert_eq!((log.known(name(1)), log.append(&[], 1, &record(2, b"two"))), (Known::Committed, Ok(())));
        [name(2), other].into_iter().for_each(|it| log.end(it));
        let third = TransactionId { epoch: 2, coordinator: 7, sequence: 0 };
        let begins = Recorded { transaction: third, count: 0, record: b"" };
        assert_eq!(log.append(&[], 1, &begins), Ok(()), "fences are of one epoch");
    }

    #[test]
    fn records_of_other_logs_are_counted_for_nobody() {
        let mut log = Log::new(Limits { log_bytes_max: 100, ..Limits::default() });
        log.append(&[], 1, &record(1, &[0; 40])).unwrap();
        log.adopt(&record(2, &[0; 200]));
        log.adopt(&record(1, &[0; 40]));
        assert!(log.end_before(2, &mut all().begin()));
        log.adopt(&record(2, &[0; 200]));
        assert_eq!((log.len(), log.known(name(1)), log.known(name(2))), (0, Known::Committed, Known::Committed));
    }

    #[test]
    fn only_records_of_the_same_epoch_end_with_a_message() {
        let mut log = Log::new(Limits::default());
        log.append(&[], 1, &record(1, b"old")).unwrap();
        let later =
            Recorded { transaction: TransactionId { epoch: 2, coordinator: 5, sequence: 2 }, count: 1, record: b"new" };
        log.append(&[1], 1, &later).unwrap();
        assert_eq!(log.records_before(2, BEGINNING, all()), [record(1, b"old")]);
        assert!(log.end_before(2, &mut all().begin()));
        assert_eq!((log.known(name(1)), log.len()), (Known::Committed, 1));
    }

    fn of(coordinator: u64, sequence: u64) -> TransactionId {
        TransactionId { epoch: 1, coordinator, sequence }
    }

    fn record_of(coordinator: u64, sequence: u64) -> Recorded<'static> {
        Recorded { transaction: of(coordinator, sequence), count: 1, record: b"" }
    }

    fn nothing_of(coordinator: u64) -> Recorded<'static> {
        Recorded { transaction: of(coordinator, 0), count: 0, record: b"" }
    }

    /// Transactions that were forgotten with a coordinator are not mistaken for unknown ones when the coordinator
    /// returns.
    #[test]
    fn what_was_forgotten_with_its_coordinator_stays_forgotten() {
        let mut log = Log::new(Limits { coordinators_max: 1, ..Limits::default() });
        for coordinator in [5, 6] {
            log.append(&[], 1, &record_of(coordinator, 1)).unwrap();
            log.append(&[1], 1, &nothing_of(coordinator)).unwrap();
        }
        log.append(&[], 1, &record_of(5, 2)).unwrap();
        assert_eq!((log.known(of(5, 1)), log.known(of(5, 2))), (Known::Forgotten, Known::Recorded));
    }

    #[test]
    fn what_recovery_brought_is_forgotten_knowingly() {
        let mut log = Log::new(Limits { coordinators_max: 1, ..Limits::default() });
        log.adopt(&record_of(5, 1));
        assert!(log.end_before(2, &mut all().begin()));
        assert_eq!(log.known(of(5, 1)), Known::Committed);
        let in_epoch_2 = |coordinator, sequence, count| Recorded {
            transaction: TransactionId { epoch: 2, coordinator, sequence },
            count,
            record: b"",
        };
        log.append(&[], 1, &in_epoch_2(6, 1, 1)).unwrap();
        log.append(&[1], 1, &in_epoch_2(6, 0, 0)).unwrap();
        log.append(&[], 1, &in_epoch_2(5, 2, 1)).unwrap();
        assert_eq!(log.known(of(5, 1)), Known::Forgotten);
    }

    #[test]
    fn a_record_that_comes_again_after_its_end_is_not_kept() {
        let mut log = Log::new(Limits::default());
        log.append(&[], 1, &record_of(5, 1)).unwrap();
        log.append(&[1], 1, &record_of(5, 2)).unwrap();
        log.append(&[], 1, &record_of(5, 1)).unwrap();
        assert_eq!((log.len(), log.known(of(5, 1))), (1, Known::Committed));
    }

    /// A registered coordinator may always log: a refusal would leave its transaction in doubt.
    #[test]
    fn a_coordinator_that_was_evicted_may_log() {
        let mut log = Log::new(Limits { coordinators_max: 1, ..Limits::default() });
        log.append(&[], 1, &nothing_of(5)).unwrap();
        log.append(&[], 1, &nothing_of(6)).unwrap();
        log.append(&[], 1, &record_of(6, 1)).unwrap();
        assert_eq!(log.append(&[], 1, &record_of(5, 1)), Ok(()));
        assert_eq!(log.append(&[], 1, &nothing_of(7)), Err(Refusal::Full(Resource::Coordinators)));
    }

    /// In each epoch, outcomes after a transaction that may be in doubt are kept.
    #[test]
    fn what_never_was_is_told_from_what_is_forgotten() {
        let mut log = Log::new(Limits { outcomes_max: 2, ..Limits::default() });
        let of_epoch = |epoch, sequence, count| {
            let transaction = TransactionId { epoch, coordinator: 5, sequence };
            Recorded { transaction, count, record: b"" }
        };
        // Transaction 20 has no record here.
        for sequence in (1..20).chain(21..30) {
            log.append(&[], sequence.min(20), &of_epoch(1, sequence, 1)).unwrap();
            log.append(&[sequence], sequence.min(20), &of_epoch(1, 0, 0)).unwrap();
        }
        for sequence in 30..50 {
            log.append(&[], sequence, &of_epoch(2, sequence, 1)).unwrap();
            log.append(&[sequence], sequence + 1, &of_epoch(2, 0, 0)).unwrap();
        }
        let known = |epoch, sequence| log.known(TransactionId { epoch, coordinator: 5, sequence });
        assert_eq!([known(1, 1), known(1, 20), known(1, 29)], [Known::Forgotten, Known::Absent, Known::Committed]);
        assert_eq!([known(2, 30), known(2, 49), known(2, 50)], [Known::Forgotten, Known::Committed, Known::Absent]);
        assert_eq!((known(3, 1), log.known(of(6, 1))), (Known::Nothing, Known::Nothing));
    }

    /// The log of another coordinator does not know which other transactions that one logged.
    #[test]
    fn a_log_that_recovery_gave_a_record_proves_nothing_of_others() {
        let mut log = Log::new(Limits::default());
        log.adopt(&record_of(5, 7));
        assert_eq!((log.known(of(5, 7)), log.known(of(5, 8))), (Known::Recorded, Known::Nothing));
        assert!(log.end_before(2, &mut all().begin()));
        assert_eq!((log.known(of(5, 7)), log.known(of(5, 8))), (Known::Committed, Known::Nothing));
    }

    #[test]
    fn a_transaction_that_was_fenced_logs_no_more() {
        let mut log = Log::new(Limits::default());
        log.append(&[], 1, &record_of(5, 1)).unwrap();
        assert_eq!(log.fence(of(5, 1)), Ok((Known::Recorded, Some(record_of(5, 1)))));
        assert_eq!(log.fence(of(5, 2)), Ok((Known::Absent, None)));
        assert_eq!(log.append(&[1], 1, &record_of(5, 2)), Err(Refusal::Fenced));
        assert_eq!(log.append(&[], 1, &record_of(5, 1)), Ok(()), "it has the record");
        assert_eq!((log.append(&[], 1, &record_of(5, 3)), log.append(&[], 1, &record_of(6, 1))), (Ok(()), Ok(())));
        log.adopt(&record_of(5, 2));
        assert_eq!(log.append(&[], 1, &record_of(5, 2)), Ok(()), "another log had a record, so it commits");
        log.end(of(5, 2));
        assert_eq!((log.known(of(5, 2)), log.len()), (Known::Committed, 3));
    }

    #[test]
    fn a_record_that_is_refused_ends_none() {
        let mut log = Log::new(Limits { log_bytes_max: 100, ..Limits::default() });
        log.append(&[], 1, &record(1, &[0; 40])).unwrap();
        assert_eq!(log.append(&[1], 1, &record(2, &[0; 80])), Err(Refusal::Full(Resource::Log)));
        assert_eq!((log.known(name(1)), log.len()), (Known::Recorded, 1));
    }

    /// Records of several epochs and coordinators. The last ones are of the epoch that recovers.
    fn random_log(random: &mut Random) -> (Log, Vec<TransactionId>) {
        let mut log = Log::new(Limits::default());
        let mut names = BTreeSet::new();
        for _ in 0..random.between(0, 60) {
            let (epoch, coordinator) = (random.between(1, 4), random.between(1, 6));
            let sequence = if random.chance(5) { u64::MAX } else { random.between(0, 9) };
            let transaction = TransactionId { epoch, coordinator, sequence };
            log.adopt(&Recorded { transaction, count: 1, record: &[7; 100][..random.between(0, 100) as usize] });
            names.insert(transaction);
        }
        (log, names.into_iter().filter(|name| name.epoch < 4).collect())
    }

    #[test]
    fn slices_of_a_log_are_its_earlier_records_in_order() {
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let (log, names) = random_log(&mut random);
            let slice = RecoverySlice {
                records_max: random.between(0, 9) as usize,
                bytes_max: random.between(0, 500) as usize,
            };
            let (mut after, mut found) = (BEGINNING, Vec::new());
            loop {
                let records = log.records_before(4, after, slice);
                assert!(records.len() <= slice.records_max.max(1), "seed {seed}: {slice:?}");
                let bytes: usize = records.iter().map(|recorded| record_bytes(recorded.record.len())).sum();
                assert!(bytes <= slice.bytes_max || records.len() == 1, "seed {seed}: {bytes} bytes, {slice:?}");
                let Some(last) = records.last() else { break };
                after = last.transaction;
                found.extend(records.iter().map(|recorded| recorded.transaction));
            }
            assert_eq!(found, names, "seed {seed}");
        }
    }

    #[test]
    fn a_log_that_is_ended_in_slices_keeps_only_the_records_of_its_epoch() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let (mut log, names) = random_log(&mut random);
            let slice = RecoverySlice { records_max: random.between(0, 9) as usize, ..all() };
            let of_epoch = log.len() - names.len();
            loop {
                let before = log.len();
                let is_done = log.end_before(4, &mut slice.begin());
                assert!(before - log.len() <= slice.records_max.max(1), "seed {seed}: {slice:?}");
                if is_done {
                    break;
                }
                assert!(log.len() < before, "seed {seed}: a slice ended nothing");
            }
            assert_eq!(log.len(), of_epoch, "seed {seed}");
            assert!(names.iter().all(|name| log.known(*name) == Known::Committed), "seed {seed}");
        }
    }
}
