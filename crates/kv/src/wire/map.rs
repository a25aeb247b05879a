//! The map of a server: how keys are divided among its cores, the cores' addresses, and the limits.

use super::VERSION;
use super::bytes::{Reader, Writer};
use crate::routing::{CORES_MAX, Routing};

/// Maximum number of addresses of one core.
pub const ADDRESSES_PER_CORE_MAX: usize = 16;

/// What a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest value, in bytes.
    pub value_bytes_max: u32,
}

/// The map of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerMap {
    /// Drawn when the server starts: a different number means another server, or a restart.
    pub incarnation: u64,
    /// How keys are divided.
    pub routing: Routing,
    /// What the server accepts.
    pub limits: Limits,
    /// The addresses of each core, as text, in order of the server's preference. An unspecified IP address stands for
    /// the one that the map was requested from.
    pub addresses: Vec<Vec<String>>,
}

impl ServerMap {
    /// Returns the length of the response.
    pub fn encoded_len(&self) -> usize {
        let address = |address: &String| 1 + address.len();
        let core = |addresses: &Vec<String>| 1 + addresses.iter().map(address).sum::<usize>();
        1 + 8 + 16 + 4 + 2 + self.addresses.iter().map(core).sum::<usize>()
    }

    /// Writes the response.
    ///
    /// # Panics
    /// If `out` is shorter than [`ServerMap::encoded_len`], an address is longer than 255 bytes, or a core has more
    /// than [`ADDRESSES_PER_CORE_MAX`] of them.
    pub fn encode(&self, out: &mut [u8]) {
        let mut out = Writer(out);
        out.u8(VERSION).u64(self.incarnation).bytes(&self.routing.seed());
        out.u32(self.limits.value_bytes_max).u16(self.routing.cores());
        for addresses in &self.addresses {
            assert!(addresses.len() <= ADDRESSES_PER_CORE_MAX, "a core has {} addresses", addresses.len());
            out.u8(addresses.len() as u8);
            for address in addresses {
                out.u8(address.len().try_into().expect("an address has at most 255 bytes")).bytes(address.as_bytes());
            }
        }
    }

    /// Parses a response; `None` if it is malformed or of another version ([`ServerMap::version`]).
    pub fn parse(response: &[u8]) -> Option<ServerMap> {
        let mut rest = Reader(response);
        if rest.u8()? != VERSION {
            return None;
        }
        let incarnation = rest.u64()?;
        let seed = rest.array()?;
        let limits = Limits { value_bytes_max: rest.u32()? };
        let cores = rest.u16()?;
        let routing = Routing::new(seed, cores)?;
        debug_assert!(cores <= CORES_MAX);
        let addresses = (0..cores).map(|_| parse_core(&mut rest)).collect::<Option<Vec<_>>>()?;
        rest.end()?;
        Some(ServerMap { incarnation, routing, limits, addresses })
    }

    /// Returns the protocol version of a map.
    pub fn version(response: &[u8]) -> Option<u8> {
        response.first().copied()
    }
}

fn parse_core(rest: &mut Reader<'_>) -> Option<Vec<String>> {
    let count = usize::from(rest.u8()?);
    if !(1..=ADDRESSES_PER_CORE_MAX).contains(&count) {
        return None;
    }
    let mut address = || {
        let len = usize::from(rest.u8()?);
        std::str::from_utf8(rest.bytes(len)?).ok().map(str::to_owned)
    };
    (0..count).map(|_| address()).collect()
}
