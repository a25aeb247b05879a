//! Nonces, tags, incarnations and keys.
//!
//! Strangers see some of these, and must not be able to guess the others. So each is the output of a keyed
//! pseudo-random function, SipHash-2-4 of a counter: an observer who knows some of them learns nothing about the rest.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

/// Draws numbers under a secret key.
#[derive(Clone)]
pub(crate) struct SecretRandom {
    key: [u8; 16],
    drawn: u64,
}

impl SecretRandom {
    /// Creates a generator with `key`, which must be as secret as the numbers.
    pub fn new(key: [u8; 16]) -> Self {
        SecretRandom { key, drawn: 0 }
    }

    /// 128 bits.
    pub fn next_u128(&mut self) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u64(self.drawn);
        self.drawn += 1;
        hasher.finish128().as_u128()
    }

    /// 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.next_u128() as u64
    }

    /// A tag: 24 bits, never zero.
    pub fn next_tag(&mut self) -> u32 {
        1 + (self.next_u64() % (crate::wire::MASK_24 as u64)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_decides_and_nothing_repeats() {
        let draw = |key| {
            let mut random = SecretRandom::new([key; 16]);
            (0..1000).map(|_| random.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        let mut all = [draw(1), draw(2)].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2000);
    }
}
