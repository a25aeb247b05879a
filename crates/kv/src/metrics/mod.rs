//! A server's counters, and how they are read.
//!
//! Each core owns one [`CoreMetrics`]: plain numbers, no locks, no atomics. An operation costs one addition; its
//! latency is recorded per burst. A reader asks each core through its mailbox for a [`CoreStats`], and combines them in
//! a [`ServerStats`], which is sent to `dunlin kv stats` and `dunlin top` and converted to the Prometheus text. Neither
//! conversion runs on a core.

mod exposition;
mod latency;
mod operation;
mod queue;
mod recorder;
mod snapshot;
#[cfg(test)]
mod snapshot_tests;
mod tier;
mod timing;

pub use exposition::{CONTENT_TYPE, exposition};
pub use latency::LatencyHistogram;
pub use operation::{Operation, Outcome};
pub(crate) use queue::rank_class;
pub use queue::{QueueSnapshot, RANK_CLASSES};
pub use recorder::{ConnectionCounts, CoreMetrics};
pub use snapshot::{
    CoreStats, EndpointSnapshot, HandlerSnapshot, OperationStats, ServerStats, StatsError, StoreSnapshot,
};
pub use tier::{TierSnapshot, WaitSnapshot};
pub(crate) use timing::{Begun, Timing};
