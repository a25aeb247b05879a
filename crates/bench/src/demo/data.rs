//! The records that the demo serves: real ones if the machine has some.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use dunlin_records::{Columns, Format, Input, Reader, Record};
use dunlin_store::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// Maximum number of records.
const RECORDS_MAX: usize = 200_000;
/// Maximum bytes of keys and values: a quarter of the memory of the demo's server.
const BYTES_MAX: usize = 128 << 20;
/// If there are fewer records than this, generated ones are added.
const RECORDS_MIN: usize = 1_000;
/// Debian's list of installed packages.
const INSTALLED: &str = "/var/lib/dpkg/status";
/// Debian's lists of available packages.
const AVAILABLE: &str = "/var/lib/apt/lists";

/// The source of the records. Every process of the demo reads it again, and gets the same records.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Source {
    /// A file, in any format that `dunlin kv load` reads; `None` for the package index of this machine.
    pub file: Option<PathBuf>,
}

/// Records in key order, each key once, with their origin.
#[derive(Debug)]
pub struct Data {
    /// The records.
    pub records: Vec<Record>,
    /// The origin, as text.
    pub origin: String,
}

impl Source {
    /// Reads the records.
    ///
    /// # Errors
    /// [`dunlin_lab::LabError::Io`] if the file cannot be read, [`BenchError::Demo`] if it has no records.
    pub fn read(&self) -> Result<Data, BenchError> {
        let mut records = Vec::new();
        let mut bytes = 0;
        let mut take = |record: Record| {
            let fits = (1..=KEY_BYTES_MAX).contains(&record.key.len()) && record.value.len() <= VALUE_BYTES_MAX / 2;
            if fits {
                bytes += record.key.len() + record.value.len();
                records.push(Record { flags: 0, expires: None, ..record });
            }
            bytes < BYTES_MAX
        };
        let mut origin = match &self.file {
            Some(file) => {
                read_file(file, &mut take).map_err(BenchError::io(format!("cannot read {}", file.display())))?;
                file.display().to_string()
            }
            None => read_packages(&mut take),
        };
        sort(&mut records);
        if self.file.is_some() && records.is_empty() {
            return Err(BenchError::demo("read the records of the demo", format!("there are none in {origin}")));
        }
        if self.file.is_none() && records.len() < RECORDS_MIN {
            records.extend((0..RECORDS_MIN as u64 * 20).map(made));
            sort(&mut records);
            origin = "made by the demo, since this machine has no package index".into();
        }
        records.truncate(RECORDS_MAX);
        Ok(Data { records, origin })
    }
}

/// Sorts by key, and keeps the last of each.
fn sort(records: &mut Vec<Record>) {
    records.reverse();
    records.sort_by(|a, b| a.key.cmp(&b.key));
    records.dedup_by(|next, kept| next.key == kept.key);
}

/// Passes every record to `take` until that returns false. Malformed lines are skipped: the demo does not check the
/// file.
fn read_file(path: &Path, take: &mut impl FnMut(Record) -> bool) -> io::Result<()> {
    // Check first that the file exists: otherwise an error about its name would be misleading.
    fs::metadata(path)?;
    let format = Format::of_file(path).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "the name does not tell the format: name it .tsv, .csv, .jsonl or Packages",
        )
    })?;
    let input = Input::open(path)?;
    feed(Reader::new(input.reader, format, &Columns::default()), take);
    Ok(())
}

fn feed<R: io::BufRead>(reader: Reader<R>, take: &mut impl FnMut(Record) -> bool) {
    for numbered in reader.flatten() {
        if !take(numbered.record) {
            return;
        }
    }
}

/// The packages known to this machine, with a description of their kind. Unreadable files are skipped.
fn read_packages(take: &mut impl FnMut(Record) -> bool) -> String {
    let mut lists: Vec<PathBuf> = fs::read_dir(AVAILABLE)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    lists.sort();
    for list in lists {
        let name = list.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(unpacked) = name.strip_suffix(".lz4").filter(|name| name.ends_with("_Packages")) {
            debug_assert_eq!(Format::of_file(Path::new(unpacked)), Some(Format::Packages));
            let Ok(file) = File::open(&list) else { continue };
            let unpacked = BufReader::new(lz4_flex::frame::FrameDecoder::new(file));
            feed(Reader::new(unpacked, Format::Packages, &Columns::default()), take);
        } else if name.ends_with("_Packages") || name.ends_with("_Packages.gz") {
            // A file that has disappeared is skipped.
            let _ = read_file(&list, take);
        }
    }
    let _ = read_file(Path::new(INSTALLED), take);
    "the package index of this machine".into()
}

/// A record like a service's session data: some hundred bytes of JSON under a number.
fn made(number: u64) -> Record {
    let mut random = Random(number);
    let (user, cart, minutes) = (random.next() % 1_000_000, random.next() % 20, random.next() % 600);
    let items: Vec<String> = (0..cart)
        .map(|_| format!(r#"{{"sku":"{:08x}","n":{}}}"#, random.next() as u32, 1 + random.next() % 5))
        .collect();
    let value = format!(r#"{{"user":{user},"minutes":{minutes},"cart":[{}]}}"#, items.join(","));
    Record { key: format!("session:{number:012}").into(), value: value.into(), ..Record::default() }
}

/// Numbers derived from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_reads_the_same() {
        let source = Source { file: None };
        let (first, second) = (source.read().unwrap(), source.read().unwrap());
        assert!(first.records.len() >= RECORDS_MIN);
        assert_eq!(first.records, second.records);
        assert!(first.records.windows(2).all(|pair| pair[0].key < pair[1].key), "each key once, in order");
    }

    #[test]
    fn a_file_is_taken_as_it_is() {
        let path = std::env::temp_dir().join(format!("dunlin-demo-data-{}.tsv", std::process::id()));
        fs::write(&path, "b\t1\nwrong\na\t2\nb\t3\n").unwrap();
        let data = Source { file: Some(path.clone()) }.read().unwrap();
        fs::write(&path, "").unwrap();
        let empty = Source { file: Some(path.clone()) }.read();
        fs::remove_file(&path).unwrap();
        let pairs: Vec<_> = data.records.iter().map(|record| (&record.key[..], &record.value[..])).collect();
        assert_eq!(pairs, [(&b"a"[..], &b"2"[..]), (b"b", b"3")]);
        assert!(empty.unwrap_err().to_string().contains("there are none in"));
        assert!(Source { file: Some(path) }.read().is_err(), "it is gone");
    }
}
