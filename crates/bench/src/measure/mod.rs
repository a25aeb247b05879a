//! How figures are taken: on which core, how often, and what of them is kept.

mod busy;
mod cores;
mod latency;
mod memory;
mod spread;

pub use busy::BusyNeighbour;
pub use cores::{Cores, pin};
pub use latency::{Latencies, Percentiles};
pub use memory::resident_bytes;
pub use spread::{RUNS, Spread};
