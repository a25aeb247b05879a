//! Decimal numbers, parsed as memcached parses them (`strtoul` and its check of what follows) and written without
//! allocation.

fn is_space(byte: u8) -> bool {
    byte == b' ' || (b'\t'..=b'\r').contains(&byte)
}

/// Returns sign and magnitude of the number that a word begins with. White space other than blanks may surround it, and
/// anything may follow such white space. `None` if there is no number, or one too long for 64 bits.
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

/// Parses digits alone.
fn digits(word: &[u8]) -> Option<u64> {
    word.iter().try_fold(0u64, |value, &byte| match byte {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// Parses a number of 64 bits: at most 22 digits and nothing else.
pub(super) fn unsigned(word: &[u8]) -> Option<u64> {
    if matches!(word.len(), 1..=22) { digits(word) } else { None }
}

/// Parses a number of 32 bits: at most 11 digits and nothing else.
pub(super) fn unsigned_32(word: &[u8]) -> Option<u32> {
    if matches!(word.len(), 1..=11) { digits(word)?.try_into().ok() } else { None }
}

/// Parses a signed number of 32 bits: an optional minus, and at most 11 bytes in all. A minus alone is zero, as in
/// memcached.
pub(super) fn signed_32(word: &[u8]) -> Option<i32> {
    if !matches!(word.len(), 1..=11) {
        return None;
    }
    match word.strip_prefix(b"-") {
        Some(rest) => i32::try_from(-digits(rest)?.cast_signed()).ok(),
        None => digits(word)?.try_into().ok(),
    }
}

/// Parses the client's flags in a storage command, like memcached's `strtoul`. A longer number loses its high half.
pub(super) fn loose_unsigned_32(word: &[u8]) -> Option<u32> {
    match parts(word)? {
        (false, value) => Some(value as u32),
        (true, _) => None,
    }
}

/// Parses the time in a storage command, like memcached's `strtol`. A longer number loses its high half.
pub(super) fn loose_signed_32(word: &[u8]) -> Option<i32> {
    let (is_negative, value) = parts(word)?;
    let value = i64::try_from(value).ok()?;
    Some(if is_negative { -value } else { value } as i32)
}

/// Parses the length of a data block: zero or more, and small enough for memcached's `int`.
pub(super) fn data_len(word: &[u8]) -> Option<usize> {
    const LEN_MAX: i32 = i32::MAX - 2;
    signed_32(word).filter(|&len| len <= LEN_MAX).and_then(|len| usize::try_from(len).ok())
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
    fn numbers_are_digits_and_nothing_else() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"0018446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned_32(b"4294967295"), Some(u32::MAX));
        assert_eq!(signed_32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(signed_32(b"2147483647"), Some(i32::MAX));
        assert_eq!(signed_32(b"-"), Some(0));
        for bad in [&b""[..], b"-1", b"+7", b"x", b"7x", b"7\t", b"18446744073709551616", b"00018446744073709551615"] {
            assert_eq!(unsigned(bad), None, "{bad:?}");
        }
        assert_eq!(unsigned_32(b"4294967296"), None);
        assert_eq!(signed_32(b"2147483648"), None);
        assert_eq!(signed_32(b"-2147483649"), None);
        assert_eq!(signed_32(b"000000000001"), None);
    }

    #[test]
    fn flags_and_times_of_storage_commands_are_read_as_strtoul_reads_them() {
        assert_eq!(loose_unsigned_32(b"+7"), Some(7));
        assert_eq!(loose_unsigned_32(b"\t7\tx"), Some(7));
        assert_eq!(loose_unsigned_32(b"4294967296"), Some(0));
        assert_eq!(loose_signed_32(b"2147483648"), Some(i32::MIN));
        assert_eq!(loose_signed_32(b"-1"), Some(-1));
        assert_eq!(loose_signed_32(b"9223372036854775808"), None);
        for bad in [&b""[..], b"-1", b"x", b"7x", b"+", b"\t"] {
            assert_eq!(loose_unsigned_32(bad), None, "{bad:?}");
        }
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
