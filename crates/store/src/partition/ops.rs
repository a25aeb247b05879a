//! The operations of [`Store`].

use std::time::Duration;

use super::Partition;
use super::find::Place;
use crate::config::Mode;
use crate::entry::{entry_bytes, note_entry_read, write_fields};
use crate::error::{KeyError, Refused, check_len};
use crate::item::{Condition, Delta, Item, Marks, Put, Side, Stored, Token, UnixSeconds};
use crate::key::{Key, KeyHash};
use crate::line::{self, Kind, POINTERS};
use crate::memory::LINE_BYTES;
use crate::number::{count, number};
use crate::record::{Fields, Record};
use crate::store::{Store, StoreStats};
use crate::tier::{Tier, TierConfig};

impl Partition {
    #[cold]
    fn drop_expired(&mut self, place: Place) -> Option<Item<'_>> {
        self.expire(place);
        None
    }

    /// Returns the place of a key's live item, if its token is the expected one.
    fn find_unchanged(&mut self, key: &Key<'_>, unchanged: Option<u64>) -> Result<Place, Refused> {
        let place = self.find_or_recall(key).ok_or(Refused::NotFound)?;
        let cas = self.record(place).fields.cas;
        if unchanged.is_some_and(|token| token != cas) { Err(Refused::Changed) } else { Ok(place) }
    }

    /// Stores another value, built in the scratch buffer, with these marks, the item's other fields and a new token.
    fn store_scratch(
        &mut self,
        key: &Key<'_>,
        place: Place,
        scratch: Vec<u8>,
        marks: Marks,
    ) -> Result<Stored, Refused> {
        self.changing(key.hash());
        let cas = self.cas + 1;
        let fields = Fields { cas, marks, ..self.record(place).fields };
        let stored = self.store(key, &scratch, &fields, Some(place));
        self.scratch = scratch;
        stored.map(|()| {
            self.cas = cas;
            Stored { cas }
        })
    }

    /// Changes an item's fields. The item stays where it is, unless its line is too small for them.
    fn restate(&mut self, key: &Key<'_>, place: Place, fields: &Fields) -> Result<(), Refused> {
        self.sweeper.note(fields.expires);
        let value_bytes = self.record(place).value.len();
        match place {
            Place::Log { at, .. } => {
                write_fields(&mut self.memory.bytes_mut()[at..], key.bytes().len(), value_bytes, fields);
                Ok(())
            }
            Place::Line { line, .. } => {
                let copy = *self.table.line(&self.memory, line);
                let value = copy.record().value;
                if line::fits(key.bytes().len(), value_bytes, fields) {
                    self.table.line_mut(&mut self.memory, line).set_record(key.bytes(), value, fields);
                    return Ok(());
                }
                // As for a new item: a log with more live bytes than it accepts would be cleaned at great length, again
                // and again.
                let result = match self.store_in_log(key, value, fields, Some(place), 0) {
                    Err(Refused::Full) => {
                        self.in_room(|store| store.store_in_log(key, value, fields, store.find(key), 0))
                    }
                    result => result,
                };
                if result.is_ok() {
                    // Making room may have evicted the item to the tier.
                    self.drop_behind(key, self.clock.now);
                }
                result
            }
        }
    }
}

impl Store for Partition {
    #[inline(always)]
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError> {
        Key::new(bytes, |bytes| self.hasher.hash(bytes))
    }

    #[inline]
    fn prefetch(&self, key: &Key<'_>) {
        self.memory.prefetch(self.table.offset(self.table.geometry.home(key.hash().0)));
    }

    #[inline]
    fn prefetch_item(&self, key: &Key<'_>) {
        let KeyHash(hash) = key.hash();
        let home = self.table.geometry.home(hash);
        let cell = self.table.line(&self.memory, home);
        if cell.kind() == Kind::Pointers {
            let pointers = (0..POINTERS).map(|slot| cell.pointer(slot));
            for pointer in pointers.filter(|pointer| pointer.is_like(hash)) {
                self.memory.prefetch(pointer.at());
                self.memory.prefetch(pointer.at() + LINE_BYTES);
            }
        } else {
            // Prefetched whether or not the key is in its home line: a check would be a branch mispredicted as often as
            // two keys share a home. A chain that ends here links to itself.
            let link = if cell.is_head() { cell.link() } else { 0 };
            self.memory.prefetch(self.table.offset(home.wrapping_add_signed(isize::from(link))));
        }
    }

    fn set_now(&mut self, now: UnixSeconds) {
        if now != self.clock.now {
            self.sweeper.allow_search();
        }
        self.clock.set(now);
    }

    #[inline]
    fn get(&mut self, key: &Key<'_>) -> Option<Item<'_>> {
        let minutes = self.clock.minutes();
        let Some(place) = self.find(key) else {
            return if self.tier.is_some() { self.get_behind(key) } else { None };
        };
        match place {
            Place::Line { line, .. } => {
                let (fields, key, value) = self.table.line(&self.memory, line).parts();
                if fields.has_expired(self.clock.now) {
                    return self.drop_expired(place);
                }
                let cell = self.table.line_mut(&mut self.memory, line);
                cell.note_read(minutes);
                let cell = self.table.line(&self.memory, line);
                Some(Record { key: &cell.0[key], value: &cell.0[value], fields }.item(&self.clock))
            }
            Place::Log { at, .. } => {
                let fields = self.record(place).fields;
                if fields.has_expired(self.clock.now) {
                    return self.drop_expired(place);
                }
                note_entry_read(&mut self.memory.bytes_mut()[at..], minutes);
                Some(Record { fields, ..self.record(place) }.item(&self.clock))
            }
        }
    }

    #[inline]
    fn peek(&self, key: &Key<'_>) -> Option<Item<'_>> {
        let Some(place) = self.find(key) else { return self.tier.as_ref()?.find(key, self.clock.now) };
        let record = self.record(place);
        (!record.fields.has_expired(self.clock.now)).then(|| record.item(&self.clock))
    }

    #[inline]
    fn put(&mut self, key: &Key<'_>, value: &[u8], put: Put) -> Result<Stored, Refused> {
        check_len(value.len(), self.value_bytes_max)?;
        let is_plain = put.condition == Condition::Always;
        let found = if is_plain { self.find_live(key) } else { self.find_or_recall(key) };
        if !is_plain {
            put.condition.check(found.map(|place| self.record(place).fields.cas))?;
        }
        self.changing(key.hash());
        let cas = put.cas.unwrap_or(self.cas + 1);
        if put.expires.is_some_and(|at| at <= self.clock.now) {
            match found {
                Some(place) => self.drop_item(place),
                None => _ = self.drop_behind(key, self.clock.now),
            }
        } else {
            let fields = Fields {
                flags: put.flags,
                expires: put.expires.unwrap_or(0),
                cas,
                minutes: self.clock.minutes(),
                marks: Marks { is_stale: put.is_stale, ..Marks::default() },
                is_hot: false,
            };
            self.store(key, value, &fields, found)?;
        }
        self.cas += u64::from(put.cas.is_none());
        self.counters.stored += 1;
        Ok(Stored { cas })
    }

    fn extend(&mut self, key: &Key<'_>, bytes: &[u8], side: Side, unchanged: Option<u64>) -> Result<Stored, Refused> {
        let place = self.find_unchanged(key, unchanged)?;
        check_len(self.record(place).value.len() + bytes.len(), self.value_bytes_max)?;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let value = self.record(place).value;
        let (first, second) = if side == Side::End { (value, bytes) } else { (bytes, value) };
        scratch.extend_from_slice(first);
        scratch.extend_from_slice(second);
        self.store_scratch(key, place, scratch, Marks::default())
    }

    fn count(&mut self, key: &Key<'_>, delta: Delta, unchanged: Option<u64>) -> Result<(u64, Stored), Refused> {
        let place = self.find_unchanged(key, unchanged)?;
        let Record { value, fields: Fields { marks, .. }, .. } = self.record(place);
        let after = count(number(value)?, delta);
        let len = value.len();
        let text = format!("{after:<len$}");
        // As in memcached: a longer number is a new item.
        let marks = if text.len() > len { Marks::default() } else { marks };
        check_len(text.len(), self.value_bytes_max)?;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(text.as_bytes());
        Ok((after, self.store_scratch(key, place, scratch, marks)?))
    }

    fn touch(&mut self, key: &Key<'_>, expires: Option<UnixSeconds>) -> Result<(), Refused> {
        let place = self.find_or_recall(key).ok_or(Refused::NotFound)?;
        self.changing(key.hash());
        if expires.is_some_and(|at| at <= self.clock.now) {
            self.drop_item(place);
            self.counters.expired += 1;
            return Ok(());
        }
        let fields = Fields { expires: expires.unwrap_or(0), ..self.record(place).fields };
        self.restate(key, place, &fields)
    }

    fn mark(&mut self, key: &Key<'_>, marks: Marks, token: Token) -> Result<(), Refused> {
        let place = self.find_or_recall(key).ok_or(Refused::NotFound)?;
        self.changing(key.hash());
        let before = self.record(place).fields;
        let cas = match token {
            Token::Keep => before.cas,
            Token::Next => self.cas + 1,
            Token::Exactly(cas) => cas,
        };
        self.restate(key, place, &Fields { marks, cas, ..before })?;
        self.cas += u64::from(token == Token::Next);
        Ok(())
    }

    fn delete(&mut self, key: &Key<'_>, unchanged: Option<u64>) -> Result<(), Refused> {
        // Not worth a read of the device: the hash of the key says enough.
        if self.tier.is_some() && unchanged.is_none() && self.find_live(key).is_none() {
            return if self.drop_behind(key, self.clock.now) { Ok(()) } else { Err(Refused::NotFound) };
        }
        let place = self.find_unchanged(key, unchanged)?;
        self.changing(key.hash());
        self.drop_item(place);
        Ok(())
    }

    fn flush(&mut self) {
        if let Some(mut watch) = self.watch.take() {
            watch.before_flush(self);
            self.watch = Some(watch);
        }
        self.reset();
        if let Some(tier) = &mut self.tier {
            tier.clear();
        }
        // A visit or snapshot of this partition lists items in hash order. If they came back in that order, they would
        // crowd one range of an index that is small again.
        self.hasher = self.hasher.successor();
    }

    fn stats(&self) -> StoreStats {
        self.snapshot()
    }

    fn expire_some(&mut self) -> u32 {
        self.expire_at_once()
    }

    #[inline]
    fn stalled(&self) -> Duration {
        self.watch.as_ref().map_or(Duration::ZERO, |watch| watch.stalled())
    }

    #[inline]
    fn may_stall(&self) -> bool {
        self.watch.is_some()
    }

    fn has_foresight(&self) -> bool {
        self.has_foresight()
    }

    fn foresee(&mut self, key_bytes: usize, value_bytes: usize) {
        self.foresee_item(entry_bytes(key_bytes, value_bytes));
    }

    fn loaded(&mut self) {
        self.is_loading = false;
        self.drop_plan();
    }

    fn attach_tier(&mut self, config: TierConfig) -> bool {
        let is_cache = self.mode == Mode::Cache;
        if is_cache {
            self.tier = Some(Box::new(Tier::new(config)));
        }
        is_cache
    }

    #[inline]
    fn tier(&self) -> Option<&Tier> {
        self.tier.as_deref()
    }

    #[inline]
    fn tier_mut(&mut self) -> Option<&mut Tier> {
        self.tier.as_deref_mut()
    }
}
