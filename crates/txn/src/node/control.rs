//! Requests to a node that are no part of transactions: its configuration, what it has, and new tables. Request type
//! [`CONTROL`]; text, but for its first bytes.
//!
//! | Request | Answer |
//! |---|---|
//! | version (1), 1, epoch (8): a configuration that is later, or of another cluster | nothing if there is none, else its text |
//! | version (1), 2 | what this core has, as text: [`Report`] |
//! | version (1), 3, a table as text | nothing, once the table is in the configuration |
//! | version (1), 4 | the counters of the node, as text: [`NodeStats`](super::NodeStats) |
//!
//! An answer begins with a byte: 0 if it was done; 1 if it was refused, and why follows as text; 2 if this node is no
//! member yet, or cannot reach the cluster manager: ask another, or ask again.

use std::fmt::Write as _;

use crate::configuration::{Keys, Role, Table};
use crate::ids::{Epoch, PartitionId};
pub use crate::participant::CopyState as CopyReport;

use super::document::{hex, unhex};
use super::plan::Wanted;

/// The request type.
pub const CONTROL: u8 = 0x5f;
/// The version of these messages.
pub const CONTROL_VERSION: u8 = 1;
/// Bytes of a request.
pub const REQUEST_BYTES_MAX: usize = 128 << 10;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The configuration, if it is later.
    Configuration {
        /// Than this one.
        than: Epoch,
    },
    /// What the core has.
    Report,
    /// Makes a table.
    Create(Wanted),
    /// The counters of the node.
    Stats,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done(String),
    /// It was refused.
    Refused(String),
    /// Not now, or not here.
    NotNow(String),
}

impl Request {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![CONTROL_VERSION];
        match self {
            Request::Configuration { than } => {
                out.push(1);
                out.extend(than.to_le_bytes());
            }
            Request::Report => out.push(2),
            Request::Stats => out.push(4),
            Request::Create(Wanted { table, replicas, partitions }) => {
                out.push(3);
                let number = |number: Option<usize>| number.map_or("-".to_owned(), |number| number.to_string());
                let splits = match &table.keys {
                    Keys::Hashed => "hashed".to_owned(),
                    Keys::Ordered { splits } => {
                        let splits: Vec<String> = splits.iter().map(|split| hex(split)).collect();
                        format!("ordered:{}", splits.join(","))
                    }
                };
                let text = format!("{} {} {splits} {}", number(*replicas), number(*partitions), table.name);
                out.extend(text.into_bytes());
            }
        }
        out
    }

    /// Reads one.
    ///
    /// # Errors
    /// Why it cannot be read, for the one who sent it.
    pub fn parse(bytes: &[u8]) -> Result<Request, String> {
        let malformed = || "the request is malformed: run the same version everywhere".to_owned();
        let [version, kind, rest @ ..] = bytes else { return Err(malformed()) };
        if *version != CONTROL_VERSION {
            return Err(format!(
                "the request has version {version}, and this node has version {CONTROL_VERSION}: run the same version everywhere"
            ));
        }
        let request = match kind {
            1 => rest.try_into().ok().map(|than| Request::Configuration { than: u64::from_le_bytes(than) }),
            2 => rest.is_empty().then_some(Request::Report),
            4 => rest.is_empty().then_some(Request::Stats),
            3 => std::str::from_utf8(rest).ok().and_then(wanted).map(Request::Create),
            _ => None,
        };
        request.ok_or_else(malformed)
    }
}

fn wanted(text: &str) -> Option<Wanted> {
    let mut words = text.splitn(4, ' ');
    let mut number = || match words.next()? {
        "-" => Some(None),
        number => number.parse().ok().map(Some),
    };
    let (replicas, partitions) = (number()?, number()?);
    let (keys, name) = (words.next()?, words.next()?.to_owned());
    let keys = match keys.split_once(':') {
        None if keys == "hashed" => Keys::Hashed,
        Some(("ordered", "")) => Keys::Ordered { splits: Vec::new() },
        Some(("ordered", splits)) => {
            Keys::Ordered { splits: splits.split(',').map(|split| unhex(split).map(Box::from)).collect::<Option<_>>()? }
        }
        _ => return None,
    };
    Some(Wanted { table: Table { name, keys }, replicas, partitions })
}

impl Answer {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (code, text) = match self {
            Answer::Done(text) => (0, text),
            Answer::Refused(text) => (1, text),
            Answer::NotNow(text) => (2, text),
        };
        let mut out = vec![code];
        out.extend(text.as_bytes());
        out
    }

    /// Reads one; `None` if it is malformed.
    pub fn parse(bytes: &[u8]) -> Option<Answer> {
        let (code, text) = bytes.split_first()?;
        let text = std::str::from_utf8(text).ok()?.to_owned();
        match code {
            0 => Some(Answer::Done(text)),
            1 => Some(Answer::Refused(text)),
            2 => Some(Answer::NotNow(text)),
            _ => None,
        }
    }
}

/// What a core has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The process.
    pub incarnation: u64,
    /// The epoch that the core has entered.
    pub epoch: Epoch,
    /// The last epoch whose recovery has ended there.
    pub opened: Epoch,
    /// Whether the cluster manager has heard the node recently enough.
    pub is_safe: bool,
    /// Records in its log.
    pub records: usize,
    /// Its copies.
    pub copies: Vec<CopyReport>,
}

impl Report {
    /// As text: a line for the core, and one for each copy.
    pub fn encode(&self) -> String {
        let Report { incarnation, epoch, opened, is_safe, records, copies } = self;
        let mut text = format!("core {incarnation} {epoch} {opened} {} {records}\n", u8::from(*is_safe));
        for CopyReport { partition, role, is_complete, bytes, locks, progress: (fetched, keys) } in copies {
            let (number, role) = (partition.0, if *role == Role::Primary { "primary" } else { "backup" });
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{role} {number} {} {bytes} {locks} {fetched} {keys}", u8::from(*is_complete));
        }
        text
    }

    /// Reads one; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Report> {
        let mut lines = text.lines();
        let numbers = |text: &str| text.split(' ').map(|number| number.parse::<u64>().ok()).collect::<Option<Vec<_>>>();
        let first = numbers(lines.next()?.strip_prefix("core ")?)?;
        let [incarnation, epoch, opened, is_safe, records] = first[..] else { return None };
        let copy = |line: &str| {
            let (role, rest) = line.split_once(' ')?;
            let role = match role {
                "primary" => Role::Primary,
                "backup" => Role::Backup,
                _ => return None,
            };
            let [partition, is_complete, bytes, locks, fetched, keys] = numbers(rest)?[..] else { return None };
            Some(CopyReport {
                partition: PartitionId(partition.try_into().ok()?),
                role,
                is_complete: is_complete != 0,
                bytes: bytes as usize,
                locks: locks as usize,
                progress: (fetched, keys),
            })
        };
        let copies = lines.map(copy).collect::<Option<Vec<_>>>()?;
        Some(Report { incarnation, epoch, opened, is_safe: is_safe != 0, records: records as usize, copies })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let wanted = |table: Table| Wanted { table, replicas: Some(3), partitions: None };
        let all = [
            Request::Configuration { than: 7 },
            Request::Report,
            Request::Stats,
            Request::Create(wanted("accounts".into())),
            Request::Create(wanted("with space".into())),
            Request::Create(Wanted { replicas: None, partitions: Some(9), ..wanted(Table::ordered("b", ["h", "q"])) }),
            Request::Create(wanted(Table::ordered("b", [""; 0]))),
        ];
        for request in all {
            let bytes = request.encode();
            assert_eq!(Request::parse(&bytes), Ok(request));
            for end in 0..bytes.len() {
                // Whatever it is, it does not panic.
                let _ = Request::parse(&bytes[..end]);
            }
        }
        assert!(Request::parse(&[9, 2]).unwrap_err().contains("version 9"));
        for bad in [&[][..], &[1], &[1, 5], &[1, 1, 0], &[1, 2, 0], b"\x01\x03x", b"\x01\x03- - round:: x"] {
            assert!(Request::parse(bad).unwrap_err().contains("malformed"), "{bad:?}");
        }
    }

    #[test]
    fn answers_and_reports_are_read_as_they_were_written() {
        for answer in [Answer::Done("x".into()), Answer::Refused("no".into()), Answer::NotNow(String::new())] {
            assert_eq!(Answer::parse(&answer.encode()), Some(answer));
        }
        assert_eq!((Answer::parse(&[]), Answer::parse(&[3]), Answer::parse(&[0, 0xff])), (None, None, None));
        let copy = |number, role, is_complete| CopyReport {
            partition: PartitionId(number),
            role,
            is_complete,
            bytes: 17,
            locks: 2,
            progress: (5, 9),
        };
        let copies = vec![copy(0, Role::Primary, true), copy(7, Role::Backup, false)];
        let report = Report { incarnation: 5, epoch: 3, opened: 2, is_safe: true, records: 4, copies };
        assert_eq!(Report::parse(&report.encode()), Some(report));
        for bad in ["", "core", "core 1 2 3 1", "core 1 2 3 1 4\nmaster 1 1 1 1 1 1", "node 1 2 3 1 4"] {
            assert_eq!(Report::parse(bad), None, "{bad}");
        }
    }
}
