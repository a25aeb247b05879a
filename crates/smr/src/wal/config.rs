//! Settings of a log.

use super::error::WalError;
use super::format::{ALIGNMENT, SEGMENT_BYTES_MAX};

/// The smallest size of a segment.
pub const SEGMENT_BYTES_MIN: u32 = 1 << 10;

/// Settings of a log. The sizes may change from one opening to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalConfig {
    /// The node that owns the log: another node refuses to open it.
    pub owner: u64,
    /// Bytes of a segment, a multiple of 8 from [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`]. A frame that is longer
    /// gets a segment of its own size. 64 MiB by default.
    pub segment_bytes: u32,
    /// If more bytes than this wait for the disk, the log accepts no entries. 32 MiB by default. One batch may exceed
    /// it, and so may a replica's entries that came in one burst ([`super::Wal::append_admitted`]).
    pub unflushed_bytes_max: usize,
    /// If all segments together have more bytes than this, the log accepts no entries. 16 GiB by default.
    pub log_bytes_max: u64,
    /// Bytes of a snapshot that are written and flushed between two flushes of the log
    /// ([`super::Wal::write_snapshot`]). 1 MiB by default.
    pub snapshot_piece_bytes: usize,
}

impl WalConfig {
    /// Returns the defaults.
    pub fn new(owner: u64) -> WalConfig {
        WalConfig {
            owner,
            segment_bytes: 64 << 20,
            unflushed_bytes_max: 32 << 20,
            log_bytes_max: 16 << 30,
            snapshot_piece_bytes: 1 << 20,
        }
    }

    pub(super) fn check(&self) -> Result<(), WalError> {
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
            || !self.segment_bytes.is_multiple_of(ALIGNMENT as u32)
        {
            return Err(WalError::Config("a segment has 1 KiB to 1 GiB, a multiple of 8 bytes"));
        }
        if self.unflushed_bytes_max == 0 {
            return Err(WalError::Config("a log must be allowed to have bytes that wait for the disk"));
        }
        if self.log_bytes_max < u64::from(self.segment_bytes) {
            return Err(WalError::Config("a log must be allowed to have a segment"));
        }
        if self.snapshot_piece_bytes == 0 {
            return Err(WalError::Config("a snapshot is written in pieces of 1 byte or more"));
        }
        Ok(())
    }
}
