//! Validation of range reads: coordinators and a participant without a network between them, and hostile requests.

use bytes::Bytes;
use dunlin_index::Range;

use super::*;
use crate::limits::{KEYS_MAX, SCANNED_MAX, VALIDATED_MAX};
use crate::transaction::{Outgoing, Planned, State};

/// A participant with default limits but those of a page, its primary, and a prefix of keys there.
fn of_pages(page_entries_max: usize) -> (Participant, PartitionId, &'static [u8]) {
    let limits = Limits { page_entries_max, ..Limits::default() };
    let participant = Participant::new(HERE, INCARNATION, Rc::new(configuration()), limits);
    let (primary, _) = partitions(&participant);
    let is_here = |prefix: &&[u8]| participant.configuration().partition_of(ORDERED, prefix) == primary;
    let prefix = [&b"a"[..], b"z"].into_iter().find(is_here).unwrap();
    (participant, primary, prefix)
}

fn key(prefix: &[u8], number: usize) -> Vec<u8> {
    [prefix, &(number as u32).to_be_bytes()].concat()
}

/// Writes as many entries. Without a value they are deletions that stay remembered.
fn fill(participant: &mut Participant, prefix: &[u8], entries: usize, value: impl Fn(usize) -> Option<&'static [u8]>) {
    let (partition, _) = partitions(participant);
    let primary = participant.whole_primary(partition).unwrap();
    for number in 0..entries {
        let target = Target { partition, table: ORDERED, key: &key(prefix, number) };
        primary.apply(&Write { target, version: number as Version + 1, low: 1, value: value(number) });
    }
}

fn read(participant: &mut Participant, state: &mut State, prefix: &[u8], limit: usize) -> usize {
    state.begin_scan(ORDERED, Range::prefix(prefix), limit).unwrap();
    while let Some(message) = state.scan_round().unwrap() {
        state.scanned(&ask(participant, message.kind, &message.payload).unwrap()).unwrap();
    }
    state.end_scan().len()
}

/// Locks so many absent keys, `step` keys of the range apart.
fn lock_absent(participant: &mut Participant, state: &mut State, prefix: &[u8], locks: usize, step: usize) {
    for number in 0..locks {
        let absent = [&key(prefix, number * step)[..], b"absent"].concat();
        state.plan(ORDERED, &absent, Planned::Put(Bytes::from_static(b"new"))).unwrap();
    }
    for message in state.lock_round() {
        state.executed(&message, &ask(participant, message.kind, &message.payload).unwrap()).unwrap();
    }
}

fn validate(participant: &mut Participant, messages: &[Outgoing]) -> Result<(), Refusal> {
    messages.iter().try_for_each(|message| ask(participant, message.kind, &message.payload).map(|_| ()))
}

#[test]
fn a_transaction_that_has_read_as_many_entries_as_it_may_is_validated() {
    let (mut participant, partition, prefix) = of_pages(1024);
    let is_deleted = |number: usize| number % 3 == 1;
    fill(&mut participant, prefix, SCANNED_MAX, |number| (!is_deleted(number)).then_some(b"old"));
    let items = (0..SCANNED_MAX).filter(|number| !is_deleted(*number)).count();
    let mut state = State::new(name(1), participant.configuration().clone());
    assert_eq!(read(&mut participant, &mut state, prefix, items), items);
    lock_absent(&mut participant, &mut state, prefix, KEYS_MAX, SCANNED_MAX / KEYS_MAX);
    let messages = state.validate_round();
    // Two pages and some locks fit, or three.
    assert!((16..=32).contains(&messages.len()), "{} messages", messages.len());
    assert_eq!(validate(&mut participant, &messages), Ok(()));

    let target = Target { partition, table: ORDERED, key: &key(prefix, SCANNED_MAX - 1) };
    let write = Write { target, version: 1 << 20, low: 1, value: Some(b"new") };
    participant.whole_primary(partition).unwrap().apply(&write);
    let changed = validate(&mut participant, &messages);
    assert!(matches!(changed, Err(Refusal::Conflict { cause: Cause::Changed, .. })), "{changed:?}");
}

/// The keys that a transaction locks after its range reads are entries of each of them.
#[test]
fn ranges_that_overlap_are_validated_with_all_locks_in_each() {
    for page_entries_max in [0, 1, 1024, 10_000] {
        let (mut participant, _, prefix) = of_pages(page_entries_max);
        let mut state = State::new(name(1), participant.configuration().clone());
        (0..100).for_each(|_| assert_eq!(read(&mut participant, &mut state, prefix, 1), 0));
        lock_absent(&mut participant, &mut state, prefix, KEYS_MAX, 1);
        assert_eq!(validate(&mut participant, &state.validate_round()), Ok(()), "pages of {page_entries_max}");
    }
}

/// A page with more entries than other messages may have is a message of its own.
#[test]
fn a_page_of_any_length_is_validated() {
    let (mut participant, _, prefix) = of_pages(2 * VALIDATED_MAX);
    fill(&mut participant, prefix, 2 * VALIDATED_MAX, |_| Some(b"old"));
    let mut state = State::new(name(1), participant.configuration().clone());
    (0..3).for_each(|_| assert_eq!(read(&mut participant, &mut state, prefix, SCANNED_MAX), 2 * VALIDATED_MAX));
    lock_absent(&mut participant, &mut state, prefix, KEYS_MAX, 1);
    let messages = state.validate_round();
    // The ends of the ranges, which have no entries, are pages, too.
    assert!(messages.len() >= 3, "{} messages", messages.len());
    assert_eq!(validate(&mut participant, &messages), Ok(()));
}

fn checks(of: impl IntoIterator<Item = PartitionId>) -> Vec<u8> {
    let mut message = request(Kind::Validate, 0, name(1));
    let mut count = 0;
    for partition in of {
        // No version is newer.
        let version = Version::MAX;
        Check::Range(RangeCheck { partition, table: ORDERED, span: Span::ALL, version }).encode(&mut message);
        count += 1;
    }
    Header::set_count(&mut message, count);
    message
}

#[test]
fn a_message_that_would_visit_a_table_thousands_of_times_is_refused_in_time() {
    let (mut participant, primary, prefix) = of_pages(1024);
    let (_, backup) = partitions(&participant);
    fill(&mut participant, prefix, 1000, |_| Some(b"old"));
    // The participant would refuse the last check if it came to it.
    let mut of =
        |times| ask(&mut participant, Kind::Validate, &checks([primary].repeat(times).into_iter().chain([backup])));
    assert_eq!(of(VALIDATED_MAX / 1000), Err(Refusal::NotHere(backup)));
    assert_eq!(of(VALIDATED_MAX / 1000 + 1), Err(Refusal::Malformed));
    assert_eq!(of(5000), Err(Refusal::Malformed));
}

#[test]
fn a_range_with_more_entries_than_a_page_and_all_locks_is_changed() {
    for (more, expected) in [(0, Ok(())), (1, Err(Refusal::Conflict { index: 0, cause: Cause::Changed }))] {
        let (mut participant, primary, prefix) = of_pages(10);
        fill(&mut participant, prefix, 10 + KEYS_MAX + more, |_| Some(b"old"));
        let checked = ask(&mut participant, Kind::Validate, &checks([primary]));
        assert_eq!(checked.map(|_| ()), expected, "{more} more");
    }
}
