//! `dunlin coord del`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_coord::{Condition, Coordinator};
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};
use super::sets::condition;

/// Delete a value of the tree
///
/// Exit code 0 if it was deleted, 1 if there is none, 3 if it has another version.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  dunlin coord del /volumes/7 --at 1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903")]
pub struct Arguments {
    /// The path
    path: String,
    #[command(flatten)]
    target: Target,
    /// What must be so: version=NUMBER
    #[arg(long = "if", value_name = "CONDITION", value_parser = condition)]
    condition: Option<Condition>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        manager.delete(&arguments.path, arguments.condition.unwrap_or_default()).await?;
        Ok(Outcome::Done)
    })
}
