//! The messages of each phase.

use smallvec::SmallVec;

use super::{Coalescing, Entry, Mode, State};
use crate::configuration::{Configuration, Role};
use crate::error::TxnError;
use crate::ids::{Place, TableId, Version};
use crate::limits::{VALIDATED_MAX, VALUE_BYTES_MAX};
use crate::wire::execute::{Access, Check, Lock, Target};
use crate::wire::log::Append;
use crate::wire::write::Write;
use crate::wire::{Header, Kind};

/// A message to one core.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub place: Place,
    pub kind: Kind,
    /// For each entry of the message, the index of the transaction's entry; those of pages follow behind all entries.
    pub entries: SmallVec<[u32; 4]>,
    /// Entries of ranges that the receiver visits to validate them, at most.
    visits: usize,
    pub payload: Vec<u8>,
}

/// Room for a message of one or two keys.
const PAYLOAD_BYTES: usize = 192;

/// The messages of a phase, under construction.
pub(super) struct Round<'s> {
    header: Header,
    configuration: &'s Configuration,
    is_coalesced: bool,
    /// In the order of their places. Of several to one place, the last takes further entries.
    messages: Vec<Outgoing>,
}

impl<'s> Round<'s> {
    pub fn new(state: &'s State, kind: Kind) -> Round<'s> {
        let is_coalesced = match state.coalescing {
            Coalescing::All => true,
            Coalescing::NotValidation => kind != Kind::Validate,
            Coalescing::Nothing => false,
        };
        Round { header: state.header(kind, 0), configuration: &state.configuration, is_coalesced, messages: Vec::new() }
    }

    /// Adds an entry to the message for a core.
    pub fn add(&mut self, place: Place, entry: usize, encode: impl FnOnce(&mut Vec<u8>)) {
        self.add_visiting(0, place, entry, encode);
    }

    /// Adds an entry that has the core visit up to so many entries of a range. A message that would have it visit more
    /// than [`VALIDATED_MAX`] is divided.
    pub fn add_visiting(&mut self, visits: usize, place: Place, entry: usize, encode: impl FnOnce(&mut Vec<u8>)) {
        let behind = self.messages.partition_point(|message| message.place <= place);
        let has_room = |message: &Outgoing| message.visits == 0 || message.visits + visits <= VALIDATED_MAX;
        let takes = |message: &Outgoing| self.is_coalesced && message.place == place && has_room(message);
        let at = match behind.checked_sub(1).filter(|last| takes(&self.messages[*last])) {
            Some(last) => last,
            None => {
                let mut payload = Vec::with_capacity(PAYLOAD_BYTES);
                Header { incarnation: self.configuration.incarnation(place), ..self.header }.encode(&mut payload);
                let message = Outgoing { place, kind: self.header.kind, entries: SmallVec::new(), visits: 0, payload };
                self.messages.insert(behind, message);
                behind
            }
        };
        let message = &mut self.messages[at];
        message.entries.push(entry as u32);
        message.visits += visits;
        encode(&mut message.payload);
    }

    pub fn finish(mut self) -> Vec<Outgoing> {
        for message in &mut self.messages {
            Header::set_count(&mut message.payload, message.entries.len() as u16);
        }
        self.messages
    }
}

impl Entry {
    fn target(&self) -> Target<'_> {
        Target { partition: self.partition, table: self.table, key: &self.key }
    }

    fn lock(&self, room: usize) -> Lock {
        let expected = self.read.as_ref().map_or(Version::MAX, |read| read.version);
        // A locked key already has the version of its lock.
        let expected = if self.held.is_some() { Version::MAX } else { expected };
        Lock { room: room as u32, expected }
    }

    /// The write of a commit, if the entry is locked and planned.
    fn write(&self) -> Option<Write<'_>> {
        let (planned, held) = (self.write.as_ref()?, self.held?);
        let value = planned.value().map(|value| &**value);
        Some(Write { target: self.target(), version: held.grant.version, low: held.grant.low, value })
    }
}

impl State {
    /// The incarnation is filled in later.
    fn header(&self, kind: Kind, count: u16) -> Header {
        Header { kind, count, cluster: self.configuration.cluster, transaction: self.id, incarnation: 0 }
    }

    /// One message to several cores.
    pub fn to_each(&self, places: &[Place], kind: Kind, message: &[u8]) -> Vec<Outgoing> {
        let to = |place: &Place| {
            let payload = Header::addressed(message, self.configuration.incarnation(*place));
            Outgoing { place: *place, kind, entries: SmallVec::new(), visits: 0, payload }
        };
        places.iter().map(to).collect()
    }

    fn primary(&self, entry: &Entry) -> Place {
        self.configuration.copies(entry.partition)[0]
    }

    /// Reads keys, and locks those that will be updated, with room for values of `room` bytes. Known keys are skipped.
    pub fn execute_round(&mut self, keys: &[(TableId, &[u8], Mode)], room: usize) -> Result<Vec<Outgoing>, TxnError> {
        // Indices change while entries are added.
        for (table, key, _) in keys {
            self.entry(*table, key)?;
        }
        let mut wanted: SmallVec<[(usize, Mode); 8]> = SmallVec::new();
        for (table, key, mode) in keys {
            let Ok(index) = self.find(*table, key) else { continue };
            if !self.entries[index].is_known(*mode) {
                wanted.push((index, *mode));
            }
        }
        // Of two modes of a key, the one that locks comes first and stays.
        wanted.sort_unstable_by_key(|(index, mode)| (*index, *mode == Mode::Read));
        wanted.dedup_by_key(|(index, _)| *index);
        let mut round = Round::new(self, Kind::Execute);
        for (index, mode) in wanted {
            let entry = &self.entries[index];
            let access = match mode {
                Mode::Read => Access::Read,
                Mode::Update => Access::ReadAndLock(entry.lock(room.min(VALUE_BYTES_MAX))),
            };
            round.add(self.primary(entry), index, |out| {
                entry.target().encode(out);
                access.encode(out);
            });
        }
        let messages = round.finish();
        self.messages += messages.len();
        Ok(messages)
    }

    /// Locks the keys of the write set that are not locked, or not with enough room.
    pub fn lock_round(&mut self) -> Vec<Outgoing> {
        let mut round = Round::new(self, Kind::Execute);
        for (index, entry) in self.entries.iter().enumerate() {
            let Some(planned) = &entry.write else { continue };
            if entry.held.is_some_and(|held| held.room >= planned.len()) {
                continue;
            }
            round.add(self.primary(entry), index, |out| {
                entry.target().encode(out);
                Access::Lock(entry.lock(planned.len())).encode(out);
            });
        }
        let messages = round.finish();
        self.messages += messages.len();
        messages
    }

    /// Validates the ranges that were read, and the keys that were read and are not locked. A transaction without writes
    /// validates locked keys, too: no log would tell it that a lock was broken. If such a transaction read everything
    /// with one message, there is nothing to validate: its core read it at one moment.
    pub fn validate_round(&self) -> Vec<Outgoing> {
        if self.messages <= 1 && !self.writes() {
            return Vec::new();
        }
        let mut round = Round::new(self, Kind::Validate);
        for (index, entry) in self.entries.iter().enumerate() {
            let Some(read) = &entry.read else { continue };
            if entry.held.is_some() && self.writes() {
                continue;
            }
            let check = Check::Item { target: entry.target(), version: read.version };
            round.add(self.primary(entry), index, |out| check.encode(out));
        }
        self.check_pages(&mut round);
        round.finish()
    }

    /// The commit record for each log replica, with the numbers of transactions that have ended, and of the lowest open
    /// one.
    pub fn log_round(&self, replicas: &[Place], ended: &[u64], open: u64) -> Vec<Outgoing> {
        let mut message = Vec::with_capacity(self.record_bytes + 64);
        self.header(Kind::Log, 0).encode(&mut message);
        Append::encode_ended(ended, open, &mut message);
        let mut count = 0;
        for write in self.entries.iter().filter_map(Entry::write) {
            write.encode(&mut message);
            count += 1;
        }
        Header::set_count(&mut message, count);
        self.to_each(replicas, Kind::Log, &message)
    }

    /// Bytes of the writes in its record.
    pub fn writes_bytes(&self) -> usize {
        let bytes = |write: Write<'_>| Write::BYTES + write.target.key.len() + write.value.map_or(0, <[u8]>::len);
        self.entries.iter().filter_map(Entry::write).map(bytes).sum()
    }

    /// The writes for all backups, or all primaries.
    pub fn commit_round(&self, role: Role) -> Vec<Outgoing> {
        let kind = match role {
            Role::Primary => Kind::CommitPrimary,
            Role::Backup => Kind::CommitBackup,
        };
        let mut round = Round::new(self, kind);
        for (index, entry) in self.entries.iter().enumerate() {
            let Some(write) = entry.write() else { continue };
            let copies = self.configuration.copies(entry.partition);
            // A lost partition has no copies.
            let places = if role == Role::Primary { copies.get(..1) } else { copies.get(1..) };
            let places = places.unwrap_or_default();
            for place in places {
                round.add(*place, index, |out| write.encode(out));
            }
        }
        round.finish()
    }

    /// Unlocks all locked keys, or those that are not written.
    pub fn abort_round(&self, of: Unlocked) -> Vec<Outgoing> {
        let mut round = Round::new(self, Kind::Abort);
        for (index, entry) in self.entries.iter().enumerate() {
            let is_locked = entry.held.is_some() || entry.may_be_locked;
            if !is_locked || (of == Unlocked::Unwritten && entry.write.is_some()) {
                continue;
            }
            round.add(self.primary(entry), index, |out| entry.target().encode(out));
        }
        round.finish()
    }
}

/// Which locks a round of [`Kind::Abort`] releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unlocked {
    /// All locks.
    All,
    /// Locks on keys that are not written: the transaction commits.
    Unwritten,
}
