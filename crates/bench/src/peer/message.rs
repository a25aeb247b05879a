//! The lines between a parent and its child.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::report::Metric;

/// The line that asks a child to finish.
pub(super) const STOP: &str = "stop";

/// The first line from the parent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Assignment {
    /// Name of the role.
    pub role: String,
    /// Processor to stay on.
    pub core: Option<usize>,
    /// Parameters of the role.
    pub task: Value,
}

/// A line from the child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Message {
    /// Others may come.
    Ready(Value),
    /// A figure of the run so far.
    Live(Metric, f64),
    /// The outcome.
    Result(Value),
    /// There will be none, and why.
    Error(String),
}
