//! What can go wrong in an experiment.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use dunlin_kv::client::KvError;
use dunlin_net::NetError;
use dunlin_rpc::msgbuf::AllocError;
use dunlin_rpc::{CallError, ConnectError, EndpointError, RegisterError};
use dunlin_serve::{HandleError, ServeError};
use dunlin_sim::SimError;
use dunlin_smr::NodeError;
use dunlin_store::PartitionError;

/// Why an experiment, or a process of it, gave no result. A missed target is not an error.
///
/// What it displays is complete: it has no source that a chain of causes would say again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// There is no experiment of this name.
    #[error("there is no experiment {name:?}: choose one of {known}")]
    UnknownExperiment {
        /// The name asked for.
        name: String,
        /// Those that exist.
        known: String,
    },
    /// The experiment is not part of this build.
    #[error(
        "this build has no {name}: it needs the cargo feature `{feature}`; run it with `cargo run --release --features {feature} -- bench run {name}`"
    )]
    NotInThisBuild {
        /// The experiment asked for.
        name: &'static str,
        /// The feature of `dunlin-cli` that brings it.
        feature: &'static str,
    },
    /// A processor that this process may not run on.
    #[error("core {core} cannot be used: this process may run on {allowed}")]
    NoSuchCore {
        /// The core asked for.
        core: usize,
        /// Those allowed.
        allowed: String,
    },
    /// A measurement needs more processors than there are.
    #[error("this needs {needed} cores and only {found} can be used")]
    TooFewCores {
        /// Cores needed.
        needed: usize,
        /// Cores there are.
        found: usize,
    },
    /// A process of the experiment reported an error.
    #[error("{role}: {why}")]
    PeerFailed {
        /// What the process was to do.
        role: &'static str,
        /// Its error.
        why: String,
    },
    /// A process of the experiment ended without a result.
    #[error("{role} ended before it gave a result ({status}): see its messages above")]
    PeerDied {
        /// What the process was to do.
        role: &'static str,
        /// How it ended.
        status: ExitStatus,
    },
    /// A process of the experiment did not answer in time and was killed.
    #[error("{role} gave no result within {limit:?} and was killed")]
    TimedOut {
        /// What the process was to do.
        role: &'static str,
        /// Time it was given.
        limit: Duration,
    },
    /// A process of the experiment was told or said something that cannot be understood.
    #[error("{role} and its parent do not understand each other: {why}")]
    BadMessage {
        /// What the process was to do.
        role: String,
        /// What is wrong.
        why: String,
    },
    /// An RPC system that is compared with failed.
    #[error("{system}: {why}")]
    OtherSystem {
        /// Its name.
        system: &'static str,
        /// What it says.
        why: String,
    },
    /// A step of the demo failed.
    #[error("the demo could not {doing}: {why}")]
    Demo {
        /// What it was about to do.
        doing: &'static str,
        /// What was in the way.
        why: String,
    },
    /// A replica of a state machine could not start, or stopped.
    #[error("a replica: {0}")]
    Replica(String),
    /// A measurement finished without a single sample.
    #[error("{what} gave no sample: the run was too short or nothing came back")]
    NoSamples {
        /// What was measured.
        what: &'static str,
    },
    /// Calls were made, and none was answered.
    #[error("no call was answered in {time:.1?}: {why}")]
    NoAnswer {
        /// How long was waited.
        time: Duration,
        /// What became of the packets, and what to look at.
        why: String,
    },
    /// A response was not what the request asks for.
    #[error("a response was wrong: this is a bug, figures would mean nothing")]
    WrongEcho,
    /// Answers of a table or a server were not what was stored.
    #[error(
        "{wrong} values were wrong, {missing} items were missing and {refused} writes were refused: figures would mean nothing"
    )]
    WrongAnswers {
        /// Values of another item, or damaged.
        wrong: u64,
        /// Items that were stored and not found.
        missing: u64,
        /// Writes that were refused.
        refused: u64,
    },
    /// A call failed.
    #[error("a call failed: {0}")]
    Call(CallError),
    /// A partition could not be made.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A client of the key-value service failed.
    #[error("key-value client: {0}")]
    Kv(KvError),
    /// An endpoint could not be handed to other threads.
    #[error("handle: {0}")]
    Serve(ServeError),
    /// A call through a handle failed.
    #[error("handle: {0}")]
    Handle(HandleError),
    /// A session did not open.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// An endpoint could not be made.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A handler could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A message buffer could not be had.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// Something did not happen in virtual time.
    #[error("{what} within {limit:?} of virtual time: this is a bug, figures would mean nothing")]
    Stuck {
        /// What did not happen.
        what: &'static str,
        /// Time it was given.
        limit: Duration,
    },
    /// A simulated datacenter cannot be as it was described.
    #[error(transparent)]
    Simulation(#[from] SimError),
    /// Packet I/O failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The operating system refused.
    #[error("{doing}: {cause}")]
    Io {
        /// What was attempted.
        doing: String,
        /// The system's answer.
        cause: io::Error,
    },
}

// Not by `#[from]`, which would make it the source too.
impl From<CallError> for BenchError {
    fn from(error: CallError) -> Self {
        BenchError::Call(error)
    }
}

impl From<KvError> for BenchError {
    fn from(error: KvError) -> Self {
        BenchError::Kv(error)
    }
}

impl From<ServeError> for BenchError {
    fn from(error: ServeError) -> Self {
        BenchError::Serve(error)
    }
}

impl From<HandleError> for BenchError {
    fn from(error: HandleError) -> Self {
        BenchError::Handle(error)
    }
}

impl From<NodeError> for BenchError {
    fn from(error: NodeError) -> Self {
        BenchError::Replica(error.to_string())
    }
}

impl BenchError {
    /// Says which step of the demo failed.
    pub fn demo(doing: &'static str, why: impl Into<String>) -> Self {
        BenchError::Demo { doing, why: why.into() }
    }

    /// Says what an operation of the system was for.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |cause| BenchError::Io { doing, cause }
    }
}
