//! The smallest [`Store`]: a map without limits. What tests compare the real ones with, and protocol tests run on.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::error::{KeyError, Refused};
use crate::item::{Condition, Delta, Item, Marks, Put, Side, Stored, UnixSeconds};
use crate::key::{Key, KeyHash};
use crate::snapshot::{self, Sweep, Swept};
use crate::store::{Store, StoreStats, VALUE_BYTES_MAX};

/// Units that a snapshot visits.
const UNITS: usize = 64;

/// A store that is a `HashMap`. Never evicts; memory is not bounded.
#[derive(Debug, Default)]
pub struct Model {
    items: HashMap<Vec<u8>, Entry>,
    hasher: RandomState,
    now: UnixSeconds,
    cas: u64,
    stats: StoreStats,
    sweep: Option<Box<Sweep>>,
}

#[derive(Debug, Clone)]
struct Entry {
    value: Vec<u8>,
    flags: u32,
    cas: u64,
    expires: Option<UnixSeconds>,
    last_access: UnixSeconds,
    marks: Marks,
}

impl Entry {
    fn item(&self) -> Item<'_> {
        Item {
            value: &self.value,
            flags: self.flags,
            cas: self.cas,
            expires: self.expires,
            last_access: self.last_access,
            marks: self.marks,
        }
    }
}

impl Model {
    /// An empty one.
    pub fn new() -> Model {
        Model::default()
    }

    fn live(&mut self, key: &Key<'_>) -> Option<&mut Entry> {
        let now = self.now;
        let is_expired = self.items.get(key.bytes())?.expires.is_some_and(|at| at <= now);
        if is_expired {
            self.items.remove(key.bytes());
            self.stats.expired += 1;
            return None;
        }
        self.items.get_mut(key.bytes())
    }

    fn before_change(&mut self, key: &Key<'_>) {
        if self.sweep.is_some() {
            snapshot::keep(self, unit(key.hash()));
        }
    }

    fn next_cas(&mut self) -> u64 {
        self.cas += 1;
        self.cas
    }

    fn unchanged(&mut self, key: &Key<'_>, token: Option<u64>) -> Result<&mut Entry, Refused> {
        let entry = self.live(key).ok_or(Refused::NotFound)?;
        if token.is_some_and(|token| token != entry.cas) { Err(Refused::Changed) } else { Ok(entry) }
    }
}

fn unit(hash: KeyHash) -> usize {
    (hash.0 % UNITS as u64) as usize
}

fn check_len(len: usize) -> Result<(), Refused> {
    if len > VALUE_BYTES_MAX { Err(Refused::TooLarge { len, max: VALUE_BYTES_MAX }) } else { Ok(()) }
}

fn number(value: &[u8]) -> Result<u64, Refused> {
    let text = std::str::from_utf8(value).map_err(|_| Refused::NotANumber)?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refused::NotANumber);
    }
    text.parse().map_err(|_| Refused::NotANumber)
}

impl Store for Model {
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError> {
        Key::new(bytes, |bytes| KeyHash(self.hasher.hash_one(bytes)))
    }

    fn prefetch(&self, _key: &Key<'_>) {}

    fn prefetch_item(&self, _key: &Key<'_>) {}

    fn set_now(&mut self, now: UnixSeconds) {
        self.now = now;
    }

    fn get(&mut self, key: &Key<'_>) -> Option<Item<'_>> {
        let now = self.now;
        let entry = self.live(key)?;
        let marks = entry.marks;
        entry.marks.is_fetched = true;
        let last_access = std::mem::replace(&mut entry.last_access, now);
        Some(Item { marks, last_access, ..entry.item() })
    }

    fn peek(&self, key: &Key<'_>) -> Option<Item<'_>> {
        let entry = self.items.get(key.bytes())?;
        if entry.expires.is_some_and(|at| at <= self.now) { None } else { Some(entry.item()) }
    }

    fn put(&mut self, key: &Key<'_>, value: &[u8], put: Put) -> Result<Stored, Refused> {
        check_len(value.len())?;
        let found = self.live(key).map(|entry| entry.cas);
        match (put.condition, found) {
            (Condition::Absent, Some(_)) => return Err(Refused::Exists),
            (Condition::Present | Condition::Unchanged(_), None) => return Err(Refused::NotFound),
            (Condition::Unchanged(token), Some(cas)) if token != cas => return Err(Refused::Changed),
            _ => {}
        }
        self.before_change(key);
        let cas = put.cas.unwrap_or_else(|| self.next_cas());
        self.stats.stored += 1;
        if put.expires.is_some_and(|at| at <= self.now) {
            self.items.remove(key.bytes());
            return Ok(Stored { cas });
        }
        let entry = Entry {
            value: value.to_vec(),
            flags: put.flags,
            cas,
            expires: put.expires,
            last_access: self.now,
            marks: Marks { is_stale: put.is_stale, ..Marks::default() },
        };
        self.items.insert(key.bytes().to_vec(), entry);
        Ok(Stored { cas })
    }

    fn extend(&mut self, key: &Key<'_>, bytes: &[u8], side: Side, unchanged: Option<u64>) -> Result<Stored, Refused> {
        let len = self.unchanged(key, unchanged)?.value.len() + bytes.len();
        check_len(len)?;
        self.before_change(key);
        let cas = self.next_cas();
        let entry = self.unchanged(key, None)?;
        let at = if side == Side::End { entry.value.len() } else { 0 };
        entry.value.splice(at..at, bytes.iter().copied());
        entry.cas = cas;
        Ok(Stored { cas })
    }

    fn count(&mut self, key: &Key<'_>, delta: Delta, unchanged: Option<u64>) -> Result<(u64, Stored), Refused> {
        let before = number(&self.unchanged(key, unchanged)?.value)?;
        let after = match delta {
            Delta::Up(by) => before.wrapping_add(by),
            Delta::Down(by) => before.saturating_sub(by),
        };
        self.before_change(key);
        let cas = self.next_cas();
        let entry = self.unchanged(key, None)?;
        entry.value = after.to_string().into_bytes();
        entry.cas = cas;
        Ok((after, Stored { cas }))
    }

    fn touch(&mut self, key: &Key<'_>, expires: Option<UnixSeconds>) -> bool {
        self.before_change(key);
        self.live(key).map(|entry| entry.expires = expires).is_some()
    }

    fn mark(&mut self, key: &Key<'_>, marks: Marks, cas: Option<u64>) -> bool {
        self.before_change(key);
        let Some(entry) = self.live(key) else { return false };
        entry.marks = marks;
        entry.cas = cas.unwrap_or(entry.cas);
        true
    }

    fn delete(&mut self, key: &Key<'_>, unchanged: Option<u64>) -> Result<(), Refused> {
        self.unchanged(key, unchanged)?;
        self.before_change(key);
        self.items.remove(key.bytes());
        Ok(())
    }

    fn flush(&mut self) {
        snapshot::spoil(self);
        self.items.clear();
    }

    fn stats(&self) -> StoreStats {
        let item_bytes = self.items.iter().map(|(key, entry)| (key.len() + entry.value.len()) as u64).sum();
        StoreStats {
            items: self.items.len() as u64,
            item_bytes,
            memory_bytes: item_bytes,
            memory_bytes_max: u64::MAX,
            value_bytes_max: VALUE_BYTES_MAX as u64,
            ..self.stats
        }
    }
}

impl Swept for Model {
    fn units(&self) -> usize {
        UNITS
    }

    fn visit(&self, at: usize, mut visit: impl FnMut(&[u8], Item<'_>)) {
        let items = self.items.iter().filter(|(key, _)| unit(KeyHash(self.hasher.hash_one(key.as_slice()))) == at);
        items.for_each(|(key, entry)| visit(key, entry.item()));
    }

    fn sweep(&mut self) -> &mut Option<Box<Sweep>> {
        &mut self.sweep
    }
}
