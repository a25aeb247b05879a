//! Requests that carry a rank: how urgent they are. What they cost is for the server to say.
//!
//! A ranked request is an ordinary one behind a header, under a request type of its own, so that clients and servers
//! that do not know ranks go on working.

use super::bytes::{Reader, Writer};

/// Bit of the form byte: the answer shall say how long the request waited.
const WANTS_WAITED: u8 = 0x01;
const IS_LEVEL: u8 = 0x02;

/// Length of the header of a ranked request.
pub const RANKED_BYTES: usize = 9;
/// Length of what precedes the response if the request asked how long it waited.
pub const WAITED_BYTES: usize = 8;

/// The header of a ranked request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranked {
    /// Its place among others, by the policy of the requester: the lowest is the most urgent.
    pub rank: u64,
    /// Whether the rank is a level, as those of [`Policy::Rein`](dunlin_schedule::Policy::Rein) are, and not a size.
    pub is_level: bool,
    /// Whether the answer shall say how long it waited.
    pub wants_waited: bool,
}

impl Ranked {
    /// Parses a request; returns its header and the ordinary request behind it. `None` if it is too short, or has a form
    /// that this version does not know.
    #[inline]
    pub fn parse(request: &[u8]) -> Option<(Ranked, &[u8])> {
        let mut rest = Reader(request);
        let form = rest.u8()?;
        if form & !(WANTS_WAITED | IS_LEVEL) != 0 {
            return None;
        }
        let (rank, is_level) = (rest.u64()?, form & IS_LEVEL != 0);
        let ranked = Ranked { rank, is_level, wants_waited: form & WANTS_WAITED != 0 };
        Some((ranked, rest.rest()))
    }

    /// Writes the header to the front of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`RANKED_BYTES`].
    #[inline]
    pub fn encode(&self, out: &mut [u8]) {
        let wants_waited = if self.wants_waited { WANTS_WAITED } else { 0 };
        let is_level = if self.is_level { IS_LEVEL } else { 0 };
        Writer(&mut out[..RANKED_BYTES]).u8(wants_waited | is_level).u64(self.rank);
    }
}

/// How long a request waited in the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waited {
    /// In the queue, in microseconds.
    pub queued_micros: u32,
    /// For the tier's device, in microseconds.
    pub read_micros: u32,
}

impl Waited {
    /// Parses a response to a request that asked for this; returns it and the ordinary response behind it.
    pub fn parse(response: &[u8]) -> Option<(Waited, &[u8])> {
        let mut rest = Reader(response);
        let waited = Waited { queued_micros: rest.u32()?, read_micros: rest.u32()? };
        Some((waited, rest.rest()))
    }

    /// Writes it to the front of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`WAITED_BYTES`].
    pub fn encode(&self, out: &mut [u8]) {
        Writer(&mut out[..WAITED_BYTES]).u32(self.queued_micros).u32(self.read_micros);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back_and_unknown_forms_are_malformed() {
        for (wants_waited, is_level) in [(false, false), (true, false), (false, true), (true, true)] {
            let ranked = Ranked { rank: u64::MAX - 1, is_level, wants_waited };
            let mut request = vec![0xff; RANKED_BYTES + 3];
            ranked.encode(&mut request);
            assert_eq!(Ranked::parse(&request), Some((ranked, &[0xff; 3][..])));
            assert_eq!(Ranked::parse(&request[..RANKED_BYTES - 1]), None);
            request[0] |= 0x80;
            assert_eq!(Ranked::parse(&request), None);
        }
        let waited = Waited { queued_micros: 5, read_micros: u32::MAX };
        let mut response = vec![9; WAITED_BYTES + 1];
        waited.encode(&mut response);
        assert_eq!(Waited::parse(&response), Some((waited, &[9][..])));
        assert_eq!(Waited::parse(&response[..7]), None);
    }

    /// The bytes, as `docs/kv-protocol.md` has them.
    #[test]
    fn the_header_has_the_documented_bytes() {
        let mut out = [0; RANKED_BYTES];
        Ranked { rank: 0x0102, is_level: false, wants_waited: true }.encode(&mut out);
        assert_eq!(out, [1, 2, 1, 0, 0, 0, 0, 0, 0]);
        Ranked { rank: 3, is_level: true, wants_waited: false }.encode(&mut out);
        assert_eq!(out, [2, 3, 0, 0, 0, 0, 0, 0, 0]);
    }
}
