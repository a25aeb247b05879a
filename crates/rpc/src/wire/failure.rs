//! The payload of a RESPONSE whose status is not OK: the code and the message of an application error, or why its
//! sender is busy.

use std::borrow::Cow;

use super::ParseError;

/// Bytes of the code, which precedes the message.
pub const CODE_BYTES: usize = 4;
/// Longest message, in bytes. With its code it fits any packet that a path is expected to carry.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// Longest payload of a RESPONSE whose status is not OK.
pub const FAILURE_BYTES_MAX: usize = CODE_BYTES + MESSAGE_BYTES_MAX;

/// An error with which the application at the peer answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure<'a> {
    /// The application's code.
    pub code: u32,
    /// The application's message.
    pub message: Cow<'a, str>,
}

impl<'a> Failure<'a> {
    /// A failure whose message is truncated, at a character boundary, so that code and message fit `payload_max` bytes.
    pub fn fitting(code: u32, message: &'a str, payload_max: usize) -> Failure<'a> {
        let max = payload_max.min(FAILURE_BYTES_MAX).saturating_sub(CODE_BYTES);
        let end = (0..=max.min(message.len())).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        Failure { code, message: Cow::Borrowed(&message[..end]) }
    }

    /// Bytes of its payload.
    pub fn bytes(&self) -> usize {
        CODE_BYTES + self.message.len()
    }

    /// Writes the payload.
    ///
    /// # Panics
    /// If `to` is not [`Failure::bytes`] long.
    pub fn write(&self, to: &mut [u8]) {
        let (code, message) = to.split_at_mut(CODE_BYTES);
        code.copy_from_slice(&self.code.to_le_bytes());
        message.copy_from_slice(self.message.as_bytes());
    }

    /// Parses a payload. Bytes of the message that are not UTF-8 become U+FFFD, as does a truncated character.
    ///
    /// # Errors
    /// [`ParseError::Length`] if it has no code, or is too long. Total: no input panics.
    pub fn parse(payload: &'a [u8]) -> Result<Failure<'a>, ParseError> {
        let (code, message) = payload.split_first_chunk().ok_or(ParseError::Length)?;
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(ParseError::Length);
        }
        Ok(Failure { code: u32::from_le_bytes(*code), message: String::from_utf8_lossy(message) })
    }
}

/// Why an endpoint pushes a request back. Its payload is empty, or one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BusyReason {
    /// There is no room for the request now.
    Overloaded,
    /// The endpoint is shutting down.
    ShuttingDown,
}

impl BusyReason {
    const SHUTTING_DOWN: u8 = 1;

    /// The payload.
    pub fn payload(self) -> &'static [u8] {
        match self {
            BusyReason::Overloaded => &[],
            BusyReason::ShuttingDown => &[BusyReason::SHUTTING_DOWN],
        }
    }

    /// Parses a payload. Reasons unknown to this version count as an empty payload.
    pub fn parse(payload: &[u8]) -> BusyReason {
        match payload {
            [BusyReason::SHUTTING_DOWN] => BusyReason::ShuttingDown,
            _ => BusyReason::Overloaded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_survive_and_messages_are_cut_between_characters() {
        for (message, max, kept) in
            [("", 4, ""), ("gone", 8, "gone"), ("gone", 7, "gon"), ("äöü", 8, "äö"), ("äöü", 9, "äö"), ("ä", 5, "")]
        {
            let failure = Failure::fitting(404, message, max);
            assert_eq!(failure.message, kept);
            let mut bytes = vec![0; failure.bytes()];
            failure.write(&mut bytes);
            assert_eq!(Failure::parse(&bytes), Ok(failure));
        }
        assert_eq!(Failure::fitting(1, &"x".repeat(5_000), usize::MAX).bytes(), FAILURE_BYTES_MAX);
    }

    #[test]
    fn any_payload_is_read_or_refused() {
        assert_eq!(Failure::parse(&[1, 2, 3]), Err(ParseError::Length));
        assert_eq!(Failure::parse(&[0; FAILURE_BYTES_MAX + 1]), Err(ParseError::Length));
        let failure = Failure::parse(b"\x07\0\0\0not \xff UTF-8").unwrap();
        assert_eq!((failure.code, &*failure.message), (7, "not \u{fffd} UTF-8"));
        assert_eq!(BusyReason::parse(&[]), BusyReason::Overloaded);
        assert_eq!(BusyReason::parse(&[2]), BusyReason::Overloaded);
        assert_eq!(BusyReason::parse(BusyReason::ShuttingDown.payload()), BusyReason::ShuttingDown);
    }
}
