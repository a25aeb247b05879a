//! The keyed hash of a partition's keys.
//!
//! SipHash-1-3 under a random secret of 128 bits: whoever does not know the secret cannot choose keys that meet in one place of the index.

use siphasher::sip::SipHasher13;

use crate::config::PartitionError;
use crate::key::KeyHash;

/// Hashes keys under one secret.
#[derive(Clone, Copy)]
pub(crate) struct KeyHasher {
    state: SipHasher13,
}

impl std::fmt::Debug for KeyHasher {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyHasher")
    }
}

impl KeyHasher {
    /// With a random secret.
    pub(crate) fn random() -> Result<KeyHasher, PartitionError> {
        let no_secret = |cause| PartitionError::NoSecret { cause };
        let (a, b) = (getrandom::u64().map_err(no_secret)?, getrandom::u64().map_err(no_secret)?);
        Ok(KeyHasher::with_secret([a, b]))
    }

    /// With this secret: tests repeat themselves.
    pub(crate) fn with_secret(secret: [u64; 2]) -> KeyHasher {
        KeyHasher { state: SipHasher13::new_with_keys(secret[0], secret[1]) }
    }

    #[inline(never)]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(self.state.hash(key))
    }
}
