//! Snapshots: the items of an index in key order, in a file that is complete or not there.
//!
//! The file is that of the store's snapshots ([`dunlin_store::snapshot`]) with other first bytes and other records;
//! `docs/index.md` has the layout of a record. Damage is detected before the items of the damaged block are used, and
//! reported with its offset in the file.
//!
//! **What is in it.** A snapshot of an index that nobody writes to has exactly its items. While others write, it is a
//! scan ([`Index::scan`]): it has each item that was there all the time, with a value that it had meanwhile, and no
//! item that never was. It is not one instant.
//!
//! **Memory.** [`save`] and [`load`] hold one block of about 256 KiB, or one item if that is longer. No guard is held
//! while a block is written, so a slow disk does not keep removed memory alive.

mod build;

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use dunlin_store::UnixSeconds;
use dunlin_store::snapshot::{
    BLOCK_BYTES, BLOCK_BYTES_MAX, Content, Payload, Progress, Reader, Replacement, SaveError, SnapshotError, Writer,
};
use thiserror::Error;

use crate::error::{KEY_BYTES_MAX, Refused, VALUE_BYTES_MAX};
use crate::guard::pin;
use crate::index::Index;
use crate::range::{Gap, Order, Range};

pub use build::{BuildError, Builder};

/// Bytes of a record before its key: the lengths of the key and of the value.
const RECORD_HEADER_BYTES: usize = 8;
const _: () = assert!(BLOCK_BYTES + RECORD_HEADER_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX <= BLOCK_BYTES_MAX);

/// A snapshot that was saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// Items in it.
    pub items: u64,
    /// Length of the file, in bytes.
    pub file_bytes: u64,
}

/// Why no snapshot was saved. An existing file is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotSaved {
    /// The file could not be written.
    #[error(transparent)]
    File(#[from] SaveError),
    /// The caller gave it up.
    #[error("it was given up")]
    GivenUp,
}

/// Why a snapshot was not loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotLoaded {
    /// The file cannot be read, or is damaged.
    #[error(transparent)]
    File(#[from] SnapshotError),
    /// The memory budget has no room for all items.
    #[error(
        "the memory budget of {budget} bytes has room for {items} items, and the snapshot has more: start with more memory"
    )]
    Full {
        /// Items that have room.
        items: u64,
        /// The budget in bytes.
        budget: usize,
    },
    /// The index has items already.
    #[error("only an empty index loads a snapshot, and this one has items")]
    NotEmpty,
    /// The caller gave it up.
    #[error("it was given up")]
    GivenUp,
}

/// Saves the items of an index to a file, which replaces an existing one only once it is on the disk. After each block,
/// and just before the file replaces another, `goes_on` gets the number of items so far; if it returns false, the
/// snapshot is given up.
///
/// # Errors
/// [`NotSaved`]. A file of that name is as it was before.
pub fn save(index: &Index, path: &Path, mut goes_on: impl FnMut(u64) -> bool) -> Result<Saved, NotSaved> {
    let mut file = Replacement::create(path)?;
    let unfinished = file.unfinished().to_owned();
    let cannot_write = |source| SaveError::Io { what: "write", path: unfinished.clone(), source };
    let mut writer = Writer::of(Content::Index, &mut file, now()).map_err(cannot_write)?;
    let (mut last, mut payload, mut items) = (None::<Vec<u8>>, Vec::new(), 0);
    loop {
        payload.clear();
        let mut records = 0;
        let has_more = {
            let guard = pin();
            let low = last.as_deref().map_or(Gap::Before(&[]), Gap::After);
            let mut cursor = index.cursor(Range { low, ..Range::ALL }, Order::Ascending, &guard);
            loop {
                let Some((key, value)) = cursor.advance() else { break false };
                payload.extend_from_slice(&(key.len() as u32).to_le_bytes());
                payload.extend_from_slice(&(value.len() as u32).to_le_bytes());
                payload.extend_from_slice(key);
                payload.extend_from_slice(&value);
                records += 1;
                if payload.len() >= BLOCK_BYTES {
                    last = Some(key.to_vec());
                    break true;
                }
            }
        };
        writer.write_payload(&payload, records).map_err(cannot_write)?;
        items += u64::from(records);
        if !has_more {
            break;
        }
        if !goes_on(items) {
            return Err(NotSaved::GivenUp);
        }
    }
    let (_, totals) = writer.finish().map_err(cannot_write)?;
    if !goes_on(items) {
        return Err(NotSaved::GivenUp);
    }
    file.commit()?;
    Ok(Saved { items: totals.records, file_bytes: totals.file_bytes })
}

fn now() -> UnixSeconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(UnixSeconds::MAX)
}

/// Fills an empty index with the items of a snapshot; returns their number. After each block, `goes_on` gets the
/// progress; if it returns false, loading is given up.
///
/// # Errors
/// [`NotLoaded`]. The index is as it was.
pub fn load(index: &Index, path: &Path, mut goes_on: impl FnMut(Progress) -> bool) -> Result<usize, NotLoaded> {
    let open = |source| SnapshotError::Open { path: path.to_owned(), source };
    let file = File::open(path).map_err(open)?;
    let file_bytes = file.metadata().map_err(open)?.len();
    let mut builder = Builder::new(index);
    let mut at = Progress { file_bytes, ..Progress::default() };
    let mut items = Items::new(BufReader::with_capacity(BLOCK_BYTES, file))?;
    let budget = index.budget();
    while let Some(block) = items.next_block()? {
        for item in block {
            let (offset, key, value) = item?;
            match builder.push(key, value) {
                Ok(()) => at.records += 1,
                Err(BuildError::Refused(Refused::Full { .. })) => {
                    return Err(NotLoaded::Full { items: at.records, budget });
                }
                Err(_) => return Err(malformed(offset, "the keys are not in ascending order").into()),
            }
        }
        at.bytes = items.offset();
        if !goes_on(at) {
            return Err(NotLoaded::GivenUp);
        }
    }
    builder.finish().map_err(|error| match error {
        BuildError::NotEmpty => NotLoaded::NotEmpty,
        _ => NotLoaded::Full { items: at.records, budget },
    })
}

fn malformed(offset: u64, what: &'static str) -> SnapshotError {
    SnapshotError::Malformed { offset, what }
}

/// Reads the items of a snapshot, block by block. Total over any bytes.
#[derive(Debug)]
pub struct Items<R>(Reader<R>);

impl<R: Read> Items<R> {
    /// Reads the header. Pass a buffered input.
    ///
    /// # Errors
    /// [`SnapshotError`] if this is not a snapshot of an index.
    pub fn new(input: R) -> Result<Items<R>, SnapshotError> {
        Reader::of(Content::Index, input).map(Items)
    }

    /// Returns the next block, which is intact; `None` once the trailer was read, and matches everything before it. The
    /// order of the keys is not checked.
    ///
    /// # Errors
    /// [`SnapshotError`] at the first wrong byte. Do not continue after that.
    pub fn next_block(&mut self) -> Result<Option<Block<'_>>, SnapshotError> {
        Ok(self.0.next_payload()?.map(Block))
    }

    /// Returns how many bytes of the file were read.
    pub fn offset(&self) -> u64 {
        self.0.offset()
    }
}

/// The items of a block: offset in the file, key, value. An error ends them: then the block does not match its header,
/// although its checksum is right.
#[derive(Debug)]
pub struct Block<'a>(Payload<'a>);

impl<'a> Iterator for Block<'a> {
    type Item = Result<(u64, &'a [u8], &'a [u8]), SnapshotError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Payload { bytes, offset, records } = &mut self.0;
        let fault = match (*records, bytes.is_empty()) {
            (0, true) => return None,
            (0, false) => "something follows the last record of a block",
            _ => match record(bytes) {
                Ok((key, value, rest)) => {
                    let item = (*offset, key, value);
                    *offset += (bytes.len() - rest.len()) as u64;
                    (*bytes, *records) = (rest, *records - 1);
                    return Some(Ok(item));
                }
                Err(what) => what,
            },
        };
        let at = *offset;
        (*bytes, *records) = (&[], 0);
        Some(Err(malformed(at, fault)))
    }
}

/// A record: its key, its value, and what follows it.
type Split<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// Splits the first record off.
fn record(bytes: &[u8]) -> Result<Split<'_>, &'static str> {
    const TOO_LONG: &str = "a record is longer than its block";
    let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>().ok_or(TOO_LONG)?;
    let [key, value] = [&header[..4], &header[4..]].map(|len| {
        let len: [u8; 4] = len.try_into().expect("half of eight bytes");
        u32::from_le_bytes(len) as usize
    });
    if key > KEY_BYTES_MAX {
        return Err("a key is longer than keys may be");
    }
    if value > VALUE_BYTES_MAX {
        return Err("a value is longer than values may be");
    }
    let (key, rest) = rest.split_at_checked(key).ok_or(TOO_LONG)?;
    let (value, rest) = rest.split_at_checked(value).ok_or(TOO_LONG)?;
    Ok((key, value, rest))
}
