//! The verdict on a history.

use std::fmt;

/// Reported anomalies of one name; the others are counted.
const SHOWN_MAX: usize = 8;

/// The names of anomalies: Adya's (1999) where there is one, else those of Kingsbury and Alvaro (2020).
///
/// A cycle has the name of its strongest kind of dependency. `RealTime` says that real time is part of it: without
/// these edges, the transactions of the cycle could have been executed in some order, but not in one that agrees with
/// the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// A list shows an element that was never appended.
    GarbageRead,
    /// A list shows an element twice.
    DuplicateAppend,
    /// Two lists of a key, neither of which begins with the other.
    IncompatibleOrder,
    /// A transaction contradicts itself: its reads, or its reads and its appends.
    InternalInconsistency,
    /// Aborted read: a list shows an append of a transaction that aborted.
    G1a,
    /// Intermediate read: a list ends with an append that was not the last one of its transaction to this key.
    G1b,
    /// Two transactions read the same version of a key, and both appended to it.
    LostUpdate,
    /// Write cycle: write-write edges only.
    G0,
    /// Circular information flow: write-write and write-read edges.
    G1c,
    /// Read skew: one read-write edge.
    GSingle,
    /// Write skew: several read-write edges.
    G2,
    /// A write cycle with real time.
    G0RealTime,
    /// Circular information flow with real time: for example, a read of a later write.
    G1cRealTime,
    /// One read-write edge with real time: a stale read, for example.
    GSingleRealTime,
    /// Several read-write edges with real time.
    G2RealTime,
}

/// An observation that is impossible in a strictly serializable system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anomaly {
    /// Its name.
    pub name: Name,
    /// The transactions that show it, by index in the history; those of a cycle in the order of its edges.
    pub transactions: Vec<usize>,
    /// The observations that show it, one a line.
    pub explanation: String,
}

/// The verdict on a history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The anomalies found: the first few of each name; one cycle for each set of transactions that depend on each
    /// other in circles.
    pub anomalies: Vec<Anomaly>,
    /// Anomalies found, but not in `anomalies`.
    pub omitted: usize,
    /// Transactions that committed, including those that must have committed.
    pub committed: usize,
    /// Transactions with an unknown outcome that must have committed, because one of their appends was read.
    pub must_have_committed: usize,
    /// Transactions with an unknown outcome and no visible append: no verdict covers their reads.
    pub unseen: usize,
    /// Dependencies between transactions, without those of real time.
    pub edges: usize,
}

impl Report {
    /// Returns whether an order exists, in agreement with real time, in which all observations are right.
    pub fn is_strictly_serializable(&self) -> bool {
        self.anomalies.is_empty()
    }

    /// Records an anomaly, unless there are enough of its name.
    pub(super) fn add(&mut self, name: Name, transactions: &[usize], explanation: impl FnOnce() -> String) {
        if self.anomalies.iter().filter(|anomaly| anomaly.name == name).count() >= SHOWN_MAX {
            self.omitted += 1;
            return;
        }
        self.anomalies.push(Anomaly { name, transactions: transactions.to_vec(), explanation: explanation() });
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Name::GarbageRead => "garbage read",
            Name::DuplicateAppend => "duplicate append",
            Name::IncompatibleOrder => "incompatible orders",
            Name::InternalInconsistency => "internal inconsistency",
            Name::G1a => "G1a, aborted read",
            Name::G1b => "G1b, intermediate read",
            Name::LostUpdate => "lost update",
            Name::G0 => "G0, write cycle",
            Name::G1c => "G1c, circular information flow",
            Name::GSingle => "G-single, read skew",
            Name::G2 => "G2, write skew",
            Name::G0RealTime => "G0-realtime, write cycle with real time",
            Name::G1cRealTime => "G1c-realtime, circular information flow with real time",
            Name::GSingleRealTime => "G-single-realtime, one read-write edge with real time",
            Name::G2RealTime => "G2-realtime, several read-write edges with real time",
        })
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.name)?;
        self.explanation.lines().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_strictly_serializable() {
            write!(f, "strictly serializable: {} committed transactions", self.committed)?;
            return write!(f, ", {} with an unknown outcome were not seen", self.unseen);
        }
        writeln!(f, "not strictly serializable: {} anomalies", self.anomalies.len() + self.omitted)?;
        self.anomalies.iter().try_for_each(|anomaly| writeln!(f, "{anomaly}"))?;
        if self.omitted > 0 {
            writeln!(f, "and {} more with names that were reported {SHOWN_MAX} times", self.omitted)?;
        }
        Ok(())
    }
}
