//! Errors of writes, and of a client.

use std::sync::Arc;

use dunlin_net::Addr;
use dunlin_serve::ChannelError;
use thiserror::Error;

/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a value, in bytes, as in the store.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Why a write changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The key has more than [`KEY_BYTES_MAX`] bytes.
    #[error("the key has {len} bytes, more than {KEY_BYTES_MAX}")]
    KeyTooLong {
        /// Its length.
        len: usize,
    },
    /// The value has more than [`VALUE_BYTES_MAX`] bytes.
    #[error("the value has {len} bytes, more than {VALUE_BYTES_MAX}")]
    ValueTooLong {
        /// Its length.
        len: usize,
    },
    /// The memory budget is used up. Overwriting a value that is stored in a leaf with one of up to 8 bytes needs no
    /// memory and still succeeds. Removed and overwritten memory counts until all guards that may see it are dropped.
    #[error("the memory budget of {budget} bytes is used up: remove items and drop the guards, or give it more memory")]
    Full {
        /// The budget in bytes.
        budget: usize,
    },
}

/// Why a call of a client failed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The key or the value is too long. Nothing was sent.
    #[error("nothing was sent: {0}")]
    TooLong(Refused),
    /// The lower bound of a scan is above its upper bound. Nothing was sent.
    #[error("the lower bound of the scan is above its upper bound: swap them")]
    Reversed,
    /// The limits of a page are zero, or above [`crate::wire::LONG_PAGE`]. Nothing was sent.
    #[error("a page has 1 to 16384 items and 1 to 262144 bytes, not up to {items} items and {bytes} bytes")]
    PageLimits {
        /// The limit of items.
        items: u32,
        /// The limit of bytes.
        bytes: u32,
    },
    /// The memory budget of the index is used up. The item was not stored; a value that the key had is still there.
    #[error(
        "{server} did not store the item, its memory budget is used up: delete items, or give it more memory; \
         `dunlin index stats` shows how much of it free nodes have"
    )]
    Full {
        /// The server.
        server: Addr,
    },
    /// The server was restarted during a scan, so that its items are others. The scan has ended.
    #[error("{server} was restarted during the scan: begin again, or begin a new scan after the last key of this one")]
    Restarted {
        /// The server.
        server: Addr,
    },
    /// The server saved no snapshot. The one before is as it was.
    #[error("{server} saved no snapshot: {why}")]
    Snapshot {
        /// The server.
        server: Addr,
        /// What the server said.
        why: Arc<str>,
    },
    /// The server is shutting down. It removed no more items.
    #[error("{server} is shutting down and removes no more items: ask again when it is back")]
    Ending {
        /// The server.
        server: Addr,
    },
    /// The call failed.
    #[error("{server}: {why}")]
    Call {
        /// The server.
        server: Addr,
        /// Why, and whether a write may have been done.
        why: ChannelError,
    },
    /// The server's answer does not match this version of the protocol.
    #[error("{server} does not answer as an index of this version: {why}; check the address and the versions")]
    Protocol {
        /// The server.
        server: Addr,
        /// What is wrong with it.
        why: Arc<str>,
    },
}

/// Refuses keys and values that are too long.
pub(crate) fn check_lengths(key: &[u8], value: &[u8]) -> Result<(), Refused> {
    if key.len() > KEY_BYTES_MAX {
        Err(Refused::KeyTooLong { len: key.len() })
    } else if value.len() > VALUE_BYTES_MAX {
        Err(Refused::ValueTooLong { len: value.len() })
    } else {
        Ok(())
    }
}
