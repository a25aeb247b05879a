//! `dunlin kv cluster refill`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use dunlin_kv::cluster::ClusterConfig;

use super::place::{Target, ask};
use crate::arguments::size::human_bytes;
use crate::arguments::time::ordinary;
use crate::commands::kv::client::Found;
use crate::output;

/// Fill a server from other replicas, then let it be read
///
/// It takes writes at once, drops what it holds when each of its partitions has another replica that is open, and reads
/// when all is copied. What is written or deleted meanwhile wins over what is copied. If it took writes before, copying
/// begins 10 s later. With a cluster manager, the server fills itself, and this waits for it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv cluster refill b --at file:shop.toml")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// How long to wait for a server that fills itself. It goes on after that
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = ordinary)]
    wait: Duration,
    /// The name of the server
    name: String,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.target, ClusterConfig::default(), async |cluster| {
        let name = &arguments.name;
        ensure!(cluster.cluster().replicas() > 1, "with replicas = 1 there is nothing to fill {name} from");
        let begun = std::time::Instant::now();
        let refilled = cluster.refill(name).await?;
        if refilled.is_none() {
            cluster.until_open(name, arguments.wait).await?;
        }
        let took = Duration::from_millis(begun.elapsed().as_millis() as u64);
        let Some(refilled) = refilled else {
            output::line(format_args!("{name} is open: it was filled by itself in {took:?}"))?;
            return Ok(Found::All);
        };
        let (items, bytes, sources) = (refilled.items, human_bytes(refilled.bytes), refilled.sources);
        output::line(format_args!("{name} is open: {items} items of {bytes} from {sources} servers in {took:?}"))?;
        Ok(Found::All)
    })
}
