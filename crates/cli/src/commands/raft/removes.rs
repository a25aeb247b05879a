//! `dunlin raft remove`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;
use dunlin_smr::wire::request::Change;

use super::cluster::{Cluster, Outcome, ask, groups};
use super::members::change;
use crate::output;

/// Remove a replica from the cluster
///
/// The leader is not removed: transfer leadership first. Exit code 0 when it is done, 2 if it failed, 4 if the outcome
/// is unknown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Stop the process of the replica afterwards, and never use its id again. To replace a replica, add the new one first.

Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft remove 3
  dunlin raft transfer 2 && dunlin raft remove 1      if 1 leads")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// Its id
    id: u64,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let id = arguments.id;
        for group in groups(client).await? {
            change(&group, Change::Remove { id }, arguments.cluster.timeout).await?;
        }
        output::line(format_args!("replica {id} is no member any more; stop its process"))?;
        Ok(Outcome::Done)
    })
}
