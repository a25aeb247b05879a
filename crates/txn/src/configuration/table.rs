//! Tables, and how their keys are divided among partitions.

use crate::limits::{KEY_BYTES_MAX, PARTITIONS_MAX};

/// A table of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// How its keys are divided among partitions.
    pub keys: Keys,
}

/// How the keys of a table are divided among partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    /// By a hash. The table has no range reads.
    Hashed,
    /// In order, so that a range read asks only the partitions that have a part of the range.
    Ordered {
        /// Where one part ends and the next begins: keys in ascending order. Part n is in partition n, modulo the
        /// number of partitions. Without splits, the whole table is in partition 0. Splits never change, because
        /// items cannot be moved yet.
        splits: Vec<Box<[u8]>>,
    },
}

impl Table {
    /// A table without range reads.
    pub fn hashed(name: impl Into<String>) -> Table {
        Table { name: name.into(), keys: Keys::Hashed }
    }

    /// A table with range reads, split at these keys.
    ///
    /// ```
    /// # use dunlin_txn::Table;
    /// // Three parts: up to "h", from "h" to "q", and from "q" on.
    /// let birds = Table::ordered("birds", ["h", "q"]);
    /// ```
    pub fn ordered(name: impl Into<String>, splits: impl IntoIterator<Item: AsRef<[u8]>>) -> Table {
        let splits = splits.into_iter().map(|split| split.as_ref().into()).collect();
        Table { name: name.into(), keys: Keys::Ordered { splits } }
    }
}

impl From<&str> for Table {
    /// A hashed table.
    fn from(name: &str) -> Table {
        Table::hashed(name)
    }
}

impl Keys {
    /// The splits of an ordered table.
    pub(crate) fn splits(&self) -> Option<&[Box<[u8]>]> {
        match self {
            Keys::Hashed => None,
            Keys::Ordered { splits } => Some(splits),
        }
    }

    pub(super) fn are_valid(&self) -> bool {
        let splits = self.splits().unwrap_or_default();
        let are_keys = splits.iter().all(|split| (1..=KEY_BYTES_MAX).contains(&split.len()));
        are_keys && splits.len() < PARTITIONS_MAX && splits.is_sorted_by(|split, next| split < next)
    }
}
