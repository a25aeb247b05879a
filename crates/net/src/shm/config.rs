//! The settings of a shared-memory endpoint.

use std::path::PathBuf;

use crate::addr::ShmName;
use crate::error::NetError;
use crate::shm::futex;
use crate::shm::layout::Sizes;

/// How to make a [`ShmTransport`](super::ShmTransport).
#[derive(Debug, Clone)]
pub struct ShmConfig {
    /// The name that others resolve; `None` for an endpoint that always speaks first and gets a random name.
    pub name: Option<ShmName>,
    /// Where region files lie. It must support mapped files and `O_TMPFILE`; memory-backed file systems do.
    pub directory: PathBuf,
    /// Packets the receive queue holds: a power of two, 64 to 2^20. Each takes 128 B, whether used or not.
    pub queue_len: u32,
    /// Packets longer than [`INLINE_BYTES_MAX`](super::INLINE_BYTES_MAX) that the queue holds: 1 to 2^20. The first 16
    /// take `mtu` bytes each at creation, the others when they are first used; a packet for which there is no memory is
    /// dropped and counted in [`tx_dropped_no_memory`](crate::TransportCounters::tx_dropped_no_memory).
    pub bulk_buffers: u32,
    /// Largest packet in bytes: 112 to 65,472.
    pub mtu: u32,
    /// Endpoints that may have this one resolved at the same time: 1 to 65,535.
    pub senders_max: u32,
    /// Peers this endpoint may have resolved at the same time. Each takes a mapping and a file descriptor, or two
    /// descriptors if it sleeps by descriptor ([`Transport::wake_fd`](crate::Transport::wake_fd)).
    pub routes_max: usize,
    /// Most cells of the receive queue to prefetch after a burst is sent, so that the answers to the previous burst are
    /// on their way from the other core by the time they are read; 0 for none.
    pub prefetch_cells: u32,
    /// The number of the first packet received; set only by tests.
    pub(crate) first_ticket: u64,
    /// Whether senders need no fence of their own because the kernel issues one before this endpoint sleeps; set only
    /// by tests.
    pub(crate) kernel_fences: bool,
}

impl ShmConfig {
    /// The defaults for an endpoint called `name`.
    pub fn named(name: ShmName) -> Self {
        ShmConfig { name: Some(name), ..Self::anonymous() }
    }

    /// The defaults for an endpoint that others need not resolve by name.
    pub fn anonymous() -> Self {
        ShmConfig {
            name: None,
            directory: PathBuf::from("/dev/shm"),
            queue_len: 4096,
            bulk_buffers: 4096,
            mtu: 8192 + 32,
            senders_max: 1024,
            routes_max: 4096,
            prefetch_cells: 16,
            first_ticket: 0,
            kernel_fences: futex::kernel_fences(),
        }
    }

    /// The sizes of the region to create.
    ///
    /// # Errors
    /// [`NetError::BadSetting`] for the first setting outside its range.
    pub(crate) fn sizes(&self) -> Result<Sizes, NetError> {
        let sizes = Sizes {
            queue_len: self.queue_len,
            bulk_buffers: self.bulk_buffers,
            mtu: self.mtu,
            senders_max: self.senders_max,
        };
        sizes.check().map_err(|(name, why)| NetError::BadSetting { name, why })?;
        if self.routes_max == 0 || self.routes_max > u32::MAX as usize {
            return Err(NetError::BadSetting { name: "routes_max", why: "must be 1 to 2^32 - 1".into() });
        }
        Ok(sizes)
    }
}
