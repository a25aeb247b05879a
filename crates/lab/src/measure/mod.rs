//! Measuring: on which core, how often, and which figures are kept.

mod beside;
mod busy;
mod clocks;
mod cores;
mod gaps;
mod latency;
mod memory;
mod scratch;
mod spread;

pub use beside::{BesideFloor, Measured};
pub use busy::BusyNeighbour;
pub use clocks::{StateWatch, cpu_nanos, main_thread_cpu_nanos_of, shared_nanos, thread_cpu_nanos};
pub use cores::{Cores, pin};
pub use gaps::Gaps;
pub use latency::{Latencies, Percentiles};
pub use memory::{available_bytes, peak_resident_bytes, peak_resident_bytes_of, resident_bytes, resident_bytes_of};
pub use scratch::Scratch;
pub use spread::{RUNS, Spread};
