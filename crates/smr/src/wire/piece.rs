//! A piece of a group's state, as sent to a client that makes a backup.

use super::WireError;
use super::bytes::Reader;

/// Bytes of the header before those of the state.
const HEADER_BYTES: usize = 24;

/// A piece of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatePiece<'a> {
    /// The last entry in the snapshot, and its term.
    pub index: u64,
    pub term: u64,
    /// The length of the whole snapshot.
    pub total: u64,
    pub bytes: &'a [u8],
}

impl<'a> StatePiece<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.bytes.len());
        [self.index, self.term, self.total].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out.extend_from_slice(self.bytes);
        out
    }

    /// # Errors
    /// If the bytes are too short.
    pub fn parse(bytes: &'a [u8]) -> Result<StatePiece<'a>, WireError> {
        let mut reader = Reader::new(bytes);
        let (index, term, total) = (reader.u64()?, reader.u64()?, reader.u64()?);
        Ok(StatePiece { index, term, total, bytes: reader.rest() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_parsed() {
        let piece = StatePiece { index: 7, term: 3, total: 1 << 40, bytes: b"state" };
        let encoded = piece.encode();
        assert_eq!(StatePiece::parse(&encoded), Ok(piece));
        for len in 0..HEADER_BYTES {
            assert_eq!(StatePiece::parse(&encoded[..len]), Err(WireError::Short));
        }
    }
}
