//! What the placer decides: the next configuration, given the last one, the members that are live, and the copies that
//! were filled. No I/O and no clock.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{DOCUMENT_BYTES_MAX, MEMBERS_MAX, SERVICE_PARTITIONS_MAX, SERVICE_TABLES_MAX, encode, is_name};
use crate::configuration::{Configuration, Member, REPLICAS_MAX, Table};
use crate::ids::{NodeId, PartitionId, Place};

/// Partitions for each core, unless a number is given.
const PARTITIONS_PER_CORE: usize = 8;

/// A table to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The table.
    pub table: Table,
    /// Copies of each partition: those of the service, if it has partitions already.
    pub replicas: Option<usize>,
    /// Partitions of the service.
    pub partitions: Option<usize>,
}

/// Why a table is not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotMade {
    /// There is one with this name.
    #[error("table {0:?} is there already")]
    Exists(String),
    /// A name that is too long, or has other characters.
    #[error("{0:?} is no name for a table: choose 1 to 64 letters, digits, `-`, `_` or `.`")]
    Name(String),
    /// The splits are not in order.
    #[error("the splits of the table are wrong: give keys of 1 to 250 bytes in ascending order")]
    Splits,
    /// Too few members are live.
    #[error("{replicas} copies need {replicas} members, and {members} are there: start more, or ask for fewer copies")]
    Members {
        /// Copies.
        replicas: usize,
        /// Members.
        members: usize,
    },
    /// All tables have the same partitions.
    #[error(
        "all tables share the partitions of the service, which has {what} {has}, and not {asked}: leave the option out"
    )]
    Shared {
        /// What.
        what: &'static str,
        /// As it is.
        has: usize,
        /// As it was asked for.
        asked: usize,
    },
    /// A number is out of range.
    #[error("{what} are {asked}: choose 1 to {max}")]
    Number {
        /// What.
        what: &'static str,
        /// The number.
        asked: usize,
        /// Its maximum.
        max: usize,
    },
    /// The configuration would be too large.
    #[error(
        "the configuration would have {bytes} bytes, and {DOCUMENT_BYTES_MAX} fit: give fewer or shorter splits, or fewer partitions"
    )]
    TooLarge {
        /// Its bytes.
        bytes: usize,
    },
}

/// The first configuration: no members and no tables.
pub fn found(cluster: u64, seed: [u8; 16]) -> Configuration {
    Configuration {
        cluster,
        epoch: 0,
        replicas: 1,
        nodes: BTreeMap::new(),
        partitions: Vec::new(),
        filling: BTreeMap::new(),
        departures: Vec::new(),
        founded: 0,
        tables: Vec::new(),
        seed,
    }
}

/// The configuration with one more table. The first table makes the partitions, too.
///
/// # Errors
/// [`NotMade`].
pub fn with_table(now: &Configuration, wanted: &Wanted) -> Result<Configuration, NotMade> {
    let name = wanted.table.name.clone();
    if !is_name(&name) {
        return Err(NotMade::Name(name));
    }
    if now.table(&name).is_some() {
        return Err(NotMade::Exists(name));
    }
    check("tables", now.tables.len() + 1, SERVICE_TABLES_MAX)?;
    let mut next = Configuration { epoch: now.epoch + 1, ..now.clone() };
    next.tables.push(wanted.table.clone());
    if now.partitions.is_empty() {
        make_partitions(&mut next, wanted)?;
    } else {
        let given =
            [(wanted.replicas, now.replicas, "replicas"), (wanted.partitions, now.partitions.len(), "partitions")];
        for (asked, has, what) in given {
            if let Some(asked) = asked.filter(|asked| *asked != has) {
                return Err(NotMade::Shared { what, has, asked });
            }
        }
    }
    next.check().map_err(|_| NotMade::Splits)?;
    let bytes = encode(&next).len();
    if bytes > DOCUMENT_BYTES_MAX { Err(NotMade::TooLarge { bytes }) } else { Ok(next) }
}

fn check(what: &'static str, asked: usize, max: usize) -> Result<(), NotMade> {
    if (1..=max).contains(&asked) { Ok(()) } else { Err(NotMade::Number { what, asked, max }) }
}

fn make_partitions(next: &mut Configuration, wanted: &Wanted) -> Result<(), NotMade> {
    let members = next.nodes.len();
    let replicas = wanted.replicas.unwrap_or(members.min(3));
    check("replicas", replicas, REPLICAS_MAX)?;
    if replicas > members {
        return Err(NotMade::Members { replicas, members });
    }
    let cores = next.places().count();
    let partitions = wanted.partitions.unwrap_or((cores * PARTITIONS_PER_CORE).min(SERVICE_PARTITIONS_MAX));
    check("partitions", partitions, SERVICE_PARTITIONS_MAX)?;
    (next.replicas, next.founded) = (replicas, next.epoch);
    for _ in 0..partitions {
        let mut copies = Vec::new();
        for _ in 0..replicas {
            next.partitions.push(copies);
            let place = freest(next, next.partitions.len() - 1);
            copies = next.partitions.pop().unwrap_or_default();
            copies.extend(place);
        }
        next.partitions.push(copies);
    }
    balance_primaries(next);
    Ok(())
}

/// The number of copies on each node and core.
fn loads(configuration: &Configuration) -> (BTreeMap<NodeId, usize>, BTreeMap<Place, usize>) {
    let mut nodes: BTreeMap<NodeId, usize> = configuration.nodes.keys().map(|node| (*node, 0)).collect();
    let mut cores: BTreeMap<Place, usize> = configuration.places().map(|place| (place, 0)).collect();
    for place in configuration.partitions.iter().flatten() {
        *nodes.entry(place.node).or_default() += 1;
        *cores.entry(*place).or_default() += 1;
    }
    (nodes, cores)
}

/// The core with the fewest copies among those whose nodes have none of a partition.
fn freest(configuration: &Configuration, partition: usize) -> Option<Place> {
    let (nodes, cores) = loads(configuration);
    let copies = &configuration.partitions[partition];
    let is_free = |place: &Place| !copies.iter().any(|copy| copy.node == place.node);
    let load = |place: &Place| (share(configuration, &nodes, place.node), cores[place], *place);
    configuration.places().filter(is_free).min_by_key(load)
}

fn width(configuration: &Configuration, node: NodeId) -> usize {
    configuration.nodes.get(&node).map_or(1, |member| member.cores.len().max(1))
}

/// The load of a node: each core may have as many copies as any other.
fn share(configuration: &Configuration, nodes: &BTreeMap<NodeId, usize>, node: NodeId) -> usize {
    nodes.get(&node).copied().unwrap_or(0) * 1024 / width(configuration, node)
}

/// Gives all cores about as many primaries, among complete copies.
fn balance_primaries(configuration: &mut Configuration) {
    let mut counts: BTreeMap<Place, usize> = configuration.places().map(|place| (place, 0)).collect();
    let primaries = configuration.partitions.iter().filter_map(|copies| copies.first());
    primaries.for_each(|place| *counts.entry(*place).or_default() += 1);
    loop {
        let mut has_moved = false;
        for number in 0..configuration.partitions.len() {
            let copies = &configuration.partitions[number];
            let Some(first) = copies.first().copied() else { continue };
            let is_complete =
                |place: &&Place| configuration.filling_since(PartitionId(number as u32), place.node).is_none();
            let best = copies.iter().filter(is_complete).min_by_key(|place| (counts[place], **place)).copied();
            if let Some(best) = best.filter(|best| counts[best] + 1 < counts[&first]) {
                *counts.entry(first).or_default() -= 1;
                *counts.entry(best).or_default() += 1;
                let at = copies.iter().position(|place| *place == best).unwrap_or(0);
                configuration.partitions[number].swap(0, at);
                has_moved = true;
            }
        }
        // Each move makes the sum of squares smaller, so this ends.
        if !has_moved {
            return;
        }
    }
}

/// The next configuration, if the present one is not as it should be: without failed members, with new ones, with
/// copies that were filled and others that are to be.
///
/// A member counts as failed when it is not live in its incarnation. The caller knows that its lease has run out.
pub fn next(
    now: &Configuration,
    live: &BTreeMap<NodeId, Member>,
    filled: &BTreeSet<(PartitionId, NodeId)>,
) -> Option<Configuration> {
    let is_same =
        |node: &NodeId, member: &Member| live.get(node).is_some_and(|it| it.incarnation == member.incarnation);
    let failed: Vec<NodeId> =
        now.nodes.iter().filter(|(node, member)| !is_same(node, member)).map(|(node, _)| *node).collect();
    let survivors = now.surviving(&failed);
    let mut next = survivors.clone();
    let is_known = |node: &NodeId| now.nodes.get(node).is_some_and(|member| is_same(node, member));
    let new = live.iter().filter(|(node, member)| !is_known(node) && !member.cores.is_empty());
    for (node, member) in new {
        if next.nodes.len() < MEMBERS_MAX {
            next.nodes.insert(*node, member.clone());
        }
    }
    next.filling.retain(|name, _| !filled.contains(name));
    drop_surplus(&mut next);
    add_copies(&mut next);
    if failed.is_empty() && next.filling.is_empty() {
        move_copies(&mut next);
    }
    if failed.is_empty() {
        balance_primaries(&mut next);
    }
    if encode(&next).len() > DOCUMENT_BYTES_MAX {
        // Without failed members it is smaller than before.
        next = survivors;
    }
    let is_changed = Configuration { epoch: now.epoch, ..next.clone() } != *now;
    is_changed.then_some(next)
}

/// Removes copies beyond the number that each partition should have, from nodes with the most.
fn drop_surplus(next: &mut Configuration) {
    for number in 0..next.partitions.len() {
        let partition = PartitionId(number as u32);
        loop {
            let (nodes, _) = loads(next);
            let complete =
                next.partitions[number].iter().filter(|copy| next.filling_since(partition, copy.node).is_none());
            let complete: Vec<Place> = complete.copied().collect();
            if complete.len() <= next.replicas {
                break;
            }
            let Some(most) = complete.into_iter().max_by_key(|place| share(next, &nodes, place.node)) else { break };
            next.partitions[number].retain(|place| *place != most);
        }
    }
}

/// Begins to fill copies of partitions that have too few.
fn add_copies(next: &mut Configuration) {
    for number in 0..next.partitions.len() {
        while !next.partitions[number].is_empty() && next.partitions[number].len() < next.replicas {
            let Some(place) = freest(next, number) else { break };
            next.partitions[number].push(place);
            next.filling.insert((PartitionId(number as u32), place.node), next.epoch);
        }
    }
}

/// Begins to fill copies on nodes that have far fewer than others: when they are complete, others are dropped.
fn move_copies(next: &mut Configuration) {
    // As it will be then.
    let (mut nodes, _) = loads(next);
    for number in 0..next.partitions.len() {
        let copies = &next.partitions[number];
        let Some(most) = copies.iter().map(|place| place.node).max_by_key(|node| share(next, &nodes, *node)) else {
            continue;
        };
        let others = next.nodes.keys().filter(|node| !copies.iter().any(|place| place.node == **node));
        let Some(least) = others.copied().min_by_key(|node| share(next, &nodes, *node)) else { continue };
        let (from, to) = (width(next, most), width(next, least));
        if (nodes[&least] + 1) * from > nodes[&most].saturating_sub(1) * to {
            continue;
        }
        let (_, cores) = loads(next);
        let places = next.places().filter(|place| place.node == least);
        let Some(place) = places.min_by_key(|place| cores[place]) else { continue };
        next.partitions[number].push(place);
        next.filling.insert((PartitionId(number as u32), least), next.epoch);
        *nodes.entry(least).or_default() += 1;
        *nodes.entry(most).or_default() -= 1;
    }
}

#[cfg(test)]
mod tests {
    use dunlin_net::Addr;

    use super::*;

    fn members(nodes: impl IntoIterator<Item = u32>, incarnation: u64) -> BTreeMap<NodeId, Member> {
        let cores = |node: u32| (0..2).map(|core| Addr::Node(node * 100 + core)).collect();
        nodes.into_iter().map(|node| (node, Member { incarnation, cores: cores(node) })).collect()
    }

    fn wanted(name: &str) -> Wanted {
        Wanted { table: name.into(), replicas: None, partitions: None }
    }

    fn served(nodes: u32, replicas: usize, partitions: usize) -> Configuration {
        let first = next(&found(5, [1; 16]), &members(1..=nodes, 1), &BTreeSet::new()).unwrap();
        let wanted = Wanted { replicas: Some(replicas), partitions: Some(partitions), ..wanted("accounts") };
        with_table(&first, &wanted).unwrap()
    }

    /// Goes on until nothing changes; every copy is filled in between.
    fn settle(mut now: Configuration, live: &BTreeMap<NodeId, Member>) -> (Configuration, usize) {
        for steps in 0..20 {
            let filled = now.filling.keys().copied().collect();
            match next(&now, live, &filled) {
                Some(next) => {
                    assert_eq!(next.epoch, now.epoch + 1);
                    next.check().unwrap();
                    now = next;
                }
                None => return (now, steps),
            }
        }
        panic!("it does not end: {now:?}");
    }

    fn spread(counts: impl Iterator<Item = usize> + Clone) -> usize {
        counts.clone().max().unwrap() - counts.min().unwrap()
    }

    fn assert_even(now: &Configuration) {
        let (nodes, _) = loads(now);
        assert!(spread(nodes.values().copied()) <= 1, "{nodes:?}");
        let primaries = |place| now.partitions.iter().filter(|copies| copies[0] == place).count();
        let of_places: Vec<usize> = now.places().map(primaries).collect();
        assert!(spread(of_places.iter().copied()) <= 2, "{of_places:?}");
        assert!(now.filling.is_empty() && now.partitions.iter().all(|copies| copies.len() == now.replicas));
    }

    #[test]
    fn copies_are_placed_evenly() {
        for (nodes, replicas, partitions) in [(3, 3, 48), (3, 2, 17), (5, 3, 40), (1, 1, 16), (7, 2, 3)] {
            let now = served(nodes, replicas, partitions);
            assert_eq!((now.partitions.len(), now.founded, now.epoch), (partitions, 2, 2));
            assert!(now.partitions.iter().all(|copies| copies.len() == replicas));
            assert_even(&now);
            assert_eq!(next(&now, &members(1..=nodes, 1), &BTreeSet::new()), None, "it is as it should be");
        }
    }

    #[test]
    fn a_failed_member_is_left_out_and_its_successor_gets_copies() {
        let now = served(3, 3, 12);
        let two = next(&now, &members([1, 3], 1), &BTreeSet::new()).unwrap();
        assert!(two.partitions.iter().flatten().all(|place| place.node != 2) && two.filling.is_empty());
        for (before, after) in now.partitions.iter().zip(&two.partitions) {
            let first = before.iter().find(|place| place.node != 2).unwrap();
            assert_eq!(after[0], *first, "the first backup is promoted");
        }
        let (two, steps) = settle(two, &members([1, 3], 1));
        assert!(steps <= 1 && two.filling.is_empty(), "there is no other member: only primaries are spread");
        let mut live = members([1, 3], 1);
        live.extend(members([2], 9));
        let again = next(&two, &live, &BTreeSet::new()).unwrap();
        assert_eq!(again.filling.len(), 12);
        assert!(again.filling.values().all(|since| *since == again.epoch));
        assert!(again.partitions.iter().all(|copies| copies[2].node == 2), "it is no primary yet");
        // Half of it is filled, the other member fails, and the third: what is not complete is no copy.
        let some = (0..6).map(|number| (PartitionId(number), 2)).collect();
        let half = next(&again, &live, &some).unwrap();
        assert_eq!((half.filling.len(), half.partitions[0].len()), (6, 3));
        let alone = next(&half, &members([2], 9), &BTreeSet::new()).unwrap();
        let lost: Vec<u32> = alone.lost().map(|partition| partition.0).collect();
        assert_eq!(lost, [6, 7, 8, 9, 10, 11]);
        alone.check().unwrap();
        // A lost partition stays lost, whichever member joins.
        let (later, _) = settle(alone, &members(1..=4, 11));
        assert_eq!(later.lost().count(), 12, "the one with the other half has failed, too");
        let (later, _) = settle(half, &live);
        assert_even(&later);
    }

    /// One process replaces another before anybody noticed.
    #[test]
    fn another_incarnation_has_nothing() {
        let now = served(3, 2, 12);
        let mut live = members(1..=3, 1);
        live.extend(members([2], 9));
        let next = next(&now, &live, &BTreeSet::new()).unwrap();
        assert_eq!(next.nodes[&2].incarnation, 9);
        for (number, copies) in next.partitions.iter().enumerate() {
            for place in copies.iter().filter(|place| place.node == 2) {
                assert_eq!(next.filling_since(PartitionId(number as u32), place.node), Some(3));
            }
        }
    }

    #[test]
    fn a_member_that_is_added_gets_its_share() {
        let now = served(3, 3, 30);
        let live = members(1..=4, 1);
        let begun = next(&now, &live, &BTreeSet::new()).unwrap();
        assert!(begun.partitions.iter().all(|copies| copies.len() >= 3), "copies are dropped when others are complete");
        assert!(begun.filling.len() >= 15);
        let (settled, steps) = settle(now, &live);
        assert!(steps <= 6, "{steps}");
        assert_even(&settled);
        let (nodes, _) = loads(&settled);
        assert!(spread(nodes.values().copied()) <= 1, "{nodes:?}");
    }

    #[test]
    fn tables_share_the_partitions() {
        let now = served(3, 3, 12);
        let more = with_table(&now, &wanted("birds")).unwrap();
        assert_eq!(
            (more.partitions.clone(), more.tables.len(), more.founded),
            (now.partitions.clone(), 2, now.founded)
        );
        let refused = |wanted: Wanted| with_table(&now, &wanted).unwrap_err();
        assert_eq!(refused(wanted("accounts")), NotMade::Exists("accounts".into()));
        assert_eq!(refused(wanted("a b")), NotMade::Name("a b".into()));
        let few = Wanted { replicas: Some(2), ..wanted("x") };
        assert_eq!(refused(few), NotMade::Shared { what: "replicas", has: 3, asked: 2 });
        let many = Wanted { partitions: Some(13), ..wanted("x") };
        assert_eq!(refused(many), NotMade::Shared { what: "partitions", has: 12, asked: 13 });
        let reversed = Wanted { table: Table::ordered("x", ["b", "a"]), ..wanted("x") };
        assert_eq!(refused(reversed), NotMade::Splits);
        let splits = (0..500u32).map(|split| [&split.to_be_bytes()[..], &[0; 200]].concat());
        let long = Wanted { table: Table::ordered("x", splits), ..wanted("x") };
        assert!(matches!(refused(long), NotMade::TooLarge { .. }));
        let mut full = now.clone();
        while full.tables.len() < SERVICE_TABLES_MAX {
            full = with_table(&full, &wanted(&format!("t{}", full.tables.len()))).unwrap();
        }
        assert!(matches!(with_table(&full, &wanted("x")), Err(NotMade::Number { what: "tables", .. })));
    }

    #[test]
    fn the_first_table_needs_members_and_sensible_numbers() {
        let nobody = found(5, [1; 16]);
        assert!(matches!(with_table(&nobody, &wanted("x")), Err(NotMade::Number { what: "replicas", asked: 0, .. })));
        let first = next(&nobody, &members(1..=2, 1), &BTreeSet::new()).unwrap();
        let three = Wanted { replicas: Some(3), ..wanted("x") };
        assert_eq!(with_table(&first, &three), Err(NotMade::Members { replicas: 3, members: 2 }));
        for partitions in [0, SERVICE_PARTITIONS_MAX + 1] {
            let wanted = Wanted { partitions: Some(partitions), ..wanted("x") };
            assert!(matches!(with_table(&first, &wanted), Err(NotMade::Number { what: "partitions", .. })));
        }
        let made = with_table(&first, &wanted("x")).unwrap();
        assert_eq!((made.replicas, made.partitions.len()), (2, 32));
    }

    #[test]
    fn the_largest_service_fits_its_document() {
        let nodes = (1..=MEMBERS_MAX as u32).map(|node| {
            let cores = (0..8).map(|core| format!("udp://10.200.100.{node}:{}", 40_000 + core).parse().unwrap());
            (node, Member { incarnation: u64::from(u32::MAX), cores: cores.collect() })
        });
        let first = next(&found(5, [1; 16]), &nodes.collect(), &BTreeSet::new()).unwrap();
        let wanted = Wanted { replicas: Some(3), partitions: Some(SERVICE_PARTITIONS_MAX), ..wanted("x") };
        let made = with_table(&first, &wanted).unwrap();
        assert!(encode(&made).len() < DOCUMENT_BYTES_MAX / 5 * 4, "{}", encode(&made).len());
    }
}
