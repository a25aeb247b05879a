//! The processes of experiments on multiget scheduling that run in real time.

mod multigets;
mod queues;
mod shared;
mod sleepers;
mod tier_server;

pub use multigets::{AllMultigetFigures, Load, MultigetFigures, Multigets, Peak, Quantiles};
pub use queues::Queues;
pub use shared::QueueKind;
pub use sleepers::Sleepers;
pub use tier_server::{ServerOrder, TierServer};
