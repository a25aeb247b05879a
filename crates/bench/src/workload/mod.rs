//! The workload of key-value experiments: choice and order of items, operations, and the bytes of items.
//!
//! Items are numbered from 0. [`Popularity`] draws them, [`Mix`] chooses the operations, and [`item`] makes their keys
//! and values, which depend only on the number, so that every answer of a server can be verified without storing the
//! data.

pub mod item;
mod mix;
mod popularity;
mod zipf;

pub use mix::{Mix, Operation, Operations};
pub use popularity::{Numbers, Popularity};
pub use zipf::{YCSB_THETA, Zipf};
