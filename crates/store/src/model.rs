//! The simplest [`Store`]: a map without limits. Tests compare the real stores with it, and protocol tests run on it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;

use crate::error::{KeyError, Refused, check_len};
use crate::item::{Delta, Item, Marks, Put, Side, Stored, Token, UnixSeconds};
use crate::key::{Key, KeyHash};
use crate::number::{count, number};
use crate::shape::Shape;
use crate::store::{Store, StoreStats, VALUE_BYTES_MAX};
use crate::sweep::{Sweep, Visit, Watch};

/// A store that is a `HashMap`. Never evicts; its memory is not bounded.
#[derive(Debug, Default)]
pub struct Model {
    items: HashMap<Vec<u8>, Entry>,
    hasher: RandomState,
    now: UnixSeconds,
    cas: u64,
    stats: StoreStats,
    watch: Option<Box<dyn Watch>>,
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
    /// Creates an empty one.
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

    fn changing(&mut self, key: &Key<'_>) {
        let Some(mut watch) = self.watch.take() else { return };
        watch.before_change(self, key.hash());
        self.watch = Some(watch);
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

impl Store for Model {
    fn stalled(&self) -> std::time::Duration {
        self.watch.as_ref().map_or(std::time::Duration::ZERO, |watch| watch.stalled())
    }

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
        check_len(value.len(), VALUE_BYTES_MAX)?;
        put.condition.check(self.live(key).map(|entry| entry.cas))?;
        self.changing(key);
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
        check_len(len, VALUE_BYTES_MAX)?;
        self.changing(key);
        let cas = self.next_cas();
        let entry = self.unchanged(key, None)?;
        let at = if side == Side::End { entry.value.len() } else { 0 };
        entry.value.splice(at..at, bytes.iter().copied());
        (entry.cas, entry.marks) = (cas, Marks::default());
        Ok(Stored { cas })
    }

    fn count(&mut self, key: &Key<'_>, delta: Delta, unchanged: Option<u64>) -> Result<(u64, Stored), Refused> {
        let before = number(&self.unchanged(key, unchanged)?.value)?;
        let after = count(before, delta);
        self.changing(key);
        let cas = self.next_cas();
        let entry = self.unchanged(key, None)?;
        let len = entry.value.len();
        entry.value = format!("{after:<len$}").into_bytes();
        entry.cas = cas;
        if entry.value.len() > len {
            entry.marks = Marks::default();
        }
        Ok((after, Stored { cas }))
    }

    fn touch(&mut self, key: &Key<'_>, expires: Option<UnixSeconds>) -> Result<(), Refused> {
        self.changing(key);
        self.live(key).ok_or(Refused::NotFound)?.expires = expires;
        Ok(())
    }

    fn mark(&mut self, key: &Key<'_>, marks: Marks, token: Token) -> Result<(), Refused> {
        self.changing(key);
        self.live(key).ok_or(Refused::NotFound)?;
        let next = if token == Token::Next { self.next_cas() } else { 0 };
        let entry = self.live(key).ok_or(Refused::NotFound)?;
        entry.marks = marks;
        match token {
            Token::Keep => {}
            Token::Next => entry.cas = next,
            Token::Exactly(cas) => entry.cas = cas,
        }
        Ok(())
    }

    fn delete(&mut self, key: &Key<'_>, unchanged: Option<u64>) -> Result<(), Refused> {
        self.unchanged(key, unchanged)?;
        self.changing(key);
        self.items.remove(key.bytes());
        Ok(())
    }

    fn flush(&mut self) {
        if let Some(mut watch) = self.watch.take() {
            watch.before_flush(self);
            self.watch = Some(watch);
        }
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

impl Visit for Model {
    fn range_bits(&self) -> u32 {
        6
    }

    fn visit(&self, hashes: RangeInclusive<u64>, each: &mut dyn FnMut(KeyHash, &[u8], &Item<'_>)) {
        for (key, entry) in &self.items {
            let hash = self.hasher.hash_one(key.as_slice());
            if hashes.contains(&hash) && entry.expires.is_none_or(|at| at > self.now) {
                each(KeyHash(hash), key, &entry.item());
            }
        }
    }
}

impl Sweep for Model {
    fn watch(&mut self, watch: Box<dyn Watch>) -> Option<Box<dyn Watch>> {
        self.watch.replace(watch)
    }

    fn shape(&self) -> Shape {
        Shape::default()
    }

    fn unwatch(&mut self) -> Option<Box<dyn Watch>> {
        self.watch.take()
    }
}
