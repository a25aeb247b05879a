//! `dunlin coord get`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_coord::Coordinator;
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};
use crate::output;

/// Print a value of the tree, followed by a newline only on a terminal
///
/// Exit code 0 if there is one, 1 if there is none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord get /volumes/7
  dunlin coord get /volumes/7 --facts        its version and length instead")]
pub struct Arguments {
    /// The path
    path: String,
    #[command(flatten)]
    target: Target,
    /// Print version and length instead of the value
    #[arg(long)]
    facts: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        let Some(entry) = manager.get(&arguments.path).await? else { return Ok(Outcome::NotFound) };
        if arguments.facts {
            output::line(format_args!("version  {}\nlength   {} B", entry.version, entry.value.len()))?;
        } else {
            output::value(&entry.value)?;
        }
        Ok(Outcome::Done)
    })
}
