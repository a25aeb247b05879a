//! The format of packets.
//!
//! | Bytes | What |
//! |---|---|
//! | 0, 1 | `5e d0` |
//! | 2 | version, 1 |
//! | 3 | kind |
//! | 4 to 7 | incarnation of the server, or its epoch; 0 in a request of a client that knows neither |
//! | 8 to 15 | tag of the attempt |
//! | 16 to 19 | data |
//! | 20 to 23 | upper half, in [`Kind::Full`], [`Kind::Hello`] and [`Kind::Epoch`] only |
//!
//! Numbers are little-endian. Packets of any other length are invalid.

/// The first bytes of a packet.
pub const MAGIC: [u8; 2] = [0x5e, 0xd0];
/// Version of the format.
pub const VERSION: u8 = 1;
/// Bytes of a packet with four bytes of data.
pub const SHORT_BYTES: usize = 20;
/// Bytes of a packet with eight.
pub const LONG_BYTES: usize = 24;

/// The kind of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A request for one number. Data: the upper half that the client expects.
    Ask = 1,
    /// The guess is right. Data: the lower half of the number.
    Low = 2,
    /// The guess is wrong. Data: the number.
    Full = 3,
    /// The server has this incarnation, and the request named another. Data: its next number.
    Hello = 4,
    /// There is no number. Data: the reason, a [`Refusal`].
    Refused = 5,
    /// The server is in this epoch, and the request named another. Data: its next number.
    Epoch = 6,
}

/// Why there is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Refusal {
    /// No numbers are reserved at the moment.
    Dry = 1,
    /// Another sequencer may serve.
    NotServing = 2,
    /// The last number is handed out.
    Exhausted = 3,
}

impl Refusal {
    fn of(code: u32) -> Option<Refusal> {
        [Refusal::Dry, Refusal::NotServing, Refusal::Exhausted].into_iter().find(|known| *known as u32 == code)
    }
}

/// A packet that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Its kind.
    pub kind: Kind,
    /// The server's incarnation, or its epoch.
    pub incarnation: u32,
    /// The attempt's tag.
    pub tag: u64,
    /// The data; the upper half is zero in packets with four bytes.
    pub data: u64,
}

/// An encoded packet: the first [`Packet::len`] bytes are valid.
pub type Bytes = [u8; LONG_BYTES];

impl Kind {
    #[inline]
    fn of(code: u8) -> Option<Kind> {
        match code {
            1 => Some(Kind::Ask),
            2 => Some(Kind::Low),
            3 => Some(Kind::Full),
            4 => Some(Kind::Hello),
            5 => Some(Kind::Refused),
            6 => Some(Kind::Epoch),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn len(self) -> usize {
        if matches!(self, Kind::Full | Kind::Hello | Kind::Epoch) { LONG_BYTES } else { SHORT_BYTES }
    }
}

/// The first eight bytes of a packet as one word: equal words are equal headers, so one comparison checks all of it.
#[inline]
pub(super) const fn start(kind: Kind, incarnation: u32) -> u64 {
    let of_format = u32::from_le_bytes([MAGIC[0], MAGIC[1], VERSION, kind as u8]);
    of_format as u64 | (incarnation as u64) << 32
}

/// The [`start`], the tag and the data of a packet with four bytes of data; `None` if it has any other length.
#[inline]
pub(super) fn split_short(bytes: &[u8]) -> Option<(u64, u64, u32)> {
    let bytes: &[u8; SHORT_BYTES] = bytes.try_into().ok()?;
    let word = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
    Some((word(0)?, word(8)?, u32::from_le_bytes(bytes[16..].try_into().ok()?)))
}

/// An encoded packet as words, which are written whole: bytes that were written one by one are slow to read as words.
pub(super) type Words = [[u8; 8]; LONG_BYTES / 8];

/// A packet of its [`start`], tag and data.
#[inline]
pub(super) fn words(start: u64, tag: u64, data: u64) -> Words {
    [start.to_le_bytes(), tag.to_le_bytes(), data.to_le_bytes()]
}

impl Packet {
    /// Its encoded length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    /// Encodes it, and returns the length.
    #[inline]
    pub fn write(&self, to: &mut Bytes) -> usize {
        to.copy_from_slice(words(start(self.kind, self.incarnation), self.tag, self.data).as_flattened());
        self.kind.len()
    }

    /// Parses bytes; `None` if they are not a packet of this version.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Packet> {
        let (head, data) = bytes.split_at_checked(16)?;
        let head: &[u8; 16] = head.try_into().ok()?;
        if head[..2] != MAGIC || head[2] != VERSION {
            return None;
        }
        let kind = Kind::of(head[3])?;
        if bytes.len() != kind.len() {
            return None;
        }
        let data = match kind.len() {
            SHORT_BYTES => u64::from(u32::from_le_bytes(data.try_into().ok()?)),
            _ => u64::from_le_bytes(data.try_into().ok()?),
        };
        let incarnation = u32::from_le_bytes(head[4..8].try_into().ok()?);
        Some(Packet { kind, incarnation, tag: u64::from_le_bytes(head[8..].try_into().ok()?), data })
    }

    /// The reason in a [`Kind::Refused`] packet.
    pub fn refusal(&self) -> Option<Refusal> {
        (self.kind == Kind::Refused).then(|| Refusal::of(self.data as u32))?
    }
}

#[cfg(test)]
mod tests {
    use dunlin_net::random::Random;

    use super::*;

    const KINDS: [Kind; 6] = [Kind::Ask, Kind::Low, Kind::Full, Kind::Hello, Kind::Refused, Kind::Epoch];

    #[test]
    fn packets_are_read_back() {
        for kind in KINDS {
            let data = if kind.len() == LONG_BYTES { 0x0102_0304_0506_0708 } else { 0x0506_0708 };
            let packet = Packet { kind, incarnation: 0xa1b2_c3d4, tag: 0x1122_3344_5566_7788, data };
            let mut bytes = [0; LONG_BYTES];
            let len = packet.write(&mut bytes);
            assert_eq!((len, Packet::parse(&bytes[..len])), (packet.len(), Some(packet)));
            assert_eq!(bytes[..4], [0x5e, 0xd0, 1, kind as u8]);
            assert_eq!(
                bytes[4..20],
                [0xd4, 0xc3, 0xb2, 0xa1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 8, 7, 6, 5]
            );
        }
    }

    #[test]
    fn whatever_is_read_is_a_packet_or_is_not() {
        let mut random = Random::new(3);
        for _ in 0..200_000 {
            let packet = Packet { kind: KINDS[random.below(6) as usize], incarnation: 7, tag: random.next(), data: 9 };
            let mut bytes = [0; LONG_BYTES + 4];
            let mut len = packet.write((&mut bytes[..LONG_BYTES]).try_into().unwrap());
            for _ in 0..random.below(3) {
                match random.below(3) {
                    0 => bytes[random.below(28) as usize] = random.next() as u8,
                    1 => len = random.below(29) as usize,
                    _ => bytes[3] = random.below(8) as u8,
                }
            }
            let Some(read) = Packet::parse(&bytes[..len]) else { continue };
            let mut again = [0; LONG_BYTES];
            let written = read.write(&mut again);
            assert_eq!(again[..written], bytes[..len], "what is read is what was written");
        }
        let long = [0x5e; 100];
        assert!((0..100).all(|len| Packet::parse(&long[..len]).is_none()));
    }
}
