//! `dunlin coord forget`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_coord::Coordinator;
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};

/// Remove a failed member from the list
///
/// Exit code 0 if it was removed, 1 if there is no such member, 3 if it is live.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  dunlin coord forget 7 --at 1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903")]
pub struct Arguments {
    /// The id of the member
    member: u64,
    #[command(flatten)]
    target: Target,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        manager.forget(arguments.member).await?;
        Ok(Outcome::Done)
    })
}
