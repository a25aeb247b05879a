//! Transactions: several changes to the tree on several conditions, all or none.

use std::collections::HashSet;

use crate::error::CoordError;
use crate::limits::Limits;
use crate::path::check_path;
use crate::types::{Condition, Lease, Token};

/// Compares of a transaction. etcd accepts 128 operations, and a deletion needs a compare of its own there.
pub const TRANSACTION_COMPARES_MAX: usize = 64;
/// Writes of a transaction.
pub const TRANSACTION_WRITES_MAX: usize = 64;
/// Bytes of the paths, names and values of a transaction. etcd accepts 1.5 MiB, and gets each value twice: for the tree
/// and for watchers.
pub const TRANSACTION_BYTES_MAX: usize = 512 << 10;

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The epoch is this one: the set of live members has not changed since.
    Epoch {
        /// The epoch.
        epoch: u64,
    },
    /// The lease is held with this token. So a former holder cannot write, however late its message arrives.
    Lease {
        /// Its name.
        name: String,
        /// The token.
        token: Token,
    },
    /// An entry of the tree meets a condition.
    Entry {
        /// Its path.
        path: String,
        /// The condition.
        condition: Condition,
    },
}

/// A change to the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Sets an entry.
    Set {
        /// Its path.
        path: String,
        /// Its value.
        value: Vec<u8>,
    },
    /// Deletes an entry, which must exist.
    Delete {
        /// Its path.
        path: String,
    },
}

impl Write {
    /// The path of the entry.
    pub fn path(&self) -> &str {
        match self {
            Write::Set { path, .. } | Write::Delete { path } => path,
        }
    }
}

/// Writes that are all done if every compare holds, and none otherwise. Compares see the state before the writes.
/// Without writes it only compares. Limits: 64 compares, 64 writes, each of another path, and 512 KiB.
///
/// ```
/// # use dunlin_coord::{Condition, Lease, Transaction};
/// # fn fenced(lease: &Lease, version: u64) -> Transaction {
/// Transaction::new()
///     .if_lease(lease)
///     .if_entry("/volumes/7", Condition::Version { version })
///     .set("/volumes/7", "1,2,4")
///     .delete("/volumes/7/repair")
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The first one that does not hold is the error.
    pub compares: Vec<Compare>,
    /// In any order: each is of another path.
    pub writes: Vec<Write>,
}

impl Transaction {
    /// A transaction without compares and writes.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// Requires that the epoch is this one.
    #[must_use]
    pub fn if_epoch(mut self, epoch: u64) -> Transaction {
        self.compares.push(Compare::Epoch { epoch });
        self
    }

    /// Requires that the lease is still held with its token: this fences the writes.
    #[must_use]
    pub fn if_lease(mut self, lease: &Lease) -> Transaction {
        self.compares.push(Compare::Lease { name: lease.name.clone(), token: lease.token });
        self
    }

    /// Requires that an entry meets a condition.
    #[must_use]
    pub fn if_entry(mut self, path: &str, condition: Condition) -> Transaction {
        self.compares.push(Compare::Entry { path: path.to_owned(), condition });
        self
    }

    /// Sets an entry.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Vec<u8>>) -> Transaction {
        self.writes.push(Write::Set { path: path.to_owned(), value: value.into() });
        self
    }

    /// Deletes an entry, which must exist.
    #[must_use]
    pub fn delete(mut self, path: &str) -> Transaction {
        self.writes.push(Write::Delete { path: path.to_owned() });
        self
    }

    /// Checks everything that needs no state.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), CoordError> {
        self.check_counts()?;
        let mut bytes = 0;
        for compare in &self.compares {
            if let Compare::Lease { name: path, .. } | Compare::Entry { path, .. } = compare {
                check_path(path)?;
                bytes += path.len();
            }
        }
        let mut paths = HashSet::new();
        for write in &self.writes {
            check_path(write.path())?;
            if !paths.insert(write.path()) {
                return Err(bad(format!("it writes {} twice", write.path())));
            }
            bytes += write.path().len();
            if let Write::Set { value, .. } = write {
                limits.check_value(value)?;
                bytes += value.len();
            }
        }
        if bytes > TRANSACTION_BYTES_MAX {
            return Err(CoordError::TooLarge { what: "a transaction".into(), max: TRANSACTION_BYTES_MAX as u64 });
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), CoordError> {
        let (compares, writes) = (self.compares.len(), self.writes.len());
        if compares > TRANSACTION_COMPARES_MAX {
            return Err(bad(format!("it has {compares} compares, and {TRANSACTION_COMPARES_MAX} are allowed")));
        }
        if writes > TRANSACTION_WRITES_MAX {
            return Err(bad(format!("it has {writes} writes, and {TRANSACTION_WRITES_MAX} are allowed")));
        }
        Ok(())
    }
}

fn bad(why: String) -> CoordError {
    CoordError::BadTransaction { why }
}
