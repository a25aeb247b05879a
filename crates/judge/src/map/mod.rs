//! Histories of an ordered map: concurrent puts, deletes, gets and scans.
//!
//! Gets, puts and deletes must be linearizable key by key, which is equivalent to all keys at once (P-compositionality,
//! Horn and Kroening 2015). A scan need not be atomic. It must show keys in order, none twice, none out of bounds, and
//! no more than its limit; and for each key in the range that it covered, it must show what a get during the scan could
//! have shown. So it misses no item that existed all the time, and shows no item that never existed during the scan. A
//! scan that ended at its limit covered the keys up to its last item; any other covered all within its bounds.
//!
//! # What it promises
//!
//! - **No false alarm**: a reported observation is impossible in any map with linearizable point operations, even if
//!   each scan reads each key at a different moment of its time.
//! - **No miss**: if nothing is reported and nothing is undecided, each operation on a key, and each scan for each key
//!   that it covered, has a moment between its beginning and its end that explains what it saw.
//!
//! The tests compare both promises with a search through all orders of small histories.
//!
//! # What it misses
//!
//! - **Stronger promises of scans**: a snapshot, or keys read in the order of time. Two keys of one scan are never
//!   compared.
//! - **Keys that no other operation names.** Nothing can be wrong there: they were never put, and no scan showed them.
//! - **Unknown outcomes.** Such a put or delete may have been executed once at any time after it began, or never. Such
//!   a get or scan is ignored.
//! - **Undecided keys**: the search for an order is exponential in the number of concurrent operations, and gives up
//!   after two million steps, or when it would need more than 512 MiB. Undecided keys are counted, and a history with
//!   one is not called right. Some tens of concurrent operations on one key are decided at once if they are right.
//!
//! # Use
//!
//! The map is empty at first; record its initial contents as puts. Time and memory grow with the number of scans times
//! the keys that each covered, among those that the history names. The search for one key with n observations needs
//! about n²/8 bytes if it rarely backtracks, so no key should have many more than 10,000; one with more than 60,000
//! stays undecided. A scan by pages may be recorded as one scan, or each page as a scan from its cursor, which is a
//! stronger test. There is no operation for counts and for deletes of ranges: record the latter as deletes of all keys
//! of the range that the history names, each from its beginning to its end.
//!
//! ```
//! use std::ops::Bound;
//! use dunlin_judge::map::{Answer, Direction, End, Entry, Operation, Scan, check};
//!
//! let put = Operation::Put { key: b"bird".to_vec(), value: b"dunlin".to_vec() };
//! let all = Scan { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward, limit: None };
//! let history = [
//!     Entry { client: 0, begun: 0, operation: put, end: End::Answered(1_000, Answer::Done) },
//!     Entry { client: 1, begun: 2_000, operation: Operation::Scan(all), end: End::Answered(3_000, Answer::Items(vec![])) },
//! ];
//! let report = check(&history)?;
//! assert_eq!(report.faults[0].key.as_deref(), Some(&b"bird"[..]));
//! # Ok::<(), dunlin_judge::map::HistoryError>(())
//! ```
//!
//! | File | What it holds |
//! |---|---|
//! | `history` | operations as recorded |
//! | `scans` | checks of a scan's bounds, its limit and the order of its items |
//! | `points` | whether the observations of one key are linearizable |

mod history;
mod points;
mod scans;

use std::collections::BTreeMap;
use std::fmt;

use history::Text;
pub use history::{Answer, Direction, End, Entry, HistoryError, Operation, Scan};
use points::{Event, Verdict};

/// Reported faults; the others are counted.
const FAULTS_MAX: usize = 8;

/// An observation that is impossible in an ordered map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key whose history is wrong; `None` if a scan is wrong by itself.
    pub key: Option<Vec<u8>>,
    /// The evidence.
    pub explanation: String,
}

/// The verdict on a history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The first few faults found: scans that are wrong by themselves, then keys.
    pub faults: Vec<Fault>,
    /// Faults found, but not in `faults`.
    pub omitted: usize,
    /// Keys judged.
    pub keys: usize,
    /// Keys whose histories could not be decided.
    pub undecided: usize,
    /// Observations judged: operations on one key, and keys that scans covered.
    pub observations: usize,
}

impl Report {
    /// Returns whether all keys were decided and no fault was found. If it returns false without faults, nothing is
    /// known: let fewer clients work on a key.
    pub fn is_right(&self) -> bool {
        self.faults.is_empty() && self.undecided == 0
    }

    fn add(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        } else {
            self.omitted += 1;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { faults, omitted, keys, undecided, observations } = self;
        let found = faults.len() + omitted;
        write!(f, "{keys} keys, {observations} observations: {found} faults, {undecided} keys undecided")?;
        faults.iter().try_for_each(|fault| write!(f, "\n{fault}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "the history of key {} is wrong: {}", Text(key), self.explanation),
            None => write!(f, "{}", self.explanation),
        }
    }
}

/// Judges a history; the order of its operations does not matter.
///
/// # Errors
/// If the history breaks a rule of its recording, so that it cannot be judged.
pub fn check(history: &[Entry]) -> Result<Report, HistoryError> {
    history.iter().enumerate().try_for_each(|(number, entry)| entry.check(number))?;
    let mut report = Report::default();
    let events = events(history, &mut report);
    report.keys = events.len();
    for (key, mut events) in events {
        events.sort_by_key(Event::begun);
        report.observations += events.len();
        match points::judge(&events) {
            Verdict::Linearizable => {}
            Verdict::Undecided => report.undecided += 1,
            Verdict::Wrong(explanation) => report.add(Fault { key: Some(key.to_vec()), explanation }),
        }
    }
    Ok(report)
}

/// All events of each key that the history names. Reports scans that are wrong by themselves.
fn events<'a>(history: &'a [Entry], report: &mut Report) -> BTreeMap<&'a [u8], Vec<Event<'a>>> {
    let mut events: BTreeMap<&[u8], Vec<Event<'a>>> = BTreeMap::new();
    let mut scans = Vec::new();
    for entry in history {
        match &entry.operation {
            Operation::Put { key, .. } | Operation::Delete { key } | Operation::Get { key } => {
                events.entry(key).or_default().extend(Event::of(entry));
            }
            Operation::Scan(scan) => {
                let End::Answered(_, Answer::Items(items)) = &entry.end else { continue };
                if let Some(why) = scan.fault(items) {
                    report.add(Fault { key: None, explanation: format!("a scan is wrong: {why}: {entry}") });
                    continue;
                }
                for (key, _) in items {
                    events.entry(key).or_default();
                }
                scans.push((entry, scan, items));
            }
        }
    }
    for (entry, scan, items) in scans {
        let Some(range) = scan.covered(items) else { continue };
        for (key, events) in events.range_mut::<[u8], _>(range) {
            events.push(Event::of_scan(entry, scan.shown(items, key)));
        }
    }
    events
}
