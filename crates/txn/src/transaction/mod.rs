//! The coordinator's side of one transaction: its read set, locks and write set, and the messages of each phase. No
//! I/O: the client sends these messages, and passes the answers back.
//!
//! The requests of one phase to one core form one message.

mod answers;
mod open;
mod rounds;
mod scan;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::configuration::Configuration;
use crate::error::TxnError;
use crate::ids::{PartitionId, TableId, TransactionId, Version};
use crate::limits::{KEY_BYTES_MAX, KEYS_MAX, MESSAGE_BYTES_MAX, VALUE_BYTES_MAX};
use crate::wire::HEADER_BYTES;
use crate::wire::answer::{Cause, Grant, Presence};
use crate::wire::write::Write;

pub(crate) use open::{Open, OpenSet};
pub(crate) use rounds::{Outgoing, Unlocked};
use scan::Scans;

/// A key, in place if it is short.
pub(crate) type Key = SmallVec<[u8; 16]>;

/// What a transaction knows of a key, and its planned write.
#[derive(Debug)]
pub(crate) struct Entry {
    pub table: TableId,
    pub key: Key,
    pub partition: PartitionId,
    pub read: Option<Read>,
    pub held: Option<Holding>,
    pub write: Option<Planned>,
    /// Whether it is an insertion: the transaction fails if the key exists.
    pub must_be_absent: bool,
    /// Whether its lock state is unknown: the lock request, or the answer, was lost.
    pub may_be_locked: bool,
}

impl Entry {
    /// Whether no message is necessary to read it in a mode.
    fn is_known(&self, mode: Mode) -> bool {
        self.write.is_some() || (self.read.is_some() && (mode == Mode::Read || self.held.is_some()))
    }
}

/// A read.
#[derive(Debug, Clone)]
pub(crate) struct Read {
    pub version: Version,
    pub presence: Presence,
    /// `None` also if only the lock was requested.
    pub value: Option<Bytes>,
}

/// A lock that the transaction holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holding {
    pub grant: Grant,
    /// Maximum length of a value that has room.
    pub room: usize,
}

/// A planned write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Planned {
    Put(Bytes),
    Delete,
}

impl Planned {
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Planned::Put(value) => Some(value),
            Planned::Delete => None,
        }
    }

    fn len(&self) -> usize {
        self.value().map_or(0, Bytes::len)
    }
}

/// How to read a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Reads it; the commit validates the read.
    Read,
    /// Reads and locks it in one message, because the transaction will write it.
    Update,
}

/// Which requests of a phase to one core form one message. Only measurements need anything but the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Coalescing {
    /// All of them.
    #[default]
    All,
    /// All but those that validate: each of them is a message.
    NotValidation,
    /// None: each key is a message.
    Nothing,
}

/// One transaction.
#[derive(Debug)]
pub(crate) struct State {
    pub id: TransactionId,
    pub configuration: Rc<Configuration>,
    /// In order of table and key.
    entries: Vec<Entry>,
    scans: Scans,
    /// Messages of its execution phase.
    messages: usize,
    /// Bytes of its record.
    record_bytes: usize,
    coalescing: Coalescing,
    /// Counts it as open at its coordinator.
    open: Option<Open>,
}

impl State {
    pub fn new(id: TransactionId, configuration: Rc<Configuration>) -> State {
        State {
            id,
            configuration,
            entries: Vec::new(),
            scans: Scans::default(),
            messages: 0,
            record_bytes: HEADER_BYTES,
            coalescing: Coalescing::default(),
            open: None,
        }
    }

    /// A transaction that counts as open until its state is dropped.
    pub fn counted(
        id: TransactionId,
        configuration: Rc<Configuration>,
        coalescing: Coalescing,
        all: &Rc<OpenSet>,
    ) -> State {
        State { open: Some(Open::new(all, id.sequence)), coalescing, ..State::new(id, configuration) }
    }

    /// A transaction whose record was found.
    pub fn recorded(id: TransactionId, configuration: Rc<Configuration>, writes: &[Write<'_>]) -> State {
        let mut state = State::new(id, configuration);
        for Write { target, version, low, value } in writes {
            let (grant, room) = (Grant { version: *version, low: *low }, value.map_or(0, <[u8]>::len));
            state.entries.push(Entry {
                table: target.table,
                key: Key::from_slice(target.key),
                partition: target.partition,
                read: None,
                held: Some(Holding { grant, room }),
                write: Some(value.map_or(Planned::Delete, |value| Planned::Put(Bytes::copy_from_slice(value)))),
                must_be_absent: false,
                may_be_locked: false,
            });
        }
        state
    }

    /// Whether it may send messages, given that at most `max` transactions of its coordinator may.
    pub fn admit(&mut self, max: usize) -> bool {
        self.open.as_mut().is_none_or(|open| open.admit(max))
    }

    fn find(&self, table: TableId, key: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| (entry.table, &*entry.key).cmp(&(table, key)))
    }

    fn entry(&mut self, table: TableId, key: &[u8]) -> Result<&mut Entry, TxnError> {
        let place = match self.find(table, key) {
            Ok(place) => place,
            Err(place) => {
                self.check_key(table, key)?;
                let partition = self.configuration.partition_of(table, key);
                self.check_partition(partition)?;
                let entry = Entry {
                    table,
                    key: Key::from_slice(key),
                    partition,
                    read: None,
                    held: None,
                    write: None,
                    must_be_absent: false,
                    may_be_locked: false,
                };
                self.entries.insert(place, entry);
                place
            }
        };
        Ok(&mut self.entries[place])
    }

    fn check_key(&self, table: TableId, key: &[u8]) -> Result<(), TxnError> {
        if usize::from(table.0) >= self.configuration.tables.len() {
            return Err(TxnError::NoTable { table: format!("number {}", table.0) });
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(TxnError::KeyLength { len: key.len() });
        }
        if self.entries.len() >= KEYS_MAX {
            return Err(TxnError::TooLarge { what: "keys", max: KEYS_MAX });
        }
        Ok(())
    }

    /// Only partitions with copies can be asked.
    fn check_partition(&self, partition: PartitionId) -> Result<(), TxnError> {
        if self.configuration.copies(partition).is_empty() {
            return Err(TxnError::PartitionLost { partition });
        }
        Ok(())
    }

    /// A conflict, given the number of what conflicts: that of an entry, or of a page behind all entries.
    pub fn conflict(&self, number: usize, cause: Cause) -> TxnError {
        match self.entries.get(number) {
            Some(entry) => TxnError::Conflict { key: entry.key[..].into(), cause },
            None => TxnError::RangeConflict { from: self.page_begin(number - self.entries.len()), cause },
        }
    }

    /// Plans a write.
    pub fn plan(&mut self, table: TableId, key: &[u8], planned: Planned) -> Result<(), TxnError> {
        if planned.len() > VALUE_BYTES_MAX {
            return Err(TxnError::TooLarge { what: "bytes of a value", max: VALUE_BYTES_MAX });
        }
        let of = |planned: Option<&Planned>| planned.map_or(0, |planned| Write::BYTES + key.len() + planned.len());
        let before = self.find(table, key).ok().map_or(0, |place| of(self.entries[place].write.as_ref()));
        let bytes = self.record_bytes - before + of(Some(&planned));
        // Leaves room for the numbers of ended transactions, which travel with the record.
        if bytes > MESSAGE_BYTES_MAX - 4096 {
            return Err(TxnError::TooLarge { what: "bytes of all writes together", max: MESSAGE_BYTES_MAX - 4096 });
        }
        self.entry(table, key)?.write = Some(planned);
        self.record_bytes = bytes;
        Ok(())
    }

    /// Plans a write that fails if the key exists.
    pub fn plan_insert(&mut self, table: TableId, key: &[u8], value: Bytes) -> Result<(), TxnError> {
        let entry = self.entry(table, key)?;
        let is_there = match (&entry.write, &entry.read) {
            (Some(write), _) => write.value().is_some(),
            (None, read) => read.as_ref().is_some_and(|read| read.presence == Presence::Present),
        };
        if is_there {
            return Err(TxnError::Exists { key: key.into() });
        }
        // A key that the transaction itself has deleted may have existed before.
        let is_first = entry.write.is_none();
        self.plan(table, key, Planned::Put(value))?;
        self.entry(table, key)?.must_be_absent |= is_first;
        Ok(())
    }

    /// The value that the transaction sees under a key, if it is known without a message.
    pub fn known(&self, table: TableId, key: &[u8], mode: Mode) -> Option<Option<Bytes>> {
        let entry = &self.entries[self.find(table, key).ok()?];
        if !entry.is_known(mode) {
            return None;
        }
        Some(match (&entry.write, &entry.read) {
            (Some(write), _) => write.value().cloned(),
            (None, read) => read.as_ref().and_then(|read| read.value.clone()),
        })
    }

    pub fn writes(&self) -> bool {
        self.entries.iter().any(|entry| entry.write.is_some())
    }

    pub fn holds_locks(&self) -> bool {
        self.entries.iter().any(|entry| entry.held.is_some() || entry.may_be_locked)
    }

    /// A key to be inserted that exists.
    pub fn existing(&self) -> Option<&[u8]> {
        let is_wrong = |entry: &&Entry| {
            let is_there = entry.read.as_ref().is_some_and(|read| read.presence == Presence::Present);
            is_there && entry.must_be_absent
        };
        self.entries.iter().find(is_wrong).map(|entry| &*entry.key)
    }
}
