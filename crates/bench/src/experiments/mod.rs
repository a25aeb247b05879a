//! The experiments, one file each, and the roles their processes play.

#[cfg(feature = "peers")]
mod rpc_peers;

use std::process::ExitCode;

use crate::BenchError;
use crate::lab::{Lab, Settings};
use crate::measure::BusyNeighbour;
use crate::peer::{self, Entry, Launcher};
use crate::report::Report;

/// One experiment.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The table, figure or section of the paper it repeats.
    pub paper: &'static str,
    /// What it measures, in one line.
    pub about: &'static str,
    run: fn(&mut Lab) -> Result<(), BenchError>,
}

/// What an experiment gave.
#[derive(Debug)]
pub struct Outcome {
    /// The rows, as far as it came.
    pub report: Report,
    /// Why it came no further.
    pub error: Option<BenchError>,
}

/// Every experiment, in the order of `bench list`.
pub const ALL: &[Experiment] = &[
    #[cfg(feature = "peers")]
    Experiment {
        name: "rpc-peers",
        paper: "beyond the paper",
        about: "the same 32 B echo with tonic (gRPC) and tarpc over loopback TCP",
        run: rpc_peers::run,
    },
];

/// Every role a process of an experiment can play.
const ROLES: &[Entry] = &[
    Entry::of::<BusyNeighbour>(),
    #[cfg(feature = "peers")]
    Entry::of::<rpc_peers::OtherClient>(),
    #[cfg(feature = "peers")]
    Entry::of::<rpc_peers::OtherServer>(),
];

/// Is a process of an experiment. The program calls this when its first argument is [`peer::ARGUMENT`].
pub fn serve_peer() -> ExitCode {
    peer::serve(ROLES)
}

/// The experiments meant by a name: one, or every one for `all`.
///
/// # Errors
/// [`BenchError::UnknownExperiment`].
pub fn find(name: &str) -> Result<Vec<&'static Experiment>, BenchError> {
    let found: Vec<_> = ALL.iter().filter(|experiment| name == "all" || experiment.name == name).collect();
    if found.is_empty() {
        let known: Vec<_> = ALL.iter().map(|experiment| experiment.name).chain(["all"]).collect();
        return Err(BenchError::UnknownExperiment { name: name.into(), known: known.join(", ") });
    }
    Ok(found)
}

impl Experiment {
    /// Runs it. What was measured before an error is kept.
    ///
    /// # Errors
    /// Whatever keeps it from beginning.
    pub fn run(&self, settings: Settings, launcher: Launcher) -> Result<Outcome, BenchError> {
        let mut lab = Lab::open(self.name, settings, launcher)?;
        let error = (self.run)(&mut lab).err();
        Ok(Outcome { report: lab.finish(), error })
    }
}
