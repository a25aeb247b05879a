//! Decimal numbers, read as memcached reads them (`strtoul` and its check of what follows) and written without allocation.

fn is_space(byte: u8) -> bool {
    byte == b' ' || (b'\t'..=b'\r').contains(&byte)
}

/// Sign and magnitude of a number with which a word begins; spaces other than the blank may stand around it, and anything behind such a
/// space. `None` if there is no number, or one too long for 64 bits.
fn parts(word: &[u8]) -> Option<(bool, u64)> {
    let start = word.iter().take_while(|&&byte| is_space(byte)).count();
    let mut rest = &word[start..];
    let is_negative = rest.first() == Some(&b'-');
    if is_negative || rest.first() == Some(&b'+') {
        rest = &rest[1..];
    }
    let mut value = 0u64;
    let mut len = 0;
    for &byte in rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            if !is_space(byte) {
                return None;
            }
            break;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        len += 1;
    }
    (len > 0).then_some((is_negative, value))
}

/// A number of 64 bits without a minus.
pub(super) fn unsigned(word: &[u8]) -> Option<u64> {
    match parts(word)? {
        (false, value) => Some(value),
        (true, _) => None,
    }
}

/// A number of 32 bits without a minus. A longer one loses its high half: memcached stores flags so.
pub(super) fn unsigned_32(word: &[u8]) -> Option<u32> {
    unsigned(word).map(|value| value as u32)
}

/// A signed number of 32 bits. A longer one loses its high half: memcached reads times so.
pub(super) fn signed_32(word: &[u8]) -> Option<i32> {
    let (is_negative, value) = parts(word)?;
    let value = i64::try_from(value).ok()?;
    Some(if is_negative { -value } else { value } as i32)
}

/// The length of a data block: zero or more, and small enough for memcached's `int`.
pub(super) fn data_len(word: &[u8]) -> Option<usize> {
    const LEN_MAX: u64 = i32::MAX as u64 - 2;
    let len = unsigned(word)?;
    if len > LEN_MAX { None } else { Some(len as usize) }
}

/// Writes a number in decimal.
#[inline]
pub(super) fn write(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_strtoul_reads_them() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b"+7"), Some(7));
        assert_eq!(unsigned(b"\t7\tx"), Some(7));
        for bad in [&b""[..], b"-1", b"x", b"7x", b"+", b"\t"] {
            assert_eq!(unsigned(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn long_numbers_lose_their_high_half_where_memcached_drops_it() {
        assert_eq!(unsigned_32(b"4294967296"), Some(0));
        assert_eq!(signed_32(b"2147483648"), Some(i32::MIN));
        assert_eq!(signed_32(b"-1"), Some(-1));
        assert_eq!(signed_32(b"9223372036854775808"), None);
    }

    #[test]
    fn lengths_are_never_negative() {
        assert_eq!(data_len(b"0"), Some(0));
        assert_eq!(data_len(b"2147483645"), Some(2_147_483_645));
        assert_eq!(data_len(b"2147483646"), None);
        assert_eq!(data_len(b"-1"), None);
        assert_eq!(data_len(b"4294967297"), None);
    }
}
