//! Why a call gets no number.

use dunlin_net::Addr;

/// Why a call got no number.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// Too many calls are in progress.
    #[error("{max} calls are in progress already: wait for some of them, or raise calls_max")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// [`DirectClient::next_number`](super::DirectClient::next_number) was called while other calls are in progress.
    #[error("{in_progress} calls are in progress: end them by poll() before next_number(), or use ask() for this one")]
    InProgress {
        /// How many.
        in_progress: usize,
    },
    /// The call timed out.
    #[error("no sequencer gave a number in time: {server} {why}")]
    TimedOut {
        /// The last server asked.
        server: Addr,
        /// Why it gave no number.
        why: Stall,
    },
    /// All numbers are handed out.
    #[error("{server} has no more numbers: its number space is exhausted")]
    Exhausted {
        /// The sequencer.
        server: Addr,
    },
    /// A sequencer hands out numbers that are not above those that this client already has.
    #[error(
        "{server} begins at {first}, and this client has had {seen} already: numbers came twice or will; stop the \
         sequencer, and start it above all numbers that were handed out (--start)"
    )]
    WentBack {
        /// The sequencer.
        server: Addr,
        /// The number it gave, or its next number.
        first: u64,
        /// The highest number that this client has.
        seen: u64,
    },
    /// An address cannot be resolved.
    #[error("cannot reach {server}: {why}")]
    Unreachable {
        /// The address.
        server: Addr,
        /// Why.
        why: String,
    },
    /// The client has no server address.
    #[error("no address of a sequencer was given: give one or more")]
    NoServer,
    /// A setting is out of range.
    #[error("setting {name}: {allowed}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its valid values.
        allowed: &'static str,
    },
    /// The operating system gave no random numbers.
    #[error("no random numbers from the operating system: {0}")]
    Random(String),
}

/// Why the last attempt of a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Stall {
    /// There was no answer.
    #[error("did not answer")]
    Silent,
    /// No numbers were reserved.
    #[error("waits for numbers to be reserved")]
    Dry,
    /// Another sequencer may serve.
    #[error("does not serve at the moment")]
    NotServing,
    /// The server is in an earlier epoch than another one that this client has asked: it was replaced.
    #[error("is in an earlier epoch: another sequencer has replaced it")]
    OldEpoch,
}
