//! Blocks: a key's suffix and a value that do not fit into a leaf. Immutable from publication to retirement.
//!
//! Bytes 0 to 3: length of the suffix; 4 to 7: length of the value; then both.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::guard::Guard;
use crate::memory::{Full, Memory, prefetch};

const HEADER_BYTES: usize = 8;

/// A block that stays allocated for `'g`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block<'g> {
    start: NonNull<u8>,
    guard: PhantomData<&'g Guard>,
}

impl<'g> Block<'g> {
    pub(crate) fn new(memory: &Memory, suffix: &[u8], value: &[u8]) -> Result<Block<'g>, Full> {
        let start = memory.take_block(HEADER_BYTES + suffix.len() + value.len())?;
        let lengths = [suffix.len() as u32, value.len() as u32];
        // SAFETY: the block has room for the header (aligned to 8) and both, and is not shared yet.
        unsafe {
            start.cast::<[u32; 2]>().write(lengths);
            let bytes = start.add(HEADER_BYTES);
            bytes.copy_from_nonoverlapping(NonNull::from(suffix).cast(), suffix.len());
            bytes.add(suffix.len()).copy_from_nonoverlapping(NonNull::from(value).cast(), value.len());
        }
        Ok(Block { start, guard: PhantomData })
    }

    /// # Safety
    /// `to_word` made the word, a leaf held it in a validated state, and the reader has been pinned since before.
    #[inline(always)]
    pub(crate) unsafe fn from_word(word: u64) -> Block<'g> {
        let start = std::ptr::with_exposed_provenance_mut(word as usize);
        // SAFETY: the word was made from an address that is not null.
        Block { start: unsafe { NonNull::new_unchecked(start) }, guard: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn to_word(self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    #[inline(always)]
    fn lengths(self) -> (usize, usize) {
        // SAFETY: `new` wrote it before publication, it is immutable since, and it stays for `'g`.
        let [suffix, value] = unsafe { self.start.cast::<[u32; 2]>().read() };
        (suffix as usize, value as usize)
    }

    /// The key from its ninth byte in this layer on.
    #[inline(always)]
    pub(crate) fn suffix(self) -> &'g [u8] {
        // SAFETY: as for `lengths`; that many bytes were written.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(HEADER_BYTES), self.lengths().0) }
    }

    #[inline(always)]
    pub(crate) fn value(self) -> &'g [u8] {
        let (suffix, value) = self.lengths();
        // SAFETY: as for `lengths`; that many bytes were written.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(HEADER_BYTES + suffix), value) }
    }

    pub(crate) fn prefetch(self) {
        prefetch(self.start.as_ptr().cast_const().cast());
    }

    fn bytes(self) -> usize {
        let (suffix, value) = self.lengths();
        HEADER_BYTES + suffix + value
    }

    /// # Safety
    /// No thread reads it any more, and it is freed once, to the memory it came from.
    pub(crate) unsafe fn free(self, memory: &Memory) {
        // SAFETY: as the caller promises.
        unsafe { memory.free_block(self.start, self.bytes()) };
    }

    /// Frees the block as soon as all guards that exist now are dropped.
    ///
    /// # Safety
    /// It is retired once, and readers that are pinned later cannot reach it.
    pub(crate) unsafe fn retire(self, memory: &Arc<Memory>, guard: &Guard) {
        let (word, memory) = (self.to_word(), Arc::downgrade(memory));
        let free = move || {
            // SAFETY: as the caller promises; after the epoch it has no readers.
            unsafe {
                let block = Block::from_word(word);
                Memory::free_block_of(&memory, block.start, block.bytes());
            }
        };
        // SAFETY: as the caller promises. The closure may run on any thread: everything in it is `Send`.
        unsafe { guard.defer(self.bytes(), free) };
    }
}
