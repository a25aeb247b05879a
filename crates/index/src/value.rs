//! Values that an index returns.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::block::Block;

/// Maximum length of a value that is stored in the leaf itself, beside the key's slice.
pub(crate) const INLINE_BYTES_MAX: usize = 8;

/// A value as of the time of reading: up to 8 bytes are copied, more are borrowed from the index for the guard's
/// lifetime.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    /// The bytes in the order of memory, or the word of a block.
    word: u64,
    form: Form,
    block: PhantomData<Block<'a>>,
}

/// The number of bytes, if they are in the word. Beside it, an optional value has two words, which fit into registers.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Form {
    Bytes0,
    Bytes1,
    Bytes2,
    Bytes3,
    Bytes4,
    Bytes5,
    Bytes6,
    Bytes7,
    Bytes8,
    Block,
}

impl<'a> Value<'a> {
    /// A value whose first `len` bytes, at most 8, are those of a little-endian word.
    #[inline(always)]
    pub(crate) fn inline(word: u64, len: u8) -> Value<'a> {
        let form = match len {
            0 => Form::Bytes0,
            1 => Form::Bytes1,
            2 => Form::Bytes2,
            3 => Form::Bytes3,
            4 => Form::Bytes4,
            5 => Form::Bytes5,
            6 => Form::Bytes6,
            7 => Form::Bytes7,
            _ => Form::Bytes8,
        };
        Value { word: word.to_le(), form, block: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn in_block(block: Block<'a>) -> Value<'a> {
        Value { word: block.to_word(), form: Form::Block, block: PhantomData }
    }

    /// The block that it is in, if there is one.
    #[inline(always)]
    pub(crate) fn block(self) -> Option<Block<'a>> {
        // SAFETY: the word was made from a block that stays for `'a`.
        (self.form == Form::Block).then(|| unsafe { Block::from_word(self.word) })
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        match self.block() {
            Some(block) => block.value(),
            // SAFETY: the word has 8 bytes, and all other forms say at most that.
            None => unsafe { std::slice::from_raw_parts((&raw const self.word).cast(), self.form as usize) },
        }
    }
}

impl AsRef<[u8]> for Value<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Value<'_> {
    fn eq(&self, other: &Value<'_>) -> bool {
        **self == **other
    }
}

impl Eq for Value<'_> {}

impl PartialEq<[u8]> for Value<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}
