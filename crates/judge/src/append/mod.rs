//! Strict serializability of list-append histories, by Elle's method (Kingsbury and Alvaro, "Elle: Inferring Isolation
//! Anomalies from Experimental Observations", VLDB 2020).
//!
//! Transactions append elements to lists and read lists. A list that was read shows all appends to its key so far, in
//! order, so histories reveal their own dependencies: which transaction wrote what another overwrote (write-write) or
//! read (write-read), and which read what another overwrote (read-write). With real time these form a graph, and a
//! history is strictly serializable only if the graph has no cycle. No search for an order is needed: the time and the
//! memory of the verdict are linear in the size of the history, except for sorting. Then a search for a short cycle
//! visits some millions of edges at most, for each kind of cycle in each set of transactions that depend on each other
//! in circles.
//!
//! # What it promises
//!
//! - **No false alarm.** Each reported anomaly contradicts every order of the transactions that agrees with real time.
//!   A transaction comes before another in real time if its client knew of its commit before the other began; one that
//!   ends at the very time at which the other begins is concurrent with it.
//! - **No miss within the history.** If nothing is reported, there is an order that agrees with real time in which all
//!   reads of committed transactions are right. Two rules complete the three kinds of edges: appends that no list shows
//!   come after all that read the longest list, and a read after a transaction's own append reveals the list before
//!   that append.
//!
//! The tests compare both promises with a search through all orders of small histories.
//!
//! # What it misses
//!
//! - **Unknown outcomes.** A transaction with an unknown outcome counts as committed if a transaction that counts read
//!   one of its appends, and then its reads count too. Otherwise it counts as aborted, and its reads are not judged. So
//!   two faults are never found: the system committed a transaction after it had read garbage, and its appends were
//!   never read; or the system aborted a transaction although its append is seen, and its client was not told of the
//!   abort. A transaction with an unknown outcome comes before no other in real time: it may commit at any time after
//!   it began.
//! - **Acknowledged appends that no transaction read.** They count as later than everything. Read all keys at the end,
//!   after all transactions have ended: then a lost append is found, as a cycle with real time.
//! - **Reads of aborted transactions.** They may be inconsistent, as in optimistic concurrency control.
//! - **Predicates**, except ranges of known keys: record a range read as a read of every key that may be in the range.
//!   Keys that are absent read as empty lists, so an insertion that a range read missed shows as a cycle.
//!
//! # Use
//!
//! Record an append before it is sent: otherwise the history of a crashed client lacks it, and its element counts as a
//! garbage read. Append each element to a key only once. Keys with some hundreds of elements are best: every read
//! repeats the whole list.
//!
//! ```
//! use dunlin_judge::append::{Name, Op, Outcome, Transaction, check};
//!
//! let transaction = |begun, outcome, ops| Transaction { client: 0, begun, outcome, ops };
//! let history = [
//!     transaction(0, Outcome::Committed(1_000), vec![Op::Append { key: 5, element: 1 }]),
//!     transaction(2_000, Outcome::Committed(3_000), vec![Op::Read { key: 5, list: Some(vec![]) }]),
//! ];
//! let report = check(&history)?;
//! // A stale read: the second transaction began after the first had committed.
//! assert_eq!(report.anomalies[0].name, Name::GSingleRealTime);
//! # Ok::<(), dunlin_judge::append::HistoryError>(())
//! ```
//!
//! | File | What it holds |
//! |---|---|
//! | `history` | transactions as recorded |
//! | `touch` | the operations of a transaction on a key; internal inconsistency |
//! | `versions` | the order of each key's elements; aborted, intermediate and garbage reads, lost updates |
//! | `graph` | dependencies, and sets of transactions that depend on each other in circles |
//! | `cycle` | short cycles and their names |
//! | `explain` | cycles in words |
//! | `report` | the verdict |

mod cycle;
mod explain;
mod graph;
mod history;
mod report;
mod touch;
mod versions;

use graph::{Dependency, Graph};
pub use history::{HistoryError, Op, Outcome, Transaction};
pub use report::{Anomaly, Name, Report};
use versions::Observations;

/// All kinds of dependencies.
const ALL: [Dependency; 4] =
    [Dependency::WriteWrite, Dependency::WriteRead, Dependency::ReadWrite, Dependency::RealTime];

/// Judges a history. The order of its transactions does not matter; explanations refer to them by index, from T0.
///
/// For each set of transactions that depend on each other in circles, one shortest cycle of the strongest anomaly is
/// reported. In sets of many thousands it is the shortest that a bounded search finds, and may have two read-write
/// edges although another has one.
///
/// # Errors
/// If the history breaks a rule of its recording, so that it cannot be judged.
pub fn check(history: &[Transaction]) -> Result<Report, HistoryError> {
    let mut report = Report::default();
    let observations = Observations::of(history, &mut report)?;
    let counting: Vec<usize> = (0..history.len()).filter(|number| observations.counts[*number]).collect();
    report.committed = counting.len();
    let has_unknown_outcome = |transaction: &&Transaction| transaction.outcome == Outcome::Unknown;
    report.unseen = history.iter().filter(has_unknown_outcome).count() - report.must_have_committed;
    let graph = Graph::of(&observations);
    report.edges = graph.edges.iter().map(Vec::len).sum();
    for component in graph.components(&counting, &ALL) {
        let cycle = cycle::worst(&graph, &component);
        let transactions: Vec<usize> = cycle.iter().map(|(from, _)| *from).collect();
        report.add(cycle::name(&cycle), &transactions, || explain::explain(&observations, &cycle));
    }
    Ok(report)
}
