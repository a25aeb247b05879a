//! Bytes of keys and values, determined by the number of an item.

/// Bytes of a key of the experiments.
pub const KEY_BYTES: usize = 16;
/// Bytes of a small value.
pub const VALUE_BYTES: usize = 32;

/// Bytes of the words in a value.
const WORD_BYTES: usize = 8;
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A key for a binary protocol: 16 bytes, unique for each number.
#[inline]
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mixed = mix(number);
    let mut key = [0; KEY_BYTES];
    key[..WORD_BYTES].copy_from_slice(&mixed.to_le_bytes());
    key[WORD_BYTES..].copy_from_slice(&(mixed ^ GOLDEN).to_le_bytes());
    key
}

/// A key for a text protocol: 16 hexadecimal digits, unique for each number.
#[inline]
pub fn text_key(number: u64) -> [u8; KEY_BYTES] {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let mixed = mix(number);
    std::array::from_fn(|place| DIGITS[(mixed >> (4 * place)) as usize & 15])
}

/// Fills a value.
#[inline]
pub fn fill_value(number: u64, value: &mut [u8]) {
    let (words, rest) = value.as_chunks_mut::<WORD_BYTES>();
    let mut word = mix(!number);
    for place in words {
        *place = word.to_le_bytes();
        word = word.wrapping_add(GOLDEN);
    }
    let len = rest.len();
    if len > 0 {
        rest.copy_from_slice(&word.to_le_bytes()[..len]);
    }
}

/// Whether this is the value of a number: every byte is compared.
#[inline]
pub fn is_value(number: u64, value: &[u8]) -> bool {
    let (words, rest) = value.as_chunks::<WORD_BYTES>();
    let mut word = mix(!number);
    let mut wrong = 0;
    for place in words {
        wrong |= u64::from_le_bytes(*place) ^ word;
        word = word.wrapping_add(GOLDEN);
    }
    // A comparison of no bytes may still load from after the value: an unnecessary cache line.
    wrong == 0 && (rest.is_empty() || *rest == word.to_le_bytes()[..rest.len()])
}

/// A value of `LEN` bytes.
pub fn value<const LEN: usize>(number: u64) -> [u8; LEN] {
    let mut value = [0; LEN];
    fill_value(number, &mut value);
    value
}

/// Spreads numbers over all 64 bits, injectively (the finalizer of SplitMix64).
#[inline]
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_differ_and_are_what_they_say() {
        let binary: HashSet<_> = (0..10_000).map(key).collect();
        let text: HashSet<_> = (0..10_000).map(text_key).collect();
        assert_eq!((binary.len(), text.len()), (10_000, 10_000));
        assert!(text.iter().flatten().all(u8::is_ascii_hexdigit));
    }

    #[test]
    fn a_wrong_byte_anywhere_shows() {
        for len in [0, 1, 4, 7, 8, 9, 32, 1000] {
            let mut value = vec![0; len];
            fill_value(5, &mut value);
            assert!(is_value(5, &value));
            assert!(len == 0 || !is_value(6, &value));
            for place in 0..len {
                value[place] ^= 1;
                assert!(!is_value(5, &value), "byte {place} of {len}");
                value[place] ^= 1;
            }
        }
        assert!(is_value(9, &value::<32>(9)));
    }
}
