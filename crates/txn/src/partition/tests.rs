//! A primary and a backup against a model, from seeds; and each limit.

use std::collections::BTreeMap;

use dunlin_trial::Random;

use super::lock::NoLock;
use super::*;
use crate::ids::PartitionId;
use crate::wire::answer::{Cause, Grant, Resource};
use crate::wire::execute::{Lock, RangeCheck, Target};
use crate::wire::scan::{Page, PageRequest, Span};

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
    partition_of(Table::hashed("t"), limits)
}

fn partition_of(table: Table, limits: Limits) -> Partition {
    Partition::new(&[table], limits)
}

fn tables() -> [Table; 2] {
    [Table::hashed("hashed"), Table::ordered("ordered", ["m"])]
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
fn nothing_is_left_of_a_lock_on_an_absent_key() {
    for table in tables() {
        let mut primary = partition_of(table, Limits::default());
        primary.lock(&wish(1, b"knot", 4)).unwrap();
        assert_eq!(primary.table(TABLE).iter().count(), 1);
        primary.unlock(transaction(1), TABLE, b"knot");
        assert_eq!((primary.table(TABLE).iter().count(), primary.bytes), (0, 0));
    }
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
    for (tombstones_max, table) in [1, 100].into_iter().flat_map(|max| tables().map(|table| (max, table))) {
        let mut primary = partition_of(table, Limits { tombstones_max, ..Limits::default() });
        let never = primary.look(TABLE, b"dotterel").version;
        store(&mut primary, 1, b"dotterel", Some(b"1"));
        store(&mut primary, 2, b"dotterel", None);
        let Seen { version: deleted, value, .. } = primary.look(TABLE, b"dotterel");
        assert!(value.is_none() && deleted > never);
        for other in 0..10u8 {
            store(&mut primary, 3, &[other, 1], Some(b"1"));
            store(&mut primary, 4, &[other, 1], None);
            store(&mut primary, 5, &[b'd', other], Some(b"1"));
        }
        assert!(primary.look(TABLE, b"dotterel").version >= deleted);
        assert!(primary.stats().tombstones <= tombstones_max);
    }
}

#[test]
fn room_is_reserved_with_the_lock() {
    let mut primary = partition(Limits { partition_bytes_max: 700, ..Limits::default() });
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
        for table in tables() {
            backup_beside_primary(&mut Random::new(seed), &table);
        }
    }
}

/// Key, owner, grant, and the planned value.
type UnderWay = ([u8; 1], u64, Grant, Option<Vec<u8>>);

fn backup_beside_primary(random: &mut Random, table: &Table) {
    let limits = Limits { tombstones_max: random.between(8, 12) as usize, locks_max: 8, ..Limits::default() };
    let [mut primary, mut backup] = [(); 2].map(|()| partition_of(table.clone(), limits));
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

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A page of a range, and what to validate then.
fn page(primary: &Partition, reader: u64, span: Span<'_>) -> Result<(Pairs, Version), Cause> {
    let request = PageRequest { partition: PartitionId(0), table: TABLE, span, items_max: 1000 };
    let (limits, mut out) = (PageLimits { entries_max: 1000, bytes_max: 1_000_000 }, Vec::new());
    primary.read_page(transaction(reader), &request, limits, &mut out)?;
    let page = Page::parse(&out).unwrap();
    assert_eq!(page.last, None);
    Ok((page.items.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect(), page.version))
}

fn check(primary: &Partition, reader: u64, span: Span<'_>, version: Version) -> Result<(), Cause> {
    let check = RangeCheck { partition: PartitionId(0), table: TABLE, span, version };
    primary.check_range(transaction(reader), &check).map(|_| ())
}

fn ordered(limits: Limits) -> Partition {
    partition_of(Table::ordered("ordered", [""; 0]), limits)
}

/// Random keys of which many share a long prefix, so that the index has several layers, and some are others' prefixes.
fn random_key(random: &mut Random) -> Vec<u8> {
    let prefix: &[u8] = if random.chance(50) { b"" } else { b"a prefix of two slices" };
    [prefix, &[random.between(0, 12) as u8, 0, 0][..random.between(1, 3) as usize]].concat()
}

/// Whatever happens to the keys of a range between its read and its validation is found, and what happens beside it is
/// not, except for deletions. Many items make the nodes of the index split, and deletions join them again.
#[test]
fn a_range_that_changed_is_found_from_seeds() {
    let (mut conflicts, mut unchanged, mut beside) = (0, 0, 0);
    for seed in 0..300 {
        let random = &mut Random::new(seed);
        let mut primary = ordered(Limits::default());
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        // A lock before all ranges keeps deletions from being forgotten.
        let keeper = random.chance(30).then(|| primary.lock(&wish(999, b"", 0)).unwrap());
        let change = |random: &mut Random, primary: &mut Partition, model: &mut BTreeMap<Vec<u8>, Vec<u8>>| {
            let key = random_key(random);
            let value = random.chance(60).then(|| vec![random.next() as u8; 3]);
            store(primary, 1, &key, value.as_deref());
            match &value {
                Some(value) => model.insert(key.clone(), value.clone()),
                None => model.remove(&key),
            };
            (key, value.is_none())
        };
        for _ in 0..random.between(0, 60) {
            change(random, &mut primary, &mut model);
        }
        for _ in 0..20 {
            let mut bounds = [random_key(random), random_key(random)];
            bounds.sort();
            let high = random.chance(80).then_some(&bounds[1][..]);
            let span = Span { low: &bounds[0], high };
            let (items, version) = page(&primary, 2, span).unwrap();
            let expected = model.iter().filter(|(key, _)| span.contains(key));
            assert_eq!(items, expected.map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>());
            assert_eq!(check(&primary, 2, span, version), Ok(()), "seed {seed}: nothing has changed");
            // A lock of its own, on a key that may be absent, is no change.
            let own = random_key(random);
            primary.lock(&wish(2, &own, 0)).unwrap();
            assert_eq!(check(&primary, 2, span, version), Ok(()), "seed {seed}: its own lock");
            primary.unlock(transaction(2), TABLE, &own);
            let changes: Vec<_> = (0..random.between(0, 2)).map(|_| change(random, &mut primary, &mut model)).collect();
            let result = check(&primary, 2, span, version);
            if changes.iter().any(|(key, _)| span.contains(key)) {
                assert_eq!(result, Err(Cause::Changed), "seed {seed}: {span:?} after {changes:?}");
                conflicts += 1;
            } else if changes.iter().any(|(_, is_deletion)| *is_deletion) {
                beside += usize::from(result.is_err());
            } else {
                assert_eq!(result, Ok(()), "seed {seed}: {span:?} after {changes:?}");
                unchanged += 1;
            }
        }
        assert!(keeper.is_some() || primary.stats().tombstones == 0, "seed {seed}: no lock needs them");
    }
    assert!(conflicts > 1000 && unchanged > 500 && beside > 10, "{conflicts}, {unchanged}, {beside}");
}

/// The key need not exist: an insertion that is under way is a conflict for those that read the range, and for those
/// that validate it.
#[test]
fn a_lock_in_a_range_conflicts_with_others() {
    let mut primary = ordered(Limits::default());
    let all = Span::ALL;
    let (_, version) = page(&primary, 2, all).unwrap();
    let (grant, _) = primary.lock(&wish(1, b"ruff", 1)).unwrap();
    assert_eq!(page(&primary, 2, all), Err(Cause::Locked));
    assert_eq!(page(&primary, 1, all), Ok((vec![], grant.version)));
    assert_eq!(check(&primary, 2, all, version), Err(Cause::Locked));
    let beside = Span { low: b"", high: Some(b"ruff") };
    assert_eq!((check(&primary, 2, beside, version), page(&primary, 2, beside)), (Ok(()), Ok((vec![], grant.version))));
    primary.unlock(transaction(1), TABLE, b"ruff");
    assert_eq!(check(&primary, 2, all, version), Ok(()), "nothing came of it");
}

/// An insertion and its deletion leave no item and, as soon as all copies have applied them, no entry.
#[test]
fn a_key_that_came_and_went_is_a_change_of_its_gap_alone() {
    let mut primary = ordered(Limits::default());
    for key in [b"b", b"d", b"f", b"h"] {
        store(&mut primary, 1, key, Some(b"1"));
    }
    let span = |low: &'static [u8], high: &'static [u8]| Span { low, high: Some(high) };
    let (_, version) = page(&primary, 2, Span::ALL).unwrap();
    store(&mut primary, 1, b"e", Some(b"1"));
    store(&mut primary, 1, b"e", None);
    assert_eq!((primary.table(TABLE).iter().count(), primary.stats().tombstones), (4, 0));
    for (range, changed) in [
        (span(b"a", b"d"), false),
        (span(b"a", b"d\0"), false),
        (span(b"a", b"e"), true),
        (span(b"dd", b"ee"), true),
        (span(b"f", b"h"), false),
        (span(b"f\0", b"h"), false),
        (Span { low: b"g", high: None }, false),
        (Span::ALL, true),
    ] {
        let expected = if changed { Err(Cause::Changed) } else { Ok(()) };
        assert_eq!(check(&primary, 2, range, version), expected, "{range:?}");
    }
    store(&mut primary, 1, b"i", Some(b"1"));
    store(&mut primary, 1, b"i", None);
    assert_eq!(check(&primary, 2, Span { low: b"g", high: None }, version), Err(Cause::Changed), "the last gap");
}

#[test]
fn a_page_ends_at_its_limits() {
    let mut primary = ordered(Limits::default());
    for key in 0..10u8 {
        store(&mut primary, 1, &[key], Some(&[key; 100]));
    }
    for (items_max, entries_max, bytes_max, items, last) in [
        (3, 100, 10_000, 3, Some(2)),
        (100, 4, 10_000, 4, Some(3)),
        (100, 100, 250, 3, Some(2)),
        (10, 100, 10_000, 10, Some(9)),
        (11, 100, 10_000, 10, None),
    ] {
        let request = PageRequest { partition: PartitionId(0), table: TABLE, span: Span::ALL, items_max };
        let mut out = Vec::new();
        primary.read_page(transaction(2), &request, PageLimits { entries_max, bytes_max }, &mut out).unwrap();
        let page = Page::parse(&out).unwrap();
        assert_eq!((page.items.len(), page.last.map(|last| last[0])), (items, last));
    }
}

#[test]
fn the_memory_of_an_index_is_limited() {
    let mut primary = ordered(Limits { index_bytes_max: 10_000, ..Limits::default() });
    let stored = (0..5000u32).find(|number| primary.lock(&wish(1, &number.to_be_bytes(), 0)).is_err()).unwrap();
    assert!((100..2000).contains(&stored), "{stored} keys");
    assert_eq!(primary.lock(&wish(2, b"new", 0)), Err(NoLock::Full(Resource::Memory)));
    assert!(primary.lock(&wish(1, &0u32.to_be_bytes(), 9)).is_ok(), "a key that is there needs no more");
    assert!(primary.stats().index_bytes <= 10_000 + 2000);
    let write = write(b"backup", Grant { version: 1 << 50, low: 1 }, Some(b"must have it"));
    primary.apply(&write);
    assert!(primary.look(TABLE, b"backup").value.is_some(), "a backup stores what its primary stored");
}
