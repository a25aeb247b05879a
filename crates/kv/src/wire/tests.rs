//! Encoded messages are parsed, and nothing else is.

use dunlin_store::{Condition, Delta, Item, Marks, Put, Refused, Side, Stored};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::routing::Routing;

fn put() -> impl Strategy<Value = Put> {
    let condition = prop_oneof![
        Just(Condition::Always),
        Just(Condition::Absent),
        Just(Condition::Present),
        any::<u64>().prop_map(Condition::Unchanged)
    ];
    (prop_oneof![Just(0), any::<u32>()], option::of(any::<u32>()), condition, option::of(any::<u64>()), any::<bool>())
        .prop_map(|(flags, expires, condition, cas, is_stale)| Put { flags, expires, condition, cas, is_stale })
}

fn request(operation: &Operation<'_>) -> Vec<u8> {
    let mut bytes = vec![0xaa; operation.encoded_len()];
    operation.encode(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn operations_round_trip(
        key in vec(any::<u8>(), 0..=250),
        value in vec(any::<u8>(), 0..600),
        put in put(),
        unchanged in option::of(any::<u64>()),
        expires in option::of(any::<u32>()),
        touch in option::of(option::of(any::<u32>())),
        by in any::<u64>(),
    ) {
        let (key, value) = (&key[..], &value[..]);
        for operation in [
            Operation::Get { key },
            Operation::Read { key, touch },
            Operation::Put { key, value, put },
            Operation::Delete { key, unchanged },
            Operation::Extend { key, bytes: value, side: Side::End, unchanged },
            Operation::Extend { key, bytes: value, side: Side::Start, unchanged },
            Operation::Count { key, delta: Delta::Up(by), unchanged },
            Operation::Count { key, delta: Delta::Down(by), unchanged },
            Operation::Touch { key, expires },
        ] {
            let bytes = request(&operation);
            prop_assert_eq!(Operation::parse(&bytes), Some(operation));
            prop_assert_eq!(operation.key(), key);
        }
    }

    /// Any bytes result in an operation or none, and an operation encodes to the same bytes again if it has only one
    /// encoding.
    #[test]
    fn parsing_is_total(bytes in vec(prop_oneof![0..8u8, any::<u8>()], 0..64)) {
        if let Some(operation) = Operation::parse(&bytes) {
            prop_assert!(operation.key().len() <= bytes.len());
            let written = request(&operation);
            prop_assert_eq!(Operation::parse(&written), Some(operation));
        }
        if let Some(keys) = MultiGet::parse(&bytes) {
            prop_assert_eq!(keys.map(|key| 1 + key.len()).sum::<usize>(), bytes.len());
        }
        let found = MultiGetAnswer::new(&bytes).filter_map(|found| if let Found::Item { value, .. } = found { Some(value) } else { None });
        for value in found {
            prop_assert!(value.end <= bytes.len());
        }
        let _ = (ServerMap::parse(&bytes), ItemFacts::parse(&bytes), NumberAnswer::parse(&bytes));
        let _ = (Answer::parse_plain(&bytes), Answer::parse_stored(&bytes));
        if let Some(ValueAnswer::Found { start, .. }) = ValueAnswer::parse(&bytes) {
            prop_assert!(start <= bytes.len());
        }
    }

    #[test]
    fn a_request_that_is_cut_is_refused_or_another(operation in put(), cut in 0..40usize) {
        // Everything before the value is required.
        let bytes = request(&Operation::Put { key: b"0123456789", value: b"", put: operation });
        let cut = cut.min(bytes.len() - 1);
        prop_assert_eq!(Operation::parse(&bytes[..cut]), None);
    }

    #[test]
    fn answers_round_trip(
        value in vec(any::<u8>(), 0..600), flags in prop_oneof![Just(0), any::<u32>()], cas in any::<u64>(), number in any::<u64>(),
        expires in option::of(any::<u32>()), last_access in any::<u32>(), marks in any::<[bool; 3]>(),
    ) {
        let marks = Marks { is_fetched: marks[0], is_stale: marks[1], is_won: marks[2] };
        let item = Item { value: &value, flags, cas, expires, last_access, marks };
        let write = |answer: Answer<'_>| {
            let mut bytes = vec![0xaa; answer.encoded_len()];
            answer.encode(&mut bytes);
            bytes
        };
        let bytes = write(Answer::Value(item));
        let Some(ValueAnswer::Found { flags: found, start }) = ValueAnswer::parse(&bytes) else { panic!("{bytes:?}") };
        prop_assert_eq!((found, &bytes[start..]), (flags, &value[..]));
        let bytes = write(Answer::Item(item));
        let Some(Ok((facts, start))) = ItemFacts::parse(&bytes) else { panic!("{bytes:?}") };
        prop_assert_eq!((facts, &bytes[start..]), (ItemFacts { flags, cas, expires, last_access, marks }, &value[..]));
        let stored = Stored { cas };
        prop_assert_eq!(Answer::parse_stored(&write(Answer::Stored(stored))), Some(Ok(stored)));
        prop_assert_eq!(NumberAnswer::parse(&write(Answer::Number(number, stored))), Some(Ok(NumberAnswer { value: number, cas })));
        for refused in [
            Refused::NotFound, Refused::Exists, Refused::Changed, Refused::TooLarge { len: 9, max: 8 }, Refused::NotANumber, Refused::Full,
        ] {
            let bytes = write(Answer::Refused(refused));
            prop_assert_eq!(Answer::parse_stored(&bytes), Some(Err(refused)));
            prop_assert_eq!(Answer::parse_plain(&bytes), Some(Err(refused)));
            prop_assert_eq!(NumberAnswer::parse(&bytes), Some(Err(refused)));
        }
    }

    #[test]
    fn maps_round_trip(seed in any::<[u8; 16]>(), incarnation in any::<u64>(), addresses in vec(vec("[a-z:.0-9]{1,40}", 1..4), 1..9)) {
        let routing = Routing::new(seed, addresses.len() as u16).unwrap();
        let map = ServerMap { incarnation, routing, limits: Limits { value_bytes_max: 1 << 20 }, addresses };
        let mut bytes = vec![0xaa; map.encoded_len()];
        map.encode(&mut bytes);
        prop_assert_eq!(ServerMap::parse(&bytes), Some(map));
        for cut in 0..bytes.len() {
            prop_assert_eq!(ServerMap::parse(&bytes[..cut]), None);
        }
    }
}

#[test]
fn small_operations_are_small() {
    let key = &[7; 16];
    assert_eq!(Operation::Get { key }.encoded_len(), 17);
    assert_eq!(Operation::Put { key, value: &[1; 32], put: Put::default() }.encoded_len(), 51);
}

#[test]
fn a_get_is_an_operation_and_its_key() {
    assert_eq!(request(&Operation::Get { key: b"bird" }), b"\0bird");
    let put = Put { flags: 0x0102_0304, condition: Condition::Absent, ..Put::default() };
    assert_eq!(request(&Operation::Put { key: b"k", value: b"v", put }), b"\x02\x05\x01\x04\x03\x02\x01kv");
}
