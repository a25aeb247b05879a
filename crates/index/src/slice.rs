//! Keys in slices of eight bytes.

/// The sort key of a layer's tree: eight bytes of the key as a big-endian number, padded with zeros, and how many bytes
/// there are. Keys that differ only in trailing zeros differ only in the class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slice {
    pub(crate) bits: u64,
    /// Bytes of the key in this slice, or [`LONG`] if more follow.
    pub(crate) class: u8,
}

/// The class of keys that do not end in this slice.
pub(crate) const LONG: u8 = 9;

impl Slice {
    /// The first slice of the rest of a key.
    #[inline(always)]
    pub(crate) fn of(rest: &[u8]) -> Slice {
        if let Some(head) = rest.first_chunk::<8>() {
            return Slice { bits: u64::from_be_bytes(*head), class: if rest.len() == 8 { 8 } else { LONG } };
        }
        let mut head = [0; 8];
        head[..rest.len()].copy_from_slice(rest);
        Slice { bits: u64::from_be_bytes(head), class: rest.len() as u8 }
    }

    /// The last slice of all keys with the prefix `rest`, which has at most 8 bytes.
    pub(crate) fn last_with_prefix(rest: &[u8]) -> u64 {
        Slice::of(rest).bits | u64::MAX.checked_shr(8 * rest.len() as u32).unwrap_or(0)
    }

    /// One byte that distinguishes most slices of a leaf, also if they differ only in their low or only in their high
    /// bytes.
    #[inline(always)]
    pub(crate) fn fingerprint(bits: u64) -> u8 {
        (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }
}

/// The shortest, and so smallest, byte string with these bits: without trailing zeros.
pub(crate) fn shortest(bits: u64) -> ([u8; 8], usize) {
    (bits.to_be_bytes(), 8 - bits.trailing_zeros() as usize / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_ordered_as_keys_are() {
        let mut keys: Vec<&[u8]> =
            vec![b"", b"\0", b"\0\0", b"\0\0\0\0\0\0\0\0", b"a", b"a\0", b"ab", b"abcdefgh", b"b", b"\xff"];
        keys.sort();
        assert!(keys.windows(2).all(|pair| Slice::of(pair[0]) < Slice::of(pair[1])));
        assert_eq!(Slice::of(b"abcdefghi"), Slice { bits: Slice::of(b"abcdefgh").bits, class: LONG });
    }

    #[test]
    fn the_shortest_key_of_a_slice_has_no_zeros_at_its_end() {
        for key in [&b""[..], b"a", b"\0a", b"abcdefgh"] {
            let (bytes, len) = shortest(Slice::of(key).bits);
            assert_eq!(&bytes[..len], key);
        }
        assert_eq!(Slice::last_with_prefix(b""), u64::MAX);
        assert_eq!(Slice::last_with_prefix(b"abcdefgh"), Slice::of(b"abcdefgh").bits);
        assert_eq!(Slice::last_with_prefix(&[0x12]), 0x12ff_ffff_ffff_ffff);
    }
}
