//! What key-value experiments ask for: which items, in which order, with which operations, and what their bytes are.
//!
//! Items are numbers from 0 on. [`Popularity`] draws them, [`Mix`] says what is done with them, and [`item`] makes their keys and values,
//! which follow from the number alone, so that every answer of a server can be verified without keeping what was stored.

pub mod item;
mod mix;
mod popularity;
mod zipf;

pub use mix::{Mix, Operation, Operations};
pub use popularity::{Numbers, Popularity};
pub use zipf::{YCSB_THETA, Zipf};
