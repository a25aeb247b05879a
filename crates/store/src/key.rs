//! Keys and their hashes.

use crate::error::KeyError;

/// Longest key, in bytes: memcached's limit.
pub const KEY_BYTES_MAX: usize = 250;

/// The hash of a key under the secret of one partition; meaningless to another partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub u64);

/// A key of 1 to [`KEY_BYTES_MAX`] arbitrary bytes, with its hash: computed once by [`crate::Store::key`], then used by
/// prefetches and the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'k> {
    bytes: &'k [u8],
    hash: KeyHash,
}

impl<'k> Key<'k> {
    /// Checks the length and computes the hash.
    ///
    /// # Errors
    /// [`KeyError`] if it is empty or too long.
    #[inline(always)]
    pub fn new(bytes: &'k [u8], hash: impl FnOnce(&[u8]) -> KeyHash) -> Result<Key<'k>, KeyError> {
        match bytes.len() {
            0 => Err(KeyError::Empty),
            1..=KEY_BYTES_MAX => Ok(Key { bytes, hash: hash(bytes) }),
            len => Err(KeyError::TooLong { len }),
        }
    }

    /// Returns its bytes.
    #[inline]
    pub fn bytes(&self) -> &'k [u8] {
        self.bytes
    }

    /// Returns its hash.
    #[inline]
    pub fn hash(&self) -> KeyHash {
        self.hash
    }
}
