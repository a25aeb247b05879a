//! Errors of a simulated datacenter.

/// An error in the description of a run. Events inside a run are never errors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// A setting of a topology, a cost model or a fault plan is invalid.
    #[error("bad setting {name}: {why}")]
    BadSetting {
        /// The setting, as written in a file.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The text of a file cannot be parsed.
    #[error("cannot read the {what}: {why}")]
    BadText {
        /// What the text should be.
        what: &'static str,
        /// Where and why it is not.
        why: String,
    },
    /// There is no such host.
    #[error("there is no host {host}: the topology has {hosts}, numbered from 0")]
    NoHost {
        /// The requested number.
        host: u32,
        /// The number of hosts.
        hosts: u32,
    },
    /// A host's threads are numbered below a limit.
    #[error("host {host} cannot have a thread {thread}: numbers are below {limit}")]
    NoThread {
        /// The host.
        host: u32,
        /// The requested number.
        thread: u16,
        /// The limit.
        limit: u16,
    },
    /// The thread already has a transport, or a program.
    #[error("host {host} already has {what} for thread {thread}: choose another number")]
    InUse {
        /// The host.
        host: u32,
        /// The thread.
        thread: u16,
        /// Which of these it has.
        what: &'static str,
    },
    /// The host has crashed and has not restarted yet.
    #[error("host {host} is down: wait until it is restarted")]
    HostDown {
        /// The host.
        host: u32,
    },
}

impl SimError {
    pub(crate) fn setting(name: impl Into<String>, why: impl Into<String>) -> Self {
        SimError::BadSetting { name: name.into(), why: why.into() }
    }
}
