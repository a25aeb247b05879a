//! Errors of a client.

use std::sync::Arc;

use dunlin_net::Addr;
use dunlin_serve::ChannelError;

use crate::counter::RUN_MAX;

/// Why a call of a client failed. A number may still have been drawn for it; then it is never handed out.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SeqError {
    /// An empty run was requested.
    #[error("a run has at least one number")]
    EmptyRun,
    /// The run is too long.
    #[error("a run of {length} numbers is too long: ask for at most {RUN_MAX} at a time")]
    LongRun {
        /// The requested length.
        length: u32,
    },
    /// All numbers are handed out, or fewer are left than the run has.
    #[error("{server} has no more numbers: its number space is exhausted")]
    Exhausted {
        /// The sequencer.
        server: Addr,
    },
    /// Too many callers are waiting.
    #[error("{max} callers wait for numbers already: await some of them first, or raise {setting}")]
    TooMany {
        /// The limit.
        max: usize,
        /// The setting.
        setting: &'static str,
    },
    /// The call timed out.
    #[error("no sequencer gave a number in time{}", .last.as_ref().map_or_else(String::new, |last| format!(": {last}")))]
    TimedOut {
        /// Why the last attempt failed, if any failed by then.
        last: Option<Setback>,
    },
    /// A sequencer handed out numbers that are not above those that this client already has: it was restarted with a
    /// first number that is too low.
    #[error(
        "{server} begins at {first}, and this client has had {seen} already: numbers came twice or will; stop the \
         sequencer, and start it above all numbers that were handed out (--start)"
    )]
    WentBack {
        /// The sequencer.
        server: Addr,
        /// The number it gave.
        first: u64,
        /// The highest number that this client has.
        seen: u64,
    },
    /// The server's answer does not match this version of the protocol.
    #[error("{server} does not answer as a sequencer of this version: {why}; check the address and the versions")]
    Protocol {
        /// The server.
        server: Addr,
        /// What is wrong with it.
        why: Arc<str>,
    },
    /// The client has no server address.
    #[error("no address of a sequencer was given: give one or more")]
    NoServer,
}

/// Why an attempt failed, if another one may succeed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Setback {
    /// There was no answer.
    #[error("{0} does not answer")]
    Silent(Addr),
    /// No numbers are reserved at the moment.
    #[error("{0} waits for numbers to be reserved")]
    Dry(Addr),
    /// Another sequencer may serve.
    #[error("{0} does not serve at the moment")]
    NotServing(Addr),
    /// The server is in an earlier epoch than another one that this client has asked: it was replaced.
    #[error("{server} is in epoch {epoch}, and epoch {known} has begun: another sequencer has replaced it")]
    OldEpoch {
        /// The server.
        server: Addr,
        /// Its epoch.
        epoch: u64,
        /// The latest epoch that this client knows.
        known: u64,
    },
    /// It does not answer as a sequencer of this version, and there are others to ask.
    #[error("{server} does not answer as a sequencer of this version: {why}")]
    Foreign {
        /// The server.
        server: Addr,
        /// What is wrong with it.
        why: Arc<str>,
    },
    /// The call failed.
    #[error("{server}: {why}")]
    Call {
        /// The server.
        server: Addr,
        /// Why.
        why: ChannelError,
    },
}
