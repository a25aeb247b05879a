//! The key-value service: HERD's server and client (Kalia et al., SIGCOMM 2014; thesis chapter 4), and the memcached
//! protocol.
//!
//! Keys are divided among the cores of a server by a keyed hash ([`routing`]); each core has one partition
//! ([`dunlin_store::Store`]) that no other thread touches (MICA's EREW), so no operation takes a lock. Clients know the
//! division and send each request to the core that owns its key.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`client`] | operations over one endpoint, each to the core that owns its key |
//! | [`cluster`] | a client of several servers with replicas, and how a server that comes back is filled |
//! | [`memcached`] | memcached's protocol over TCP and Unix sockets |
//! | [`metrics`] | the counters of a core, and how they are exported |
//! | [`routing`] | which core owns a key |
//! | [`wire`] | requests and responses, specified in `docs/kv-protocol.md` |
//! | [`shard`] | the state of one core |
//! | [`service`] | the handlers of one core, on any transport |
//! | [`tier`] | what a cache evicts to a file, and the queue of operations that wait for it |
//! | [`server`] | threads, sockets and snapshots: a whole server |
//! | [`transfer`] | transfer of records from files into a server, and back |
#![forbid(unsafe_code)]

pub mod client;
pub mod cluster;
pub mod memcached;
pub mod metrics;
#[cfg(feature = "mutations")]
pub mod mutation;
#[cfg(not(feature = "mutations"))]
mod mutation;
pub mod routing;
pub mod server;
pub mod service;
pub mod shard;
pub mod tier;
pub mod transfer;
pub mod wire;

pub use client::KvClient;
pub use cluster::KvCluster;
pub use service::KvService;
pub use shard::Shard;
