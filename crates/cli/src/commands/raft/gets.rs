//! `dunlin raft get`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use dunlin_serve::Interrupt;
use dunlin_smr::kv::{Answer, Query};

use super::cluster::{Cluster, Outcome, ask, of_key};
use crate::output;

/// Print the value of a key, as it is now
///
/// Exit code 0 if there is an item, 1 if there is none, 2 if no leader could be asked.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, with R=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft get $R bird
  dunlin raft get $R photo > photo.jpeg             the bytes as they are
  dunlin raft get $R bird --facts                   its version and length")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The key
    key: String,
    /// Print version and length instead of the value
    #[arg(long)]
    facts: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let reply = of_key(client, &arguments.key).await?.query(Query { key: arguments.key.as_bytes() }.encode()).await?;
        match Answer::parse(&reply)? {
            Answer::NotFound => Ok(Outcome::NotFound),
            Answer::Value { version, value } if arguments.facts => {
                output::line(format_args!("version  {version}\nlength   {} B", value.len()))?;
                Ok(Outcome::Done)
            }
            Answer::Value { value, .. } => {
                output::value(value)?;
                Ok(Outcome::Done)
            }
            _ => bail!("the answer is not one of a key-value machine: is that `dunlin raft serve`?"),
        }
    })
}
