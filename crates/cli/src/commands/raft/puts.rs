//! `dunlin raft put`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;
use dunlin_smr::kv::{Command, Condition};

use super::cluster::{Cluster, ask, execute, value};

/// Store a value, and print its version
///
/// Exit code 0 if it was stored, 1 if there is no item but must be, 3 if there is one but must not be, 2 if nothing was done, 4 if that is not
/// known.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, with R=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft put $R bird dunlin
  dunlin raft put $R photo - < photo.jpeg           a value from a file, up to 1 MiB
  dunlin raft put $R lock me --if absent            only if there is no such item")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The key
    key: String,
    /// The value; - reads it from the standard input
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// When to store it
    #[arg(long = "if", value_name = "CONDITION")]
    condition: Option<When>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum When {
    /// If there is none
    Absent,
    /// If there is one
    Present,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let value = value(&arguments.value)?;
        let condition = match arguments.condition {
            None => Condition::Always,
            Some(When::Absent) => Condition::Absent,
            Some(When::Present) => Condition::Present,
        };
        let put = Command::Put { key: arguments.key.as_bytes(), value: &value, condition };
        execute(client, &arguments.key, &put.encode()).await
    })
}
