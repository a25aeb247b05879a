//! Traces of a run: its packets, as a capture file; its queues and rates over time, as rows to plot.

pub(crate) mod capture;
pub(crate) mod series;

pub use capture::CapturePoint;
pub use series::{Sample, Series};
