//! The processes of experiments on multiget scheduling that run in real time.

mod queues;
mod shared;

pub use queues::Queues;
pub use shared::QueueKind;
