//! Requests and responses of the service: binary, as small as can be, specified in `docs/kv-protocol.md`.
//!
//! Parsing is total: any bytes give a message or `None`, never a panic. Integers are little-endian.
//!
//! | File | What it holds |
//! |---|---|
//! | [`operation`](Operation) | requests on one key |
//! | [`answer`](Answer) | their responses |
//! | [`multiget`](MultiGet) | many keys in one request |
//! | [`scan`](Scan) | all items, piece by piece |
//! | [`map`](ServerMap) | who owns which keys, and the limits |

mod answer;
mod bytes;
mod map;
mod multiget;
mod operation;
mod scan;
#[cfg(test)]
mod tests;

pub use answer::{Answer, ItemFacts, NumberAnswer, Status, ValueAnswer};
pub use map::{ADDRESSES_PER_CORE_MAX, Limits, ServerMap};
pub use multiget::{Found, MultiGet, MultiGetAnswer, MultiGetAnswerWriter};
pub use operation::{Operation, Touch};
pub use scan::{SCAN_BYTES, SCAN_VALUE_BYTES_MAX, Scan, ScanAnswer, ScanAnswerWriter, Scanned};

/// Version of these messages. A client refuses a map of another.
pub const VERSION: u8 = 1;

/// Request type: one operation on one key ([`Operation`]).
pub const OPERATE: u8 = 0x20;
/// Request type: many keys ([`MultiGet`]).
pub const MULTI_GET: u8 = 0x21;
/// Request type: the map of the server ([`ServerMap`]). The request is empty.
pub const MAP: u8 = 0x22;
/// Request type: counters of the core that is asked: [`crate::metrics::ServerStats::encode`] with one core. The request is empty.
pub const STATS: u8 = 0x23;
/// Request type: deletes every item of the core that is asked. The request is empty; the response is a status.
pub const FLUSH: u8 = 0x24;
/// Request type: asks the server to save its snapshot. The request is empty; the response is a status.
pub const SNAPSHOT: u8 = 0x25;
/// Request type: items of the core that is asked, from a hash on ([`Scan`]).
pub const SCAN: u8 = 0x26;

/// Keys of one multi-get.
pub const MULTI_GET_KEYS_MAX: usize = 1024;
/// Bytes of the values in the response to one multi-get, beyond which keys are answered with [`Status::Later`]. Two of the longest values fit.
pub const MULTI_GET_VALUE_BYTES_MAX: usize = 2 << 20;
