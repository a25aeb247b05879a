//! Requests on one key.

use dunlin_store::{Condition, Delta, Put, Side, UnixSeconds};

use super::bytes::{Reader, Writer};
use crate::mutation::{Mutation, is_planted};

const GET: u8 = 0;
const READ: u8 = 1;
const PUT: u8 = 2;
const DELETE: u8 = 3;
const EXTEND: u8 = 4;
const COUNT: u8 = 5;
const TOUCH: u8 = 6;

// Bits of the form byte.
const HAS_UNCHANGED: u8 = 0x01;
const AT_START: u8 = 0x02;
const DOWN: u8 = 0x02;
const TOUCHES: u8 = 0x01;
const HAS_EXPIRY: u8 = 0x02;

// Bits of the form byte of a PUT.
const PUT_CONDITION: u8 = 0x03;
const PUT_ABSENT: u8 = 1;
const PUT_PRESENT: u8 = 2;
const PUT_UNCHANGED: u8 = 3;
const PUT_HAS_FLAGS: u8 = 0x04;
const PUT_HAS_EXPIRY: u8 = 0x08;
const PUT_HAS_CAS: u8 = 0x10;
const PUT_STALE: u8 = 0x20;

/// An expiry that a read gives its item: `None` if never.
pub type Touch = Option<UnixSeconds>;

/// One operation on one key. [`dunlin_store::Store`] defines what each does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Reads value and flags.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Reads an item with its metadata, and optionally sets its expiry.
    Read {
        /// The key.
        key: &'a [u8],
        /// The new expiry; `None` keeps the present one.
        touch: Option<Touch>,
    },
    /// Stores a value.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// Flags, expiry and condition.
        put: Put,
    },
    /// Deletes an item.
    Delete {
        /// The key.
        key: &'a [u8],
        /// Only if the item has this CAS token.
        unchanged: Option<u64>,
    },
    /// Adds bytes to a value.
    Extend {
        /// The key.
        key: &'a [u8],
        /// The bytes.
        bytes: &'a [u8],
        /// Where to add them.
        side: Side,
        /// Only if the item has this CAS token.
        unchanged: Option<u64>,
    },
    /// Changes a number.
    Count {
        /// The key.
        key: &'a [u8],
        /// The change.
        delta: Delta,
        /// Only if the item has this CAS token.
        unchanged: Option<u64>,
    },
    /// Sets an item's expiry.
    Touch {
        /// The key.
        key: &'a [u8],
        /// The expiry; `None` if never.
        expires: Option<UnixSeconds>,
    },
}

impl<'a> Operation<'a> {
    /// Returns the condition of a PUT; other operations have none here.
    pub(crate) fn condition(&self) -> Condition {
        match self {
            Operation::Put { put, .. } => put.condition,
            _ => Condition::Always,
        }
    }

    /// Parses a request; `None` if it is malformed. Does not check the key's length: [`dunlin_store::Store::key`] does.
    #[inline]
    pub fn parse(request: &'a [u8]) -> Option<Operation<'a>> {
        let (&operation, rest) = request.split_first()?;
        if operation == GET { Some(Operation::Get { key: rest }) } else { Self::parse_other(operation, Reader(rest)) }
    }

    #[inline]
    fn parse_other(operation: u8, mut rest: Reader<'a>) -> Option<Operation<'a>> {
        let form = rest.u8()?;
        if operation == PUT {
            return Self::parse_put(form, rest);
        }
        let allowed = match operation {
            DELETE => HAS_UNCHANGED,
            READ | EXTEND | COUNT => 0x03,
            TOUCH => HAS_EXPIRY,
            _ => return None,
        };
        if form & !allowed != 0 {
            return None;
        }
        let has_unchanged = form & HAS_UNCHANGED != 0;
        Some(match operation {
            READ => {
                let expires = rest.optional(form & HAS_EXPIRY != 0, Reader::u32)?;
                // An expiry without a touch has no meaning.
                let touch = if form & TOUCHES != 0 { Some(expires) } else { expires.is_none().then_some(None)? };
                Operation::Read { key: rest.rest(), touch }
            }
            DELETE => {
                let unchanged = rest.optional(has_unchanged, Reader::u64)?;
                Operation::Delete { key: rest.rest(), unchanged }
            }
            EXTEND => {
                let key_len = rest.u8()?;
                let unchanged = rest.optional(has_unchanged, Reader::u64)?;
                let side = if form & AT_START != 0 { Side::Start } else { Side::End };
                Operation::Extend { key: rest.bytes(usize::from(key_len))?, bytes: rest.rest(), side, unchanged }
            }
            COUNT => {
                let by = rest.u64()?;
                let unchanged = rest.optional(has_unchanged, Reader::u64)?;
                let delta = if form & DOWN != 0 { Delta::Down(by) } else { Delta::Up(by) };
                Operation::Count { key: rest.rest(), delta, unchanged }
            }
            TOUCH => {
                let expires = rest.optional(form & HAS_EXPIRY != 0, Reader::u32)?;
                Operation::Touch { key: rest.rest(), expires }
            }
            _ => return None,
        })
    }

    #[inline]
    fn parse_put(form: u8, mut rest: Reader<'a>) -> Option<Operation<'a>> {
        if form & 0xc0 != 0 {
            return None;
        }
        let key_len = rest.u8()?;
        let flags = rest.optional(form & PUT_HAS_FLAGS != 0, Reader::u32)?.unwrap_or(0);
        let expires = rest.optional(form & PUT_HAS_EXPIRY != 0, Reader::u32)?;
        let condition = match form & PUT_CONDITION {
            PUT_ABSENT => Condition::Absent,
            PUT_PRESENT => Condition::Present,
            PUT_UNCHANGED => {
                let token = rest.u64()?;
                if is_planted(Mutation::TokenNotCompared) { Condition::Present } else { Condition::Unchanged(token) }
            }
            _ => Condition::Always,
        };
        let cas = rest.optional(form & PUT_HAS_CAS != 0, Reader::u64)?;
        let key = rest.bytes(usize::from(key_len))?;
        let put = Put { flags, expires, condition, cas, is_stale: form & PUT_STALE != 0 };
        Some(Operation::Put { key, value: rest.rest(), put })
    }

    /// Returns the key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Operation::Get { key }
            | Operation::Read { key, .. }
            | Operation::Put { key, .. }
            | Operation::Delete { key, .. }
            | Operation::Extend { key, .. }
            | Operation::Count { key, .. }
            | Operation::Touch { key, .. } => key,
        }
    }

    /// Whether executing it twice is the same as once, even if others change the item in between.
    pub fn is_read(&self) -> bool {
        matches!(self, Operation::Get { .. } | Operation::Read { touch: None, .. })
    }

    /// Returns the length of the request.
    #[inline]
    pub fn encoded_len(&self) -> usize {
        let token = |token: Option<u64>| token.map_or(0, |_| 8);
        let time = |time: Option<u32>| time.map_or(0, |_| 4);
        match *self {
            Operation::Get { key } => 1 + key.len(),
            Operation::Read { key, touch } => 2 + time(touch.flatten()) + key.len(),
            Operation::Put { key, value, put } => {
                let unchanged = if let Condition::Unchanged(_) = put.condition { 8 } else { 0 };
                let flags = if put.flags != 0 { 4 } else { 0 };
                3 + flags + time(put.expires) + unchanged + token(put.cas) + key.len() + value.len()
            }
            Operation::Delete { key, unchanged } => 2 + token(unchanged) + key.len(),
            Operation::Extend { key, bytes, unchanged, .. } => 3 + token(unchanged) + key.len() + bytes.len(),
            Operation::Count { key, unchanged, .. } => 10 + token(unchanged) + key.len(),
            Operation::Touch { key, expires } => 2 + time(expires) + key.len(),
        }
    }

    /// Writes the request, and returns its bytes. The key must be valid: at most 250 bytes.
    ///
    /// # Panics
    /// If the length of `out` differs from [`Operation::encoded_len`].
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let len = out.len();
        let mut out = Writer(out);
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        match *self {
            Operation::Get { key } => out.u8(GET).bytes(key),
            Operation::Read { key, touch } => {
                let expires = touch.flatten();
                let form = bit(touch.is_some(), TOUCHES) | bit(expires.is_some(), HAS_EXPIRY);
                out.u8(READ).u8(form).optional_u32(expires).bytes(key)
            }
            Operation::Put { key, value, put } => {
                let (condition, unchanged) = match put.condition {
                    Condition::Always => (0, None),
                    Condition::Absent => (PUT_ABSENT, None),
                    Condition::Present => (PUT_PRESENT, None),
                    Condition::Unchanged(token) => (PUT_UNCHANGED, Some(token)),
                };
                let flags = (put.flags != 0).then_some(put.flags);
                let form = condition
                    | bit(flags.is_some(), PUT_HAS_FLAGS)
                    | bit(put.expires.is_some(), PUT_HAS_EXPIRY)
                    | bit(put.cas.is_some(), PUT_HAS_CAS)
                    | bit(put.is_stale, PUT_STALE);
                out.u8(PUT).u8(form).u8(key.len() as u8).optional_u32(flags).optional_u32(put.expires);
                out.optional_u64(unchanged).optional_u64(put.cas).bytes(key).bytes(value)
            }
            Operation::Delete { key, unchanged } => {
                out.u8(DELETE).u8(bit(unchanged.is_some(), HAS_UNCHANGED)).optional_u64(unchanged).bytes(key)
            }
            Operation::Extend { key, bytes, side, unchanged } => {
                let form = bit(unchanged.is_some(), HAS_UNCHANGED) | bit(side == Side::Start, AT_START);
                out.u8(EXTEND).u8(form).u8(key.len() as u8).optional_u64(unchanged).bytes(key).bytes(bytes)
            }
            Operation::Count { key, delta, unchanged } => {
                let (by, down) = match delta {
                    Delta::Up(by) => (by, 0),
                    Delta::Down(by) => (by, DOWN),
                };
                let form = bit(unchanged.is_some(), HAS_UNCHANGED) | down;
                out.u8(COUNT).u8(form).u64(by).optional_u64(unchanged).bytes(key)
            }
            Operation::Touch { key, expires } => {
                out.u8(TOUCH).u8(bit(expires.is_some(), HAS_EXPIRY)).optional_u32(expires).bytes(key)
            }
        };
        assert!(out.0.is_empty(), "a request was given a buffer that is too long");
        len
    }
}
