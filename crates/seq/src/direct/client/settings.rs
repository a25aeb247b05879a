//! Settings and counters of a client.

use std::time::Duration;

use dunlin_net::poll::PollPolicy;

/// Settings of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectConfig {
    /// Timeout of a call, for all attempts together. Default 2 s.
    pub timeout: Duration,
    /// Timeout of the first attempt. It is longer if the server's answers take longer, and doubles with each further
    /// attempt, up to 64 times. It is checked four times within this period. Default 10 ms.
    pub attempt_timeout: Duration,
    /// Pause after a refused attempt. Default 1 ms.
    pub pause: Duration,
    /// Concurrent calls; 1 to 32,768. Default 1024.
    pub calls_max: usize,
    /// The first tag. `None` draws it from the operating system's random numbers; set it only in tests and simulations.
    pub first_tag: Option<u64>,
    /// What [`DirectClient::next_number`](super::DirectClient::next_number) does while it waits.
    pub poll: PollPolicy,
}

impl Default for DirectConfig {
    fn default() -> Self {
        DirectConfig {
            timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_millis(10),
            pause: Duration::from_millis(1),
            calls_max: 1024,
            first_tag: None,
            poll: PollPolicy::default(),
        }
    }
}

/// The counters of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectStats {
    /// Calls that got a number.
    pub numbers: u64,
    /// Of these, those whose guess was wrong.
    pub wrong_guesses: u64,
    /// Attempts.
    pub attempts: u64,
    /// Attempts without a timely answer: each may have cost a number.
    pub unanswered: u64,
    /// Attempts that were refused.
    pub refused: u64,
    /// Hellos received.
    pub hellos: u64,
    /// Packets of other formats or versions.
    pub foreign: u64,
    /// Answers of an incarnation other than the one asked, or of an earlier epoch.
    pub stale: u64,
    /// Answers to no waiting call: duplicates, and numbers of repeated attempts.
    pub late: u64,
}
