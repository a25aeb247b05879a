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
    /// Processor to pin to.
    pub core: Option<usize>,
    /// Parameters of the role.
    pub task: Value,
}

/// A line from the child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Message {
    /// Other processes may connect.
    Ready(Value),
    /// A figure of the run so far.
    Live(Metric, f64),
    /// The result.
    Result(Value),
    /// There is no result, for this reason.
    Error(String),
}
