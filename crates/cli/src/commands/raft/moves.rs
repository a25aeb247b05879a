//! `dunlin raft move`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_net::Addr;
use dunlin_serve::Interrupt;
use dunlin_smr::wire::request::Change;

use super::cluster::{Cluster, Outcome, ask_target, groups, replica};
use super::members::change;
use crate::output;

/// Change the address of a replica
///
/// It keeps its log and its vote. Start it there first: dunlin raft serve --moved. Exit code 0 when that is done, 2 if
/// it failed, 4 if the outcome is unknown. In that case run the same command again: it continues where it stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
End the process at the old address before: two of one replica would vote twice. While it is heard of there, the leader refuses to move it, and this command waits.
Move one replica at a time. REPLICAS may have the replica at either address.

Example, with R=1=udp://10.0.0.1:7801,2=udp://10.0.0.2:7801,3=udp://10.0.0.3:7801:
  dunlin raft serve --id 3 --data r3 --peers 3=udp://10.0.0.9:7801 --moved       where its directory is now
  dunlin raft move 3=udp://10.0.0.9:7801")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The replica, and its new address
    #[arg(value_name = "ID=ADDRESS", value_parser = replica)]
    replica: (u64, Addr),
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let (id, addr) = &arguments.replica;
    // Nobody is at the address that the list may have for it.
    let mut target = arguments.cluster.target()?;
    target.replicas = target.replicas.with_moved(*id, addr);
    ask_target(&target, interrupt, async |client| {
        for group in groups(client).await? {
            change(&group, Change::Move { id: *id, address: addr.to_string() }, target.timeout).await?;
        }
        output::line(format_args!("replica {id} is reached at {addr}"))?;
        Ok(Outcome::Done)
    })
}
