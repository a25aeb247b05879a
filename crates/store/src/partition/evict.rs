//! Evicts an item when a cache's index is full, so that a line becomes free.

use super::Partition;
use super::find::Place;
use crate::entry::read_entry;
use crate::line::{Kind, POINTERS, Pointer};
use crate::table::WORD_LINES;

/// Lines to look at before a recently read item is evicted.
const CANDIDATES: usize = 8;

impl Partition {
    /// Frees a line that the chain of this home can use. Prefers an item that was not read since eviction last passed
    /// by (CLOCK). False if there is none.
    pub(super) fn evict_around(&mut self, home: usize) -> bool {
        let chosen = self.choose_line(home);
        if let Some(line) = chosen {
            self.evict_line(line);
        }
        chosen.is_some()
    }

    fn choose_line(&mut self, crowded: usize) -> Option<usize> {
        let word = crowded / WORD_LINES;
        self.hand = (self.hand + 1) % WORD_LINES;
        let (mut spared, mut pointers, mut spared_pointers, mut looked_at) = (None, None, None, 0);
        for step in 0..WORD_LINES {
            let line = word * WORD_LINES + (self.hand + step) % WORD_LINES;
            let cell = self.table.line(&self.memory, line);
            // The line that becomes free if this one is evicted: for the head of a chain, the next line.
            let freed = if cell.is_head() { self.table.next(&self.memory, line, line).unwrap_or(line) } else { line };
            if (freed / WORD_LINES).abs_diff(word) > 1 {
                continue;
            }
            match cell.kind() {
                Kind::Item if !cell.is_hot() || cell.record().fields.has_expired(self.clock.now) => {
                    self.hand = line % WORD_LINES;
                    return Some(line);
                }
                Kind::Item => {
                    spared = spared.or(Some(line));
                    self.table.line_mut(&mut self.memory, line).cool();
                }
                Kind::Pointers if self.has_hot_pointer(line) => spared_pointers = spared_pointers.or(Some(line)),
                Kind::Pointers => pointers = pointers.or(Some(line)),
                Kind::Free => continue,
            }
            looked_at += 1;
            if looked_at >= CANDIDATES && spared.is_some() {
                break;
            }
        }
        spared.or(pointers).or(spared_pointers)
    }

    /// True if any of the items that a line points to was read recently.
    fn has_hot_pointer(&self, line: usize) -> bool {
        let cell = self.table.line(&self.memory, line);
        let mut pointers = (0..POINTERS).map(|slot| cell.pointer(slot)).filter(|&pointer| pointer != Pointer::NONE);
        pointers.any(|pointer| read_entry(&self.memory.bytes()[pointer.at()..]).fields.is_hot)
    }

    /// Evicts the contents of a line.
    fn evict_line(&mut self, line: usize) {
        let home = self.table.home_of(&self.memory, &self.hasher, line);
        let cell = *self.table.line(&self.memory, line);
        match cell.kind() {
            Kind::Item => self.evict_item(Place::Line { home, line }),
            Kind::Pointers => {
                for slot in (0..POINTERS).filter(|&slot| cell.pointer(slot) != Pointer::NONE) {
                    self.evict_item(Place::Log { home, line, slot, at: cell.pointer(slot).at() });
                }
            }
            Kind::Free => {}
        }
    }

    fn evict_item(&mut self, place: Place) {
        self.counters.evicted_index += u64::from(self.evict(place));
    }
}
