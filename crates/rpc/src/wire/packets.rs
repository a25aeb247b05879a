//! The packets of a message that an answer acknowledges, or that a request for response asks for: bodies of
//! CREDIT_RETURN and REQUEST_FOR_RESPONSE. Both are optional. Without a body, the packet means what its header alone
//! says.

use super::ParseError;
use super::control::Body;

/// Packets that one [`Arrivals`] covers, up to the one that it answers.
pub const ARRIVALS_BITS: u32 = u64::BITS;
/// Packets that one [`Asked`] may ask for.
pub const ASKED_MAX: u32 = 64;

/// Body of a CREDIT_RETURN while packets are missing before the one it answers, 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrivals {
    /// The first missing packet: all before it have arrived.
    pub first_missing: u32,
    /// Bit *b* says whether the packet *b* before the answered one has arrived; so bit 0 is set.
    pub mask: u64,
}

/// Body of a REQUEST_FOR_RESPONSE for several packets in a row, 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// How many, including the one in the header: 2 to [`ASKED_MAX`].
    pub packets: u32,
}

impl Body for Arrivals {
    const BYTES: usize = 16;

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.first_missing.to_le_bytes());
        to.extend([0; 4]);
        to.extend(self.mask.to_le_bytes());
    }

    fn read(body: &[u8]) -> Result<Self, ParseError> {
        let (first, mask) = body.split_first_chunk::<8>().ok_or(ParseError::Truncated)?;
        let first = u64::from_le_bytes(*first);
        let mask = u64::from_le_bytes(*mask.first_chunk().ok_or(ParseError::Truncated)?);
        if first >> 32 != 0 || mask & 1 == 0 {
            return Err(ParseError::Malformed);
        }
        Ok(Arrivals { first_missing: first as u32, mask })
    }
}

impl Body for Asked {
    const BYTES: usize = 8;

    fn write(&self, to: &mut Vec<u8>) {
        to.extend((self.packets as u64).to_le_bytes());
    }

    fn read(body: &[u8]) -> Result<Self, ParseError> {
        let packets = u64::from_le_bytes(*body.first_chunk().ok_or(ParseError::Truncated)?);
        if !(2..=ASKED_MAX as u64).contains(&packets) {
            return Err(ParseError::Malformed);
        }
        Ok(Asked { packets: packets as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_survive_and_nonsense_is_refused() {
        let arrivals = Arrivals { first_missing: 77, mask: 0x8000_0000_0000_0001 };
        let mut bytes = Vec::new();
        arrivals.write(&mut bytes);
        assert_eq!((bytes.len(), Arrivals::parse(&bytes)), (Arrivals::BYTES, Ok(arrivals)));
        bytes[8] = 0;
        assert_eq!(Arrivals::parse(&bytes), Err(ParseError::Malformed), "what is answered has arrived");
        (bytes[8], bytes[5]) = (1, 1);
        assert_eq!(Arrivals::parse(&bytes), Err(ParseError::Malformed), "zeros are zeros");
        assert_eq!(Arrivals::parse(&bytes[1..]), Err(ParseError::Length));
        let mut bytes = Vec::new();
        Asked { packets: ASKED_MAX }.write(&mut bytes);
        assert_eq!(Asked::parse(&bytes), Ok(Asked { packets: ASKED_MAX }));
        for wrong in [0, 1, ASKED_MAX as u64 + 1, u64::MAX] {
            assert_eq!(Asked::parse(&wrong.to_le_bytes()), Err(ParseError::Malformed));
        }
    }
}
