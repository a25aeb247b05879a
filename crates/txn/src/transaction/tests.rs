//! The plans and reads of a transaction, without participants.

use std::collections::BTreeMap;

use dunlin_net::Addr;

use dunlin_index::Range;

use super::*;
use crate::configuration::{Member, Plan, Table};
use crate::limits::{KEYS_MAX, PAGES_MAX, SCANNED_BYTES_MAX, SCANNED_MAX};
use crate::wire::answer::Found;
use crate::wire::answer::put_done;
use crate::wire::scan::{PageRequest, PageWriter, Span};
use crate::wire::{Header, Kind};

const TABLE: TableId = TableId(0);
/// Its parts are up to "h", up to "q", and from there on.
const ORDERED: TableId = TableId(1);

fn state() -> State {
    let member = |node| Member { incarnation: 1, cores: vec![Addr::Node(node)] };
    let nodes: BTreeMap<u32, Member> = (1..=3).map(|node| (node, member(node))).collect();
    let tables = vec!["t".into(), Table::ordered("ordered", ["h", "q"])];
    let plan = Plan { cluster: 9, nodes, partitions_per_core: 1, replicas: 1, tables, seed: [1; 16] };
    State::new(TransactionId { epoch: 1, coordinator: 1, sequence: 1 }, Rc::new(plan.configure().unwrap()))
}

/// Answers the messages of a round with one value for all keys.
fn answer(state: &mut State, messages: Vec<Outgoing>, value: Option<&[u8]>) {
    for message in messages {
        let mut bytes = Vec::new();
        put_done(&mut bytes);
        for _ in &message.entries {
            let presence = if value.is_some() { Presence::Present } else { Presence::Absent };
            Found { version: 3, grant: None, value, presence }.encode(&mut bytes);
        }
        state.executed(&message, &bytes[1..]).unwrap();
    }
}

#[test]
fn a_transaction_sees_what_it_writes() {
    let mut state = state();
    let put = |value: &'static [u8]| Planned::Put(Bytes::from_static(value));
    state.plan(TABLE, b"k", put(b"one")).unwrap();
    assert_eq!(state.known(TABLE, b"k", Mode::Update), Some(Some(Bytes::from_static(b"one"))));
    assert!(state.execute_round(&[(TABLE, b"k", Mode::Read)], 8).unwrap().is_empty(), "nobody need be asked");
    state.plan(TABLE, b"k", Planned::Delete).unwrap();
    assert_eq!(state.known(TABLE, b"k", Mode::Read), Some(None));
}

#[test]
fn requests_to_one_core_form_one_message_unless_they_must_not() {
    let keys: Vec<[u8; 1]> = (0..20).map(|key| [key]).collect();
    let asked: Vec<_> = keys.iter().map(|key| (TABLE, &key[..], Mode::Read)).collect();
    let cases = [(Coalescing::All, 3, 3), (Coalescing::NotValidation, 3, 20), (Coalescing::Nothing, 20, 20)];
    for (coalescing, executed, validated) in cases {
        let mut state = State { coalescing, ..state() };
        let round = state.execute_round(&asked, 8).unwrap();
        assert_eq!(round.len(), executed, "{coalescing:?}");
        answer(&mut state, round, Some(b"here"));
        assert_eq!(state.validate_round().len(), validated, "{coalescing:?}");
    }
}

#[test]
fn only_keys_that_were_to_be_locked_may_be_locked_after_a_loss() {
    for (mode, is_locked) in [(Mode::Read, false), (Mode::Update, true)] {
        let mut state = state();
        let round = state.execute_round(&[(TABLE, b"k", mode)], 8).unwrap();
        state.lost(&round[0]);
        assert_eq!(state.holds_locks(), is_locked, "{mode:?}");
    }
}

#[test]
fn an_insertion_needs_that_the_key_is_absent() {
    let value = || Bytes::from_static(b"v");
    let mut found = state();
    let round = found.execute_round(&[(TABLE, b"k", Mode::Read)], 8).unwrap();
    answer(&mut found, round, Some(b"here"));
    assert!(matches!(found.plan_insert(TABLE, b"k", value()), Err(TxnError::Exists { .. })));
    found.plan(TABLE, b"k", Planned::Delete).unwrap();
    found.plan_insert(TABLE, b"k", value()).unwrap();
    assert_eq!(found.existing(), None, "what it deletes itself may be inserted again");

    let mut blind = state();
    blind.plan_insert(TABLE, b"k", value()).unwrap();
    assert!(matches!(blind.plan_insert(TABLE, b"k", value()), Err(TxnError::Exists { .. })));
    blind.plan(TABLE, b"k", Planned::Delete).unwrap();
    let round = blind.lock_round();
    answer(&mut blind, round, Some(b"here"));
    assert_eq!(blind.existing(), Some(&b"k"[..]), "what was inserted first had to be absent");
}

#[test]
fn an_insertion_that_fails_asks_for_nothing() {
    let mut state = state();
    let long = Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
    assert!(matches!(state.plan_insert(TABLE, b"k", long), Err(TxnError::TooLarge { .. })));
    state.plan(TABLE, b"k", Planned::Put(Bytes::from_static(b"v"))).unwrap();
    let round = state.lock_round();
    answer(&mut state, round, Some(b"here"));
    assert_eq!(state.existing(), None);
}

#[test]
fn limits_are_kept() {
    let mut state = state();
    let long = Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
    assert!(matches!(state.plan(TABLE, b"k", Planned::Put(long)), Err(TxnError::TooLarge { .. })));
    assert_eq!(state.plan(TABLE, b"", Planned::Delete), Err(TxnError::KeyLength { len: 0 }));
    assert_eq!(state.plan(TABLE, &[0; KEY_BYTES_MAX + 1], Planned::Delete), Err(TxnError::KeyLength { len: 251 }));
    assert!(matches!(state.plan(TableId(2), b"k", Planned::Delete), Err(TxnError::NoTable { .. })));
    let value = Bytes::from(vec![0; VALUE_BYTES_MAX]);
    let planned = (0..10u8).take_while(|key| state.plan(TABLE, &[*key], Planned::Put(value.clone())).is_ok()).count();
    assert_eq!(planned, MESSAGE_BYTES_MAX / VALUE_BYTES_MAX - 1, "a record fits a message");
    assert!(state.plan(TABLE, &[0], Planned::Put(value)).is_ok(), "what is replaced is not counted twice");
    for key in 0..KEYS_MAX as u32 * 2 {
        let _ = state.plan(TABLE, &key.to_be_bytes(), Planned::Delete);
    }
    assert_eq!(state.entries.len(), KEYS_MAX);
}

/// A page of these keys, each with its own key as the value.
fn page(items: &[&str], visited: u32, last: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = PageWriter::new(&mut out, 5);
    items.iter().for_each(|key| writer.add(key.as_bytes(), key.as_bytes()));
    writer.finish(visited, last.map(str::as_bytes));
    out
}

fn put(state: &mut State, key: &str) {
    state.plan(ORDERED, key.as_bytes(), Planned::Put(Bytes::from_static(b"own"))).unwrap();
}

/// The range that a message asks for, and how many items.
fn asked(message: &Outgoing) -> (String, Option<String>, u32) {
    let mut payload = &message.payload[..];
    Header::take(Kind::Scan, &mut payload).unwrap();
    let PageRequest { span: Span { low, high }, items_max, .. } = PageRequest::take(&mut payload).unwrap();
    let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
    (text(low), high.map(text), items_max)
}

fn keys(found: &[(Bytes, Bytes)]) -> Vec<&str> {
    found.iter().map(|(key, _)| std::str::from_utf8(key).unwrap()).collect()
}

#[test]
fn a_range_is_read_page_by_page_with_what_the_transaction_writes() {
    let mut state = state();
    for key in ["a", "f", "i", "z"] {
        put(&mut state, key);
    }
    state.plan(ORDERED, b"c", Planned::Delete).unwrap();
    state.plan(TABLE, b"d", Planned::Put(Bytes::from_static(b"in another table"))).unwrap();
    state.begin_scan(ORDERED, Range::between(b"b", b"r"), 6).unwrap();
    let mut places = Vec::new();
    for (wanted, answer) in [
        (("b", Some("h"), 6), page(&["b", "c", "e"], 3, Some("e"))),
        (("e\0", Some("h"), 4), page(&["f"], 2, None)),
        (("h", Some("q"), 3), page(&["k"], 1, None)),
        (("q", Some("r"), 1), page(&["q"], 1, Some("q"))),
    ] {
        let message = state.scan_round().unwrap().unwrap();
        assert_eq!(asked(&message), (wanted.0.to_owned(), wanted.1.map(str::to_owned), wanted.2));
        places.push(message.place.node);
        state.scanned(&answer).unwrap();
    }
    assert!(state.scan_round().unwrap().is_none(), "the limit is reached");
    assert_eq!(places, [1, 1, 2, 3]);
    let found = state.end_scan();
    assert_eq!(keys(&found), ["b", "e", "f", "i", "k", "q"]);
    assert_eq!(&found[2].1[..], b"own");
    let entries = |message: Outgoing| (message.place.node, message.entries.len());
    assert_eq!(state.validate_round().into_iter().map(entries).collect::<Vec<_>>(), [(1, 2), (2, 1), (3, 1)]);
}

#[test]
fn a_page_of_other_keys_is_not_taken() {
    for answer in [
        page(&["a"], 1, None),
        page(&["h"], 1, None),
        page(&["c", "e"], 2, Some("d")),
        page(&[], 1, Some("a")),
        page(&[], 1, Some("h")),
        page(&["c"], 1, None)[1..].to_vec(),
    ] {
        let mut state = state();
        state.begin_scan(ORDERED, Range::between(b"b", b"z"), 6).unwrap();
        state.scan_round().unwrap().unwrap();
        assert!(state.scanned(&answer).is_err());
    }
}

#[test]
fn range_reads_are_limited() {
    assert!(matches!(state().begin_scan(TABLE, Range::ALL, 1), Err(TxnError::NotOrdered { .. })));
    assert!(matches!(state().begin_scan(TableId(2), Range::ALL, 1), Err(TxnError::NoTable { .. })));
    assert_eq!(state().begin_scan(ORDERED, Range::between(b"b", b"a"), 1), Err(TxnError::Reversed));
    for (limit, range) in [(0, Range::ALL), (1, Range::between(b"b", b"b"))] {
        let mut state = state();
        state.begin_scan(ORDERED, range, limit).unwrap();
        assert!(state.scan_round().unwrap().is_none(), "nobody need be asked");
        assert!(state.end_scan().is_empty());
    }
    let long = "x".repeat(MESSAGE_BYTES_MAX);
    let mut heavy = Vec::new();
    let mut writer = PageWriter::new(&mut heavy, 5);
    writer.add(b"c", long.as_bytes());
    writer.finish(1, None);
    for (answer, max, what) in [
        (page(&[], 1, None), PAGES_MAX, "pages of range reads"),
        (page(&[], 1 << 12, None), SCANNED_MAX, "items in range reads"),
        (heavy, SCANNED_BYTES_MAX, "bytes in range reads"),
    ] {
        let mut state = state();
        let refused = (0..2 * PAGES_MAX).find_map(|_| {
            state.begin_scan(ORDERED, Range::between(b"c", b"d"), 1).unwrap();
            let refused = state.scan_round().err();
            if refused.is_none() {
                state.scanned(&answer).unwrap();
                state.end_scan();
            }
            refused
        });
        assert_eq!(refused, Some(TxnError::TooLarge { what, max }));
        let checks: usize = state.validate_round().iter().map(|message| message.payload.len()).sum();
        assert!(checks < MESSAGE_BYTES_MAX);
    }
}
