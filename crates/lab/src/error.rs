//! Errors of running and measuring.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a measurement, or a process of it, has no result. A missed target is not an error.
///
/// The displayed message is complete: there is no source, which a chain of causes would repeat.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// A processor that this process may not run on.
    #[error("core {core} cannot be used: this process may run on {allowed}")]
    NoSuchCore {
        /// The requested core.
        core: usize,
        /// The allowed ones.
        allowed: String,
    },
    /// A measurement needs more processors than there are.
    #[error("this needs {needed} cores and only {found} can be used")]
    TooFewCores {
        /// Required cores.
        needed: usize,
        /// Available cores.
        found: usize,
    },
    /// A process of the experiment reported an error.
    #[error("{role}: {why}")]
    PeerFailed {
        /// The role of the process.
        role: &'static str,
        /// Its error.
        why: String,
    },
    /// A process of the experiment ended without a result.
    #[error("{role} ended before it gave a result ({status}): see its messages above")]
    PeerDied {
        /// The role of the process.
        role: &'static str,
        /// How it ended.
        status: ExitStatus,
    },
    /// A process of the experiment did not answer in time and was killed.
    #[error("{role} gave no result within {limit:?} and was killed")]
    TimedOut {
        /// The role of the process.
        role: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// A malformed message to or from a process of the experiment.
    #[error("{role} and its parent do not understand each other: {why}")]
    BadMessage {
        /// The role of the process.
        role: String,
        /// What is wrong.
        why: String,
    },
    /// An option that makes no sense for an experiment.
    #[error("{experiment} cannot honour {option}: {why}; run it without")]
    CannotHonour {
        /// The experiment.
        experiment: String,
        /// The option.
        option: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// None of an experiment's cases is wanted.
    #[error("none of these cases is wanted")]
    NoneWanted,
    /// A table of the papers' figures that cannot be read.
    #[error("a table of the papers' figures is malformed: {0}")]
    BadPapers(String),
    /// A measurement finished without a single sample.
    #[error("{what} gave no sample: the run was too short or nothing came back")]
    NoSamples {
        /// What was measured.
        what: &'static str,
    },
    /// Something did not happen in virtual time.
    #[error("{what} within {limit:?} of virtual time: this is a bug, figures would mean nothing")]
    Stuck {
        /// What did not happen.
        what: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// The operating system refused.
    #[error("{doing}: {cause}")]
    Io {
        /// What was attempted.
        doing: String,
        /// The system's answer.
        cause: io::Error,
    },
}

impl LabError {
    /// Names the purpose of a failed system operation.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |cause| LabError::Io { doing, cause }
    }
}
