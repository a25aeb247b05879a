//! Implements [`crate::sweep`].

use std::ops::RangeInclusive;

use super::Partition;
use super::find::Place;
use crate::entry::read_entry;
use crate::item::Item;
use crate::key::KeyHash;
use crate::line::{Kind, POINTERS, Pointer};
use crate::record::Record;
use crate::shape::{Shape, kind};
use crate::sweep::{Sweep, Visit, Watch};

impl Partition {
    /// Announces a change to the watch, if there is one.
    #[inline]
    pub(super) fn changing(&mut self, hash: KeyHash) {
        if self.watch.is_some() {
            self.tell_watch(hash);
        }
    }

    #[cold]
    fn tell_watch(&mut self, hash: KeyHash) {
        if let Some(mut watch) = self.watch.take() {
            watch.before_change(self, hash);
            self.watch = Some(watch);
        }
    }

    /// Asks the watch, if there is one, whether a read may bring an item back from the tier.
    #[cold]
    pub(super) fn may_recall(&mut self, hash: KeyHash) -> bool {
        let Some(mut watch) = self.watch.take() else { return true };
        let may_recall = watch.before_recall(self, hash);
        self.watch = Some(watch);
        may_recall
    }

    /// Tells the watch, if there is one, that an item is about to be evicted.
    #[inline]
    pub(super) fn evicting(&mut self, place: Place) {
        if let Some(mut watch) = self.watch.take() {
            let record = self.record(place);
            watch.before_eviction(self, self.hasher.hash(record.key), record.key, &record.item(&self.clock));
            self.watch = Some(watch);
        }
    }

    fn visit_line(&self, line: usize, each: &mut impl FnMut(Record<'_>)) {
        let cell = self.table.line(&self.memory, line);
        match cell.kind() {
            Kind::Item => each(cell.record()),
            Kind::Pointers => {
                for pointer in (0..POINTERS).map(|slot| cell.pointer(slot)).filter(|&pointer| pointer != Pointer::NONE)
                {
                    each(read_entry(&self.memory.bytes()[pointer.at()..]));
                }
            }
            Kind::Free => {}
        }
    }
}

/// Lines in each range of a sweep: a quarter of a page.
const RANGE_LINES: usize = 16;

impl Visit for Partition {
    fn range_bits(&self) -> u32 {
        (self.table.geometry.lines / RANGE_LINES).ilog2()
    }

    fn visit(&self, hashes: RangeInclusive<u64>, each: &mut dyn FnMut(KeyHash, &[u8], &Item<'_>)) {
        if hashes.is_empty() {
            return;
        }
        let mut each = |record: Record<'_>| {
            let hash = self.hasher.hash(record.key);
            if hashes.contains(&hash.0) && !record.fields.has_expired(self.clock.now) {
                each(hash, record.key, &record.item(&self.clock));
            }
        };
        for home in self.table.geometry.homes(*hashes.start(), *hashes.end()).into_iter().flatten() {
            for line in self.table.chain(&self.memory, home) {
                self.visit_line(line, &mut each);
            }
        }
    }
}

impl Sweep for Partition {
    fn watch(&mut self, watch: Box<dyn Watch>) -> Option<Box<dyn Watch>> {
        self.watch.replace(watch)
    }

    fn shape(&self) -> Shape {
        Shape {
            secret: self.hasher.secret(),
            memory: self.config.memory as u64,
            segment: self.log.segment_bytes as u64,
            lines: self.table.geometry.lines_next as u64,
            kind: kind(&self.config),
        }
    }

    fn unwatch(&mut self) -> Option<Box<dyn Watch>> {
        self.watch.take()
    }
}
