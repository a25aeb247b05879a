//! Values that an index returns.

use std::fmt;
use std::ops::Deref;

use crate::block::Block;

/// Maximum length of a value that is stored in the leaf itself, beside the key's slice.
pub(crate) const INLINE_BYTES_MAX: usize = 8;

/// A value as of the time of reading: up to 8 bytes are copied, more are borrowed from the index for the guard's
/// lifetime.
#[derive(Clone, Copy)]
pub struct Value<'a>(pub(crate) Repr<'a>);

#[derive(Clone, Copy)]
pub(crate) enum Repr<'a> {
    Inline { bytes: Word, len: u8 },
    Block(Block<'a>),
}

/// The bytes of an entry's word, where a register can be stored and loaded as a whole: beside the length they would be
/// moved piece by piece.
#[derive(Clone, Copy)]
#[repr(align(8))]
pub(crate) struct Word(pub(crate) [u8; INLINE_BYTES_MAX]);

impl Deref for Value<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { bytes, len } => &bytes.0[..usize::from(*len).min(INLINE_BYTES_MAX)],
            Repr::Block(block) => block.value(),
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
