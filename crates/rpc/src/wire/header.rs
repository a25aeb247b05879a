//! The 16-byte header of every packet, and its two extensions. `docs/wire-protocol.md` is the specification.
//!
//! ```text
//!  byte 0        1        2        3        4        5        6        7
//!  ver|kind   flags    ------- aux (24) -------   --- destination session (24) ---
//!  byte 8       9       10       11       12       13       14       15
//!  ------------- request number (40) ------------   ------- session tag (24) ------
//! ```
//!
//! `aux` is request type (8) and payload length (16) in REQUEST and RESPONSE, the packet number in CREDIT_RETURN and
//! REQUEST_FOR_RESPONSE, and zero elsewhere. All numbers are little-endian. In multi-packet messages, each packet has a
//! MULTI extension (message bytes u32, packet number u32), and a flag marks the last one. A DEADLINE extension
//! (microseconds left u32, four zero bytes) follows.

use super::failure::{CODE_BYTES, FAILURE_BYTES_MAX};

/// Version of the protocol that this library speaks.
pub const VERSION: u8 = 2;
/// Version in the headers of CONNECT, COOKIE, ACCEPT and REFUSE, whatever versions the endpoints speak: so endpoints of
/// different versions can refuse each other.
pub const HANDSHAKE_VERSION: u8 = 1;
/// Bytes of the header without extensions.
pub const HEADER_BYTES: usize = 16;
/// Bytes of each extension.
pub const EXTENSION_BYTES: usize = 8;
/// Bytes of the header with both extensions: the part of the MTU that is not for data.
pub const HEADER_BYTES_MAX: usize = HEADER_BYTES + 2 * EXTENSION_BYTES;

/// Sessions, tags and packet numbers have 24 bits.
pub const MASK_24: u32 = (1 << 24) - 1;
/// Request numbers have 40 bits.
pub const MASK_40: u64 = (1 << 40) - 1;

/// A MULTI extension follows.
pub const FLAG_MULTI: u8 = 1;
/// A DEADLINE extension follows.
pub const FLAG_DEADLINE: u8 = 2;
/// The network marked the packet that this one answers (ECN).
pub const FLAG_ECN_ECHO: u8 = 1 << 5;
/// The handler kept the request for later: the time until this response says nothing about the network.
pub const FLAG_DEFERRED: u8 = 1 << 6;
/// The packet is the last of its message. Only together with a MULTI extension.
pub const FLAG_LAST: u8 = 1 << 7;
/// Maximum cut number. The cuts of one request, counted from 0, use the bits that hold the status in a response.
pub const CUT_MAX: u8 = 7;
const STATUS_SHIFT: u8 = 2;
const STATUS_MASK: u8 = 7;
const FLAGS_OF_STATUS: u8 = STATUS_MASK << STATUS_SHIFT;

/// Flags that a packet may have, by its kind.
const FLAGS_ALLOWED: [u8; 16] = {
    let mut allowed = [0; 16];
    allowed[Kind::Request as usize] = FLAG_MULTI | FLAG_DEADLINE | FLAGS_OF_STATUS | FLAG_LAST;
    allowed[Kind::CreditReturn as usize] = FLAG_ECN_ECHO | FLAGS_OF_STATUS;
    allowed[Kind::Response as usize] = FLAG_MULTI | FLAGS_OF_STATUS | FLAG_ECN_ECHO | FLAG_DEFERRED | FLAG_LAST;
    allowed
};

/// The first two bytes of a single-packet request, and of such a response, without flags.
const PLAIN_REQUEST: u16 = (VERSION as u16) << 4 | Kind::Request as u16;
const PLAIN_RESPONSE: u16 = (VERSION as u16) << 4 | Kind::Response as u16;
/// The first two bytes of a single-packet request with a deadline, as services send it.
const DEADLINE_REQUEST: u16 = PLAIN_REQUEST | (FLAG_DEADLINE as u16) << 8;

/// The kind of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Data of a request.
    Request = 0,
    /// Server to client: a request packet that is not the last has arrived; its credit returns.
    CreditReturn = 1,
    /// Client to server: requests this packet of the response.
    RequestForResponse = 2,
    /// Data of a response.
    Response = 3,
    /// Opens a session.
    Connect = 4,
    /// Asks a client that wants to open a session to prove its address.
    Cookie = 5,
    /// The session is open.
    Accept = 6,
    /// The session was not opened.
    Refuse = 7,
    /// Ends a session.
    Close = 8,
    /// The session has ended.
    CloseAck = 9,
    /// Asks whether the peer lives.
    Ping = 10,
    /// The answer to a PING.
    Pong = 11,
    /// There is no such session here.
    Reset = 12,
    /// The client no longer needs the responses of these requests.
    Release = 13,
    /// Asks for credits, gives them back, lends or recalls them.
    Credits = 14,
}

impl Kind {
    /// Version in the header of a packet of this kind.
    #[inline(always)]
    const fn version(self) -> u8 {
        match self {
            Kind::Connect | Kind::Cookie | Kind::Accept | Kind::Refuse => HANDSHAKE_VERSION,
            _ => VERSION,
        }
    }

    fn from_bits(bits: u8) -> Option<Kind> {
        use Kind::*;
        const ALL: [Kind; 15] = [
            Request,
            CreditReturn,
            RequestForResponse,
            Response,
            Connect,
            Cookie,
            Accept,
            Refuse,
            Close,
            CloseAck,
            Ping,
            Pong,
            Reset,
            Release,
            Credits,
        ];
        ALL.get(bits as usize).copied()
    }
}

/// How a request ended at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The handler responded.
    Ok = 0,
    /// Nothing ran: workers had no room, the host's share is used up, or the server is shutting down.
    Busy = 1,
    /// Nothing ran: no handler has this request type.
    NoHandler = 2,
    /// The handler ended without a response, or panicked.
    HandlerFailed = 3,
    /// Nothing ran: the deadline had passed.
    Expired = 4,
    /// The response exceeds what the session allows.
    ResponseTooLarge = 5,
    /// The handler ran, perhaps in part: it tried to keep the request for later, and there was no room.
    Overloaded = 6,
    /// The handler answered with an error of the application: see [`super::failure`].
    Application = 7,
}

impl Status {
    /// All statuses, by their numbers.
    pub const ALL: [Status; 8] = {
        use Status::*;
        [Ok, Busy, NoHandler, HandlerFailed, Expired, ResponseTooLarge, Overloaded, Application]
    };

    /// Its name, for labels of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Busy => "busy",
            Status::NoHandler => "no_handler",
            Status::HandlerFailed => "handler_failed",
            Status::Expired => "expired",
            Status::ResponseTooLarge => "response_too_large",
            Status::Overloaded => "overloaded",
            Status::Application => "application",
        }
    }

    #[inline]
    fn from_bits(bits: u8) -> Status {
        Status::ALL[usize::from(bits & STATUS_MASK)]
    }

    /// Bytes of payload that a response with this status may have: minimum and maximum.
    fn payload_allowed(self) -> (usize, usize) {
        match self {
            Status::Ok => (0, usize::MAX),
            Status::Busy => (0, 1),
            Status::Application => (CODE_BYTES, FAILURE_BYTES_MAX),
            _ => (0, 0),
        }
    }
}

/// Why a packet is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than a header and its extensions.
    #[error("the packet is shorter than its header")]
    Truncated,
    /// It has another protocol version.
    #[error("the packet is of protocol version {0}")]
    Version(u8),
    /// An unknown kind, flag or status, or a field that must be zero and is not.
    #[error("the packet's header is malformed")]
    Malformed,
    /// The payload length does not match the packet's length.
    #[error("the payload's length disagrees with the packet's")]
    Length,
}

/// A parsed header with its extensions.
///
/// ```
/// use dunlin_rpc::wire::{HEADER_BYTES_MAX, Header, Kind};
///
/// let header = Header::new(Kind::Request, Header::data_aux(7, 32), 3, 8, 0x0a_0b0c);
/// let mut bytes = [0; HEADER_BYTES_MAX];
/// let len = header.write(&mut bytes);
/// assert_eq!(bytes[..len], [0x20, 0, 7, 0x20, 0, 3, 0, 0, 8, 0, 0, 0, 0, 0x0c, 0x0b, 0x0a]);
/// assert_eq!(Header::parse(&bytes[..len], len + 32), Ok(header));
/// assert!(Header::parse(&bytes[..len], len).is_err(), "the payload is missing");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of the packet.
    pub kind: Kind,
    /// Status, in a response.
    pub status: Status,
    /// Request type and payload length, or packet number; see the [module](self).
    pub aux: u32,
    /// Session at the receiver, 24 bits.
    pub session: u32,
    /// Request number, 40 bits.
    pub request: u64,
    /// Proof that the sender knows the session, 24 bits.
    pub tag: u32,
    /// Message bytes and packet number, in a multi-packet message.
    pub multi: Option<Multi>,
    /// Whether it is the last packet of a multi-packet message.
    pub is_last: bool,
    /// In a REQUEST of several packets, and in its CREDIT_RETURN: how often the client has recut the request, at most
    /// [`CUT_MAX`].
    pub cut: u8,
    /// Microseconds until the caller gives up.
    pub deadline_us: Option<u32>,
    /// In a CREDIT_RETURN or RESPONSE: whether the network marked the packet that it answers.
    pub ecn_echo: bool,
    /// In a RESPONSE: whether the handler kept the request for later.
    pub deferred: bool,
}

/// The MULTI extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multi {
    /// Bytes of the whole message.
    pub message_bytes: u32,
    /// The number of this packet in the message, from 0.
    pub packet: u32,
}

/// The two halves of a header, as integers.
#[inline]
fn words(base: &[u8; HEADER_BYTES]) -> [u64; 2] {
    let both = u128::from_le_bytes(*base);
    [both as u64, (both >> 64) as u64]
}

impl Header {
    /// A header without extensions, status [`Status::Ok`].
    #[inline]
    pub fn new(kind: Kind, aux: u32, session: u32, request: u64, tag: u32) -> Header {
        Header {
            kind,
            status: Status::Ok,
            aux,
            session,
            request,
            tag,
            multi: None,
            is_last: false,
            cut: 0,
            deadline_us: None,
            ecn_echo: false,
            deferred: false,
        }
    }

    /// `aux` of a data packet.
    #[inline]
    pub fn data_aux(req_type: u8, payload_len: usize) -> u32 {
        debug_assert!(payload_len <= u16::MAX as usize);
        req_type as u32 | (payload_len as u32) << 8
    }

    /// Request type, for a data packet.
    #[inline]
    pub fn req_type(&self) -> u8 {
        self.aux as u8
    }

    /// Payload bytes in this packet, for a data packet.
    #[inline]
    pub fn payload_len(&self) -> usize {
        (self.aux >> 8) as usize
    }

    /// Bytes of header and extensions.
    #[inline]
    pub fn wire_len(&self) -> usize {
        HEADER_BYTES + EXTENSION_BYTES * (self.multi.is_some() as usize + self.deadline_us.is_some() as usize)
    }

    /// Flags: the status, which extensions follow, and what happened to the answered packet.
    #[inline(always)]
    fn flags(&self) -> u8 {
        let multi = if self.multi.is_some() { FLAG_MULTI } else { 0 };
        let deadline = if self.deadline_us.is_some() { FLAG_DEADLINE } else { 0 };
        let echo = if self.ecn_echo { FLAG_ECN_ECHO } else { 0 };
        let deferred = if self.deferred { FLAG_DEFERRED } else { 0 };
        let last = if self.is_last { FLAG_LAST } else { 0 };
        (self.status as u8 | self.cut) << STATUS_SHIFT | multi | deadline | echo | deferred | last
    }

    /// The header without its extensions.
    #[inline(always)]
    pub fn base(&self) -> [u8; HEADER_BYTES] {
        let first = (self.kind as u64 | (self.kind.version() as u64) << 4)
            | (self.flags() as u64) << 8
            | ((self.aux & MASK_24) as u64) << 16
            | ((self.session & MASK_24) as u64) << 40;
        let second = (self.request & MASK_40) | ((self.tag & MASK_24) as u64) << 40;
        (first as u128 | (second as u128) << 64).to_le_bytes()
    }

    /// Whether it has no extensions: then [`Header::base`] is all of it.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.multi.is_none() && self.deadline_us.is_none()
    }

    /// Writes header and extensions; returns the number of bytes.
    #[inline]
    pub fn write(&self, to: &mut [u8; HEADER_BYTES_MAX]) -> usize {
        to[..HEADER_BYTES].copy_from_slice(&self.base());
        let mut len = HEADER_BYTES;
        if let Some(multi) = self.multi {
            to[len..len + 4].copy_from_slice(&multi.message_bytes.to_le_bytes());
            to[len + 4..len + 8].copy_from_slice(&multi.packet.to_le_bytes());
            len += EXTENSION_BYTES;
        }
        if let Some(us) = self.deadline_us {
            to[len..len + 8].copy_from_slice(&(us as u64).to_le_bytes());
            len += EXTENSION_BYTES;
        }
        len
    }

    /// Parses the start of a packet of `packet_len` bytes. `head` holds its first bytes (at least [`HEADER_BYTES_MAX`],
    /// or all).
    ///
    /// # Errors
    /// [`ParseError`] for anything that this library would not send. Total: no input panics.
    #[inline]
    pub fn parse(head: &[u8], packet_len: usize) -> Result<Header, ParseError> {
        let Some((base, rest)) = head.split_first_chunk::<HEADER_BYTES>() else {
            return Err(ParseError::Truncated);
        };
        let [first, second] = words(base);
        let flags = base[1];
        let kind = Kind::from_bits(base[0] & 0xf).ok_or(ParseError::Malformed)?;
        if base[0] >> 4 != kind.version() {
            return Err(ParseError::Version(base[0] >> 4));
        }
        if flags & !FLAGS_ALLOWED[kind as usize] != 0 {
            return Err(ParseError::Malformed);
        }
        let bits = flags >> STATUS_SHIFT & STATUS_MASK;
        let (status, cut) = match kind {
            Kind::Response => (Status::from_bits(bits), 0),
            _ => (Status::Ok, bits),
        };
        // A single-packet message has no LAST flag, and is never recut.
        let is_single = flags & FLAG_MULTI == 0;
        if is_single && (flags & FLAG_LAST != 0 || kind == Kind::Request && cut != 0) {
            return Err(ParseError::Malformed);
        }
        let mut header = Header::from_words(kind, status, first, second);
        (header.is_last, header.cut) = (flags & FLAG_LAST != 0, cut);
        header.ecn_echo = flags & FLAG_ECN_ECHO != 0;
        header.deferred = flags & FLAG_DEFERRED != 0;
        if flags & (FLAG_MULTI | FLAG_DEADLINE) != 0 {
            header.parse_extensions(flags, rest)?;
        }
        let is_data = matches!(kind, Kind::Request | Kind::Response);
        if is_data && header.wire_len() + header.payload_len() != packet_len {
            return Err(ParseError::Length);
        }
        if status != Status::Ok {
            header.check_failure()?;
        }
        Ok(header)
    }

    /// Whether a response whose status is not OK has one packet, and a payload that its status allows.
    #[cold]
    fn check_failure(&self) -> Result<(), ParseError> {
        let (least, most) = self.status.payload_allowed();
        let is_allowed = self.multi.is_none() && (least..=most).contains(&self.payload_len());
        if is_allowed { Ok(()) } else { Err(ParseError::Malformed) }
    }

    /// Parses the most common packets: data that fits one packet, without flags, or a request with a deadline. One
    /// comparison replaces all checks but that of the length. `None` for any other packet, well-formed or not.
    #[inline(always)]
    pub(crate) fn parse_plain(head: &[u8], packet_len: usize) -> Option<Header> {
        let [first, second] = words(head.first_chunk()?);
        let kind = match first as u16 {
            PLAIN_REQUEST => Kind::Request,
            PLAIN_RESPONSE => Kind::Response,
            DEADLINE_REQUEST => {
                let word = u64::from_le_bytes(*head.get(HEADER_BYTES..)?.first_chunk()?);
                let mut header = Header::from_words(Kind::Request, Status::Ok, first, second);
                header.deadline_us = Some(word as u32);
                let is_whole = HEADER_BYTES + EXTENSION_BYTES + header.payload_len() == packet_len;
                return (is_whole && word >> 32 == 0).then_some(header);
            }
            _ => return None,
        };
        let header = Header::from_words(kind, Status::Ok, first, second);
        (HEADER_BYTES + header.payload_len() == packet_len).then_some(header)
    }

    #[inline]
    fn from_words(kind: Kind, status: Status, first: u64, second: u64) -> Header {
        Header {
            kind,
            status,
            aux: (first >> 16) as u32 & MASK_24,
            session: (first >> 40) as u32,
            request: second & MASK_40,
            tag: (second >> 40) as u32,
            multi: None,
            is_last: false,
            cut: 0,
            deadline_us: None,
            ecn_echo: false,
            deferred: false,
        }
    }

    fn parse_extensions(&mut self, flags: u8, mut rest: &[u8]) -> Result<(), ParseError> {
        if flags & FLAG_MULTI != 0 {
            let (bytes, after) = rest.split_first_chunk::<8>().ok_or(ParseError::Truncated)?;
            let word = u64::from_le_bytes(*bytes);
            self.multi = Some(Multi { message_bytes: word as u32, packet: (word >> 32) as u32 });
            rest = after;
        }
        if flags & FLAG_DEADLINE != 0 {
            let (bytes, _) = rest.split_first_chunk::<8>().ok_or(ParseError::Truncated)?;
            let word = u64::from_le_bytes(*bytes);
            if word >> 32 != 0 {
                return Err(ParseError::Malformed);
            }
            self.deadline_us = Some(word as u32);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(header: Header, payload: usize) -> Result<Header, ParseError> {
        let mut bytes = [0; HEADER_BYTES_MAX];
        let len = header.write(&mut bytes);
        assert_eq!(len, header.wire_len());
        Header::parse(&bytes[..len], len + payload)
    }

    #[test]
    fn every_field_survives() {
        let aux = Header::data_aux(200, 1400);
        let mut header = Header::new(Kind::Request, aux, 0xabcdef, MASK_40 - 5, 0x123456);
        assert_eq!(round_trip(header, 1400), Ok(header));
        assert_eq!((header.req_type(), header.payload_len()), (200, 1400));
        header.deadline_us = Some(u32::MAX);
        assert_eq!(round_trip(header, 1400), Ok(header));
        header.multi = Some(Multi { message_bytes: 8 << 20, packet: 4095 });
        assert_eq!(round_trip(header, 1400), Ok(header));
        (header.is_last, header.cut) = (true, CUT_MAX);
        assert_eq!(round_trip(header, 1400), Ok(header));
        let mut response = Header::new(Kind::Response, 0, 1, 2, 3);
        response.status = Status::ResponseTooLarge;
        (response.ecn_echo, response.deferred) = (true, true);
        assert_eq!(round_trip(response, 0), Ok(response));
        for (status, payload) in [(Status::Busy, 1), (Status::Application, CODE_BYTES), (Status::Application, 1028)] {
            let failure =
                Header { status, aux: Header::data_aux(7, payload), ..Header::new(Kind::Response, 0, 1, 2, 3) };
            assert_eq!(round_trip(failure, payload), Ok(failure));
        }
        let mut credit_return = Header::new(Kind::CreditReturn, 7, 1, 2, 3);
        (credit_return.ecn_echo, credit_return.cut) = (true, 5);
        assert_eq!(round_trip(credit_return, 0), Ok(credit_return));
    }

    /// The fast parser agrees with the full one, on valid packets and on all that differ from them in one byte or in
    /// length.
    #[test]
    fn plain_packets_parse_as_all_do() {
        let plain = Header::new(Kind::Request, Header::data_aux(200, 40), 0xabcdef, MASK_40 - 5, 0x123456);
        let response = Header { kind: Kind::Response, ..plain };
        let with_deadline = Header { deadline_us: Some(1_000_000), ..plain };
        for header in [plain, response, with_deadline] {
            let mut bytes = [7; HEADER_BYTES_MAX + 8];
            let len = header.write(bytes.first_chunk_mut().unwrap());
            assert_eq!(Header::parse_plain(&bytes[..len], len + 40), Some(header));
            for changed in 0..len {
                for bit in 0..8 {
                    let mut bytes = bytes;
                    bytes[changed] ^= 1 << bit;
                    if let Some(parsed) = Header::parse_plain(&bytes, len + 40) {
                        assert_eq!(Header::parse(&bytes, len + 40), Ok(parsed), "byte {changed}, bit {bit}");
                    }
                }
            }
            for packet_len in (0..len + 80).filter(|packet_len| *packet_len != len + 40) {
                let head = &bytes[..packet_len.min(bytes.len())];
                assert_eq!(Header::parse_plain(head, packet_len), None, "{packet_len} bytes");
            }
        }
    }

    #[test]
    fn what_we_never_send_is_refused() {
        let header = Header::new(Kind::Request, Header::data_aux(1, 10), 1, 2, 3);
        assert_eq!(round_trip(header, 9), Err(ParseError::Length));
        let mut status = Header::new(Kind::Ping, 0, 1, 2, 3);
        status.status = Status::Busy;
        assert_eq!(round_trip(status, 0), Err(ParseError::Malformed));
        for (status, payload) in
            [(Status::Busy, 2), (Status::HandlerFailed, 1), (Status::Application, 3), (Status::Application, 1029)]
        {
            let mut failure = Header::new(Kind::Response, Header::data_aux(7, payload), 1, 2, 3);
            failure.status = status;
            assert_eq!(round_trip(failure, payload), Err(ParseError::Malformed), "{status:?} with {payload} bytes");
        }
        let mut failure = Header::new(Kind::Response, Header::data_aux(7, 224), 1, 2, 3);
        (failure.status, failure.multi) = (Status::Application, Some(Multi { message_bytes: 300, packet: 0 }));
        assert_eq!(round_trip(failure, 224), Err(ParseError::Malformed), "an error of several packets");
        let mut echo = Header::new(Kind::Request, Header::data_aux(1, 10), 1, 2, 3);
        echo.ecn_echo = true;
        assert_eq!(round_trip(echo, 10), Err(ParseError::Malformed));
        let mut deferred = Header::new(Kind::CreditReturn, 7, 1, 2, 3);
        deferred.deferred = true;
        assert_eq!(round_trip(deferred, 0), Err(ParseError::Malformed));
        let (mut last, mut cut) = (header, header);
        (last.is_last, cut.cut) = (true, 1);
        assert_eq!(round_trip(last, 10), Err(ParseError::Malformed), "the last packet of a message of one");
        assert_eq!(round_trip(cut, 10), Err(ParseError::Malformed), "a message of one packet, cut anew");
        assert_eq!(Header::parse(&[0x20; 15], 15), Err(ParseError::Truncated));
        assert_eq!(Header::parse(&[0x10; 16], 16), Err(ParseError::Version(1)));
        assert_eq!(Header::parse(&[0x24; 16], 16), Err(ParseError::Version(2)), "a CONNECT");
        assert_eq!(Header::parse(&[0x2f; 16], 16), Err(ParseError::Malformed));
        let mut flags = [0u8; 16];
        (flags[0], flags[1]) = (0x20, FLAG_MULTI);
        assert_eq!(Header::parse(&flags, 16), Err(ParseError::Truncated));
        (flags[0], flags[1]) = (0x23, 1 << 7);
        assert_eq!(Header::parse(&flags, 16), Err(ParseError::Malformed));
    }
}
