//! Hosts: NICs with their queues, threads with their CPU time, and the transport that a program uses.

pub(crate) mod clock;
pub(crate) mod cost;
mod fit;
pub(crate) mod nic;
pub(crate) mod program;
pub(crate) mod thread;
pub(crate) mod transport;

pub use clock::ThreadClock;
pub use cost::CostModel;
pub use fit::BurstTime;
pub use program::{Next, Program};
pub use transport::SimTransport;
