//! Values, in their receive buffers.

use std::fmt;
use std::ops::{Deref, Range};
use std::rc::Rc;

use dunlin_rpc::MsgBuf;

/// A value that was read, in its receive buffer: no copy. Values of a multi-get share their buffers.
#[derive(Clone)]
pub struct Value {
    buffer: Rc<MsgBuf>,
    place: Range<usize>,
    flags: u32,
}

impl Value {
    /// # Panics
    /// If `place` is out of range.
    pub(super) fn new(buffer: Rc<MsgBuf>, place: Range<usize>, flags: u32) -> Value {
        assert!(place.start <= place.end && place.end <= buffer.len());
        Value { buffer, place, flags }
    }

    /// Returns the item's flags.
    pub fn flags(&self) -> u32 {
        self.flags
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buffer[self.place.clone()]
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({} B, flags {})", self.len(), self.flags)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        self[..] == other[..] && self.flags == other.flags
    }
}

impl Eq for Value {}

impl PartialEq<[u8]> for Value {
    fn eq(&self, other: &[u8]) -> bool {
        self[..] == *other
    }
}
