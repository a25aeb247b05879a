//! A replicated key-value machine on a partition of [`dunlin_store`]: values with versions, and changes on condition of them.

mod frozen;
mod machine;
mod wire;

pub use machine::KvMachine;
pub use wire::{Answer, Command, Condition, Query, VALUE_BYTES_MAX};
