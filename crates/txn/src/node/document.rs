//! The text of a configuration, as it is in the tree of the cluster manager and as nodes tell it to clients. It can be
//! read with `dunlin coord get`.
//!
//! ```text
//! txn 1
//! cluster 0123456789abcdef
//! epoch 5
//! replicas 3
//! founded 2
//! seed 000102030405060708090a0b0c0d0e0f
//! member 1 17 udp://10.0.0.1:7900,udp://10.0.0.1:7901      its number, incarnation, and cores
//! departed 3 2                                            a node was left out in epoch 3, and 2 were left
//! table hashed accounts
//! table ordered birds 68,71                                with its splits, in hexadecimal digits; or -
//! partition 1.0 2.1 3.0+4                                  the copies, the primary first; + since when one is filled
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::str::{FromStr, SplitAsciiWhitespace};

use crate::configuration::{Configuration, Keys, Member, Table};
use crate::ids::{PartitionId, Place};
use crate::limits::PARTITIONS_MAX;

/// Bytes of a configuration: a value of the cluster manager has 64 KiB.
pub const DOCUMENT_BYTES_MAX: usize = 60 << 10;
/// Members of a service.
pub const MEMBERS_MAX: usize = 64;
/// Tables of a service.
pub const SERVICE_TABLES_MAX: usize = 256;
/// Partitions of a service.
pub const SERVICE_PARTITIONS_MAX: usize = 1024;
/// Bytes of the name of a table.
pub const NAME_BYTES_MAX: usize = 64;

/// The first line.
const TITLE: &str = "txn 1";

/// A line that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line} of the configuration is {text:?}, which this version cannot read: run the same version everywhere"
)]
pub struct BadDocument {
    /// Its number, from one.
    pub line: usize,
    /// The line.
    pub text: String,
}

/// Whether a table may have this name.
pub fn is_name(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_good)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// Writes a configuration.
pub fn encode(configuration: &Configuration) -> String {
    let Configuration { cluster, epoch, replicas, nodes, partitions, founded, tables, seed, .. } = configuration;
    let seed = hex(seed);
    let mut text = format!(
        "{TITLE}\ncluster {cluster:016x}\nepoch {epoch}\nreplicas {replicas}\nfounded {founded}\nseed {seed}\n"
    );
    // Writing to a string cannot fail.
    for (node, Member { incarnation, cores }) in nodes {
        let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "member {node} {incarnation} {}", cores.join(","));
    }
    for (epoch, left) in &configuration.departures {
        let _ = writeln!(text, "departed {epoch} {left}");
    }
    for Table { name, keys } in tables {
        let _ = match keys {
            Keys::Hashed => writeln!(text, "table hashed {name}"),
            Keys::Ordered { splits } if splits.is_empty() => writeln!(text, "table ordered {name} -"),
            Keys::Ordered { splits } => {
                let splits: Vec<String> = splits.iter().map(|split| hex(split)).collect();
                writeln!(text, "table ordered {name} {}", splits.join(","))
            }
        };
    }
    for (number, copies) in partitions.iter().enumerate() {
        text.push_str("partition");
        for place in copies {
            let _ = write!(text, " {}.{}", place.node, place.core);
            if let Some(since) = configuration.filling_since(PartitionId(number as u32), place.node) {
                let _ = write!(text, "+{since}");
            }
        }
        text.push('\n');
    }
    text
}

/// Reads one.
///
/// # Errors
/// [`BadDocument`] if a line is not as [`encode`] writes it, or the configuration contradicts itself.
pub fn parse(text: &str) -> Result<Configuration, BadDocument> {
    let mut read = Configuration {
        cluster: 0,
        epoch: 0,
        replicas: 1,
        nodes: BTreeMap::new(),
        partitions: Vec::new(),
        filling: BTreeMap::new(),
        departures: Vec::new(),
        founded: 0,
        tables: Vec::new(),
        seed: [0; 16],
    };
    let bad = |line: usize, text: &str| BadDocument { line, text: text.chars().take(200).collect() };
    let mut seen = BTreeSet::new();
    for (at, line) in text.lines().enumerate() {
        let is_read = match at {
            0 => (line == TITLE).then_some(()),
            _ => take_line(&mut read, &mut seen, line),
        };
        is_read.ok_or_else(|| bad(at + 1, line))?;
    }
    let is_whole = seen.len() == 5 && read.check().is_ok();
    if is_whole { Ok(read) } else { Err(bad(text.lines().count(), text.lines().last().unwrap_or_default())) }
}

fn number<N: FromStr>(word: Option<&str>) -> Option<N> {
    word.filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

fn take_line<'a>(read: &mut Configuration, seen: &mut BTreeSet<&'a str>, line: &'a str) -> Option<()> {
    let mut words = line.split_ascii_whitespace();
    let what = words.next()?;
    match what {
        "member" => take_member(read, &mut words)?,
        "departed" => read.departures.push((number(words.next())?, number(words.next())?)),
        "table" => take_table(read, &mut words)?,
        "partition" => take_partition(read, &mut words)?,
        _ if !seen.insert(what) => return None,
        "cluster" => read.cluster = u64::from_str_radix(words.next()?, 16).ok()?,
        "epoch" => read.epoch = number(words.next())?,
        "replicas" => read.replicas = number(words.next())?,
        "founded" => read.founded = number(words.next())?,
        "seed" => read.seed = unhex(words.next()?)?.try_into().ok()?,
        _ => return None,
    }
    words.next().is_none().then_some(())
}

fn take_member(read: &mut Configuration, words: &mut SplitAsciiWhitespace<'_>) -> Option<()> {
    let (node, incarnation) = (number(words.next())?, number(words.next())?);
    let cores = words.next()?.split(',').map(|addr| addr.parse().ok()).collect::<Option<Vec<_>>>()?;
    read.nodes.insert(node, Member { incarnation, cores }).is_none().then_some(())
}

fn take_table(read: &mut Configuration, words: &mut SplitAsciiWhitespace<'_>) -> Option<()> {
    let (kind, name) = (words.next()?, words.next()?);
    let table = match kind {
        "hashed" => Table::hashed(name),
        "ordered" => match words.next()? {
            "-" => Table::ordered(name, Vec::<Vec<u8>>::new()),
            splits => Table::ordered(name, splits.split(',').map(unhex).collect::<Option<Vec<_>>>()?),
        },
        _ => return None,
    };
    read.tables.push(table);
    is_name(name).then_some(())
}

fn take_partition(read: &mut Configuration, words: &mut SplitAsciiWhitespace<'_>) -> Option<()> {
    let partition = PartitionId(read.partitions.len() as u32);
    let mut copies = Vec::new();
    for word in words {
        let (place, since) = match word.split_once('+') {
            Some((place, since)) => (place, Some(number(Some(since))?)),
            None => (word, None),
        };
        let (node, core) = place.split_once('.')?;
        let place = Place { node: number(Some(node))?, core: number(Some(core))? };
        if let Some(since) = since {
            read.filling.insert((partition, place.node), since);
        }
        copies.push(place);
    }
    read.partitions.push(copies);
    (read.partitions.len() <= PARTITIONS_MAX).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Configuration {
        let member = |node: u32, cores: u16| {
            let cores = (0..cores).map(|core| format!("udp://127.0.0.1:{}", 7000 + node * 10 + u32::from(core)));
            Member { incarnation: u64::from(node) * 17, cores: cores.map(|addr| addr.parse().unwrap()).collect() }
        };
        let place = |node, core| Place { node, core };
        Configuration {
            cluster: 0xabc,
            epoch: 7,
            replicas: 3,
            nodes: (1..=3).map(|node| (node, member(node, 2))).collect(),
            partitions: vec![vec![place(1, 0), place(2, 1), place(3, 0)], vec![], vec![place(3, 1)]],
            filling: [((PartitionId(0), 3), 5)].into(),
            departures: vec![(3, 2), (4, 1)],
            founded: 2,
            tables: vec!["accounts".into(), Table::ordered("birds", ["h", "q"]), Table::ordered("all", [""; 0])],
            seed: [9; 16],
        }
    }

    #[test]
    fn a_configuration_is_read_as_it_was_written() {
        let written = encode(&sample());
        assert_eq!(parse(&written), Ok(sample()), "{written}");
        assert!(written.contains("\npartition 1.0 2.1 3.0+5\npartition\npartition 3.1\n"), "{written}");
    }

    #[test]
    fn whatever_else_is_refused() {
        let written = encode(&sample());
        for (from, to) in [
            ("txn 1", "txn 2"),
            ("epoch 7", "epoch -7"),
            ("epoch 7\n", ""),
            ("epoch 7\n", "epoch 7\nepoch 8\n"),
            ("replicas 3", "replicas 3 4"),
            ("seed 09", "seed 0"),
            ("member 1 17", "member one 17"),
            ("member 2 34", "member 1 34"),
            ("table hashed", "table round"),
            ("accounts", "acc*unts"),
            ("68,71", "71,68"),
            ("68,71", "6ä,71"),
            ("partition 3.1", "partition 3.7"),
            ("partition 3.1", "partition 3.1 3.0"),
            ("partition 3.1", "partition 3.1+4"),
            ("partition 3.1", "petition 3.1"),
        ] {
            let changed = written.replacen(from, to, 1);
            assert!(changed != written && parse(&changed).is_err(), "{from} to {to}");
        }
        assert!(parse("").is_err() && parse(TITLE).is_err());
        for end in 0..written.len() - 1 {
            // It may lack partitions, but never panics.
            let _ = parse(&written[..end]);
        }
    }

    #[test]
    fn names_are_short_and_plain() {
        assert!(is_name("accounts") && is_name("a-b_c.9") && is_name(&"x".repeat(NAME_BYTES_MAX)));
        assert!(!is_name("") && !is_name("a b") && !is_name("ä") && !is_name(&"x".repeat(NAME_BYTES_MAX + 1)));
    }
}
