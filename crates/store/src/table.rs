//! The index: lines, chained by home.
//!
//! All items with the same home line are in one chain of lines, which starts in that line (its head) and continues in
//! lines nearby. If another chain's line occupies the home of a new item, it gives way (Brent's variation, as in Lua's
//! tables). So a lookup needs the home line alone, unless items share it; even at full load that is 1.5 lines on
//! average.
//!
//! A bitmap at the start of memory says which lines are free. A word of it covers 64 lines, a page of memory: chains
//! stay inside the page of their home, or the one before or after it.

use crate::geometry::Geometry;
use crate::hasher::KeyHasher;
use crate::line::Kind;
use crate::memory::{LINE_BYTES, LINE_WORDS, Line, Memory};

/// Lines of a new or flushed index.
pub(crate) const LINES_MIN: usize = 1024;
/// How far, in pages, a free line may be from the home that needs it ([`Table::bring_free_line`]).
pub(crate) const REACH_WORDS: usize = 64;
/// The same while a full store is loaded, which may have had almost no free lines.
pub(crate) const REACH_WORDS_LOADING: usize = 4096;
/// Lines of a word of the bitmap.
pub(crate) const WORD_LINES: usize = 64;

/// The lines of the index, and which of them are free. The lines themselves are in the memory.
#[derive(Debug)]
pub(crate) struct Table {
    /// The offset of line 0 in the memory, in lines.
    base: usize,
    pub geometry: Geometry,
    /// While growing: lines from the old end up to this one are not cleared yet.
    cleared: usize,
    /// Free lines among those that are cleared.
    pub free: usize,
}

impl Table {
    /// Creates an empty index, behind the bitmap at the start of memory.
    pub(crate) fn new(memory: &mut Memory) -> Table {
        let map_lines = (memory.lines().len() / WORD_LINES).div_ceil(LINE_WORDS);
        let base = map_lines.next_multiple_of(WORD_LINES);
        let mut table = Table { base, geometry: Geometry::new(LINES_MIN), cleared: LINES_MIN, free: 0 };
        table.reset(memory);
        table
    }

    /// Forgets everything, in time independent of the amount.
    pub(crate) fn reset(&mut self, memory: &mut Memory) {
        self.resize(memory, LINES_MIN);
    }

    /// Makes it an empty index of this many lines, for which there is memory.
    pub(crate) fn resize(&mut self, memory: &mut Memory, lines: usize) {
        self.geometry = Geometry::new(lines);
        self.cleared = lines;
        self.free = 0;
        self.clear(memory, 0..lines);
    }

    /// Returns the offset of a line in the memory, in bytes.
    #[inline(always)]
    pub(crate) fn offset(&self, line: usize) -> usize {
        (self.base + line) * LINE_BYTES
    }

    /// Returns the bytes of memory up to the end of the table.
    pub(crate) fn end(&self) -> usize {
        self.offset(self.geometry.lines_next)
    }

    /// Returns the number of lines if the table ended at this offset of the memory.
    pub(crate) fn lines_until(&self, end: usize) -> usize {
        (end / LINE_BYTES - self.base) / WORD_LINES * WORD_LINES
    }

    #[inline(always)]
    pub(crate) fn line<'m>(&self, memory: &'m Memory, line: usize) -> &'m Line {
        &memory.lines()[self.base + line]
    }

    #[inline(always)]
    pub(crate) fn line_mut<'m>(&self, memory: &'m mut Memory, line: usize) -> &'m mut Line {
        &mut memory.lines_mut()[self.base + line]
    }

    /// Returns the next line of a chain.
    #[inline(always)]
    pub(crate) fn next(&self, memory: &Memory, home: usize, line: usize) -> Option<usize> {
        match self.line(memory, line).link() {
            0 => None,
            link => Some(home.wrapping_add_signed(isize::from(link))),
        }
    }

    /// Iterates over the chain of a home, from its head.
    pub(crate) fn chain<'m>(&'m self, memory: &'m Memory, home: usize) -> impl Iterator<Item = usize> + 'm {
        let head = self.line(memory, home);
        let first = (head.kind() != Kind::Free && head.is_head()).then_some(home);
        std::iter::successors(first, move |&line| self.next(memory, home, line))
    }

    fn clear(&mut self, memory: &mut Memory, lines: std::ops::Range<usize>) {
        for line in &mut memory.lines_mut()[self.base + lines.start..self.base + lines.end] {
            line.free();
        }
        memory.words_mut()[lines.start / WORD_LINES..lines.end / WORD_LINES].fill(u64::MAX);
        self.free += lines.len();
    }

    /// Begins to grow to this many lines, a multiple of 64.
    pub(crate) fn grow(&mut self, lines: usize) {
        self.geometry.grow(lines);
        self.cleared = lines;
    }

    /// Clears the lines needed around the new homes that an old home's items move to.
    pub(crate) fn clear_for(&mut self, memory: &mut Memory, old_home: usize) {
        let first = self.geometry.homes_next(old_home).start() / WORD_LINES * WORD_LINES;
        let from = first.saturating_sub(WORD_LINES).max(self.geometry.lines);
        if from < self.cleared {
            self.clear(memory, from..self.cleared);
            self.cleared = from;
        }
    }

    /// Returns the bits of the free lines of a word.
    #[inline]
    pub(crate) fn free_word(&self, memory: &Memory, word: usize) -> u64 {
        if self.is_cleared(word) { memory.words()[word] } else { 0 }
    }

    /// Whether the lines of a word already belong to the index.
    #[inline]
    pub(crate) fn is_cleared(&self, word: usize) -> bool {
        word < self.geometry.lines / WORD_LINES
            || word >= self.cleared / WORD_LINES && word < self.geometry.lines_next / WORD_LINES
    }

    /// Returns how many free lines a chain from this home could take.
    pub(crate) fn count_near(&self, memory: &Memory, home: usize) -> usize {
        let word = home / WORD_LINES;
        (word.saturating_sub(1)..=word + 1).map(|word| self.free_word(memory, word).count_ones() as usize).sum()
    }

    /// Returns a free line for the chain of this home: the closest of its page, if there is one.
    pub(crate) fn free_near(&self, memory: &Memory, home: usize) -> Option<usize> {
        let (word, bit) = (home / WORD_LINES, home % WORD_LINES);
        let own = self.free_word(memory, word);
        let (above, below) = ((own >> bit).trailing_zeros(), (own << (63 - bit)).leading_zeros());
        if above.min(below) < 64 {
            return Some(if above <= below { home + above as usize } else { home - below as usize });
        }
        let behind = self.free_word(memory, word + 1);
        if behind != 0 {
            return Some((word + 1) * WORD_LINES + behind.trailing_zeros() as usize);
        }
        let before = if word > 0 { self.free_word(memory, word - 1) } else { 0 };
        (before != 0).then(|| word * WORD_LINES - 1 - before.leading_zeros() as usize)
    }

    fn take(&mut self, memory: &mut Memory, line: usize) {
        memory.words_mut()[line / WORD_LINES] &= !(1 << (line % WORD_LINES));
        self.free -= 1;
    }

    fn give_back(&mut self, memory: &mut Memory, line: usize) {
        self.line_mut(memory, line).free();
        memory.words_mut()[line / WORD_LINES] |= 1 << (line % WORD_LINES);
        self.free += 1;
    }

    /// Returns the home of the contents of a line that is not free.
    pub(crate) fn home_of(&self, memory: &Memory, hasher: &KeyHasher, line: usize) -> usize {
        if self.line(memory, line).is_head() {
            line
        } else {
            self.geometry.home(owner_hash(memory, self.line(memory, line), hasher))
        }
    }

    /// Returns the home whose chain needs a free line nearby so that this home gets one: itself, or that of the line in
    /// its place. `None` if its place is free.
    pub(crate) fn blocked_home(&self, memory: &Memory, hasher: &KeyHasher, home: usize) -> Option<usize> {
        match self.line(memory, home).kind() {
            Kind::Free => None,
            _ => Some(self.home_of(memory, hasher, home)),
        }
    }

    /// Adds a line to the chain of a home, to be filled at once. `None` if no line nearby is free.
    pub(crate) fn open(&mut self, memory: &mut Memory, hasher: &KeyHasher, home: usize) -> Option<usize> {
        let Some(owner) = self.blocked_home(memory, hasher, home) else {
            self.take(memory, home);
            self.line_mut(memory, home).enchain(true, 0);
            return Some(home);
        };
        let free = self.free_near(memory, owner)?;
        self.take(memory, free);
        let link = link(owner, free);
        if owner == home {
            let next = self.line(memory, home).link();
            self.line_mut(memory, free).enchain(false, next);
            self.line_mut(memory, home).set_link(link);
            return Some(free);
        }
        let before = self.before(memory, owner, home);
        let moved = *self.line(memory, home);
        *self.line_mut(memory, free) = moved;
        self.line_mut(memory, before).set_link(link);
        self.line_mut(memory, home).enchain(true, 0);
        Some(home)
    }

    /// Brings a free line that is too far from a home close to it: lines of chains in between move by a page each, away
    /// from the home, the first into the free line, the next into its place, and so on. False if there is none within
    /// `reach` pages, or if a line in between cannot move.
    pub(crate) fn bring_free_line(
        &mut self,
        memory: &mut Memory,
        hasher: &KeyHasher,
        home: usize,
        reach: usize,
    ) -> bool {
        let own = home / WORD_LINES;
        for distance in 2..=reach.min(self.geometry.lines_next / WORD_LINES) {
            for is_behind in [true, false] {
                let word = if is_behind { Some(own + distance) } else { own.checked_sub(distance) };
                let Some(mut word) = word.filter(|&word| self.free_word(memory, word) != 0) else { continue };
                while word.abs_diff(own) > 1 {
                    let closer = if is_behind { word - 1 } else { word + 1 };
                    if !self.shift(memory, hasher, closer, word) {
                        break;
                    }
                    word = closer;
                }
                if word.abs_diff(own) <= 1 {
                    return true;
                }
            }
        }
        false
    }

    /// Moves a line of a chain from one word to a free line of the next, if the chain may reach there.
    fn shift(&mut self, memory: &mut Memory, hasher: &KeyHasher, from: usize, to: usize) -> bool {
        let free = to * WORD_LINES + self.free_word(memory, to).trailing_zeros() as usize;
        for line in from * WORD_LINES..(from + 1) * WORD_LINES {
            let cell = self.line(memory, line);
            if cell.kind() == Kind::Free || cell.is_head() {
                continue;
            }
            let owner = self.home_of(memory, hasher, line);
            if (owner / WORD_LINES).abs_diff(to) <= 1 {
                let before = self.before(memory, owner, line);
                let moved = *self.line(memory, line);
                self.take(memory, free);
                *self.line_mut(memory, free) = moved;
                self.line_mut(memory, before).set_link(link(owner, free));
                self.give_back(memory, line);
                return true;
            }
        }
        false
    }

    /// Returns the line before `line`, which is not the head, in the chain of a home.
    fn before(&self, memory: &Memory, home: usize, line: usize) -> usize {
        self.chain(memory, home)
            .find(|&before| self.next(memory, home, before) == Some(line))
            .expect("a line is in the chain of its home")
    }

    /// Removes a line from the chain of its home. If it is the head, the line after it becomes the head.
    pub(crate) fn close(&mut self, memory: &mut Memory, home: usize, line: usize) {
        let next = self.next(memory, home, line);
        if line != home {
            let link = self.line(memory, line).link();
            let before = self.before(memory, home, line);
            self.line_mut(memory, before).set_link(link);
            self.give_back(memory, line);
        } else if let Some(next) = next {
            let moved = *self.line(memory, next);
            self.line_mut(memory, home).copy_from(&moved, true);
            self.give_back(memory, next);
        } else {
            self.give_back(memory, home);
        }
    }
}

/// Returns the hash of a key in a line that is not free.
pub(crate) fn owner_hash(memory: &Memory, line: &Line, hasher: &KeyHasher) -> u64 {
    match line.kind() {
        Kind::Item => hasher.hash(line.key()).0,
        Kind::Pointers => {
            let pointer = line.first_pointer().expect("a line without pointers is free");
            hasher.hash(crate::entry::entry_key(&memory.bytes()[pointer.at()..])).0
        }
        Kind::Free => unreachable!("a free line has no owner"),
    }
}

fn link(home: usize, line: usize) -> i8 {
    i8::try_from(line as isize - home as isize).expect("a chain stays within 127 lines of its home")
}
