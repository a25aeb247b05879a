//! Operations on a table in memory, and random reads of memory.

mod random_reads;
mod store_ops;

pub use store_ops::{CacheFigures, CacheFill, Kind, StoreCase, StoreFigures, StoreOps, System};
