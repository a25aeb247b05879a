//! A replicated key-value machine on a partition of [`dunlin_store`]: values with versions, and conditional changes.

mod frozen;
mod machine;
mod wire;

/// Returns the group that holds a key, of this many groups: the same in all programs and versions.
pub fn group_of(key: &[u8], groups: u16) -> u16 {
    // Each group has a contiguous range of hashes.
    ((u64::from(crc32c::crc32c(key)) * u64::from(groups.max(1))) >> 32) as u16
}

pub use machine::KvMachine;
pub use wire::{Answer, Command, Condition, Query, VALUE_BYTES_MAX};
