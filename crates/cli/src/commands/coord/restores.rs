//! `dunlin coord restore`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use dunlin_coord::Limits;
use dunlin_coord::model::{Hearing, Machine};
use dunlin_smr::StateMachine as _;
use dunlin_smr::machine::RestoreError;

use crate::commands::raft::home::Kind;
use crate::commands::raft::restores::{Founding, found};

/// Found a new cluster manager with the state that `dunlin coord backup` wrote
///
/// It makes the directory of the only node of that cluster manager; serve it, then add others. The new cluster manager
/// has its own number: clients of the old one do not mistake it for that. Exit code 0 when the directory is complete;
/// otherwise nothing was founded, and an existing directory is not served.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What came after the copy is forgotten, and epochs, revisions and tokens of leases that were given then are given again: end whatever relies on one of these before
the new nodes are served. Members of the old cluster manager have failed for the new one after its failure timeout, and their leases end; they join it anew.

Examples:
  dunlin coord restore monday.backup --id 1 --data new1 --peers 1=udp://10.0.0.1:7901
  dunlin coord serve --id 1 --data new1 --peers 1=udp://10.0.0.1:7901
  dunlin coord serve --id 2 --data new2 --peers 2=udp://10.0.0.2:7901 --join      on another machine
  dunlin raft add 1=udp://10.0.0.1:7901 2=udp://10.0.0.2:7901")]
pub struct Arguments {
    #[command(flatten)]
    founding: Founding,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let kind = |_| Kind::Coordinator;
    found(&arguments.founding, kind, |state| {
        coordinator(state.of_machine()?)
            .context("it is not of a cluster manager of this version; a copy of a key-value cluster is restored with `dunlin raft restore`")?;
        Ok("a cluster manager".to_owned())
    })
}

/// Checks that a node would accept these bytes as its state.
///
/// # Errors
/// Why it would not.
pub fn coordinator(state: &[u8]) -> Result<(), RestoreError> {
    Machine::new(Limits::default(), Hearing::default()).restore(state)
}
