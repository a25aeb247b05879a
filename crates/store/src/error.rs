//! Why an operation was rejected.

use thiserror::Error;

use crate::key::KEY_BYTES_MAX;

/// An invalid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// It is empty.
    #[error("the key is empty")]
    Empty,
    /// It is longer than [`KEY_BYTES_MAX`] bytes.
    #[error("the key has {len} bytes, more than {KEY_BYTES_MAX}")]
    TooLong {
        /// Its length.
        len: usize,
    },
}

/// Why an operation changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The item does not exist, and the operation needs one.
    #[error("there is no item with this key")]
    NotFound,
    /// The item exists, and the operation adds only new ones.
    #[error("there is an item with this key already")]
    Exists,
    /// The item was changed since the CAS token was given.
    #[error("the item was changed meanwhile")]
    Changed,
    /// The value would be too long.
    #[error("the value would have {len} bytes, more than {max}")]
    TooLarge {
        /// Its length.
        len: usize,
        /// The maximum allowed here.
        max: usize,
    },
    /// The value is not a decimal number below 2^64.
    #[error("the value is not a number")]
    NotANumber,
    /// No memory is left (store mode; a cache evicts instead).
    #[error("the memory of this partition is full: delete items or start it with more memory")]
    Full,
}

/// Rejects a value that is longer than a store accepts.
pub(crate) fn check_len(len: usize, max: usize) -> Result<(), Refused> {
    if len > max { Err(Refused::TooLarge { len, max }) } else { Ok(()) }
}
