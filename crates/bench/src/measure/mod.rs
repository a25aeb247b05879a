//! How figures are taken.

mod spread;

pub use spread::{RUNS, Spread};
