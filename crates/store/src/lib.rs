//! Data structures without a network: a key-value partition for one thread, as a lossy cache or as a lossless store.
//!
//! The trait [`Store`] has everything that a service needs of either; [`Model`] is the simplest implementation, for
//! tests.
//!
//! Start reading at `partition/mod.rs`; `docs/store.md` shows the memory layout of a partition.
#![deny(unsafe_code)]

mod config;
mod entry;
mod error;
mod geometry;
mod hasher;
mod item;
mod key;
mod line;
mod log;
mod memory;
mod model;
mod moment;
mod number;
mod partition;
mod record;
mod shape;
pub mod snapshot;
mod store;
mod sweep;
mod table;
pub mod tier;

pub use config::{
    KeyFunction, Layout, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, Mode, PartitionConfig, PartitionError, Prefault,
    SEGMENT_BYTES_MIN,
};
pub use error::{KeyError, Refused};
pub use item::{Condition, Delta, Item, Marks, Put, Side, Stored, Token, UnixSeconds};
pub use key::{KEY_BYTES_MAX, Key, KeyHash};
pub use model::Model;
pub use moment::Moment;
pub use partition::Partition;
pub use shape::Shape;
pub use store::{Store, StoreStats, VALUE_BYTES_MAX};
pub use sweep::{Sweep, Visit, Watch};
