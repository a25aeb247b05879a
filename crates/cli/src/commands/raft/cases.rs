//! `dunlin raft cas`: compare and store.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;
use dunlin_smr::kv::{Command, Condition};

use super::cluster::{Cluster, ask, execute, value};

/// Store a value if the one that is there has this version, and print the new version
///
/// Exit code 0 if it was stored, 1 if there is no item, 3 if it has another version, 2 if nothing was done, 4 if that is not known.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, with R=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft get $R bird --facts                   says its version, for example 17
  dunlin raft cas $R bird 17 knot
  dunlin raft put $R bird dunlin --if absent        if there is to be none")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The key
    key: String,
    /// The version that it must have
    #[arg(value_name = "VERSION")]
    expected: u64,
    /// The value; - reads it from the standard input
    #[arg(allow_hyphen_values = true)]
    value: String,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let value = value(&arguments.value)?;
        let condition = Condition::Version(arguments.expected);
        let put = Command::Put { key: arguments.key.as_bytes(), value: &value, condition };
        execute(client, &arguments.key, &put.encode()).await
    })
}
