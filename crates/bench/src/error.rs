//! Errors of experiments.

use std::io;
use std::time::Duration;

use dunlin_kv::client::KvError;
use dunlin_lab::LabError;
use dunlin_net::NetError;
use dunlin_rpc::msgbuf::AllocError;
use dunlin_rpc::{CallError, ConnectError, EndpointError, RegisterError};
use dunlin_schedule::simulator::SettingError;
use dunlin_seq::SeqError;
use dunlin_seq::counter::BadStart;
use dunlin_seq::direct::{BadServer, DirectError};
use dunlin_serve::{HandleError, ServeError};
use dunlin_sim::SimError;
use dunlin_smr::NodeError;
use dunlin_store::PartitionError;
use dunlin_txn::{ConfigurationError, TxnError};

/// Why an experiment, or a process of it, has no result. A missed target is not an error.
///
/// The displayed message is complete: there is no source, which a chain of causes would repeat.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The lab could not run or measure it.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// There is no experiment with this name.
    #[error("there is no experiment {name:?}: choose one of {known}")]
    UnknownExperiment {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// The experiment is not part of this build.
    #[error(
        "this build has no {name}: it needs the cargo feature `{feature}`; run it with `cargo run --release --features {feature} -- bench run {name}`"
    )]
    NotInThisBuild {
        /// The requested experiment.
        name: &'static str,
        /// The feature of `dunlin-cli` that includes it.
        feature: &'static str,
    },
    /// Another RPC system, used for comparison, failed.
    #[error("{system}: {why}")]
    OtherSystem {
        /// Its name.
        system: &'static str,
        /// Its error.
        why: String,
    },
    /// A step of the demo failed.
    #[error("the demo could not {doing}: {why}")]
    Demo {
        /// The step.
        doing: &'static str,
        /// The cause.
        why: String,
    },
    /// A replica of a state machine could not start, or stopped.
    #[error("a replica: {0}")]
    Replica(String),
    /// Calls were made, and none was answered.
    #[error("no call was answered in {time:.1?}: {why}")]
    NoAnswer {
        /// How long it waited.
        time: Duration,
        /// The fate of the packets, and what to check.
        why: String,
    },
    /// A response does not match its request.
    #[error("a response was wrong: this is a bug, figures would mean nothing")]
    WrongEcho,
    /// Answers of a table or a server do not match what was stored.
    #[error(
        "{wrong} values were wrong, {missing} items were missing and {refused} writes were refused: figures would mean nothing"
    )]
    WrongAnswers {
        /// Values of another item, or damaged values.
        wrong: u64,
        /// Stored items that were not found.
        missing: u64,
        /// Refused writes.
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
    /// A sequencer could not start, or a client of it got no number.
    #[error("sequencer: {0}")]
    Sequencer(String),
    /// Transactions failed, or their results were wrong.
    #[error("transactions: {0}")]
    Transactions(String),
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
    /// A message buffer could not be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// An invalid description of a simulated datacenter.
    #[error(transparent)]
    Simulation(#[from] SimError),
    /// An invalid simulation of policies.
    #[error(transparent)]
    Scheduling(#[from] SettingError),
    /// Packet I/O failed.
    #[error(transparent)]
    Net(#[from] NetError),
}

// Not by `#[from]`, which would also make it the source.
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

impl From<BadStart> for BenchError {
    fn from(error: BadStart) -> Self {
        BenchError::Sequencer(error.to_string())
    }
}

impl From<BadServer> for BenchError {
    fn from(error: BadServer) -> Self {
        BenchError::Sequencer(error.to_string())
    }
}

impl From<DirectError> for BenchError {
    fn from(error: DirectError) -> Self {
        BenchError::Sequencer(error.to_string())
    }
}

impl From<SeqError> for BenchError {
    fn from(error: SeqError) -> Self {
        BenchError::Sequencer(error.to_string())
    }
}

impl From<ConfigurationError> for BenchError {
    fn from(error: ConfigurationError) -> Self {
        BenchError::Transactions(error.to_string())
    }
}

impl From<TxnError> for BenchError {
    fn from(error: TxnError) -> Self {
        BenchError::Transactions(error.to_string())
    }
}

impl From<NodeError> for BenchError {
    fn from(error: NodeError) -> Self {
        BenchError::Replica(error.to_string())
    }
}

impl BenchError {
    /// Names the step of the demo that failed.
    pub fn demo(doing: &'static str, why: impl Into<String>) -> Self {
        BenchError::Demo { doing, why: why.into() }
    }

    /// A measurement that finished without a single sample.
    pub fn no_samples(what: &'static str) -> Self {
        LabError::NoSamples { what }.into()
    }

    /// Names the purpose of a failed system operation.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let named = LabError::io(doing);
        move |cause| named(cause).into()
    }
}
