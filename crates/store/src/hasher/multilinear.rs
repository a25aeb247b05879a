//! Multilinear hashing, as "multiply-shift for vectors" in M. Thorup, High Speed Hashing for Integers and Strings
//! (2015), section 3.
//!
//! The words of a key are its length and its bytes, 64 bits each. The hash is the upper half of this sum modulo 2^128:
//! a random number of 128 bits, plus each word times another random number of 128 bits. It is strongly universal: the
//! hashes of any two keys are uniform and independent of each other. So two keys share one of `n` homes with
//! probability `1 / n`, however they were chosen, except by someone who has seen hashes.
//!
//! It takes two multiplications for each 8 bytes, all independent of each other.

use siphasher::sip::SipHasher13;

use crate::key::KEY_BYTES_MAX;

const WORD_BYTES: usize = 8;
/// Words of the longest key.
const WORDS_MAX: usize = KEY_BYTES_MAX.div_ceil(WORD_BYTES);
/// An odd number, here one whose multiples are well distributed.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The function for one secret.
#[derive(Clone)]
pub(super) struct Multilinear {
    start: u128,
    of_length: u128,
    of_words: [u128; WORDS_MAX],
}

impl Multilinear {
    /// Creates the function with random numbers from `source`.
    pub fn new(source: SipHasher13) -> Multilinear {
        let mut count = 0u64;
        let mut draw = || {
            count += 1;
            u128::from(source.hash(&(2 * count).to_le_bytes())) << 64
                | u128::from(source.hash(&(2 * count + 1).to_le_bytes()))
        };
        Multilinear { start: draw(), of_length: draw(), of_words: std::array::from_fn(|_| draw()) }
    }

    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let (words, rest) = key.as_chunks();
        // The most common key size, without a call or a loop.
        match (words, rest) {
            ([first, second], []) => {
                mix((self.begin(key.len()).wrapping_add(self.term(0, *first))).wrapping_add(self.term(1, *second)))
            }
            _ => self.hash_any(key),
        }
    }

    #[inline(never)]
    fn hash_any(&self, key: &[u8]) -> u64 {
        let (words, rest) = key.as_chunks();
        let mut sum = self.begin(key.len());
        for (at, word) in words.iter().enumerate() {
            sum = sum.wrapping_add(self.term(at, *word));
        }
        if !rest.is_empty() {
            // The length distinguishes keys that end in zeros.
            let mut word = [0; WORD_BYTES];
            word[..rest.len()].copy_from_slice(rest);
            sum = sum.wrapping_add(self.term(words.len(), word));
        }
        mix(sum)
    }

    #[inline(always)]
    fn begin(&self, len: usize) -> u128 {
        self.start.wrapping_add(self.of_length.wrapping_mul(len as u128))
    }

    #[inline(always)]
    fn term(&self, at: usize, word: [u8; WORD_BYTES]) -> u128 {
        self.of_words[at].wrapping_mul(u128::from(u64::from_le_bytes(word)))
    }
}

/// Returns the upper half with its bits mixed. The mixing is a bijection, so all guarantees for the half still hold.
/// The sums of sequential keys are regular, which would crowd ranges of homes; mixing breaks that.
#[inline(always)]
fn mix(sum: u128) -> u64 {
    let half = (sum >> 64) as u64;
    let half = (half ^ half >> 32).wrapping_mul(ODD);
    half ^ half >> 29
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn function(seed: u64) -> Multilinear {
        Multilinear::new(SipHasher13::new_with_keys(seed, !seed))
    }

    /// Computes it word by word, as defined.
    fn by_definition(function: &Multilinear, key: &[u8]) -> u64 {
        let mut sum = function.start.wrapping_add((key.len() as u128).wrapping_mul(function.of_length));
        for (at, chunk) in key.chunks(8).enumerate() {
            let word = chunk.iter().rev().fold(0u128, |word, byte| word << 8 | u128::from(*byte));
            sum = sum.wrapping_add(word.wrapping_mul(function.of_words[at]));
        }
        mix(sum)
    }

    proptest! {
        #[test]
        fn every_length_is_hashed_by_the_definition(seed in any::<u64>(), key in prop::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX)) {
            let function = function(seed);
            prop_assert_eq!(function.hash(&key), by_definition(&function, &key));
            prop_assert_eq!(function.hash(&key[..key.len().min(16)]), by_definition(&function, &key[..key.len().min(16)]));
        }
    }

    #[test]
    fn every_bit_and_the_length_count() {
        let function = function(1);
        let mut hashes = HashSet::new();
        let mut count = 0;
        for len in 1..=KEY_BYTES_MAX {
            let mut key = vec![0; len];
            hashes.insert(function.hash(&key));
            count += 1;
            for bit in 0..len * 8 {
                key[bit / 8] ^= 1 << (bit % 8);
                hashes.insert(function.hash(&key));
                key[bit / 8] ^= 1 << (bit % 8);
                count += 1;
            }
        }
        assert_eq!(hashes.len(), count);
    }

    /// Keys as programs generate them fill homes like random numbers do: the sum of squares of their counts is within
    /// six standard deviations of the expected one.
    #[test]
    fn keys_that_count_up_spread_as_random_ones() {
        const HOMES: usize = 1 << 12;
        const KEYS: usize = 1 << 16;
        type MakeKey = fn(usize) -> Vec<u8>;
        let makers: [(&str, MakeKey); 5] = [
            ("8 bytes, little-endian", |number| number.to_le_bytes().to_vec()),
            ("8 bytes, big-endian", |number| number.to_be_bytes().to_vec()),
            ("16 bytes, in the second word", |number| [[0; 8], (number << 20).to_le_bytes()].concat()),
            ("decimal text", |number| format!("user:{number}").into_bytes()),
            ("16 bytes, in both words", |number| [(number % 256).to_le_bytes(), (number / 256).to_le_bytes()].concat()),
        ];
        for seed in 0..8 {
            let function = function(seed);
            for (name, make) in makers {
                let mut counts = vec![0u64; HOMES];
                for number in 0..KEYS {
                    let home = (u128::from(function.hash(&make(number))) * HOMES as u128) >> 64;
                    counts[home as usize] += 1;
                }
                let mean = (KEYS / HOMES) as f64;
                let chi_squared: f64 = counts.iter().map(|count| (*count as f64 - mean).powi(2) / mean).sum();
                let deviation = (chi_squared - HOMES as f64) / (2.0 * HOMES as f64).sqrt();
                assert!(deviation < 6.0, "{name}, seed {seed}: {deviation:.1} standard deviations above random keys");
            }
        }
    }
}
