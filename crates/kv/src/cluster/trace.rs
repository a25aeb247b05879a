//! What became of each part of a multiget.

use std::time::Duration;

/// Why a part was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It is the first attempt.
    First,
    /// A duplicate, sent at once.
    Duplicate,
    /// Another replica was slow.
    Slow,
    /// Another replica failed.
    Failed,
}

impl Why {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Why::First => "first",
            Why::Duplicate => "duplicate",
            Why::Slow => "another was slow",
            Why::Failed => "another failed",
        }
    }
}

/// A request of a multiget, for some of its keys at one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartTrace {
    /// The server.
    pub server: String,
    /// Keys.
    pub keys: usize,
    /// Partitions that they belong to.
    pub partitions: usize,
    /// The rank that the policy gave it.
    pub rank: u64,
    /// Why it was sent.
    pub why: Why,
    /// When it was ready to be sent, since the multiget began. It may have waited here because too many others were in
    /// flight.
    pub ready: Duration,
    /// When it was sent.
    pub sent: Duration,
    /// When it had ended; `None` if nobody waited for that.
    pub ended: Option<Duration>,
    /// How long it waited in the server's queue: the request that waited longest, if there were several.
    pub queued: Duration,
    /// How long it waited for the device of the server's tier after that.
    pub device: Duration,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// The parts of a multiget.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MultigetTrace {
    /// How long all of it took.
    pub total: Duration,
    /// Its parts, in the order in which they were ready.
    pub parts: Vec<PartTrace>,
}
