//! The content of a log entry: 40 bytes of header, then the command's own bytes. A client sends the same bytes; its
//! leader writes the time into them and appends them.

use super::WireError;
use super::bytes::{Reader, Writer};

/// Bytes of the header before a command.
pub const COMMAND_BYTES: usize = 40;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A command for the state machine.
    Apply = 1,
    /// Opens a session.
    OpenSession = 2,
    /// Ends a session.
    CloseSession = 3,
    /// Reports that a session is still in use.
    KeepAlive = 4,
}

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command<'a> {
    /// Its kind.
    pub kind: Kind,
    /// The cluster's time, in nanoseconds: by its leader's clock, which continues the previous leader's.
    pub time: u64,
    /// The session that it belongs to; 0 for none, and then it may be executed more than once.
    pub session: u64,
    /// Its number in the session.
    pub sequence: u64,
    /// The client waits for no reply to commands with a lower number, and never asks for one again.
    pub waits_from: u64,
    /// The command.
    pub body: &'a [u8],
}

impl<'a> Command<'a> {
    /// Returns its length in bytes.
    pub fn encoded_len(&self) -> usize {
        COMMAND_BYTES + self.body.len()
    }

    /// Encodes it, and returns the number of bytes.
    ///
    /// # Panics
    /// If `out` does not have its length.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer::new(out);
        writer.u8(self.kind as u8);
        writer.bytes(&[0; 7]);
        [self.time, self.session, self.sequence, self.waits_from].into_iter().for_each(|word| writer.u64(word));
        writer.bytes(self.body);
        assert!(writer.is_full(), "a command is written to memory of its length");
        writer.len()
    }

    /// Parses it.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Command<'a>, WireError> {
        let mut reader = Reader::new(bytes);
        let kind = Kind::parse(reader.u8()?)?;
        reader.take(7)?;
        let (time, session, sequence, waits_from) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        Ok(Command { kind, time, session, sequence, waits_from, body: reader.rest() })
    }
}

impl Kind {
    pub(crate) fn parse(value: u8) -> Result<Kind, WireError> {
        const ALL: [Kind; 4] = [Kind::Apply, Kind::OpenSession, Kind::CloseSession, Kind::KeepAlive];
        let found = ALL.into_iter().find(|kind| *kind as u8 == value);
        found.ok_or(WireError::Unknown { field: "kind of command", value: value.into() })
    }
}

/// Overwrites the time in an encoded command.
pub(crate) fn set_time(command: &mut [u8], time: u64) {
    command[8..16].copy_from_slice(&time.to_le_bytes());
}
