//! Limits of the cluster manager's state.

use std::time::Duration;

use dunlin_rpc::EndpointConfig;

use crate::error::CoordError;
use crate::model::PAGE_BYTES_MAX;
use crate::path::PATH_BYTES_MAX;

/// Shortest time of a lease.
pub const LEASE_TTL_MIN: Duration = Duration::from_millis(10);
/// The most bytes of an event, a member or an entry in an answer, besides its names and values.
pub(crate) const ITEM_BYTES: usize = 64;
/// Longest time of a lease: a resource may be unusable for this long after its holder dies.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(3600);

/// Limits of the state. All replicas must have the same limits, since each must refuse the same commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Members, live or failed. Default 1024.
    pub members_max: usize,
    /// Bytes of a member's description of itself. Default 1 KiB.
    pub about_bytes_max: usize,
    /// Epochs that are kept. Default 4096.
    pub epochs_max: usize,
    /// Leases that are held at a time. Default 4096.
    pub leases_max: usize,
    /// Entries of the tree. Default 65,536.
    pub entries_max: usize,
    /// Bytes of a value. Default 64 KiB.
    pub value_bytes_max: usize,
    /// Bytes of all paths and values. Default 64 MiB.
    pub tree_bytes_max: usize,
    /// Events that are kept for watchers. Default 16,384.
    pub history_events_max: usize,
    /// Bytes of these. Default 16 MiB.
    pub history_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            members_max: 1024,
            about_bytes_max: 1 << 10,
            epochs_max: 4096,
            leases_max: 4096,
            entries_max: 65_536,
            value_bytes_max: 64 << 10,
            tree_bytes_max: 64 << 20,
            history_events_max: 16_384,
            history_bytes_max: 16 << 20,
        }
    }
}

impl Limits {
    /// Checks that each answer fits into a message of an endpoint with default settings. A step is never divided, and
    /// one step may end all leases: watchers could not pass a step that is longer than a message.
    ///
    /// # Errors
    /// [`CoordError::Backend`] with the limits to lower.
    pub fn check(&self) -> Result<(), CoordError> {
        let message = EndpointConfig::default().message_bytes_max;
        let members = self.members_max.saturating_mul(ITEM_BYTES.saturating_add(self.about_bytes_max));
        let leases = self.leases_max.saturating_mul(ITEM_BYTES + PATH_BYTES_MAX);
        let value = self.value_bytes_max.saturating_add(ITEM_BYTES + PATH_BYTES_MAX);
        let failures = self.members_max.saturating_mul(ITEM_BYTES);
        // A page may end with the longest step.
        let step = leases.saturating_add(failures).saturating_add(PAGE_BYTES_MAX);
        for (limits, bytes) in
            [("members_max or about_bytes_max", members), ("leases_max", step), ("value_bytes_max", value)]
        {
            if bytes.saturating_add(ITEM_BYTES) > message {
                let why =
                    format!("an answer may have {bytes} B, and a message has {message} B at most: lower {limits}");
                return Err(CoordError::Backend { why, may_have_run: false });
            }
        }
        Ok(())
    }

    pub(crate) fn check_about(&self, about: &[u8]) -> Result<(), CoordError> {
        check_bytes("what a member says about itself", about, self.about_bytes_max)
    }

    pub(crate) fn check_value(&self, value: &[u8]) -> Result<(), CoordError> {
        check_bytes("a value", value, self.value_bytes_max)
    }
}

fn check_bytes(what: &str, bytes: &[u8], max: usize) -> Result<(), CoordError> {
    if bytes.len() > max { Err(CoordError::TooLarge { what: what.into(), max: max as u64 }) } else { Ok(()) }
}

/// Checks the requested time of a lease.
pub(crate) fn check_ttl(ttl_ms: u64) -> Result<(), CoordError> {
    if (LEASE_TTL_MIN.as_millis() as u64..=LEASE_TTL_MAX.as_millis() as u64).contains(&ttl_ms) {
        return Ok(());
    }
    Err(CoordError::BadTtl { millis: ttl_ms })
}
