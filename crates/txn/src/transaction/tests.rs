//! The plans and reads of a transaction, without participants.

use std::collections::BTreeMap;

use dunlin_net::Addr;

use super::*;
use crate::configuration::{Member, Plan};
use crate::limits::KEYS_MAX;
use crate::wire::answer::Found;
use crate::wire::answer::put_done;

const TABLE: TableId = TableId(0);

fn state() -> State {
    let member = |node| Member { incarnation: 1, cores: vec![Addr::Node(node)] };
    let nodes: BTreeMap<u32, Member> = (1..=3).map(|node| (node, member(node))).collect();
    let plan = Plan { cluster: 9, nodes, partitions_per_core: 1, replicas: 1, tables: vec!["t".into()], seed: [1; 16] };
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
    assert!(state.execute_round(&[(TABLE, b"k")], Mode::Read, 8).unwrap().is_empty(), "nobody need be asked");
    state.plan(TABLE, b"k", Planned::Delete).unwrap();
    assert_eq!(state.known(TABLE, b"k", Mode::Read), Some(None));
}

#[test]
fn an_insertion_needs_that_the_key_is_absent() {
    let value = || Bytes::from_static(b"v");
    let mut found = state();
    let round = found.execute_round(&[(TABLE, b"k")], Mode::Read, 8).unwrap();
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
    assert!(matches!(state.plan(TableId(1), b"k", Planned::Delete), Err(TxnError::NoTable { .. })));
    let value = Bytes::from(vec![0; VALUE_BYTES_MAX]);
    let planned = (0..10u8).take_while(|key| state.plan(TABLE, &[*key], Planned::Put(value.clone())).is_ok()).count();
    assert_eq!(planned, MESSAGE_BYTES_MAX / VALUE_BYTES_MAX - 1, "a record fits a message");
    assert!(state.plan(TABLE, &[0], Planned::Put(value)).is_ok(), "what is replaced is not counted twice");
    for key in 0..KEYS_MAX as u32 * 2 {
        let _ = state.plan(TABLE, &key.to_be_bytes(), Planned::Delete);
    }
    assert_eq!(state.entries.len(), KEYS_MAX);
}
