//! `dunlin raft get`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use dunlin_serve::Interrupt;
use dunlin_smr::ReadFrom;
use dunlin_smr::kv::{Answer, Query};

use super::cluster::{Cluster, Outcome, ask, of_key};
use crate::output;

/// Print the current value of a key
///
/// Exit code 0 if the item exists, 1 if it does not, 2 if no leader could be reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft get bird
  dunlin raft get photo > photo.jpeg             the bytes as they are
  dunlin raft get bird --facts                   its version and length
  dunlin raft get bird --read-from any           of any replica: a follower asks its leader first what is committed
  dunlin raft get bird --read-from 3             of replica 3")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The key
    key: String,
    /// The replica that answers: leader, any, or an id. In each case the answer is up to date
    #[arg(long, value_name = "REPLICA", default_value = "leader", value_parser = read_from)]
    read_from: ReadFrom,
    /// Print version and length instead of the value
    #[arg(long)]
    facts: bool,
}

fn read_from(text: &str) -> Result<ReadFrom, String> {
    match text {
        "leader" => Ok(ReadFrom::Leader),
        "any" => Ok(ReadFrom::Any),
        id => match id.parse() {
            Ok(id @ 1..) => Ok(ReadFrom::Replica(id)),
            _ => Err("write leader, any, or the id of a replica".into()),
        },
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let client = of_key(client, &arguments.key).await?.reading_from(arguments.read_from);
        let reply = client.query(Query { key: arguments.key.as_bytes() }.encode()).await?;
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
