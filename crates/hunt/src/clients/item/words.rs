//! Operations on one key of a key-value store, and their answers.

use std::fmt;

use dunlin_store::{Condition, Delta, Refused, Side, UnixSeconds};

/// An operation on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Reads value and flags, alone or as one of the keys of a multi-get.
    Get,
    /// Also reads token and expiry.
    Read,
    /// Changes the expiry, then reads the item.
    ReadAndTouch { expires: Option<UnixSeconds> },
    /// Changes the expiry.
    Touch { expires: Option<UnixSeconds> },
    /// Stores a value.
    Put { value: Vec<u8>, flags: u32, expires: Option<UnixSeconds>, condition: Condition },
    /// Deletes the item.
    Delete,
    /// Adds bytes.
    Extend { bytes: Vec<u8>, side: Side },
    /// Adds to a number.
    Count { delta: Delta },
    /// The server lost its data.
    Lost,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// To [`Input::Get`]: value and flags.
    Value(Option<(Vec<u8>, u32)>),
    /// To [`Input::Read`] and [`Input::ReadAndTouch`].
    Item(Option<Found>),
    /// Stored, with this token.
    Stored(u64),
    /// Counted to this number, with this token.
    Number(u64, u64),
    /// Done.
    Done,
    /// Refused: nothing was changed.
    Refused(Refused),
}

/// An item as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its value.
    pub value: Vec<u8>,
    /// Its flags.
    pub flags: u32,
    /// Its token.
    pub token: u64,
    /// When it expires; `None` for never.
    pub expires: Option<UnixSeconds>,
}

/// Value, flags and expiry in readable form, without default values.
pub struct Shown<'a> {
    pub value: &'a [u8],
    pub flags: u32,
    pub expires: Option<UnixSeconds>,
}

/// Bytes shown at each end of a long value.
const SHOWN_BYTES: usize = 24;

fn shown(bytes: &[u8]) -> String {
    match bytes.len() {
        // Short enough to be shown in full.
        len if len <= 2 * SHOWN_BYTES => format!("{:?}", String::from_utf8_lossy(bytes)),
        len => {
            let [start, end] = [&bytes[..SHOWN_BYTES], &bytes[len - SHOWN_BYTES..]].map(String::from_utf8_lossy);
            format!("{start:?}...{end:?} of {len} B")
        }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", shown(self.value))?;
        if self.flags != 0 {
            write!(f, " flags {}", self.flags)?;
        }
        self.expires.map_or(Ok(()), |at| write!(f, " until {at}"))
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Put { value, flags, expires, condition } => {
                write!(f, "put {}", Shown { value, flags: *flags, expires: *expires })?;
                match condition {
                    Condition::Always => Ok(()),
                    condition => write!(f, " if {condition:?}"),
                }
            }
            Input::Extend { bytes, side } => write!(f, "extend at its {side:?} by {}", shown(bytes)),
            other => write!(f, "{other:?}"),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Output::Value(None) | Output::Item(None) => write!(f, "nothing there"),
            Output::Value(Some((value, flags))) => write!(f, "{}", Shown { value, flags: *flags, expires: None }),
            Output::Item(Some(Found { value, flags, token, expires })) => {
                write!(f, "{} token {token}", Shown { value, flags: *flags, expires: *expires })
            }
            Output::Stored(token) => write!(f, "stored with token {token}"),
            Output::Number(number, token) => write!(f, "{number} with token {token}"),
            Output::Done => write!(f, "done"),
            Output::Refused(why) => write!(f, "refused: {why:?}"),
        }
    }
}
