//! Requests as bytes, valid and invalid.

mod ranges;

use std::collections::BTreeMap;

use dunlin_net::Addr;
use dunlin_trial::Random;

use super::*;
use crate::configuration::{Plan, Table};
use crate::ids::{TransactionId, Version};
use crate::limits::{RecoverySlice, VALUE_BYTES_MAX};
use crate::wire::answer::{Found, Presence, Resource, take_status};
use crate::wire::execute::{Access, Check, Lock, RangeCheck, Target};
use crate::wire::log::{Append, Recorded, put_transaction, take_transaction};
use crate::wire::scan::{Page, PageRequest, Span};
use crate::wire::write::Write;

const HERE: Place = Place { node: 1, core: 0 };
const TABLE: TableId = TableId(0);
const ORDERED: TableId = TableId(1);
const INCARNATION: u64 = 77;

fn configuration() -> Configuration {
    let member = |node| Member { incarnation: INCARNATION, cores: vec![Addr::Node(node)] };
    let nodes: BTreeMap<u32, Member> = (1..=2).map(|node| (node, member(node))).collect();
    let plan = Plan { cluster: 9, nodes, partitions_per_core: 1, replicas: 2, tables: tables(), seed: [1; 16] };
    plan.configure().unwrap()
}

fn tables() -> Vec<Table> {
    vec!["t".into(), Table::ordered("ordered", ["m"])]
}

fn participant() -> Participant {
    let limits = Limits { partition_bytes_max: 2000, ..Limits::default() };
    Participant::new(HERE, INCARNATION, Rc::new(configuration()), limits)
}

fn name(sequence: u64) -> TransactionId {
    TransactionId { epoch: 1, coordinator: 5, sequence }
}

/// A partition that has its primary here, and one that has its backup here.
fn partitions(participant: &Participant) -> (PartitionId, PartitionId) {
    let of = |role| participant.partitions().find(|(_, it, _)| *it == role).unwrap().0;
    (of(Role::Primary), of(Role::Backup))
}

fn request(kind: Kind, count: u16, transaction: TransactionId) -> Vec<u8> {
    let mut message = Vec::new();
    Header { kind, count, cluster: 9, transaction, incarnation: INCARNATION }.encode(&mut message);
    message
}

fn ask(participant: &mut Participant, kind: Kind, message: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut answer = Vec::new();
    participant.handle(kind, message, &mut answer);
    take_status(&mut &answer[..]).unwrap().map(|()| answer[1..].to_vec())
}

fn lock(room: u32) -> Access {
    Access::ReadAndLock(Lock { room, expected: Version::MAX })
}

fn execute(sequence: u64, entries: &[(PartitionId, &[u8], Access)]) -> Vec<u8> {
    let mut message = request(Kind::Execute, entries.len() as u16, name(sequence));
    for (partition, key, access) in entries {
        Target { partition: *partition, table: TABLE, key }.encode(&mut message);
        access.encode(&mut message);
    }
    message
}

#[test]
fn a_request_is_done_as_a_whole_or_not_at_all() {
    let mut participant = participant();
    let (primary, backup) = partitions(&participant);
    ask(&mut participant, Kind::Execute, &execute(1, &[(primary, b"taken", lock(8))])).unwrap();
    let conflicting = [(primary, &b"free"[..], lock(8)), (primary, b"taken", Access::Read)];
    let refused = ask(&mut participant, Kind::Execute, &execute(2, &conflicting));
    assert_eq!(refused, Err(Refusal::Conflict { index: 1, cause: Cause::Locked }));
    let misplaced = [(primary, &b"free"[..], lock(8)), (backup, b"other", Access::Read)];
    assert_eq!(ask(&mut participant, Kind::Execute, &execute(2, &misplaced)), Err(Refusal::NotHere(backup)));
    let too_long = [(primary, &b"free"[..], lock(8)), (primary, b"more", lock(5000))];
    let refused = ask(&mut participant, Kind::Execute, &execute(2, &too_long));
    assert_eq!(refused, Err(Refusal::Full(Resource::Memory)));
    let endless = [(primary, &b"free"[..], lock(VALUE_BYTES_MAX as u32 + 1))];
    assert_eq!(ask(&mut participant, Kind::Execute, &execute(2, &endless)), Err(Refusal::Malformed));
    let answer = ask(&mut participant, Kind::Execute, &execute(3, &[(primary, b"free", lock(8))])).unwrap();
    let found = Found::take(&mut &answer[..]).unwrap();
    assert_eq!((found.presence, found.value), (Presence::Absent, None));
}

#[test]
fn other_epochs_clusters_and_tables_are_refused() {
    let mut participant = participant();
    let (primary, _) = partitions(&participant);
    for kind in Kind::ALL {
        let mut message = request(kind, 0, TransactionId { epoch: 2, ..name(1) });
        assert_eq!(ask(&mut participant, kind, &message), Err(Refusal::OtherEpoch { ours: 1 }));
        message[4] ^= 1;
        assert_eq!(ask(&mut participant, kind, &message), Err(Refusal::OtherCluster { ours: 9 }));
        message[0] = 2;
        let refusal = ask(&mut participant, kind, &message).unwrap_err();
        assert_eq!(refusal, Refusal::OtherVersion { ours: 3 });
        assert!(refusal.to_string().contains("has version 3"), "{refusal}");
    }
    let mut message = request(Kind::Execute, 1, name(1));
    Target { partition: primary, table: TableId(2), key: b"k" }.encode(&mut message);
    Access::Read.encode(&mut message);
    assert_eq!(ask(&mut participant, Kind::Execute, &message), Err(Refusal::NoTable(TableId(2))));
}

/// A restarted process has no data, and reports that.
#[test]
fn a_participant_that_was_restarted_answers_nothing() {
    let mut participant = Participant::new(HERE, INCARNATION + 1, Rc::new(configuration()), Limits::default());
    for kind in Kind::ALL {
        let refused = ask(&mut participant, kind, &request(kind, 0, name(1)));
        assert_eq!(refused, Err(Refusal::OtherIncarnation { ours: INCARNATION + 1 }));
    }
    let next = configuration().without(&[2]).unwrap();
    assert!(matches!(participant.reconfigure(Rc::new(next)), Err(NotTaken::OtherIncarnation { .. })));
}

#[test]
fn what_was_validated_is_neither_locked_nor_changed() {
    let mut participant = participant();
    let (primary, _) = partitions(&participant);
    let target = Target { partition: primary, table: TABLE, key: b"k" };
    let check = |participant: &mut Participant, sequence, version| {
        let mut message = request(Kind::Validate, 1, name(sequence));
        Check::Item { target, version }.encode(&mut message);
        ask(participant, Kind::Validate, &message).map(|_| ())
    };
    assert_eq!(check(&mut participant, 1, 0), Ok(()));
    let answer = ask(&mut participant, Kind::Execute, &execute(2, &[(primary, b"k", lock(8))])).unwrap();
    let grant = Found::take(&mut &answer[..]).unwrap().grant.unwrap();
    assert_eq!(check(&mut participant, 1, 0), Err(Refusal::Conflict { index: 0, cause: Cause::Locked }));
    assert_eq!(check(&mut participant, 2, 0), Ok(()), "its own lock is no conflict");
    let mut commit = request(Kind::CommitPrimary, 1, name(2));
    Write { target, version: grant.version, low: grant.low, value: Some(b"new") }.encode(&mut commit);
    ask(&mut participant, Kind::CommitPrimary, &commit).unwrap();
    ask(&mut participant, Kind::CommitPrimary, &commit).unwrap();
    let mut never_locked = request(Kind::CommitPrimary, 1, name(2));
    let version = grant.version + 1;
    Write { target, version, low: grant.low, value: Some(b"other") }.encode(&mut never_locked);
    assert_eq!(ask(&mut participant, Kind::CommitPrimary, &never_locked), Err(Refusal::NotLocked(0)));
    assert_eq!(check(&mut participant, 1, 0), Err(Refusal::Conflict { index: 0, cause: Cause::Changed }));
    assert_eq!(check(&mut participant, 1, grant.version), Ok(()));
}

fn page_of(partition: PartitionId, table: TableId, span: Span<'_>) -> Vec<u8> {
    let mut message = request(Kind::Scan, 1, name(1));
    PageRequest { partition, table, span, items_max: 10 }.encode(&mut message);
    message
}

#[test]
fn a_range_is_read_only_from_an_ordered_table_at_its_primary() {
    let mut participant = participant();
    let (primary, backup) = partitions(&participant);
    let ask_for = |participant: &mut Participant, partition, table| {
        ask(participant, Kind::Scan, &page_of(partition, table, Span::ALL))
    };
    let answer = ask_for(&mut participant, primary, ORDERED).unwrap();
    assert_eq!(Page::parse(&answer), Ok(Page { version: 0, visited: 0, items: vec![], last: None }));
    assert_eq!(ask_for(&mut participant, primary, TABLE), Err(Refusal::NotOrdered(TABLE)));
    assert_eq!(ask_for(&mut participant, primary, TableId(2)), Err(Refusal::NoTable(TableId(2))));
    assert_eq!(ask_for(&mut participant, backup, ORDERED), Err(Refusal::NotHere(backup)));
    let mut check = request(Kind::Validate, 1, name(1));
    Check::Range(RangeCheck { partition: primary, table: TABLE, span: Span::ALL, version: 0 }).encode(&mut check);
    assert_eq!(ask(&mut participant, Kind::Validate, &check), Err(Refusal::NotOrdered(TABLE)));
    // Bounds the wrong way round are an empty range.
    let reversed = page_of(primary, ORDERED, Span { low: b"b", high: Some(b"a") });
    assert!(ask(&mut participant, Kind::Scan, &reversed).is_ok());
    let mut two = page_of(primary, ORDERED, Span::ALL);
    Header::set_count(&mut two, 2);
    assert_eq!(ask(&mut participant, Kind::Scan, &two), Err(Refusal::Malformed));
    let mut none = page_of(primary, ORDERED, Span::ALL);
    let at = none.len() - 4;
    none[at..].fill(0);
    assert_eq!(ask(&mut participant, Kind::Scan, &none), Err(Refusal::Malformed), "a page of no items has no end");
    let long = page_of(primary, ORDERED, Span { low: &[1; 252], high: None });
    assert_eq!(ask(&mut participant, Kind::Scan, &long), Err(Refusal::Malformed));
}

#[test]
fn a_promoted_backup_is_not_served_before_logs_are_replayed() {
    let mut participant = participant();
    let (primary, backup) = partitions(&participant);
    // A transaction of epoch 1 logs here, and is lost with its coordinator before it commits anywhere.
    let mut record = request(Kind::Log, 1, name(1));
    Append::encode_ended(&[], 1, &mut record);
    let target = Target { partition: backup, table: TABLE, key: b"k" };
    Write { target, version: 3, low: 3, value: Some(b"logged") }.encode(&mut record);
    ask(&mut participant, Kind::Log, &record).unwrap();
    ask(&mut participant, Kind::Execute, &execute(2, &[(primary, b"mine", lock(8))])).unwrap();

    participant.reconfigure(Rc::new(configuration().without(&[2]).unwrap())).unwrap();
    assert_eq!(ask(&mut participant, Kind::Log, &record), Err(Refusal::OtherEpoch { ours: 2 }));
    let in_epoch_2 = TransactionId { epoch: 2, ..name(3) };
    let read = |participant: &mut Participant, partition, key| {
        let mut message = request(Kind::Execute, 1, in_epoch_2);
        Target { partition, table: TABLE, key }.encode(&mut message);
        Access::Read.encode(&mut message);
        ask(participant, Kind::Execute, &message)
    };
    assert_eq!(read(&mut participant, backup, b"k"), Err(Refusal::Recovering(backup)));
    assert!(read(&mut participant, primary, b"other").is_ok(), "partitions that lost nothing are served all the time");
    let locked = Err(Refusal::Conflict { index: 0, cause: Cause::Locked });
    assert_eq!(read(&mut participant, primary, b"mine"), locked, "recovery may find a record of its owner");
    for _ in 0..2 {
        assert_eq!(ask(&mut participant, Kind::Replay, &replay_after(name(1))), Ok(named(name(1))), "nothing is left");
        assert_eq!(ask(&mut participant, Kind::Replay, &replay_after(BEGINNING)).map(|it| it.len()), Ok(24));
        assert_eq!(ask(&mut participant, Kind::Open, &request(Kind::Open, 0, in_epoch_2)), Ok(vec![0]));
    }
    let answer = read(&mut participant, backup, b"k").unwrap();
    let found = Found::take(&mut &answer[..]).unwrap();
    assert_eq!((found.version, found.value), (3, Some(&b"logged"[..])));
    assert!(read(&mut participant, primary, b"mine").is_ok());
    assert_eq!(participant.log_records(), 0);
}

const BEGINNING: TransactionId = TransactionId { epoch: 0, coordinator: 0, sequence: 0 };

fn named(transaction: TransactionId) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_transaction(&mut bytes, transaction);
    bytes
}

/// A request of epoch 2 for the slice after a transaction.
fn replay_after(after: TransactionId) -> Vec<u8> {
    let mut message = request(Kind::Replay, 0, TransactionId { epoch: 2, ..name(0) });
    put_transaction(&mut message, after);
    message
}

/// A participant in epoch 2, with 40 records of epoch 1 for a partition that it was promoted for, and 30 locks of that
/// epoch in another partition.
fn participant_before_recovery(recovery_slice: RecoverySlice) -> Participant {
    let limits = Limits { recovery_slice, ..Limits::default() };
    let mut participant = Participant::new(HERE, INCARNATION, Rc::new(configuration()), limits);
    let (primary, backup) = partitions(&participant);
    for number in 0..40u8 {
        let of = TransactionId { coordinator: u64::from(number % 3), ..name(1 + u64::from(number)) };
        let mut record = request(Kind::Log, 1, of);
        Append::encode_ended(&[], 1, &mut record);
        let target = Target { partition: backup, table: TABLE, key: &[number] };
        Write { target, version: 1 + u64::from(number), low: 1, value: Some(b"logged") }.encode(&mut record);
        ask(&mut participant, Kind::Log, &record).unwrap();
        if number < 30 {
            let wish = [(primary, &[number][..], lock(8))];
            ask(&mut participant, Kind::Execute, &execute(100 + u64::from(number), &wish)).unwrap();
        }
    }
    participant.reconfigure(Rc::new(configuration().without(&[2]).unwrap())).unwrap();
    participant
}

/// Its items, locks, records and last slice.
fn recovery_state(participant: &Participant) -> (usize, usize, usize) {
    let all = |of: fn(PartitionStats) -> usize| participant.partitions().map(|(_, _, stats)| of(stats)).sum();
    (all(|stats| stats.items), all(|stats| stats.locks), participant.log_records())
}

#[test]
fn a_request_of_recovery_handles_one_slice_and_may_be_repeated() {
    for records_max in [1, 7, 39, 40, 1000] {
        let mut participant = participant_before_recovery(RecoverySlice { records_max, ..RecoverySlice::default() });
        let (_, promoted) = partitions_of_epoch_1();
        assert_eq!(recovery_state(&participant), (0, 30, 40));
        let mut after = BEGINNING;
        loop {
            let before = recovery_state(&participant);
            let last = ask(&mut participant, Kind::Replay, &replay_after(after)).unwrap();
            assert_eq!(ask(&mut participant, Kind::Replay, &replay_after(after)).as_ref(), Ok(&last), "a repeated one");
            let now = recovery_state(&participant);
            assert!(now.0 - before.0 <= records_max, "{records_max}: {before:?}, then {now:?}");
            assert_eq!((now.1, now.2), (30, 40), "no lock and no record goes before all copies have replayed");
            let last = take_transaction(&mut &last[..]).unwrap();
            if last == after {
                break;
            }
            after = last;
        }
        assert_eq!(recovery_state(&participant), (40, 30, 40));
        let read = {
            let mut message = request(Kind::Execute, 1, TransactionId { epoch: 2, ..name(3) });
            Target { partition: promoted, table: TABLE, key: &[0] }.encode(&mut message);
            Access::Read.encode(&mut message);
            message
        };
        let open = request(Kind::Open, 0, TransactionId { epoch: 2, ..name(0) });
        loop {
            let before = recovery_state(&participant);
            let more = ask(&mut participant, Kind::Open, &open).unwrap();
            let now = recovery_state(&participant);
            let handled = before.1 + before.2 - now.1 - now.2;
            assert!(handled <= records_max, "{records_max}: {before:?}, then {now:?}");
            if more == [0] {
                break;
            }
            assert_eq!((more, handled > 0), (vec![1], true), "{records_max}: {before:?}, then {now:?}");
            assert!(now.1 == 30 || now.2 == 0, "locks go after all records: {now:?}");
        }
        assert_eq!(recovery_state(&participant), (40, 0, 0));
        assert!(ask(&mut participant, Kind::Execute, &read).is_ok(), "{records_max}: the promoted partition is open");
        assert_eq!(ask(&mut participant, Kind::Open, &open), Ok(vec![0]), "a repeated one");
    }
}

/// The partition whose primary is here in epoch 1, and the one whose backup is.
fn partitions_of_epoch_1() -> (PartitionId, PartitionId) {
    partitions(&participant())
}

#[test]
fn configurations_that_do_not_fit_are_refused() {
    let mut participant = participant();
    let given = |change: fn(&mut Configuration)| {
        let mut next = configuration();
        next.epoch = 2;
        change(&mut next);
        Rc::new(next)
    };
    let older = participant.reconfigure(given(|next| next.epoch = 1));
    assert_eq!(older, Err(NotTaken::Older { given: 1, ours: 1 }));
    let foreign = participant.reconfigure(given(|next| next.cluster = 8));
    assert_eq!(foreign, Err(NotTaken::OtherCluster { given: 8, ours: 9 }));
    let renamed = participant.reconfigure(given(|next| next.tables[1] = Table::ordered("ordered", ["n"])));
    assert_eq!(renamed, Err(NotTaken::TableChanged { table: "ordered".into() }));
    let fewer = participant.reconfigure(given(|next| next.tables.truncate(1)));
    assert_eq!(fewer, Err(NotTaken::TableChanged { table: "ordered".into() }));
    let moved = participant.reconfigure(given(|next| next.partitions.push(vec![HERE])));
    assert!(matches!(moved, Err(NotTaken::NoCopy { .. })));
    assert_eq!(participant.epoch(), 1);
}

/// Requests with bytes changed, cut off or added: each gets an answer, and a refused one leaves no lock.
/// Others would panic when they settle such a record, and a copy would take everything later for old.
#[test]
fn writes_that_cannot_be_are_neither_stored_nor_applied() {
    let mut participant = participant();
    let (_, backup) = partitions(&participant);
    let of_next_epoch: Version = 2 << 40;
    for kind in [Kind::Log, Kind::CommitBackup] {
        let mut ask_for = |partition, table, version| {
            let mut message = request(kind, 1, name(1));
            if kind == Kind::Log {
                Append::encode_ended(&[], 1, &mut message);
            }
            let target = Target { partition, table, key: b"k" };
            Write { target, version, low: 1, value: Some(b"v") }.encode(&mut message);
            ask(&mut participant, kind, &message).map(|_| ())
        };
        let nowhere = PartitionId(4_000_000_000);
        assert_eq!(ask_for(nowhere, TABLE, 1), Err(Refusal::NotHere(nowhere)));
        assert_eq!(ask_for(backup, TableId(9), 1), Err(Refusal::NoTable(TableId(9))));
        for version in [of_next_epoch, Version::MAX] {
            assert_eq!(ask_for(backup, TABLE, version), Err(Refusal::Malformed), "{kind:?} {version}");
        }
        assert_eq!(ask_for(backup, TABLE, of_next_epoch - 1), Ok(()));
    }
    assert_eq!(participant.log_records(), 1);
}

#[test]
fn hostile_bytes_do_no_harm() {
    let mut random = Random::new(7);
    for seed in 0..3000 {
        let mut participant = participant();
        let (primary, backup) = partitions(&participant);
        // It holds a lock and a record of the requesting transaction, and of another one.
        for sequence in [1, 9] {
            let key = [sequence as u8];
            ask(&mut participant, Kind::Execute, &execute(sequence, &[(primary, &key, lock(4))])).unwrap();
            let mut record = request(Kind::Log, 1, name(sequence));
            Append::encode_ended(&[], 1, &mut record);
            let target = Target { partition: primary, table: TABLE, key: &key };
            Write { target, version: sequence, low: 1, value: Some(b"v") }.encode(&mut record);
            ask(&mut participant, Kind::Log, &record).unwrap();
        }
        let held = |participant: &Participant| {
            let copies: Vec<PartitionStats> = participant.partitions().map(|(_, _, stats)| stats).collect();
            (copies, participant.log_records())
        };
        let before = held(&participant);
        let mut message = hostile(&mut random, primary, backup);
        for _ in 0..random.between(0, 3) {
            let at = random.index(message.len());
            match random.between(0, 2) {
                0 => message[at] = random.next() as u8,
                1 => message.truncate(at.max(1)),
                _ => message.push(random.next() as u8),
            }
        }
        let kind = Kind::ALL[random.index(Kind::ALL.len())];
        // Usually the kind in the message.
        let kind = Kind::ALL.into_iter().find(|it| Some(&it.req_type()) == message.get(1)).unwrap_or(kind);
        if ask(&mut participant, kind, &message).is_err() {
            assert_eq!(held(&participant), before, "message {seed}: {message:02x?}");
        }
    }
}

fn hostile(random: &mut Random, primary: PartitionId, backup: PartitionId) -> Vec<u8> {
    let target = Target { partition: if random.chance(70) { primary } else { backup }, table: TABLE, key: b"knot" };
    let write = Write { target, version: 5, low: 4, value: Some(b"red") };
    match random.between(0, 7) {
        7 => {
            let (partition, span) = (target.partition, Span { low: b"a", high: Some(b"z") });
            let mut message = page_of(partition, ORDERED, span);
            if random.chance(50) {
                message = request(Kind::Validate, 2, name(1));
                Check::Range(RangeCheck { partition, table: ORDERED, span, version: 0 }).encode(&mut message);
                Check::Item { target, version: 0 }.encode(&mut message);
            }
            message
        }
        5 => {
            // Of two entries, the second may be wrong.
            let mut message = request(Kind::Abort, 2, name(1));
            Target { partition: primary, table: TABLE, key: &[1] }.encode(&mut message);
            target.encode(&mut message);
            message
        }
        6 => {
            let mut message = request(Kind::Spread, 2, name(1));
            let mut record = Vec::new();
            write.encode(&mut record);
            for sequence in [20, 21] {
                let transaction = TransactionId { epoch: 0, ..name(sequence) };
                Recorded { transaction, count: 1, record: &record }.encode(&mut message);
            }
            message
        }
        0 => execute(1, &[(primary, b"a", lock(4)), (target.partition, b"b", Access::Read), (primary, b"c", lock(9))]),
        1 => {
            let mut message = request(Kind::Validate, 1, name(1));
            Check::Item { target, version: 0 }.encode(&mut message);
            message
        }
        2 => {
            let mut message = request(Kind::Log, 1, name(1));
            Append::encode_ended(&[1, 2], 1, &mut message);
            write.encode(&mut message);
            message
        }
        3 => {
            let kind = if random.chance(50) { Kind::CommitBackup } else { Kind::CommitPrimary };
            let mut message = request(kind, 1, name(1));
            write.encode(&mut message);
            message
        }
        _ => {
            let kind = Kind::ALL[random.index(Kind::ALL.len())];
            let mut message = request(kind, random.next() as u16, name(1));
            (0..random.between(0, 60)).for_each(|_| message.push(random.next() as u8));
            message
        }
    }
}

#[test]
fn a_node_that_is_not_heard_refuses_everything() {
    let mut participant = participant();
    let is_heard = Rc::new(std::cell::Cell::new(true));
    let heard = is_heard.clone();
    participant.guard(Rc::new(move || heard.get()));
    let (primary, _) = partitions(&participant);
    let read = execute(1, &[(primary, b"k", Access::Read)]);
    assert!(ask(&mut participant, Kind::Execute, &read).is_ok());
    is_heard.set(false);
    assert_eq!(ask(&mut participant, Kind::Execute, &read), Err(Refusal::NotSafe));
    for kind in Kind::ALL {
        assert_eq!(ask(&mut participant, kind, &request(kind, 0, name(1))), Err(Refusal::NotSafe));
    }
    is_heard.set(true);
    assert!(ask(&mut participant, Kind::Execute, &read).is_ok());
}

const THERE: Place = Place { node: 2, core: 0 };
const NEW: u64 = 99;

/// A message in an epoch, for a participant.
fn request_in(epoch: u64, to: &Participant, kind: Kind, count: u16, sequence: u64) -> Vec<u8> {
    let (mut message, transaction) = (Vec::new(), TransactionId { epoch, ..name(sequence) });
    Header { kind, count, cluster: 9, transaction, incarnation: to.incarnation() }.encode(&mut message);
    message
}

/// Commits a write at a primary and a backup, which may be one that is being filled.
fn write_both(both: (&mut Participant, &mut Participant), partition: PartitionId, key: &[u8], value: Option<&[u8]>) {
    let (primary, backup) = both;
    let (epoch, target) = (primary.epoch(), Target { partition, table: TABLE, key });
    let mut message = request_in(epoch, primary, Kind::Execute, 1, 50);
    target.encode(&mut message);
    lock(64).encode(&mut message);
    let answer = ask(primary, Kind::Execute, &message).unwrap();
    let grant = Found::take(&mut &answer[..]).unwrap().grant.unwrap();
    for (to, kind) in [(backup, Kind::CommitBackup), (primary, Kind::CommitPrimary)] {
        let mut message = request_in(epoch, to, kind, 1, 50);
        Write { target, version: grant.version, low: grant.low, value }.encode(&mut message);
        ask(to, kind, &message).unwrap();
    }
}

/// A primary with some items that was left alone, and a new process that gets a copy of its partition; both in epoch 3.
fn donor_and_new() -> (Participant, Participant, PartitionId) {
    let limits = Limits { page_entries_max: 2, ..Limits::default() };
    let mut donor = Participant::new(HERE, INCARNATION, Rc::new(configuration()), limits);
    let mut other = Participant::new(THERE, INCARNATION, Rc::new(configuration()), limits);
    let (partition, _) = partitions(&donor);
    for key in [b"a", b"b", b"c", b"d", b"e"] {
        write_both((&mut donor, &mut other), partition, key, Some(b"old"));
    }
    let alone = configuration().without(&[2]).unwrap();
    donor.reconfigure(Rc::new(alone.clone())).unwrap();
    let mut both = alone;
    both.epoch = 3;
    both.nodes.insert(2, Member { incarnation: NEW, cores: vec![Addr::Node(2)] });
    for (number, copies) in both.partitions.iter_mut().enumerate() {
        copies.push(THERE);
        both.filling.insert((PartitionId(number as u32), 2), 3);
    }
    both.check().unwrap();
    let mut new = Participant::new(THERE, NEW, Rc::new(crate::node::plan::found(9, [0; 16])), limits);
    let both = Rc::new(both);
    donor.reconfigure(both.clone()).unwrap();
    new.reconfigure(both).unwrap();
    (donor, new, partition)
}

fn fill_page(donor: &mut Participant, partition: PartitionId, from: u64) -> Result<Vec<u8>, Refusal> {
    let mut message = request_in(donor.epoch(), donor, Kind::Fill, 1, 0);
    crate::wire::fill::FillRequest { partition, node: 2, from }.encode(&mut message);
    ask(donor, Kind::Fill, &message)
}

fn contents(participant: &Participant, partition: PartitionId) -> BTreeMap<Vec<u8>, (Version, Vec<u8>)> {
    participant.items(partition).map(|(_, key, version, value)| (key.to_vec(), (version, value.to_vec()))).collect()
}

fn open(participant: &mut Participant) {
    let message = request_in(participant.epoch(), participant, Kind::Open, 0, 0);
    while ask(participant, Kind::Open, &message).unwrap() != [0] {}
}

#[test]
fn a_new_copy_is_filled_while_writes_go_on() {
    let (mut donor, mut new, partition) = donor_and_new();
    // A record that is older than the copy may still come to the primary.
    assert_eq!(fill_page(&mut donor, partition, 0), Err(Refusal::Recovering(partition)));
    open(&mut donor);
    assert_eq!(fill_page(&mut donor, partition, 2), Err(Refusal::NotHere(partition)), "it has noted no keys");
    let (mut from, mut pages) = (0, 0);
    loop {
        assert!(new.await_page(partition));
        let page = fill_page(&mut donor, partition, from).unwrap();
        // What was in the page is deleted, written, or inserted before the page arrives, and the deletions are applied
        // everywhere.
        for (key, value) in
            [(b"a", None), (b"b", Some(&b"new"[..])), (b"x", Some(&b"new"[..])), (b"c", None), (b"y", None)]
        {
            write_both((&mut donor, &mut new), partition, key, value);
        }
        let next = new.take_page(partition, 3, from, &page).unwrap();
        pages += 1;
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert!(pages >= 2, "{pages}");
    assert_eq!(contents(&new, partition), contents(&donor, partition));
    assert_eq!(contents(&new, partition).keys().map(|key| key[0] as char).collect::<String>(), "bdex");
    assert!(new.copies().any(|copy| copy.partition == partition && copy.is_complete));
    assert!(!new.await_page(partition), "it needs no more");
    // A deletion that all copies have applied is forgotten again.
    write_both((&mut donor, &mut new), partition, b"d", None);
    write_both((&mut donor, &mut new), partition, b"e", Some(b"new"));
    write_both((&mut donor, &mut new), partition, b"e", Some(b"newer"));
    let tombstones: usize = new.partitions().map(|(_, _, stats)| stats.tombstones).sum();
    assert_eq!(tombstones, 0);
}

#[test]
fn pages_that_cannot_be_are_refused() {
    let (mut donor, mut new, partition) = donor_and_new();
    open(&mut donor);
    let page = fill_page(&mut donor, partition, 0).unwrap();
    assert!(new.await_page(partition));
    for end in 0..page.len() {
        assert!(new.take_page(partition, 3, 0, &page[..end]).is_err());
    }
    let other = PartitionId(1 - partition.0);
    assert!(new.take_page(other, 3, 0, &page).is_err(), "of another partition");
    assert!(new.take_page(partition, 3, 2, &page).is_err(), "it does not go on");
    assert_eq!(new.take_page(partition, 2, 0, &page), Ok(None), "of an earlier epoch");
    assert!(contents(&new, partition).is_empty());
    assert_eq!(fill_page(&mut donor, PartitionId(7), 0), Err(Refusal::NotHere(PartitionId(7))));
}

/// Records of transactions before it was a copy: what they wrote may have been deleted since.
#[test]
fn a_new_copy_replays_only_records_of_its_time() {
    let (_, mut new, partition) = donor_and_new();
    for (epoch, key) in [(1, b"1"), (2, b"2"), (3, b"3")] {
        let mut message = request_in(3, &new, Kind::Spread, 1, 0);
        let mut record = Vec::new();
        let target = Target { partition, table: TABLE, key };
        Write { target, version: (epoch << 40) + 7, low: 1, value: Some(b"logged") }.encode(&mut record);
        let transaction = TransactionId { epoch, ..name(1) };
        Recorded { transaction, count: 1, record: &record }.encode(&mut message);
        ask(&mut new, Kind::Spread, &message).unwrap();
    }
    let mut later = (**new.configuration()).clone();
    later.epoch = 4;
    new.reconfigure(Rc::new(later)).unwrap();
    // A slice ends with an epoch.
    let mut after = BEGINNING;
    for _ in 0..4 {
        let mut message = request_in(4, &new, Kind::Replay, 0, 0);
        put_transaction(&mut message, after);
        let last = ask(&mut new, Kind::Replay, &message).unwrap();
        after = take_transaction(&mut &last[..]).unwrap();
    }
    assert_eq!(after.epoch, 3);
    assert_eq!(contents(&new, partition).keys().map(|key| key[0]).collect::<Vec<u8>>(), [b'3']);
}

/// Only a configuration that knows nothing of the copy's state would say so.
#[test]
fn a_copy_that_is_not_filled_does_not_count_as_complete() {
    let (_, mut new, _) = donor_and_new();
    let mut later = (**new.configuration()).clone();
    later.epoch = 4;
    later.filling.clear();
    assert_eq!(new.reconfigure(Rc::new(later)), Err(NotTaken::NoCopy { partition: PartitionId(0), place: THERE }));
    // A process that never was in an epoch with partitions has what was made empty.
    let nothing = Rc::new(crate::node::plan::found(9, [0; 16]));
    let mut founder = Participant::new(HERE, INCARNATION, nothing.clone(), Limits::default());
    let mut made = configuration();
    (made.epoch, made.founded) = (3, 2);
    founder.reconfigure(Rc::new(made.clone())).unwrap();
    let (primary, _) = partitions(&founder);
    let mut read = request_in(3, &founder, Kind::Execute, 1, 1);
    Target { partition: primary, table: TABLE, key: b"k" }.encode(&mut read);
    Access::Read.encode(&mut read);
    let refused = ask(&mut founder, Kind::Execute, &read);
    assert_eq!(refused, Err(Refusal::Recovering(primary)), "it was not there in the first epoch: there may be records");
}

/// It lost a copy in one epoch and got it back in the next, and heard of the second epoch only.
#[test]
fn a_copy_that_was_given_up_in_between_is_filled_again() {
    let (mut ours, mut other) =
        (participant(), Participant::new(THERE, INCARNATION, Rc::new(configuration()), Limits::default()));
    let (_, backup) = partitions(&ours);
    write_both((&mut other, &mut ours), backup, b"k", Some(b"old"));
    assert_eq!(contents(&ours, backup).len(), 1);
    let mut next = configuration();
    next.epoch = 3;
    next.filling.insert((backup, HERE.node), 3);
    ours.reconfigure(Rc::new(next.clone())).unwrap();
    let state = |ours: &Participant| ours.copies().find(|copy| copy.partition == backup).unwrap().is_complete;
    assert!(!state(&ours) && contents(&ours, backup).is_empty(), "it has missed the writes of epoch 2");
    // From here on it is the same copy.
    ours.copies[backup.0 as usize].as_mut().unwrap().is_complete = true;
    next.epoch = 4;
    ours.reconfigure(Rc::new(next.clone())).unwrap();
    assert!(state(&ours));
    next.epoch = 5;
    next.filling.clear();
    ours.reconfigure(Rc::new(next)).unwrap();
    assert!(state(&ours));
}

/// Its locks protect nothing any more, and would stay for good.
#[test]
fn a_primary_that_becomes_a_backup_has_no_locks() {
    let mut participant = participant();
    let (primary, _) = partitions(&participant);
    ask(&mut participant, Kind::Execute, &execute(1, &[(primary, b"k", lock(8))])).unwrap();
    let mut next = configuration();
    next.epoch = 2;
    next.partitions[primary.0 as usize].swap(0, 1);
    participant.reconfigure(Rc::new(next.clone())).unwrap();
    let stats = |participant: &Participant| participant.partitions().find(|(of, ..)| *of == primary).unwrap().2;
    let PartitionStats { locks, bytes, .. } = stats(&participant);
    assert_eq!((locks, bytes), (0, 0));
    // And back: it waits for recovery.
    next.epoch = 3;
    next.partitions[primary.0 as usize].swap(0, 1);
    participant.reconfigure(Rc::new(next)).unwrap();
    let mut read = request_in(3, &participant, Kind::Execute, 1, 1);
    Target { partition: primary, table: TABLE, key: b"k" }.encode(&mut read);
    Access::Read.encode(&mut read);
    assert_eq!(ask(&mut participant, Kind::Execute, &read), Err(Refusal::Recovering(primary)));
}

#[test]
fn a_version_of_more_than_a_byte_is_no_answer() {
    let status = |value: u64| take_status(&mut &[&[10][..], &value.to_le_bytes()].concat()[..]);
    assert_eq!(status(0), Ok(Err(Refusal::Malformed)));
    assert_eq!(status(2), Ok(Err(Refusal::OtherVersion { ours: 2 })));
    assert!(status(256).is_err(), "its low byte would say that the request was malformed");
}
