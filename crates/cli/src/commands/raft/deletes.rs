//! `dunlin raft del`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;
use dunlin_smr::kv::Command;

use super::cluster::{Cluster, Outcome, ask, execute};

/// Delete items, and print the version of each deletion
///
/// Exit code 0 if all existed, 1 if some did not, 2 if it failed, 4 if it is unknown whether the last was deleted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft del bird
  dunlin raft del bird fish")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let mut outcome = Outcome::Done;
        for key in &arguments.keys {
            if execute(client, key, &Command::Delete { key: key.as_bytes() }.encode()).await? != Outcome::Done {
                outcome = Outcome::NotFound;
            }
        }
        Ok(outcome)
    })
}
