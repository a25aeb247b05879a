//! Parsing the format of a datagram: see the [module above](super).

use std::ops::Range;

/// Bytes of a frame's length.
const LENGTH_BYTES: usize = 2;

/// Bytes that a packet of `len` bytes takes.
#[inline]
pub(super) const fn frame_bytes(len: usize) -> usize {
    (LENGTH_BYTES + len).next_multiple_of(2)
}

/// The length that stands before a packet.
#[inline]
pub(super) fn length(len: usize) -> [u8; LENGTH_BYTES] {
    (len as u16).to_le_bytes()
}

/// What lies at some place of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A packet, at this range. The next frame begins at the next even distance from the start.
    Frame(Range<usize>),
    /// No more frames.
    End,
    /// A length that cannot be right.
    Malformed,
}

/// Finds the first frame at or after `at`; packets longer than `packet_bytes_max` are malformed.
#[inline]
pub(super) fn next(bytes: &[u8], mut at: usize, packet_bytes_max: usize) -> Next {
    loop {
        let Some(&[low, high]) = bytes.get(at..at + LENGTH_BYTES) else { return Next::End };
        let len = usize::from(u16::from_le_bytes([low, high]));
        at += LENGTH_BYTES;
        if len > bytes.len() - at || len > packet_bytes_max {
            return Next::Malformed;
        }
        if len > 0 {
            return Next::Frame(at..at + len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_padding_and_lies() {
        let two = [1, 0, 7, 99, 2, 0, 8, 9, 0, 0, 0, 0, 1, 0, 5];
        assert_eq!(next(&two, 0, 100), Next::Frame(2..3));
        assert_eq!(next(&two, 4, 100), Next::Frame(6..8));
        assert_eq!(next(&two, 8, 100), Next::Frame(14..15), "zeros are passed over");
        assert_eq!(next(&two, 16, 100), Next::End);
        assert_eq!(next(&two[..12], 8, 100), Next::End);
        assert_eq!(next(&two[..9], 8, 100), Next::End, "a single byte says nothing");
        assert_eq!(next(&two, 4, 1), Next::Malformed, "longer than the largest packet");
        assert_eq!(next(&[2, 0, 1], 0, 100), Next::Malformed, "past the end");
        assert_eq!(next(&[0xff, 0xff], 0, usize::MAX), Next::Malformed);
        assert_eq!(next(&[], 0, 100), Next::End);
        assert_eq!((frame_bytes(1), frame_bytes(2), frame_bytes(3)), (4, 4, 6));
    }
}
