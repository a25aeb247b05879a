//! Configurations: the members of an epoch, and the copies of partitions that each holds.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use dunlin_net::Addr;
use siphasher::sip::SipHasher13;

use crate::ids::{Epoch, NodeId, PartitionId, Place, TableId};
use crate::limits::{PARTITIONS_MAX, TABLES_MAX};
use crate::wire::scan::Span;

pub use table::{Keys, Table};

/// Maximum number of copies of a partition.
pub const REPLICAS_MAX: usize = 7;
/// Departures that a configuration remembers: at least as many as a coordinator has logs.
const DEPARTURES_MAX: usize = 2 * REPLICAS_MAX;

/// The state that members and clients agree on in one epoch. Its source (a test; later the cluster manager) must issue
/// one configuration for each epoch, and never two different ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// The cluster's number.
    pub cluster: u64,
    /// Its number; rises with every configuration.
    pub epoch: Epoch,
    /// Number of copies of each partition (the paper's f + 1), and of log replicas of each coordinator.
    pub replicas: usize,
    /// The members.
    pub nodes: BTreeMap<NodeId, Member>,
    /// The copies of each partition, the primary first, each on another node. None if all are lost.
    pub partitions: Vec<Vec<Place>>,
    /// The copies that receive all writes, and do not have all older items yet: each with the epoch in which it began.
    /// They are backups, and cannot be promoted.
    pub filling: BTreeMap<(PartitionId, NodeId), Epoch>,
    /// The last nodes that were left out: in which epoch each was, and how many nodes were left then.
    pub departures: Vec<(Epoch, usize)>,
    /// The epoch in which the partitions were made. Their copies of that epoch began empty.
    pub founded: Epoch,
    /// The tables. Never reordered nor changed; none is ever removed.
    pub tables: Vec<Table>,
    /// Seed of the hash that partitions the keys of hashed tables.
    pub seed: [u8; 16],
}

/// A node of a configuration: one process, with the data it received since it started. A process that replaces it is
/// another member, without data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Identifies the process: a number that it drew at random when it started.
    pub incarnation: u64,
    /// The address of each of its cores.
    pub cores: Vec<Addr>,
}

/// Whether a copy of a partition serves reads and locks, or is only kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It serves reads and locks.
    Primary,
    /// It receives committed writes.
    Backup,
}

/// Why a configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigurationError {
    /// A number is out of range.
    #[error("{what} are {value}: choose 1 to {max}")]
    Number {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The maximum.
        max: usize,
    },
    /// A copy is at a place that no node has.
    #[error("partition {} has a copy on {place}, which the configuration does not list", partition.0)]
    NoSuchPlace {
        /// The partition.
        partition: PartitionId,
        /// The place.
        place: Place,
    },
    /// Two copies of one partition are on one node.
    #[error("partition {} has two copies on node {node}: place each copy on a node of its own", partition.0)]
    SameNode {
        /// The partition.
        partition: PartitionId,
        /// The node.
        node: NodeId,
    },
    /// The keys at which an ordered table is split are out of order, or too long.
    #[error(
        "the splits of table {table:?} are wrong: give keys of 1 to 250 bytes in ascending order, fewer than 65536"
    )]
    Splits {
        /// The name of the table.
        table: String,
    },
    /// A copy is to be filled that is the primary, or is none.
    #[error("partition {} has no backup on node {node} that could be filled", partition.0)]
    Filling {
        /// The partition.
        partition: PartitionId,
        /// The node.
        node: NodeId,
    },
    /// All copies of a partition are gone.
    #[error("all copies of partition {} are lost: its nodes failed together; restore its data from a backup", .0.0)]
    PartitionLost(PartitionId),
}

/// The initial layout of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The cluster's number.
    pub cluster: u64,
    /// The nodes.
    pub nodes: BTreeMap<NodeId, Member>,
    /// Number of partitions whose primary is on each core.
    pub partitions_per_core: usize,
    /// Copies of each partition.
    pub replicas: usize,
    /// The tables.
    pub tables: Vec<Table>,
    /// Seed of the hash that partitions the keys of hashed tables.
    pub seed: [u8; 16],
}

impl Plan {
    /// Returns the first configuration: primaries spread over all cores, the backups of each over the nodes that
    /// follow.
    ///
    /// # Errors
    /// [`ConfigurationError`] if a number is out of range.
    pub fn configure(self) -> Result<Configuration, ConfigurationError> {
        check_number("replicas", self.replicas, REPLICAS_MAX.min(self.nodes.len()))?;
        let ring: Vec<(NodeId, usize)> = self.nodes.iter().map(|(node, member)| (*node, member.cores.len())).collect();
        let mut partitions = Vec::new();
        for round in 0..self.partitions_per_core {
            for (at, (_, cores)) in ring.iter().enumerate() {
                for core in 0..*cores {
                    let copy = |step: usize| {
                        // A different distance for each core and round, so that the load of a failed node is spread.
                        let skip = if step == 0 { 0 } else { step + (core + round) % (ring.len() - self.replicas + 1) };
                        let (node, cores) = ring[(at + skip) % ring.len()];
                        Place { node, core: (core % cores.max(1)) as u16 }
                    };
                    partitions.push((0..self.replicas).map(copy).collect());
                }
            }
        }
        let Plan { cluster, nodes, replicas, tables, seed, .. } = self;
        let (filling, departures, epoch, founded) = (BTreeMap::new(), Vec::new(), 1, 1);
        let configuration =
            Configuration { cluster, epoch, replicas, nodes, partitions, filling, departures, founded, tables, seed };
        configuration.check()?;
        Ok(configuration)
    }
}

fn check_number(what: &'static str, value: usize, max: usize) -> Result<(), ConfigurationError> {
    if (1..=max).contains(&value) { Ok(()) } else { Err(ConfigurationError::Number { what, value, max }) }
}

impl Configuration {
    /// Checks everything that does not depend on earlier configurations.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<(), ConfigurationError> {
        check_number("replicas", self.replicas, REPLICAS_MAX)?;
        if !self.partitions.is_empty() || !self.tables.is_empty() {
            check_number("partitions", self.partitions.len(), PARTITIONS_MAX)?;
            check_number("tables", self.tables.len(), TABLES_MAX)?;
        }
        if let Some(table) = self.tables.iter().find(|table| !table.keys.are_valid()) {
            return Err(ConfigurationError::Splits { table: table.name.clone() });
        }
        for (number, copies) in self.partitions.iter().enumerate() {
            self.check_copies(PartitionId(number as u32), copies)?;
        }
        for (partition, node) in self.filling.keys() {
            let copies = self.partitions.get(partition.0 as usize).map(Vec::as_slice).unwrap_or_default();
            if !copies.iter().skip(1).any(|place| place.node == *node) {
                return Err(ConfigurationError::Filling { partition: *partition, node: *node });
            }
        }
        Ok(())
    }

    fn check_copies(&self, partition: PartitionId, copies: &[Place]) -> Result<(), ConfigurationError> {
        let mut nodes = BTreeSet::new();
        for place in copies {
            if self.addr(*place).is_none() {
                return Err(ConfigurationError::NoSuchPlace { partition, place: *place });
            }
            if !nodes.insert(place.node) {
                return Err(ConfigurationError::SameNode { partition, node: place.node });
            }
        }
        Ok(())
    }

    /// Returns the next configuration, without failed nodes: the first remaining backup becomes the primary.
    ///
    /// # Errors
    /// [`ConfigurationError::PartitionLost`] if a partition has no copy left.
    pub fn without(&self, failed: &[NodeId]) -> Result<Configuration, ConfigurationError> {
        let next = self.surviving(failed);
        if let Some(lost) = next.lost().next() {
            return Err(ConfigurationError::PartitionLost(lost));
        }
        next.check()?;
        Ok(next)
    }

    /// The same, also if partitions have no complete copy left: then they have none.
    pub fn surviving(&self, failed: &[NodeId]) -> Configuration {
        let mut next = self.clone();
        next.epoch += 1;
        next.nodes.retain(|node, _| !failed.contains(node));
        let (before, after) = (self.nodes.len(), next.nodes.len());
        next.departures.extend((after..before).map(|_| (next.epoch, after)));
        let surplus = next.departures.len().saturating_sub(DEPARTURES_MAX);
        next.departures.drain(..surplus);
        next.filling.retain(|(_, node), _| !failed.contains(node));
        for (number, copies) in next.partitions.iter_mut().enumerate() {
            copies.retain(|place| !failed.contains(&place.node));
            let is_filling = |place: &Place| next.filling.contains_key(&(PartitionId(number as u32), place.node));
            match copies.iter().position(|place| !is_filling(place)) {
                Some(first) => copies[..=first].rotate_right(1),
                None => copies.clear(),
            }
        }
        let partitions = &next.partitions;
        next.filling.retain(|(partition, _), _| !partitions[partition.0 as usize].is_empty());
        next
    }

    /// Whether all logs of a coordinator in an earlier epoch may be gone: at least as many nodes were left out since as
    /// it had logs, counting with the fewest nodes that the epoch can have had.
    pub fn may_have_lost_logs(&self, epoch: Epoch) -> bool {
        let since = self.departures.iter().filter(|(departed, _)| *departed > epoch).count();
        let before = self.departures.iter().rfind(|(departed, _)| *departed <= epoch);
        let nodes = before.map_or(self.replicas, |(_, left)| *left);
        since >= self.replicas.min(nodes).max(1)
    }

    /// Partitions without a copy: their data is lost.
    pub fn lost(&self) -> impl Iterator<Item = PartitionId> {
        let numbered = self.partitions.iter().enumerate().filter(|(_, copies)| copies.is_empty());
        numbered.map(|(number, _)| PartitionId(number as u32))
    }

    /// Since which epoch a copy is being filled; `None` if it is complete.
    pub fn filling_since(&self, partition: PartitionId, node: NodeId) -> Option<Epoch> {
        self.filling.get(&(partition, node)).copied()
    }

    /// The partition of a key. It is the same in all hashed tables, and in all ordered tables with the same splits:
    /// items of such tables with one key are on the same core.
    ///
    /// # Panics
    /// If there is no such table.
    #[inline]
    pub fn partition_of(&self, table: TableId, key: &[u8]) -> PartitionId {
        if let Keys::Ordered { splits } = &self.tables[usize::from(table.0)].keys {
            return self.partition_of_part(splits.partition_point(|split| **split <= *key));
        }
        let mut hasher = SipHasher13::new_with_key(&self.seed);
        hasher.write(key);
        // The high half of a product with 32 random bits: as uniform as a remainder, without a division.
        PartitionId((((hasher.finish() >> 32) * self.partitions.len() as u64) >> 32) as u32)
    }

    /// The partition of part number `part` of an ordered table.
    fn partition_of_part(&self, part: usize) -> PartitionId {
        PartitionId((part % self.partitions.len()) as u32)
    }

    /// The beginning of a range of an ordered table, as far as it is in one partition, and that partition. `None` if
    /// the table is not ordered.
    pub(crate) fn first_part<'a>(&'a self, table: TableId, span: Span<'a>) -> Option<(PartitionId, Span<'a>)> {
        let splits = self.tables.get(usize::from(table.0))?.keys.splits()?;
        let part = splits.partition_point(|split| **split <= *span.low);
        let next = splits.get(part).map(|split| &**split).filter(|split| span.is_before_end(split));
        Some((self.partition_of_part(part), Span { high: next.or(span.high), ..span }))
    }

    /// The copies of a partition, the primary first.
    ///
    /// # Panics
    /// If there is no such partition.
    #[inline]
    pub fn copies(&self, partition: PartitionId) -> &[Place] {
        &self.partitions[partition.0 as usize]
    }

    /// The role of a place for a partition; `None` if it has no copy.
    pub fn role(&self, partition: PartitionId, place: Place) -> Option<Role> {
        let at = self.partitions.get(partition.0 as usize)?.iter().position(|copy| *copy == place)?;
        Some(if at == 0 { Role::Primary } else { Role::Backup })
    }

    /// The table with this name.
    pub fn table(&self, name: &str) -> Option<TableId> {
        self.tables.iter().position(|table| table.name == name).map(|at| TableId(at as u16))
    }

    /// The address of a core.
    pub fn addr(&self, place: Place) -> Option<&Addr> {
        self.nodes.get(&place.node)?.cores.get(usize::from(place.core))
    }

    /// The incarnation of a core's process; zero if there is no such core.
    pub fn incarnation(&self, place: Place) -> u64 {
        self.nodes.get(&place.node).map_or(0, |member| member.incarnation)
    }

    /// All cores of all nodes, in order.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.nodes
            .iter()
            .flat_map(|(node, member)| (0..member.cores.len()).map(|core| Place { node: *node, core: core as u16 }))
    }

    /// The log replicas of a coordinator: f + 1 cores on different nodes, or one on each node if there are fewer nodes.
    /// If the coordinator is on a member, its own core is the first (thesis, section 5.4: the coordinator's own machine
    /// is one of them).
    pub fn log_replicas(&self, coordinator: u64, home: Option<Place>) -> Vec<Place> {
        let ring: Vec<(&NodeId, &Member)> = self.nodes.iter().filter(|(_, member)| !member.cores.is_empty()).collect();
        if ring.is_empty() {
            return Vec::new();
        }
        let own = home.and_then(|home| ring.iter().position(|(node, _)| **node == home.node));
        let first = own.unwrap_or((coordinator % ring.len() as u64) as usize);
        let core = home.map_or(coordinator as usize / ring.len(), |home| usize::from(home.core));
        let replica = |step: usize| {
            let (node, member) = ring[(first + step) % ring.len()];
            Place { node: *node, core: (core % member.cores.len()) as u16 }
        };
        (0..self.replicas.min(ring.len())).map(replica).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(nodes: u32, cores: u16, replicas: usize) -> Plan {
        let addrs = |node| (0..cores).map(|core| Addr::Node(node * 100 + u32::from(core))).collect();
        Plan {
            cluster: 1,
            nodes: (1..=nodes).map(|node| (node, Member { incarnation: 1, cores: addrs(node) })).collect(),
            partitions_per_core: 2,
            replicas,
            tables: vec!["birds".into()],
            seed: [7; 16],
        }
    }

    #[test]
    fn copies_are_spread_evenly() {
        for (nodes, cores, replicas) in [(3, 2, 3), (5, 3, 2), (4, 1, 1), (5, 2, 3)] {
            let configuration = plan(nodes, cores, replicas).configure().unwrap();
            assert_eq!(configuration.partitions.len(), 2 * nodes as usize * usize::from(cores));
            for place in configuration.places() {
                let copies = configuration.partitions.iter().filter(|copies| copies.contains(&place)).count();
                assert_eq!(copies, 2 * replicas, "{place} of {nodes} nodes");
            }
        }
    }

    #[test]
    fn plans_that_cannot_be_are_refused() {
        assert!(matches!(plan(2, 1, 3).configure(), Err(ConfigurationError::Number { what: "replicas", .. })));
        let mut without_tables = plan(3, 1, 1);
        without_tables.tables.clear();
        assert!(matches!(without_tables.configure(), Err(ConfigurationError::Number { what: "tables", .. })));
        assert!(matches!(plan(3, 0, 1).configure(), Err(ConfigurationError::Number { what: "partitions", .. })));
    }

    #[test]
    fn ordered_tables_are_cut_at_their_splits() {
        let mut plan = plan(3, 1, 1);
        plan.tables.push(Table::ordered("ordered", ["d", "m", "mm", "t", "u", "v", "w"]));
        let configuration = plan.configure().unwrap();
        assert_eq!(configuration.partitions.len(), 6);
        let parts = |low: &'static str, high: Option<&'static str>| {
            let (mut span, mut found) = (Span { low: low.as_bytes(), high: high.map(str::as_bytes) }, Vec::new());
            loop {
                let (partition, part) = configuration.first_part(TableId(1), span).unwrap();
                assert_eq!(configuration.partition_of(TableId(1), part.low), partition);
                found.push((partition.0, part.high.map(|high| std::str::from_utf8(high).unwrap())));
                if part.high == span.high {
                    return found;
                }
                span.low = part.high.unwrap();
            }
        };
        assert_eq!(parts("", Some("d")), [(0, Some("d"))]);
        assert_eq!(parts("d", Some("l")), [(1, Some("l"))]);
        assert_eq!(parts("e", Some("mm\0")), [(1, Some("m")), (2, Some("mm")), (3, Some("mm\0"))]);
        let all = [Some("d"), Some("m"), Some("mm"), Some("t"), Some("u"), Some("v"), Some("w"), None];
        assert_eq!(parts("", None), [0, 1, 2, 3, 4, 5, 0, 1].into_iter().zip(all).collect::<Vec<_>>());
        assert_eq!(configuration.first_part(TableId(0), Span::ALL), None, "a hashed table has no ranges");
    }

    #[test]
    fn splits_out_of_order_are_refused() {
        for splits in [vec!["b", "a"], vec!["a", "a"], vec![""], vec!["a", &"k".repeat(251)]] {
            let mut plan = plan(3, 1, 1);
            plan.tables.push(Table::ordered("ordered", splits));
            assert_eq!(plan.configure(), Err(ConfigurationError::Splits { table: "ordered".into() }));
        }
    }

    #[test]
    fn a_backup_is_promoted_and_a_lost_partition_is_said() {
        let first = plan(3, 1, 2).configure().unwrap();
        let next = first.without(&[1]).unwrap();
        assert_eq!(next.epoch, 2);
        for (before, after) in first.partitions.iter().zip(&next.partitions) {
            let left: Vec<Place> = before.iter().copied().filter(|place| place.node != 1).collect();
            assert_eq!(*after, left);
        }
        assert!(matches!(next.without(&[2]), Err(ConfigurationError::PartitionLost(_))));
    }

    #[test]
    fn logs_that_may_be_gone_are_known() {
        // Three logs of each coordinator.
        let first = plan(5, 1, 3).configure().unwrap();
        let third = first.surviving(&[1]).surviving(&[2]);
        assert!(!third.may_have_lost_logs(1), "one log is left");
        let fourth = third.surviving(&[3]);
        assert_eq!([1, 2, 3].map(|epoch| fourth.may_have_lost_logs(epoch)), [true, false, false]);
        // In epoch 4 there are two nodes, so two logs.
        let fifth = fourth.surviving(&[4]);
        assert!(!fifth.may_have_lost_logs(4));
        assert!(fifth.surviving(&[5]).may_have_lost_logs(4));
    }

    #[test]
    fn logs_are_on_nodes_of_their_own() {
        let configuration = plan(4, 2, 3).configure().unwrap();
        for coordinator in 0..20 {
            for home in [None, Some(Place { node: 3, core: 1 })] {
                let replicas = configuration.log_replicas(coordinator, home);
                let nodes: BTreeSet<NodeId> = replicas.iter().map(|place| place.node).collect();
                assert_eq!((replicas.len(), nodes.len()), (3, 3));
                assert!(home.is_none_or(|home| replicas[0] == home));
            }
        }
    }
}
