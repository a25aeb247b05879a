//! `dunlin coord set`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_coord::{Condition, Coordinator, Revision};
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};
use crate::commands::raft::cluster::value;
use crate::output;

/// Set a value of the tree, and print its version
///
/// Exit code 0 if it was set, 1 if there is none but must be, 3 if the condition does not hold, 2 if nothing was done, 4 if that is not known.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, with P=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord set /volumes/7 '1,2,3' --peers $P
  dunlin coord set /volumes/7 '1,2,4' --peers $P --if-version 4711
  dunlin coord set /volumes/8 - --peers $P --if-absent < replicas.json")]
pub struct Arguments {
    /// The path
    path: String,
    /// The value, up to 64 KiB; - reads it from the standard input
    #[arg(allow_hyphen_values = true)]
    value: String,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    when: When,
}

/// When to change an entry.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct When {
    /// Only if there is none
    #[arg(long)]
    if_absent: bool,
    /// Only if it has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<Revision>,
}

impl When {
    fn condition(&self) -> Condition {
        match self.if_version {
            Some(version) => Condition::Version { version },
            None if self.if_absent => Condition::Absent,
            None => Condition::Always,
        }
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        let value = value(&arguments.value)?;
        let version = manager.set(&arguments.path, &value, arguments.when.condition()).await?;
        output::line(format_args!("version {version}"))?;
        Ok(Outcome::Done)
    })
}
