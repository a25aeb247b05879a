//! Bodies of the packets that manage sessions: handshake, keep-alive, close, release and loans of credits.
//!
//! Every body has a fixed size, little-endian, and follows the 16-byte header directly. CONNECT has the largest body,
//! so no answer to an unproven address is longer than what that address sent.

use super::ParseError;

/// Most requests of one session that may be in progress at the same time.
pub const SLOTS_MAX: usize = 8;

/// Proof that the sender of a CONNECT receives packets at the address it came from.
pub type CookieBytes = [u8; 16];

/// Body of CONNECT, 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect {
    /// Lowest and highest protocol version the client speaks.
    pub versions: (u8, u8),
    /// Number of requests in progress that the client wants.
    pub slots: u8,
    /// Credits the client wants for its requests.
    pub credits: u16,
    /// Credits it grants for requests of the server.
    pub reverse_credits: u16,
    /// Largest packet the client accepts, in bytes.
    pub mtu: u16,
    /// Largest message the client accepts, in bytes.
    pub message_bytes_max: u32,
    /// The client's number of the session.
    pub session: u32,
    /// The tag that packets to the client must carry.
    pub tag: u32,
    /// Incarnation of the client's endpoint.
    pub incarnation: u64,
    /// A new random number for every session.
    pub nonce: u64,
    /// The cookie of the server's COOKIE; zero at first.
    pub cookie: CookieBytes,
    /// How many of the credits it wants have places at the start.
    pub credits_start: u16,
    /// How many of the credits it grants the server may use at the start.
    pub reverse_start: u16,
}

/// Body of COOKIE, 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    /// The nonce of the CONNECT it answers.
    pub nonce: u64,
    /// The cookie that the client must send back.
    pub cookie: CookieBytes,
}

/// Body of ACCEPT, 40 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// The nonce of the CONNECT it answers.
    pub nonce: u64,
    /// The protocol version to use.
    pub version: u8,
    /// Requests in progress, as agreed.
    pub slots: u8,
    /// Credits for the client's requests, as agreed.
    pub credits: u16,
    /// Credits for the server's requests, as agreed.
    pub reverse_credits: u16,
    /// Largest packet, as agreed.
    pub mtu: u16,
    /// Largest message, as agreed.
    pub message_bytes_max: u32,
    /// The server's number of the session.
    pub session: u32,
    /// The tag that packets to the server must carry.
    pub tag: u32,
    /// Incarnation of the server's endpoint.
    pub incarnation: u64,
    /// How many of the agreed credits the client may use at the start.
    pub credits_start: u16,
    /// How many of the agreed reverse credits the server uses at the start.
    pub reverse_start: u16,
}

/// Why a CONNECT was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefuseReason {
    /// There is no common protocol version.
    Version = 1,
    /// The server's receive queue has no room for more credits.
    NoCredits = 2,
    /// The server has as many sessions as it allows.
    TooManySessions = 3,
    /// The packet size or another setting cannot be agreed on.
    Settings = 4,
    /// The server is shutting down.
    ShuttingDown = 5,
    /// The client's host has as many sessions there as one host may have.
    PeerSessions = 6,
    /// The client's host holds as much of the server's receive queue as one host may hold.
    PeerCredits = 7,
}

/// Body of REFUSE, 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refuse {
    /// The nonce of the CONNECT it answers.
    pub nonce: u64,
    /// Why.
    pub reason: RefuseReason,
}

/// Body of PING, PONG, CLOSE, CLOSE_ACK and RESET, 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    /// Incarnation of the sender's endpoint.
    pub incarnation: u64,
    /// In a PING any number, which the PONG repeats; in a RESET the session and tag that are unknown; otherwise 0.
    pub token: u64,
}

/// Body of RELEASE, 32 bytes: for each slot, the sequence number up to which the client needs no response any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Sequence numbers by slot.
    pub sequences: [u32; SLOTS_MAX],
}

/// Body of CREDITS, 16 bytes: one step of a loan of credits, for the requests of one direction of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credits {
    /// The side that sends it.
    pub role: LoanRole,
    /// Numbers the borrower's messages, from 1; the lender repeats the one it answers.
    pub number: u32,
    /// What the borrower holds beyond its permanent credit; or, from the lender, what it may hold.
    pub held: u16,
    /// What the borrower wants to hold; or, from the lender, what it should not exceed for long.
    pub wanted: u16,
}

/// A side of a loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LoanRole {
    /// The side that sends requests in this direction.
    Borrower = 0,
    /// The side that receives them.
    Lender = 1,
}

/// Reads a fixed-size body field by field.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(ParseError::Truncated)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8, ParseError> {
        self.take::<1>().map(|b| b[0])
    }

    fn u16(&mut self) -> Result<u16, ParseError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, ParseError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ParseError> {
        self.take().map(u64::from_le_bytes)
    }

    /// Checks that only zero padding is left.
    fn end(&self) -> Result<(), ParseError> {
        if self.0.iter().all(|b| *b == 0) { Ok(()) } else { Err(ParseError::Malformed) }
    }
}

/// A body with a fixed size.
pub trait Body: Sized {
    /// Its size on the wire.
    const BYTES: usize;

    /// Appends exactly [`Body::BYTES`] to `to`.
    fn write(&self, to: &mut Vec<u8>);

    /// Reads the fields; `body` has exactly [`Body::BYTES`].
    #[doc(hidden)]
    fn read(body: &[u8]) -> Result<Self, ParseError>;

    /// Parses a body that must have exactly [`Body::BYTES`].
    ///
    /// # Errors
    /// [`ParseError`] if this library would not send such a body.
    fn parse(body: &[u8]) -> Result<Self, ParseError> {
        if body.len() == Self::BYTES { Self::read(body) } else { Err(ParseError::Length) }
    }
}

impl Body for Connect {
    const BYTES: usize = 64;

    fn write(&self, to: &mut Vec<u8>) {
        let end = to.len() + Self::BYTES;
        to.extend([self.versions.0, self.versions.1, self.slots, 0]);
        to.extend(self.credits.to_le_bytes());
        to.extend(self.reverse_credits.to_le_bytes());
        to.extend(self.mtu.to_le_bytes());
        to.extend([0; 2]);
        to.extend(self.message_bytes_max.to_le_bytes());
        to.extend(self.session.to_le_bytes());
        to.extend(self.tag.to_le_bytes());
        to.extend(self.incarnation.to_le_bytes());
        to.extend(self.nonce.to_le_bytes());
        to.extend(self.cookie);
        to.extend(self.credits_start.to_le_bytes());
        to.extend(self.reverse_start.to_le_bytes());
        to.resize(end, 0);
    }

    fn read(body: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader(body);
        let (low, high, slots, zero) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
        let (credits, reverse_credits, mtu, zeros) = (r.u16()?, r.u16()?, r.u16()?, r.u16()?);
        let connect = Connect {
            versions: (low, high),
            slots,
            credits,
            reverse_credits,
            mtu,
            message_bytes_max: r.u32()?,
            session: r.u32()?,
            tag: r.u32()?,
            incarnation: r.u64()?,
            nonce: r.u64()?,
            cookie: r.take()?,
            credits_start: r.u16()?,
            reverse_start: r.u16()?,
        };
        r.end()?;
        let in_range = low <= high && connect.session <= super::MASK_24 && connect.tag <= super::MASK_24;
        if zero != 0 || zeros != 0 || !in_range { Err(ParseError::Malformed) } else { Ok(connect) }
    }
}

impl Body for Cookie {
    const BYTES: usize = 24;

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.nonce.to_le_bytes());
        to.extend(self.cookie);
    }

    fn read(body: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader(body);
        Ok(Cookie { nonce: r.u64()?, cookie: r.take()? })
    }
}

impl Body for Accept {
    const BYTES: usize = 40;

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.nonce.to_le_bytes());
        to.extend([self.version, self.slots]);
        to.extend(self.credits.to_le_bytes());
        to.extend(self.reverse_credits.to_le_bytes());
        to.extend(self.mtu.to_le_bytes());
        to.extend(self.message_bytes_max.to_le_bytes());
        to.extend(self.session.to_le_bytes());
        to.extend(self.tag.to_le_bytes());
        to.extend(self.credits_start.to_le_bytes());
        to.extend(self.reverse_start.to_le_bytes());
        to.extend(self.incarnation.to_le_bytes());
    }

    fn read(body: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader(body);
        let nonce = r.u64()?;
        let (version, slots) = (r.u8()?, r.u8()?);
        let (credits, reverse_credits, mtu) = (r.u16()?, r.u16()?, r.u16()?);
        let (message_bytes_max, session, tag) = (r.u32()?, r.u32()?, r.u32()?);
        let (credits_start, reverse_start) = (r.u16()?, r.u16()?);
        let incarnation = r.u64()?;
        if session > super::MASK_24 || tag > super::MASK_24 {
            return Err(ParseError::Malformed);
        }
        Ok(Accept {
            nonce,
            version,
            slots,
            credits,
            reverse_credits,
            mtu,
            message_bytes_max,
            session,
            tag,
            incarnation,
            credits_start,
            reverse_start,
        })
    }
}

impl Body for Refuse {
    const BYTES: usize = 16;

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.nonce.to_le_bytes());
        to.extend([self.reason as u8, 0, 0, 0, 0, 0, 0, 0]);
    }

    fn read(body: &[u8]) -> Result<Self, ParseError> {
        use RefuseReason::*;
        let mut r = Reader(body);
        let nonce = r.u64()?;
        let code = r.u8()?;
        r.end()?;
        let reason = [Version, NoCredits, TooManySessions, Settings, ShuttingDown, PeerSessions, PeerCredits]
            .into_iter()
            .find(|reason| *reason as u8 == code)
            .ok_or(ParseError::Malformed)?;
        Ok(Refuse { nonce, reason })
    }
}

impl Body for Presence {
    const BYTES: usize = 16;

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.incarnation.to_le_bytes());
        to.extend(self.token.to_le_bytes());
    }

    fn read(body: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader(body);
        Ok(Presence { incarnation: r.u64()?, token: r.u64()? })
    }
}

impl Body for Release {
    const BYTES: usize = 4 * SLOTS_MAX;

    fn write(&self, to: &mut Vec<u8>) {
        for sequence in self.sequences {
            to.extend(sequence.to_le_bytes());
        }
    }

    fn read(body: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader(body);
        let mut sequences = [0; SLOTS_MAX];
        for sequence in &mut sequences {
            *sequence = r.u32()?;
        }
        Ok(Release { sequences })
    }
}

impl Body for Credits {
    const BYTES: usize = 16;

    fn write(&self, to: &mut Vec<u8>) {
        to.extend([self.role as u8, 0, 0, 0]);
        to.extend(self.number.to_le_bytes());
        to.extend(self.held.to_le_bytes());
        to.extend(self.wanted.to_le_bytes());
        to.extend([0; 4]);
    }

    fn read(body: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader(body);
        let role = match r.u32()? {
            0 => LoanRole::Borrower,
            1 => LoanRole::Lender,
            _ => return Err(ParseError::Malformed),
        };
        let credits = Credits { role, number: r.u32()?, held: r.u16()?, wanted: r.u16()? };
        r.end()?;
        Ok(credits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<B: Body + PartialEq + std::fmt::Debug>(body: B) {
        let mut bytes = Vec::new();
        body.write(&mut bytes);
        assert_eq!(bytes.len(), B::BYTES);
        assert_eq!(B::parse(&bytes), Ok(body));
        assert_eq!(B::parse(&bytes[1..]).err(), Some(ParseError::Length));
    }

    #[test]
    fn every_body_survives() {
        let connect = Connect {
            versions: (1, 3),
            slots: 8,
            credits: 32,
            reverse_credits: 4,
            mtu: 8224,
            message_bytes_max: 8 << 20,
            session: 0xfffffe,
            tag: 77,
            incarnation: u64::MAX,
            nonce: 5,
            cookie: [9; 16],
            credits_start: 32,
            reverse_start: 1,
        };
        round_trip(connect);
        round_trip(Cookie { nonce: 5, cookie: [3; 16] });
        round_trip(Accept {
            nonce: 5,
            version: 1,
            slots: 8,
            credits: 32,
            reverse_credits: 1,
            mtu: 1470,
            message_bytes_max: 1 << 30,
            session: 3,
            tag: 4,
            incarnation: 6,
            credits_start: 3,
            reverse_start: 1,
        });
        round_trip(Credits { role: LoanRole::Lender, number: u32::MAX, held: 7, wanted: 1023 });
        round_trip(Credits { role: LoanRole::Borrower, number: 1, held: 0, wanted: 0 });
        round_trip(Refuse { nonce: 5, reason: RefuseReason::NoCredits });
        round_trip(Presence { incarnation: 1, token: 2 });
        round_trip(Release { sequences: [1, 2, 3, 4, 5, 6, 7, u32::MAX] });
        const {
            assert!(
                Accept::BYTES <= Connect::BYTES && Cookie::BYTES <= Connect::BYTES && Refuse::BYTES <= Connect::BYTES
            )
        };
    }
}
