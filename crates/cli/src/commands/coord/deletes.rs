//! `dunlin coord del`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_coord::{Condition, Coordinator, Revision};
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};

/// Delete a value of the tree
///
/// Exit code 0 if it was deleted, 1 if there is none, 3 if it has another version.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  dunlin coord del /volumes/7 --peers 1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903")]
pub struct Arguments {
    /// The path
    path: String,
    #[command(flatten)]
    target: Target,
    /// Only if it has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<Revision>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        let condition = arguments.if_version.map_or(Condition::Always, |version| Condition::Version { version });
        manager.delete(&arguments.path, condition).await?;
        Ok(Outcome::Done)
    })
}
