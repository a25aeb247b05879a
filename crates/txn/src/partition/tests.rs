//! A primary and a backup against a model, from seeds; and each limit.

use std::collections::BTreeMap;

use dunlin_trial::Random;

use super::lock::NoLock;
use super::*;
use crate::ids::PartitionId;
use crate::wire::answer::{Cause, Grant, Resource};
use crate::wire::execute::{Lock, Target};

const TABLE: TableId = TableId(0);

fn transaction(sequence: u64) -> TransactionId {
    TransactionId { epoch: 1, coordinator: 7, sequence }
}

fn wish(sequence: u64, key: &[u8], room: u32) -> Wish<'_> {
    Wish { owner: transaction(sequence), table: TABLE, key, lock: Lock { room, expected: Version::MAX } }
}

fn write<'a>(key: &'a [u8], grant: Grant, value: Option<&'a [u8]>) -> Write<'a> {
    let target = Target { partition: PartitionId(0), table: TABLE, key };
    Write { target, version: grant.version, low: grant.low, value }
}

fn partition(limits: Limits) -> Partition {
    Partition::new(1, limits)
}

fn store(primary: &mut Partition, sequence: u64, key: &[u8], value: Option<&[u8]>) -> Version {
    let (grant, _) = primary.lock(&wish(sequence, key, value.map_or(0, |value| value.len() as u32))).unwrap();
    assert!(primary.may_commit(transaction(sequence), &write(key, grant, value)));
    primary.commit(&write(key, grant, value));
    grant.version
}

#[test]
fn a_lock_excludes_others_and_not_its_owner() {
    let mut primary = partition(Limits::default());
    let (first, before) = primary.lock(&wish(1, b"knot", 4)).unwrap();
    assert_eq!(before, lock::Before::Free);
    assert_eq!(primary.lock(&wish(2, b"knot", 4)), Err(NoLock::Conflict(Cause::Locked)));
    assert_eq!(primary.lock(&wish(1, b"knot", 40)), Ok((first, lock::Before::Held)));
    primary.unlock(transaction(2), TABLE, b"knot");
    assert_eq!(primary.look(TABLE, b"knot").owner, Some(transaction(1)));
    primary.unlock(transaction(1), TABLE, b"knot");
    assert_eq!(primary.stats(), PartitionStats::default());
}

#[test]
fn a_lock_on_a_version_that_changed_conflicts() {
    let mut primary = partition(Limits::default());
    let read = primary.look(TABLE, b"ruff").version;
    let mut stale = wish(2, b"ruff", 4);
    stale.lock.expected = read;
    store(&mut primary, 1, b"ruff", Some(b"reeve"));
    assert_eq!(primary.lock(&stale), Err(NoLock::Conflict(Cause::Changed)));
    stale.lock.expected = primary.look(TABLE, b"ruff").version;
    assert!(primary.lock(&stale).is_ok());
}

/// Whatever happens to a key between two reads that find it absent, their versions differ.
#[test]
fn absence_has_a_version_even_if_the_deletion_is_forgotten() {
    for tombstones_max in [1, 100] {
        let mut primary = partition(Limits { tombstones_max, ..Limits::default() });
        let never = primary.look(TABLE, b"dotterel").version;
        store(&mut primary, 1, b"dotterel", Some(b"1"));
        store(&mut primary, 2, b"dotterel", None);
        let Seen { version: deleted, value, .. } = primary.look(TABLE, b"dotterel");
        assert!(value.is_none() && deleted > never);
        for other in 0..10u8 {
            store(&mut primary, 3, &[other, 1], Some(b"1"));
            store(&mut primary, 4, &[other, 1], None);
        }
        assert!(primary.look(TABLE, b"dotterel").version >= deleted);
        assert!(primary.stats().tombstones <= tombstones_max);
    }
}

#[test]
fn room_is_reserved_with_the_lock() {
    let mut primary = partition(Limits { partition_bytes_max: 500, ..Limits::default() });
    let (grant, _) = primary.lock(&wish(1, b"a", 200)).unwrap();
    assert_eq!(primary.lock(&wish(2, b"b", 200)), Err(NoLock::Full(Resource::Memory)));
    let value = [1; 201];
    assert!(!primary.may_commit(transaction(1), &write(b"a", grant, Some(&value))));
    assert!(primary.may_commit(transaction(1), &write(b"a", grant, Some(&value[..200]))));
    primary.commit(&write(b"a", grant, Some(b"short")));
    assert!(primary.lock(&wish(2, b"b", 200)).is_ok(), "what was not used is given back");
}

#[test]
fn locks_and_tombstones_are_limited() {
    let mut primary = partition(Limits { locks_max: 2, ..Limits::default() });
    primary.lock(&wish(1, b"a", 1)).unwrap();
    primary.lock(&wish(1, b"b", 1)).unwrap();
    assert_eq!(primary.lock(&wish(1, b"c", 1)), Err(NoLock::Full(Resource::Locks)));
    assert!(primary.lock(&wish(1, b"a", 2)).is_ok(), "a lock that is held is none more");

    // One lock that is never released prevents all later deletions from being forgotten.
    let mut primary = partition(Limits { tombstones_max: 4, ..Limits::default() });
    primary.lock(&wish(1, b"kept", 1)).unwrap();
    let refused = (0..20u8).find_map(|key| {
        let (grant, _) = match primary.lock(&wish(2, &[key, 9], 0)) {
            Ok(granted) => granted,
            Err(error) => return Some((key, error)),
        };
        primary.commit(&write(&[key, 9], grant, None));
        None
    });
    assert_eq!(refused, Some((7, NoLock::Full(Resource::Tombstones))));
    primary.unlock(transaction(1), TABLE, b"kept");
    assert!(primary.stats().tombstones <= 4);
}

/// Random transactions on a few keys, several at once; a backup gets their writes, some of them twice or late.
#[test]
fn a_backup_equals_its_primary_from_seeds() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    for seed in 0..seeds {
        println!("seed {seed}");
        backup_beside_primary(&mut Random::new(seed));
    }
}

/// Key, owner, grant, and the planned value.
type UnderWay = ([u8; 1], u64, Grant, Option<Vec<u8>>);

fn backup_beside_primary(random: &mut Random) {
    let limits = Limits { tombstones_max: random.between(8, 12) as usize, locks_max: 8, ..Limits::default() };
    let (mut primary, mut backup) = (partition(limits), partition(limits));
    let mut model: BTreeMap<[u8; 1], Vec<u8>> = BTreeMap::new();
    let mut under_way: Vec<UnderWay> = Vec::new();
    // Writes as recovery may bring them again, each with its low-water mark.
    let mut records: Vec<([u8; 1], Grant, Option<Vec<u8>>)> = Vec::new();
    for sequence in 0..300 {
        let key = [random.between(0, 5) as u8];
        let value = random.chance(60).then(|| vec![sequence as u8; random.between(0, 20) as usize]);
        let room = value.as_ref().map_or(0, |value| value.len() as u32);
        if let Ok((grant, _)) = primary.lock(&wish(sequence, &key, room)) {
            under_way.push((key, sequence, grant, value));
        }
        while !under_way.is_empty() && (under_way.len() > 3 || random.chance(50)) {
            let (key, owner, grant, value) = under_way.swap_remove(random.index(under_way.len()));
            if random.chance(20) {
                primary.unlock(transaction(owner), TABLE, &key);
                continue;
            }
            let written = write(&key, grant, value.as_deref());
            backup.apply(&written);
            assert!(primary.may_commit(transaction(owner), &written));
            primary.commit(&written);
            match &value {
                Some(value) => model.insert(key, value.clone()),
                None => model.remove(&key),
            };
            records.push((key, grant, value));
            if let Some((key, grant, value)) = random.pick(&records) {
                backup.apply(&write(key, *grant, value.as_deref()));
            }
        }
    }
    for (key, owner, _, _) in under_way {
        primary.unlock(transaction(owner), TABLE, &key);
    }
    let held = |partition: &Partition| {
        partition
            .items()
            .map(|(_, key, version, value)| (key.to_vec(), (version, value.to_vec())))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(held(&primary), held(&backup));
    let found: BTreeMap<[u8; 1], Vec<u8>> =
        primary.items().map(|(_, key, _, value)| ([key[0]], value.to_vec())).collect();
    assert_eq!(found, model);
    assert_eq!(primary.stats().bytes, backup.stats().bytes);
    assert_eq!(primary.stats().locks, 0);
}
