//! Parsing the format of a datagram: see the [module above](super).

use std::ops::Range;

/// Bytes of a frame's length.
pub(super) const LENGTH_BYTES: usize = 2;

/// What stands at some place of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A packet, at this range.
    Frame(Range<usize>),
    /// No more frames.
    End,
    /// A length that cannot be true.
    Malformed,
}

/// Reads what stands at `at` of the datagram that is `bytes[..]`; packets longer than `packet_bytes_max` are malformed.
#[inline]
pub(super) fn next(bytes: &[u8], at: usize, packet_bytes_max: usize) -> Next {
    let Some(&[low, high]) = bytes.get(at..at + LENGTH_BYTES) else { return Next::End };
    let len = usize::from(u16::from_le_bytes([low, high]));
    let start = at + LENGTH_BYTES;
    if len == 0 {
        Next::End
    } else if len > bytes.len() - start || len > packet_bytes_max {
        Next::Malformed
    } else {
        Next::Frame(start..start + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_padding_and_lies() {
        let two = [1, 0, 7, 2, 0, 8, 9, 0, 0, 55];
        assert_eq!(next(&two, 0, 100), Next::Frame(2..3));
        assert_eq!(next(&two, 3, 100), Next::Frame(5..7));
        assert_eq!(next(&two, 7, 100), Next::End, "a zero length begins the padding");
        assert_eq!(next(&two, 9, 100), Next::End, "a single byte is padding");
        assert_eq!(next(&two, 10, 100), Next::End);
        assert_eq!(next(&two, 3, 1), Next::Malformed, "longer than the largest packet");
        assert_eq!(next(&[2, 0, 1], 0, 100), Next::Malformed, "past the end");
        assert_eq!(next(&[0xff, 0xff], 0, usize::MAX), Next::Malformed);
        assert_eq!(next(&[], 0, 100), Next::End);
    }
}
