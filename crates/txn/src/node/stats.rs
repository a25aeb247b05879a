//! The counters of a node as a watcher gets them: numbers with names, so that nodes and watchers may differ in version.
//!
//! | Name | |
//! |---|---|
//! | `epoch`, `opened` | the epoch that the core has entered, and the last one that was recovered |
//! | `primaries`, `backups`, `filling` | copies here, by role; those that are not complete |
//! | `bytes`, `locks`, `records` | bytes of all copies, locks that are held, records in the log |
//! | `reads`, `validations`, `logs`, `commits`, `backed`, `fills` | requests of phases 1 to 5, and for pages of new copies |
//! | `locked`, `changed`, `other_epoch`, `refused` | refusals: another's lock, another version, another epoch, other reasons |
//! | `recovered`, `fenced` | records and locks that recovery handled; transactions that stayed too long and were ended |

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::core::Counts;
use crate::configuration::Role;
use crate::wire::Kind;

/// The counters of one core.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoreStats(BTreeMap<String, u64>);

impl CoreStats {
    /// A counter; 0 if the node has none of this name.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

impl<'a> FromIterator<(&'a str, u64)> for CoreStats {
    fn from_iter<I: IntoIterator<Item = (&'a str, u64)>>(counters: I) -> CoreStats {
        CoreStats(counters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

impl From<&Counts> for CoreStats {
    fn from(counts: &Counts) -> CoreStats {
        let Counts { client, participant, report, endpoint, .. } = counts;
        let requests = |kinds: &[Kind]| {
            let of_kind = |req_type: u8| kinds.iter().any(|kind| kind.req_type() == req_type);
            endpoint.handlers.iter().filter(|it| of_kind(it.req_type)).map(|it| it.requests).sum::<u64>()
        };
        let copies = |role: Role| report.copies.iter().filter(|copy| copy.role == role).count() as u64;
        let counters = [
            ("epoch", report.epoch),
            ("opened", report.opened),
            ("primaries", copies(Role::Primary)),
            ("backups", copies(Role::Backup)),
            ("filling", report.copies.iter().filter(|copy| !copy.is_complete).count() as u64),
            ("bytes", report.copies.iter().map(|copy| copy.bytes as u64).sum()),
            ("locks", report.copies.iter().map(|copy| copy.locks as u64).sum()),
            ("records", report.records as u64),
            ("reads", requests(&[Kind::Execute, Kind::Scan])),
            ("validations", requests(&[Kind::Validate])),
            ("logs", requests(&[Kind::Log])),
            ("commits", requests(&[Kind::CommitPrimary])),
            ("backed", requests(&[Kind::CommitBackup])),
            ("fills", requests(&[Kind::Fill])),
            ("locked", participant.locked),
            ("changed", participant.changed),
            ("other_epoch", participant.other_epoch),
            ("refused", participant.refused),
            ("recovered", participant.recovered),
            ("fenced", client.fenced),
        ];
        counters.into_iter().collect()
    }
}

/// The counters of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// The member that it is. Another one begins with other counters.
    pub incarnation: u64,
    /// Microseconds on a clock of the node that never goes back.
    pub micros: u64,
    /// The counters of each core.
    pub cores: Vec<CoreStats>,
}

impl NodeStats {
    /// As text: a line for the node, and one for each core.
    pub fn encode(&self) -> String {
        let mut text = format!("node {} {}\n", self.incarnation, self.micros);
        for CoreStats(counters) in &self.cores {
            text.push_str("core");
            for (name, value) in counters {
                // Writing to a string cannot fail.
                let _ = write!(text, " {name}={value}");
            }
            text.push('\n');
        }
        text
    }

    /// Reads one; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<NodeStats> {
        let mut lines = text.lines();
        let (incarnation, micros) = lines.next()?.strip_prefix("node ")?.split_once(' ')?;
        let counter = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let core = |line: &str| {
            let mut words = line.split(' ');
            let counters = (words.next() == Some("core")).then(|| words.map(counter).collect::<Option<_>>());
            counters.flatten().map(CoreStats)
        };
        Some(NodeStats {
            incarnation: incarnation.parse().ok()?,
            micros: micros.parse().ok()?,
            cores: lines.map(core).collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_they_were_written() {
        let core = |number| [("epoch", number), ("commits", 7)].into_iter().collect::<CoreStats>();
        let stats =
            NodeStats { incarnation: 9, micros: 1_000_000, cores: vec![core(1), core(2), CoreStats::default()] };
        let read = NodeStats::parse(&stats.encode()).unwrap();
        assert_eq!(read, stats);
        assert_eq!([read.cores[1].get("epoch"), read.cores[1].get("of a later version")], [2, 0]);
        for bad in
            ["", "node 1", "node 1 x", "core a=1", "node 1 2\ncore a", "node 1 2\ncore a=b", "node 1 2\ncode a=1"]
        {
            assert_eq!(NodeStats::parse(bad), None, "{bad}");
        }
    }
}
