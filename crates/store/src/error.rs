//! Why an operation was not done.

use thiserror::Error;

use crate::key::KEY_BYTES_MAX;

/// A key that no item can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// No bytes at all.
    #[error("the key is empty")]
    Empty,
    /// More than [`KEY_BYTES_MAX`] bytes.
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
    /// There is no such item, and the operation needs one.
    #[error("there is no item with this key")]
    NotFound,
    /// There is an item, and the operation adds only new ones.
    #[error("there is an item with this key already")]
    Exists,
    /// The item was changed since the CAS token was given.
    #[error("the item was changed meanwhile")]
    Changed,
    /// The value would be longer than a value may be.
    #[error("the value would have {len} bytes, more than {max}")]
    TooLarge {
        /// Its length.
        len: usize,
        /// The longest allowed here.
        max: usize,
    },
    /// The value is not a decimal number below 2^64.
    #[error("the value is not a number")]
    NotANumber,
    /// No memory is left (store mode; a cache evicts instead).
    #[error("the memory of this partition is full: delete items or start it with more memory")]
    Full,
}

/// Refuses a value that is longer than a store takes.
pub(crate) fn check_len(len: usize, max: usize) -> Result<(), Refused> {
    if len > max { Err(Refused::TooLarge { len, max }) } else { Ok(()) }
}
