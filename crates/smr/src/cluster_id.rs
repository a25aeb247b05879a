//! The number that distinguishes a cluster from all others.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// The number of a cluster: random, drawn when the cluster is founded, and stored in the initial state of all of its
/// logs. Every message contains it, so that a replica or client that reaches another cluster by mistake notices. It is
/// no secret and does not protect against forgery.
///
/// It is displayed as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(NonZeroU64);

impl ClusterId {
    /// Draws a number from a random source.
    pub(crate) fn draw(mut random: impl FnMut() -> u64) -> ClusterId {
        loop {
            if let Some(id) = ClusterId::from_bits(random()) {
                return id;
            }
        }
    }

    /// Draws a number from the system's random source.
    ///
    /// # Errors
    /// If the system cannot provide one.
    pub(crate) fn draw_afresh() -> Result<ClusterId, getrandom::Error> {
        loop {
            if let Some(id) = ClusterId::from_bits(getrandom::u64()?) {
                return Ok(id);
            }
        }
    }

    /// Returns the number with these bits; `None` if that is no valid number: neither its 64 bits nor its short form of
    /// 32 bits may be 0, which stands for no number.
    pub fn from_bits(bits: u64) -> Option<ClusterId> {
        let id = ClusterId(NonZeroU64::new(bits)?);
        (id.short() != 0).then_some(id)
    }

    /// Returns its bits.
    pub fn bits(self) -> u64 {
        self.0.get()
    }

    /// Returns its short form of 32 bits, as used in clients' requests.
    pub(crate) fn short(self) -> u32 {
        (self.bits() ^ self.bits() >> 32) as u32
    }
}

/// Returns the bits of a number, 0 for none.
pub(crate) fn bits(cluster: Option<ClusterId>) -> u64 {
    cluster.map_or(0, ClusterId::bits)
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.bits())
    }
}

/// A text that is not a [`ClusterId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no number of a cluster: write its 16 hexadecimal digits, as `dunlin raft status` shows them")]
pub struct NoClusterId;

impl FromStr for ClusterId {
    type Err = NoClusterId;

    fn from_str(text: &str) -> Result<ClusterId, NoClusterId> {
        let is_hexadecimal = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bits = is_hexadecimal.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        bits.and_then(ClusterId::from_bits).ok_or(NoClusterId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut numbers = [0, 7 << 32 | 7, 0x0123_4567_89ab_cdef].into_iter();
        let id = ClusterId::draw(|| numbers.next().unwrap());
        assert_eq!(id.to_string(), "0123456789abcdef");
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "7", "0000000000000000", "0123456789abcdeg", "+123456789abcdef", "0123456789abcdef0"] {
            assert_eq!(text.parse::<ClusterId>(), Err(NoClusterId), "{text}");
        }
    }
}
