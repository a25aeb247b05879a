//! `dunlin raft put`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;
use dunlin_smr::kv::{self, Command};

use super::cluster::{Cluster, ask, execute};
use crate::arguments::condition::Condition;
use crate::arguments::value;

/// Store a value, and print its version
///
/// Exit code 0 if it was stored, 1 if there is no item but must be, 3 if --if does not hold otherwise, 2 if nothing was
/// done, 4 if that is not known.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft put bird dunlin
  dunlin raft put photo - < photo.jpeg           a value from a file, up to 1 MiB
  dunlin raft put lock me --if absent            only if there is no such item
  dunlin raft put bird knot --if version=17      only if nobody changed it: dunlin raft get bird --facts")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The key
    key: String,
    /// The value; - reads it from standard input
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// What must be so: absent, present, or version=NUMBER
    #[arg(long = "if", value_name = "CONDITION")]
    condition: Option<Condition>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let value = value(&arguments.value, kv::VALUE_BYTES_MAX)?;
        let condition = match arguments.condition {
            None => kv::Condition::Always,
            Some(Condition::Absent) => kv::Condition::Absent,
            Some(Condition::Present) => kv::Condition::Present,
            Some(Condition::Version(version)) => kv::Condition::Version(version),
        };
        let put = Command::Put { key: arguments.key.as_bytes(), value: &value, condition };
        execute(client, &arguments.key, &put.encode()).await
    })
}
