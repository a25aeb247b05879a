//! References to reusable entries: the index of the entry, and a generation that tells its users apart.

use std::fmt;
use std::marker::PhantomData;

/// References an entry of kind `T`. One word, since it is copied on the path of every call: two words, written one by
/// one and read as one, would wait for the store buffer.
pub(crate) struct Handle<T> {
    word: u64,
    kind: PhantomData<fn() -> T>,
}

impl<T> Handle<T> {
    #[inline]
    pub fn new(index: u32, generation: u32) -> Self {
        Handle { word: index as u64 | (generation as u64) << 32, kind: PhantomData }
    }

    #[inline]
    pub fn index(self) -> u32 {
        self.word as u32
    }

    /// The index, for a table.
    #[inline]
    pub fn place(self) -> usize {
        self.index() as usize
    }

    #[inline]
    pub fn generation(self) -> u32 {
        (self.word >> 32) as u32
    }
}

impl<T> Clone for Handle<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}

impl<T> Eq for Handle<T> {}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}
