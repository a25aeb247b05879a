//! Requests and answers of the RPC service: fixed layouts, little-endian.
//!
//! | Message | Bytes |
//! |---|---|
//! | request of [`NEXT`] | epoch (8), version (1), three zeros, length of the run (4) |
//! | its answer | first number (8); the others follow it |
//! | request of [`INFO`] | version (1), seven zeros |
//! | its answer | [`Info`], seven numbers of 8 |
//!
//! A refused request ends with an application error, whose code is a [`Code`], or
//! [`OTHER_EPOCH`](dunlin_serve::epoch::OTHER_EPOCH) if the epoch is not the server's: then its message is the epoch of
//! the server, in digits. A sequencer without terms is in epoch 0.

use dunlin_serve::epoch::EPOCH_BYTES;

use crate::counter::RUN_MAX;

/// Request type: a run of numbers.
pub const NEXT: u8 = 0x60;
/// Request type: the state of the sequencer.
pub const INFO: u8 = 0x61;
/// Version of these layouts.
pub const VERSION: u8 = 2;
/// Bytes of a request of [`NEXT`].
pub const NEXT_BYTES: usize = EPOCH_BYTES + 8;
/// Bytes of a request of [`INFO`].
pub const INFO_BYTES: usize = 8;
/// Bytes of an answer to [`NEXT`].
pub const ANSWER_BYTES: usize = 8;

/// Codes of application errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Code {
    /// The request has the wrong length.
    Malformed = 1,
    /// The request has a version, or a field, that this server does not know.
    Unknown = 2,
    /// The run is empty.
    EmptyRun = 3,
    /// The run is too long.
    LongRun = 4,
    /// There are no more numbers.
    Exhausted = 5,
    /// Another sequencer may serve.
    NotServing = 6,
}

impl Code {
    /// All of them.
    pub const ALL: [Code; 6] =
        [Code::Malformed, Code::Unknown, Code::EmptyRun, Code::LongRun, Code::Exhausted, Code::NotServing];

    /// The code with this number.
    pub fn of(code: u32) -> Option<Code> {
        Code::ALL.into_iter().find(|known| *known as u32 == code)
    }

    /// The error message.
    pub fn message(self) -> &'static str {
        match self {
            Code::Malformed => "the request has the wrong length: is that a client of a sequencer of this version?",
            Code::Unknown => "the request is of another version than 2, or has a field that must be zero",
            Code::EmptyRun => "a run has at least one number",
            Code::LongRun => "the run is too long: ask for at most 65536 numbers at a time",
            Code::Exhausted => "the number space is exhausted",
            Code::NotServing => "this sequencer does not serve at the moment: ask another one",
        }
    }
}

/// A request for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// The latest epoch that the client knows; 0 for none.
    pub epoch: u64,
    /// Numbers requested.
    pub length: u32,
}

impl Next {
    /// Encodes it.
    pub fn encode(&self) -> [u8; NEXT_BYTES] {
        let mut request = [0; NEXT_BYTES];
        request[..EPOCH_BYTES].copy_from_slice(&self.epoch.to_le_bytes());
        request[EPOCH_BYTES] = VERSION;
        request[NEXT_BYTES - 4..].copy_from_slice(&self.length.to_le_bytes());
        request
    }

    /// Parses it.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline]
    pub fn parse(request: &[u8]) -> Result<Next, Code> {
        let Ok(request) = <&[u8; NEXT_BYTES]>::try_from(request) else { return Err(Code::Malformed) };
        let [e0, e1, e2, e3, e4, e5, e6, e7, version, zeros @ .., a, b, c, d] = *request;
        if version != VERSION || zeros != [0; 3] {
            return Err(Code::Unknown);
        }
        let epoch = u64::from_le_bytes([e0, e1, e2, e3, e4, e5, e6, e7]);
        match u32::from_le_bytes([a, b, c, d]) {
            0 => Err(Code::EmptyRun),
            length if length > RUN_MAX => Err(Code::LongRun),
            length => Ok(Next { epoch, length }),
        }
    }
}

/// A request for a run of a sequencer without terms, or of a client that knows no epoch.
pub fn encode_next(length: u32) -> [u8; NEXT_BYTES] {
    Next { epoch: 0, length }.encode()
}

/// A request for [`Info`].
pub fn encode_info() -> [u8; INFO_BYTES] {
    [VERSION, 0, 0, 0, 0, 0, 0, 0]
}

/// Checks a request for [`Info`].
///
/// # Errors
/// What is wrong with it.
pub fn check_info(request: &[u8]) -> Result<(), Code> {
    match request {
        request if request.len() != INFO_BYTES => Err(Code::Malformed),
        request if request != encode_info() => Err(Code::Unknown),
        _ => Ok(()),
    }
}

/// The state of a sequencer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Info {
    /// The first number of its current term of office.
    pub start: u64,
    /// The number that is drawn next, unless more must be reserved first.
    pub next: u64,
    /// The end of the reserved numbers.
    pub end: u64,
    /// Numbers that this core has handed out.
    pub numbers: u64,
    /// Requests that this core has answered with numbers.
    pub requests: u64,
    /// Whether it may hand out numbers now.
    pub is_serving: bool,
    /// Its current or last term of office; 0 if it has no terms.
    pub epoch: u64,
}

impl Info {
    /// Bytes of an answer.
    pub const BYTES: usize = 56;

    /// Encodes it.
    pub fn encode(&self) -> [u8; Info::BYTES] {
        let mut bytes = [0; Info::BYTES];
        let Info { start, next, end, numbers, requests, is_serving, epoch } = *self;
        let words = [start, next, end, numbers, requests, u64::from(is_serving), epoch];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Decodes it; `None` if the bytes are not an answer.
    pub fn parse(bytes: &[u8]) -> Option<Info> {
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let mut next = || words.next();
        let [start, end_of_drawn, end, numbers, requests, serving, epoch] =
            [next()?, next()?, next()?, next()?, next()?, next()?, next()?];
        let info = Info { start, next: end_of_drawn, end, numbers, requests, is_serving: serving == 1, epoch };
        (info.encode() == bytes).then_some(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked() {
        for next in [Next { epoch: 0, length: 1 }, Next { epoch: u64::MAX - 1, length: RUN_MAX }] {
            assert_eq!(Next::parse(&next.encode()), Ok(next));
        }
        assert_eq!(Next::parse(&encode_next(0)), Err(Code::EmptyRun));
        assert_eq!(Next::parse(&encode_next(RUN_MAX + 1)), Err(Code::LongRun));
        assert_eq!(Next::parse(&encode_next(u32::MAX)), Err(Code::LongRun));
        for len in (0..20).filter(|len| *len != NEXT_BYTES) {
            assert_eq!(Next::parse(&[VERSION; 20][..len]), Err(Code::Malformed));
        }
        for len in (0..20).filter(|len| *len != INFO_BYTES) {
            assert_eq!(check_info(&[VERSION; 20][..len]), Err(Code::Malformed));
        }
        for at in 8..12 {
            let mut request = encode_next(1);
            request[at] ^= 4;
            assert_eq!(Next::parse(&request), Err(Code::Unknown));
        }
        assert_eq!(check_info(&encode_info()), Ok(()));
        assert_eq!(check_info(&encode_next(1)[8..]), Err(Code::Unknown));
    }

    #[test]
    fn information_is_read_back_and_nothing_else_is() {
        let info = Info { start: 1, next: 2, end: 3, numbers: 4, requests: 5, is_serving: true, epoch: 6 };
        assert_eq!(Info::parse(&info.encode()), Some(info));
        let mut bytes = info.encode().to_vec();
        bytes[40] = 2;
        assert_eq!(Info::parse(&bytes), None);
        assert_eq!(Info::parse(&info.encode()[..55]), None);
        bytes.push(0);
        assert_eq!(Info::parse(&bytes), None);
    }

    #[test]
    fn codes_have_one_number_each() {
        assert!(Code::ALL.iter().all(|code| Code::of(*code as u32) == Some(*code)));
        assert_eq!((Code::of(0), Code::of(7)), (None, None));
        assert!(Code::LongRun.message().contains(&RUN_MAX.to_string()));
    }
}
