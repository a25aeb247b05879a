//! Identifiers: places, partitions, tables, transactions.

use std::fmt;

/// The number of a configuration. Every message carries it; a participant answers only messages of its own epoch.
pub type Epoch = u64;

/// The version of an item. A partition issues each version once, in ascending order. Zero is not a version.
pub type Version = u64;

/// The number of a node, chosen by its operator. Never reused for another node.
pub type NodeId = u32;

/// One core of one node: a thread with one endpoint, which owns copies of partitions and a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The node.
    pub node: NodeId,
    /// The core, from zero.
    pub core: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {} of node {}", self.core, self.node)
    }
}

/// The number of a partition, from zero: one part of the keys of all tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u32);

/// The number of a table, from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u16);

/// Identifies a transaction for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    /// The epoch in which it began. A transaction ends in its epoch, or recovery decides it.
    pub epoch: Epoch,
    /// Its coordinator: a number that is never reused.
    pub coordinator: u64,
    /// Its sequence number at its coordinator.
    pub sequence: u64,
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.epoch, self.coordinator, self.sequence)
    }
}
