//! The keys of items, by number.

use serde::{Deserialize, Serialize};

/// Bytes of a [`Shape::Number`].
pub const NUMBER_BYTES: usize = 8;
/// Bytes of a [`Shape::Path`].
pub const PATH_BYTES: usize = 32;
/// Different prefixes of paths, and their length.
const PREFIXES: u64 = 1_000;
const PREFIX_BYTES: usize = PATH_BYTES - NUMBER_BYTES;

/// The form of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// Eight random bytes.
    Number,
    /// One of 1,000 prefixes of 24 bytes, then eight random bytes.
    Path,
}

impl Shape {
    /// Bytes of a key.
    pub fn bytes(self) -> usize {
        match self {
            Shape::Number => NUMBER_BYTES,
            Shape::Path => PATH_BYTES,
        }
    }
}

/// A permutation of the numbers in pseudo-random order (the finalizer of SplitMix64).
#[inline]
fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The key of a [`Shape::Number`].
#[inline]
pub fn item_key(number: u64) -> [u8; NUMBER_BYTES] {
    mix(number).to_be_bytes()
}

/// Makes keys of `KEY` bytes.
pub(super) trait Keys<const KEY: usize>: Sync {
    fn key(&self, number: u64) -> [u8; KEY];
}

pub(super) struct Numbers;

impl Keys<NUMBER_BYTES> for Numbers {
    #[inline(always)]
    fn key(&self, number: u64) -> [u8; NUMBER_BYTES] {
        item_key(number)
    }
}

/// The prefixes are made in advance: spelling one out takes as long as half a look-up.
pub(super) struct Paths {
    prefixes: Vec<[u8; PREFIX_BYTES]>,
}

impl Paths {
    pub fn new() -> Paths {
        let prefix = |number: u64| {
            let mut prefix = *b"shared/prefix/of/keys000";
            for (at, divisor) in [(21, 100), (22, 10), (23, 1)] {
                prefix[at] = b'0' + (number / divisor % 10) as u8;
            }
            prefix
        };
        Paths { prefixes: (0..PREFIXES).map(prefix).collect() }
    }
}

impl Keys<PATH_BYTES> for Paths {
    #[inline(always)]
    fn key(&self, number: u64) -> [u8; PATH_BYTES] {
        let mixed = mix(number);
        // Multiplying the upper half is as even as a remainder, and cheaper.
        let prefix = ((mixed >> 32) * PREFIXES >> 32) as usize;
        let mut key = [0; PATH_BYTES];
        key[..PREFIX_BYTES].copy_from_slice(&self.prefixes[prefix]);
        key[PREFIX_BYTES..].copy_from_slice(&mixed.to_be_bytes());
        key
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_differ_and_paths_share_prefixes() {
        let paths = Paths::new();
        let keys: HashSet<_> = (0..20_000).map(|number| paths.key(number)).collect();
        assert_eq!(keys.len(), 20_000);
        let prefixes: HashSet<_> = keys.iter().map(|key| &key[..PREFIX_BYTES]).collect();
        assert_eq!(prefixes.len(), PREFIXES as usize);
        assert_eq!((0..20_000).map(item_key).collect::<HashSet<_>>().len(), 20_000);
    }
}
