//! What a server counts, and how it is read.
//!
//! Each core owns one [`CoreMetrics`]: plain numbers, no locks, no atomics. An operation costs one addition; its latency is taken per burst.
//! Whoever wants to know asks the core, by its mailbox, for a [`CoreStats`], and puts those of all cores into a [`ServerStats`]. That is
//! what travels to `dunlin kv stats` and `dunlin top`, and what the Prometheus text is made of; neither is made on a core.

mod exposition;
mod latency;
mod operation;
mod recorder;
mod snapshot;
#[cfg(test)]
mod snapshot_tests;
mod timing;

pub use exposition::{CONTENT_TYPE, exposition};
pub use latency::LatencyHistogram;
pub use operation::{Operation, Outcome};
pub use recorder::{ConnectionCounts, CoreMetrics};
pub use snapshot::{CoreStats, EndpointSnapshot, HandlerSnapshot, OperationStats, ServerStats, StatsError, StoreSnapshot};
pub(crate) use timing::{Begun, Timing};
