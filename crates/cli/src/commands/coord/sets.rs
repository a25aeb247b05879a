//! `dunlin coord set`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_coord::{Condition, Coordinator};
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};
use crate::arguments::{condition, value};
use crate::output;

/// More than any cluster manager takes: it says its own limit.
const VALUE_BYTES_MAX: usize = 1 << 20;

/// Set a value of the tree, and print its version
///
/// Exit code 0 if it was set, 1 if the value must exist but does not, 3 if the condition does not hold, 2 if nothing
/// was done, 4 if the outcome is unknown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord set /volumes/7 '1,2,3'
  dunlin coord set /volumes/7 '1,2,4' --if version=4711
  dunlin coord set /volumes/8 - --if absent < replicas.json")]
pub struct Arguments {
    /// The path
    path: String,
    /// The value, up to 64 KiB; - reads it from standard input
    #[arg(allow_hyphen_values = true)]
    value: String,
    #[command(flatten)]
    target: Target,
    /// What must be so: absent, or version=NUMBER
    #[arg(long = "if", value_name = "CONDITION", value_parser = condition)]
    condition: Option<Condition>,
}

/// A condition that the tree knows.
pub fn condition(text: &str) -> Result<Condition, String> {
    match text.parse()? {
        condition::Condition::Absent => Ok(Condition::Absent),
        condition::Condition::Version(version) => Ok(Condition::Version { version }),
        condition::Condition::Present => Err("give absent or version=NUMBER".into()),
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        let value = value(&arguments.value, VALUE_BYTES_MAX)?;
        let version = manager.set(&arguments.path, &value, arguments.condition.unwrap_or_default()).await?;
        output::line(format_args!("version {version}"))?;
        Ok(Outcome::Done)
    })
}
