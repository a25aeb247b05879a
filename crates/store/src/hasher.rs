//! The keyed hash of a partition's keys: without the secret, nobody can choose keys that collide in the index.
//!
//! `docs/store.md` says what each function guarantees, and against whom.

mod multilinear;

use siphasher::sip::SipHasher13;

use crate::config::{KeyFunction, PartitionError};
use crate::key::KeyHash;
use multilinear::Multilinear;

/// Hashes keys under one secret.
#[derive(Clone)]
pub(crate) struct KeyHasher {
    function: Function,
    secret: [u64; 2],
}

#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "there is one of a partition, and what it holds is read for every key")]
enum Function {
    Multilinear(Multilinear),
    SipHash(SipHasher13),
}

impl std::fmt::Debug for KeyHasher {
    /// Omits the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyHasher")
    }
}

impl KeyHasher {
    /// Creates one with a random secret.
    pub(crate) fn random(function: KeyFunction) -> Result<KeyHasher, PartitionError> {
        let no_secret = |cause| PartitionError::NoSecret { cause };
        let (a, b) = (getrandom::u64().map_err(no_secret)?, getrandom::u64().map_err(no_secret)?);
        Ok(KeyHasher::with_secret(function, [a, b]))
    }

    /// Creates one with this secret, for reproducible tests.
    pub(crate) fn with_secret(function: KeyFunction, secret: [u64; 2]) -> KeyHasher {
        let sip = SipHasher13::new_with_keys(secret[0], secret[1]);
        let function = match function {
            KeyFunction::Multilinear => Function::Multilinear(Multilinear::new(sip)),
            KeyFunction::SipHash => Function::SipHash(sip),
        };
        KeyHasher { function, secret }
    }

    /// Returns its secret.
    pub(crate) fn secret(&self) -> [u64; 2] {
        self.secret
    }

    /// Returns one with another secret, derived from this one's.
    pub(crate) fn successor(&self) -> KeyHasher {
        let function = match self.function {
            Function::Multilinear(_) => KeyFunction::Multilinear,
            Function::SipHash(_) => KeyFunction::SipHash,
        };
        KeyHasher::with_secret(
            function,
            [self.hash(b"successor, first half").0, self.hash(b"successor, second half").0],
        )
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        match &self.function {
            Function::Multilinear(function) => KeyHash(function.hash(key)),
            Function::SipHash(state) => sip_hash(state, key),
        }
    }
}

#[inline(never)]
fn sip_hash(state: &SipHasher13, key: &[u8]) -> KeyHash {
    KeyHash(state.hash(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_functions_differ() {
        let hash = |function, secret| KeyHasher::with_secret(function, secret).hash(b"plover");
        let both = [KeyFunction::Multilinear, KeyFunction::SipHash];
        for function in both {
            assert_eq!(hash(function, [1, 2]), hash(function, [1, 2]));
            assert_ne!(hash(function, [1, 2]), hash(function, [2, 1]));
        }
        assert_ne!(hash(both[0], [1, 2]), hash(both[1], [1, 2]));
        assert_eq!(hash(KeyFunction::SipHash, [1, 2]).0, SipHasher13::new_with_keys(1, 2).hash(b"plover"));
    }
}
