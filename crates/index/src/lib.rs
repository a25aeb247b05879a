//! An ordered map in memory from byte strings to byte strings, for many threads: a trie of B+ trees over slices of
//! eight bytes, in the manner of Masstree. Look-ups overlap their cache misses.
//!
//! Keys have up to 64 KiB. Values of up to 8 bytes are stored in the leaf. An [`Index`] never uses more memory than its
//! budget.
//!
//! **Concurrency.** Any number of threads read and write one index. A look-up or scan takes no lock and writes to no
//! shared cache line: it copies words of a node, which are atomics, and accepts them if the node's version is the same
//! before and after. A writer locks the leaf it changes, and two or three nodes if one is split, merged or replaced. It
//! locks only a version that it has read, and otherwise starts again, so there is no deadlock. We chose versions per
//! node instead of a single writer at a time, because a server shares one index between all its cores, and half of
//! their requests may be writes. Memory is freed by epochs (`crossbeam-epoch`): everything that a thread has seen stays
//! until it drops its [`Guard`]. Any thread that takes a guard may free what others have retired, which takes a mutex
//! for each node.
//!
//! **Promises.** `get`, `insert` and `remove` of one key are linearizable. A scan is not a snapshot: it visits all
//! items that exist throughout the scan, and none that never existed during it, in key order, each key at most once. A
//! reader waits if it meets a locked node; a writer holds a lock for some hundred instructions.
//!
//! **Bursts.** [`Index::get_burst`] carries up to 32 look-ups through the tree together, so that their cache misses
//! overlap; [`Index::burst`] does it with look-ups and short scans, [`Index::insert_burst`] with writes.
//!
//! **Service.** [`IndexService`] serves an index on endpoints, one for each core, and [`Client`] reaches it: look-ups,
//! writes, and scans by pages. [`Server`] is all of that as a program runs it, with snapshots. [`wire`] has the
//! messages.
//!
//! ```
//! use dunlin_index::{Index, Order, Range, pin};
//!
//! let index = Index::new(1 << 20)?;
//! let guard = pin();
//! index.insert(b"dunlin", b"Calidris alpina", &guard)?;
//! index.insert(b"sanderling", b"Calidris alba", &guard)?;
//! assert_eq!(&*index.get(b"dunlin", &guard).expect("just inserted"), b"Calidris alpina");
//! let mut keys = Vec::new();
//! index.scan(Range::prefix(b"s"), Order::Ascending, 10, &guard, |key, _value| keys.push(key.to_vec()));
//! assert_eq!(keys, [b"sanderling"]);
//! # Ok::<(), dunlin_index::Refused>(())
//! ```
//!
//! Start reading at `node/mod.rs`, then `index.rs` and `write.rs`; `docs/index.md` draws the nodes and states the
//! protocol of versions.
#![deny(unsafe_code)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a node keeps addresses in words of 64 bits");

mod block;
mod burst;
pub mod client;
mod counter;
mod cursor;
mod error;
mod guard;
mod index;
#[cfg(test)]
mod interleave;
mod memory;
mod node;
mod range;
mod scan;
pub mod service;
mod slice;
pub mod snapshot;
mod statistics;
mod tidy;
mod value;
mod verify;
mod walk;
pub mod wire;
mod write;

pub use client::{Client, ClientConfig, Pages};
pub use cursor::Cursor;
pub use error::{IndexError, KEY_BYTES_MAX, Refused, VALUE_BYTES_MAX};
pub use guard::{Guard, pin};
pub use index::Index;
pub use node::Vectors;
pub use range::{Gap, Order, Range};
pub use scan::Scan;
pub use service::{IndexService, Server, ServerConfig, ServerError, ServerStats, ServiceStats, SharedIndex};
pub use snapshot::{BuildError, Builder};
pub use statistics::Statistics;
pub use value::Value;
