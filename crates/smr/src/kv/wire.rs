//! Commands, queries and replies of the key-value machine.

use crate::wire::WireError;
use crate::wire::bytes::{Reader, Writer};

/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Bytes before the key in a command.
const COMMAND_BYTES: usize = 16;
/// Bytes before the value in a reply.
const ANSWER_BYTES: usize = 16;

/// The condition under which a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// Always.
    #[default]
    Always,
    /// If the key has no value.
    Absent,
    /// If the key has a value.
    Present,
    /// If the key has a value of this version.
    Version(u64),
}

/// A change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// Stores a value.
    Put {
        /// Its key: 1 to 250 bytes.
        key: &'a [u8],
        /// Up to [`VALUE_BYTES_MAX`].
        value: &'a [u8],
        /// The condition.
        condition: Condition,
    },
    /// Appends bytes to an existing value.
    Append {
        /// Its key.
        key: &'a [u8],
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Deletes an existing value.
    Delete {
        /// Its key.
        key: &'a [u8],
    },
}

/// A query: the value of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query<'a> {
    /// The key.
    pub key: &'a [u8],
}

/// A reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The change was made; the value has this version now. (For a deletion, it is the version of the deletion.)
    Done {
        /// The version: it rises with every change of any key.
        version: u64,
    },
    /// The value, and its version.
    Value {
        /// The version.
        version: u64,
        /// The value.
        value: &'a [u8],
    },
    /// The key has no value.
    NotFound,
    /// The key already has a value.
    Exists,
    /// The value has another version.
    Changed,
    /// The machine is full.
    Full,
    /// The value would be too long, or the key is too long or empty.
    TooLarge,
    /// The command is malformed.
    Bad,
}

impl<'a> Command<'a> {
    /// Returns its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (op, key, value, condition) = match *self {
            Command::Put { key, value, condition } => (1, key, value, condition),
            Command::Append { key, bytes } => (2, key, bytes, Condition::Always),
            Command::Delete { key } => (3, key, &[][..], Condition::Always),
        };
        let (condition, version) = match condition {
            Condition::Always => (0, 0),
            Condition::Absent => (1, 0),
            Condition::Present => (2, 0),
            Condition::Version(version) => (3, version),
        };
        let mut out = vec![0; COMMAND_BYTES + key.len() + value.len()];
        let mut writer = Writer::new(&mut out);
        writer.u8(op);
        writer.u8(condition);
        writer.u16(key.len() as u16);
        writer.u32(0);
        writer.u64(version);
        writer.bytes(key);
        writer.bytes(value);
        out
    }

    /// Returns the key that a command is about, if it is a command.
    pub fn key_in(bytes: &'a [u8]) -> Option<&'a [u8]> {
        match Command::parse(bytes).ok()? {
            Command::Put { key, .. } | Command::Append { key, .. } | Command::Delete { key } => Some(key),
        }
    }

    /// Parses a command.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Command<'a>, WireError> {
        let mut reader = Reader::new(bytes);
        let (op, condition, key_len) = (reader.u8()?, reader.u8()?, reader.u16()?);
        reader.u32()?;
        let version = reader.u64()?;
        let key = reader.take(key_len.into())?;
        let rest = reader.rest();
        let condition = match condition {
            0 => Condition::Always,
            1 => Condition::Absent,
            2 => Condition::Present,
            3 => Condition::Version(version),
            value => return Err(WireError::Unknown { field: "condition", value: value.into() }),
        };
        match op {
            1 => Ok(Command::Put { key, value: rest, condition }),
            2 => Ok(Command::Append { key, bytes: rest }),
            3 => Ok(Command::Delete { key }),
            value => Err(WireError::Unknown { field: "command", value: value.into() }),
        }
    }
}

impl<'a> Query<'a> {
    /// Returns its bytes: the key.
    pub fn encode(&self) -> &'a [u8] {
        self.key
    }
}

impl<'a> Answer<'a> {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (status, version, value) = match *self {
            Answer::Done { version } => (0, version, &[][..]),
            Answer::Value { version, value } => (1, version, value),
            Answer::NotFound => (2, 0, &[][..]),
            Answer::Exists => (3, 0, &[][..]),
            Answer::Changed => (4, 0, &[][..]),
            Answer::Full => (5, 0, &[][..]),
            Answer::TooLarge => (6, 0, &[][..]),
            Answer::Bad => (7, 0, &[][..]),
        };
        out.reserve(ANSWER_BYTES + value.len());
        out.extend_from_slice(&[status, 0, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(value);
    }

    /// Parses an answer.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Answer<'a>, WireError> {
        let mut reader = Reader::new(bytes);
        let status = reader.u8()?;
        reader.take(7)?;
        let version = reader.u64()?;
        match status {
            1 => Ok(Answer::Value { version, value: reader.rest() }),
            // A machine of another kind may answer with more bytes.
            _ if reader.left() > 0 => Err(WireError::Long),
            0 => Ok(Answer::Done { version }),
            2 => Ok(Answer::NotFound),
            3 => Ok(Answer::Exists),
            4 => Ok(Answer::Changed),
            5 => Ok(Answer::Full),
            6 => Ok(Answer::TooLarge),
            7 => Ok(Answer::Bad),
            value => Err(WireError::Unknown { field: "status", value: value.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(key in vec(any::<u8>(), 0..300), value in vec(any::<u8>(), 0..100), op in 0..6, version in any::<u64>()) {
            let (key, value) = (&key[..], &value[..]);
            let conditions = [Condition::Always, Condition::Absent, Condition::Present, Condition::Version(version)];
            let command = match op {
                0..4 => Command::Put { key, value, condition: conditions[op as usize] },
                4 => Command::Append { key, bytes: value },
                _ => Command::Delete { key },
            };
            let encoded = command.encode();
            prop_assert_eq!(Command::parse(&encoded).unwrap(), command);
            for answer in [Answer::Done { version }, Answer::Value { version, value }, Answer::NotFound, Answer::Exists, Answer::Changed, Answer::Full, Answer::TooLarge, Answer::Bad] {
                let mut out = Vec::new();
                answer.encode(&mut out);
                prop_assert_eq!(Answer::parse(&out).unwrap(), answer);
                out.push(0);
                prop_assert_eq!(Answer::parse(&out).is_ok(), matches!(answer, Answer::Value { .. }));
            }
        }

        #[test]
        fn any_bytes_give_something_or_an_error(bytes in vec(any::<u8>(), 0..60)) {
            let _ = (Command::parse(&bytes), Answer::parse(&bytes));
        }
    }
}
