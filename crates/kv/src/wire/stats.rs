//! Counters by name.

use super::bytes::{Reader, Writer};

/// Longest name of a counter, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Counters of one core, in order, by name. Names are of letters, digits and `_`; a reader skips those it does not know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatsList(pub Vec<(String, u64)>);

impl StatsList {
    /// Adds a counter. Names longer than [`NAME_BYTES_MAX`] are cut.
    pub fn push(&mut self, name: &str, value: u64) {
        self.0.push((name.chars().take(NAME_BYTES_MAX).filter(char::is_ascii).collect(), value));
    }

    /// The counter of a name, or 0.
    pub fn value(&self, name: &str) -> u64 {
        self.0.iter().find(|(other, _)| other == name).map_or(0, |(_, value)| *value)
    }

    /// Bytes of the response.
    pub fn encoded_len(&self) -> usize {
        self.0.iter().map(|(name, _)| 9 + name.len()).sum()
    }

    /// Writes the response.
    ///
    /// # Panics
    /// If `out` is shorter than [`StatsList::encoded_len`].
    pub fn encode(&self, out: &mut [u8]) {
        let mut out = Writer(out);
        for (name, value) in &self.0 {
            out.u8(name.len() as u8).bytes(name.as_bytes()).u64(*value);
        }
    }

    /// Parses a response; `None` if it is malformed.
    pub fn parse(response: &[u8]) -> Option<StatsList> {
        let mut rest = Reader(response);
        let mut list = StatsList::default();
        while !rest.0.is_empty() {
            let len = usize::from(rest.u8()?);
            let name = std::str::from_utf8(rest.bytes(len)?).ok()?.to_owned();
            list.0.push((name, rest.u64()?));
        }
        Some(list)
    }
}
