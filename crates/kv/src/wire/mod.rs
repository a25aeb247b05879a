//! Requests and responses of the service: binary, as small as possible, specified in `docs/kv-protocol.md`.
//!
//! Parsing is total: any bytes result in a message or `None`, never a panic. Integers are little-endian.
//!
//! | File | What it holds |
//! |---|---|
//! | [`operation`](Operation) | requests on one key |
//! | [`answer`](Answer) | their responses |
//! | [`multiget`](MultiGet) | many keys in one request |
//! | [`scan`](Scan) | all items, piece by piece |
//! | [`replica`](Replicate) | replicas of a cluster |
//! | [`map`](ServerMap) | which core owns which keys, and the limits |
//! | [`ranked`](Ranked) | the header of requests that say how urgent they are |

mod answer;
mod bytes;
mod map;
mod multiget;
mod operation;
mod ranked;
mod replica;
mod scan;
#[cfg(test)]
mod tests;

pub use answer::{Answer, ItemFacts, NumberAnswer, Status, ValueAnswer};
pub use map::{ADDRESSES_PER_CORE_MAX, Limits, ServerMap};
pub(crate) use multiget::Mark;
pub use multiget::{Found, MultiGet, MultiGetAnswer, MultiGetAnswerWriter};
pub use operation::{Operation, Touch};
pub use ranked::{RANKED_BYTES, Ranked, WAITED_BYTES, Waited};
pub(crate) use replica::PartitionScanWriter;
pub use replica::{
    FILL, PartitionScan, PartitionScanAnswer, REPLICA, REPLICATE, ReplicaInfo, ReplicaState, Replicate,
    SCAN_PARTITIONS, TURN, Turn, Turned, Verdict, Version, VersionedItem, VersionedItems, parse_fill,
};
pub use scan::{SCAN_BYTES, SCAN_VALUE_BYTES_MAX, Scan, ScanAnswer, ScanAnswerWriter, Scanned};

/// Version of these messages. A client rejects a map of another version.
pub const VERSION: u8 = 1;

/// Request type: one operation on one key ([`Operation`]).
pub const OPERATE: u8 = 0x20;
/// Request type: many keys ([`MultiGet`]).
pub const MULTI_GET: u8 = 0x21;
/// Request type: the map of the server ([`ServerMap`]). The request is empty.
pub const MAP: u8 = 0x22;
/// Request type: statistics of the addressed core: [`crate::metrics::ServerStats::encode`] with one core. The request
/// is empty.
pub const STATS: u8 = 0x23;
/// Request type: deletes every item of the addressed core. The request is empty; the response is a status.
pub const FLUSH: u8 = 0x24;
/// Request type: asks the server to save its snapshot. The request is empty; the response is a status.
pub const SNAPSHOT: u8 = 0x25;
/// Request type: items of the addressed core, from a hash on ([`Scan`]).
pub const SCAN: u8 = 0x26;
/// Request type: as [`OPERATE`], behind a header ([`Ranked`]). A server that does not know it answers that it has no
/// handler; send [`OPERATE`] then.
pub const RANKED_OPERATE: u8 = 0x27;
/// Request type: as [`MULTI_GET`], behind a header ([`Ranked`]).
pub const RANKED_MULTI_GET: u8 = 0x28;

/// Maximum number of keys in one multi-get.
pub const MULTI_GET_KEYS_MAX: usize = 1024;
/// Bytes of values in the response to one multi-get; keys beyond that are answered with [`Status::Later`]. Two of the
/// longest values fit.
pub const MULTI_GET_VALUE_BYTES_MAX: usize = 2 << 20;
