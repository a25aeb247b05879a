//! Responses to requests on one key.

use dunlin_store::{Item, Marks, Refused, Stored, UnixSeconds};

use super::bytes::{Reader, Writer};

/// The first byte of every response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Done = 0,
    /// Done, and the value has flags, which precede it.
    Flagged = 1,
    /// The item does not exist.
    NotFound = 2,
    /// The item already exists.
    Exists = 3,
    /// The item has changed since its token was returned.
    Changed = 4,
    /// The value would be too long. Its length and the maximum follow.
    TooLarge = 5,
    /// The value is not a number.
    NotANumber = 6,
    /// No memory is left.
    Full = 7,
    /// Another core owns the key: fetch the map again. Nothing was done.
    NotOwned = 8,
    /// The request is malformed, or its key is empty or too long. Nothing was done.
    Malformed = 9,
    /// The response to a multi-get is full: request this key again.
    Later = 10,
    /// The server does not support this, for example saving a snapshot without a snapshot file.
    Unsupported = 11,
    /// The server tried, and failed.
    Failed = 12,
    /// The server is a replica of a cluster that must not be read: it is empty, or being filled.
    Closed = 16,
}

impl Status {
    #[inline]
    fn parse(byte: u8) -> Option<Status> {
        Some(match byte {
            0 => Status::Done,
            1 => Status::Flagged,
            2 => Status::NotFound,
            3 => Status::Exists,
            4 => Status::Changed,
            5 => Status::TooLarge,
            6 => Status::NotANumber,
            7 => Status::Full,
            8 => Status::NotOwned,
            9 => Status::Malformed,
            10 => Status::Later,
            11 => Status::Unsupported,
            12 => Status::Failed,
            16 => Status::Closed,
            _ => return None,
        })
    }

    /// Returns the status of a response; `None` if it is empty or of another protocol.
    #[inline]
    pub fn of(response: &[u8]) -> Option<Status> {
        Self::parse(*response.first()?)
    }
}

/// Returns why nothing was changed, if the response says so.
fn refusal(status: Status, rest: &mut Reader<'_>) -> Option<Refused> {
    Some(match status {
        Status::NotFound => Refused::NotFound,
        Status::Exists => Refused::Exists,
        Status::Changed => Refused::Changed,
        Status::TooLarge => Refused::TooLarge { len: rest.u32()? as usize, max: rest.u32()? as usize },
        Status::NotANumber => Refused::NotANumber,
        Status::Full => Refused::Full,
        _ => return None,
    })
}

/// A response to write; its length is known in advance.
#[derive(Debug, Clone, Copy)]
pub enum Answer<'a> {
    /// Only a status.
    Plain(Status),
    /// To [`super::Operation::Get`]: an item's flags and value.
    Value(Item<'a>),
    /// To [`super::Operation::Read`]: the whole item.
    Item(Item<'a>),
    /// To any operation that gave an item a new token.
    Stored(Stored),
    /// To [`super::Operation::Count`].
    Number(u64, Stored),
    /// Nothing was changed.
    Refused(Refused),
}

impl Answer<'_> {
    /// Returns the length of the response.
    #[inline]
    pub fn encoded_len(&self) -> usize {
        match self {
            Answer::Plain(_) => 1,
            Answer::Value(item) => 1 + if item.flags == 0 { 0 } else { 4 } + item.value.len(),
            Answer::Item(item) => 18 + item.expires.map_or(0, |_| 4) + item.value.len(),
            Answer::Stored(_) => 9,
            Answer::Number(..) => 17,
            Answer::Refused(Refused::TooLarge { .. }) => 9,
            Answer::Refused(_) => 1,
        }
    }

    /// Writes the response; returns its bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`Answer::encoded_len`].
    #[inline(always)]
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let room = out.len();
        let mut out = Writer(out);
        match *self {
            Answer::Plain(status) => out.u8(status as u8),
            Answer::Value(item) if item.flags == 0 => out.u8(Status::Done as u8).bytes(item.value),
            Answer::Value(item) => out.u8(Status::Flagged as u8).u32(item.flags).bytes(item.value),
            Answer::Item(item) => {
                let marks = item.marks;
                let form = u8::from(item.expires.is_some())
                    | u8::from(marks.is_fetched) << 1
                    | u8::from(marks.is_stale) << 2
                    | u8::from(marks.is_won) << 3;
                out.u8(Status::Done as u8).u8(form).u32(item.flags).u64(item.cas).u32(item.last_access);
                out.optional_u32(item.expires).bytes(item.value)
            }
            Answer::Stored(stored) => out.u8(Status::Done as u8).u64(stored.cas),
            Answer::Number(value, stored) => out.u8(Status::Done as u8).u64(stored.cas).u64(value),
            Answer::Refused(refused) => encode_refusal(&mut out, refused),
        };
        room - out.0.len()
    }

    /// Parses a response that is only a status.
    pub fn parse_plain(response: &[u8]) -> Option<Result<(), Refused>> {
        let mut rest = Reader(response);
        let status = Status::parse(rest.u8()?)?;
        let parsed = if status == Status::Done { Ok(()) } else { Err(refusal(status, &mut rest)?) };
        rest.end().map(|()| parsed)
    }

    /// Parses a response to an operation that gives an item a new token; `None` if it is malformed.
    #[inline]
    pub fn parse_stored(response: &[u8]) -> Option<Result<Stored, Refused>> {
        let mut rest = Reader(response);
        let status = Status::parse(rest.u8()?)?;
        let parsed =
            if status == Status::Done { Ok(Stored { cas: rest.u64()? }) } else { Err(refusal(status, &mut rest)?) };
        rest.end().map(|()| parsed)
    }
}

fn encode_refusal<'w, 'b>(out: &'w mut Writer<'b>, refused: Refused) -> &'w mut Writer<'b> {
    let status = match refused {
        Refused::NotFound => Status::NotFound,
        Refused::Exists => Status::Exists,
        Refused::Changed => Status::Changed,
        Refused::TooLarge { len, max } => {
            let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            return out.u8(Status::TooLarge as u8).u32(number(len)).u32(number(max));
        }
        Refused::NotANumber => Status::NotANumber,
        Refused::Full => Status::Full,
        // The enum may grow; the client is told that nothing was done.
        _ => Status::Failed,
    };
    out.u8(status as u8)
}

/// The parsed response to [`super::Operation::Get`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueAnswer {
    /// The item was found.
    Found {
        /// Its flags.
        flags: u32,
        /// The offset of its value in the response; it extends to the end.
        start: usize,
    },
    /// The item does not exist.
    NotFound,
}

impl ValueAnswer {
    /// Parses a response; `None` if it is not one to a GET.
    #[inline]
    pub fn parse(response: &[u8]) -> Option<ValueAnswer> {
        Some(match Status::of(response)? {
            Status::Done => ValueAnswer::Found { flags: 0, start: 1 },
            Status::Flagged => ValueAnswer::Found { flags: Reader(&response[1..]).u32()?, start: 5 },
            Status::NotFound if response.len() == 1 => ValueAnswer::NotFound,
            _ => return None,
        })
    }
}

/// The metadata of an item: the parsed response to [`super::Operation::Read`], without the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemFacts {
    /// 32 bits for the client's own use.
    pub flags: u32,
    /// Its CAS token.
    pub cas: u64,
    /// When it expires; `None` if never.
    pub expires: Option<UnixSeconds>,
    /// When it was last read, or stored if it never was.
    pub last_access: UnixSeconds,
    /// Its marks before this read.
    pub marks: Marks,
}

impl ItemFacts {
    /// Parses a response: the metadata, and the offset of the value; `None` if the response is not one to a read.
    pub fn parse(response: &[u8]) -> Option<Result<(ItemFacts, usize), Refused>> {
        let mut rest = Reader(response);
        let status = Status::parse(rest.u8()?)?;
        if status != Status::Done {
            let refused = refusal(status, &mut rest)?;
            return rest.end().map(|()| Err(refused));
        }
        let form = rest.u8()?;
        if form & 0xf0 != 0 {
            return None;
        }
        let (flags, cas, last_access) = (rest.u32()?, rest.u64()?, rest.u32()?);
        let expires = rest.optional(form & 1 != 0, Reader::u32)?;
        let marks = Marks { is_fetched: form & 2 != 0, is_stale: form & 4 != 0, is_won: form & 8 != 0 };
        let start = response.len() - rest.rest().len();
        Some(Ok((ItemFacts { flags, cas, expires, last_access, marks }, start)))
    }
}

/// The parsed response to [`super::Operation::Count`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberAnswer {
    /// The new number.
    pub value: u64,
    /// The item's new token.
    pub cas: u64,
}

impl NumberAnswer {
    /// Parses a response; `None` if it is not one to a COUNT.
    pub fn parse(response: &[u8]) -> Option<Result<NumberAnswer, Refused>> {
        let mut rest = Reader(response);
        let status = Status::parse(rest.u8()?)?;
        let parsed = match status {
            Status::Done => Ok(NumberAnswer { cas: rest.u64()?, value: rest.u64()? }),
            _ => Err(refusal(status, &mut rest)?),
        };
        rest.end().map(|()| parsed)
    }
}
