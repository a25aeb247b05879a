//! `dunlin raft transfer`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use dunlin_serve::Interrupt;

use super::cluster::{Client, Cluster, Outcome, ask, groups};
use super::members::LOOK;
use super::status::Overview;
use crate::output;

/// Make another replica the leader, of all groups if there are several
///
/// Commands wait meanwhile, for some milliseconds. Exit code 0 when it leads, 2 if it does not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example, with R=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft transfer 2")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The new leader: a member with a vote
    id: u64,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let id = arguments.id;
        for group in groups(client).await? {
            transfer(&group, id, arguments.cluster.timeout).await?;
        }
        output::line(format_args!("replica {id} leads"))?;
        Ok(Outcome::Done)
    })
}

/// Transfers leadership of a group to this replica, and waits until it leads.
async fn transfer(client: &Client, id: u64, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    let leader = async || Overview::look(client).await.leader().map(|leader| leader.id);
    if leader().await != Some(id) {
        client.transfer(id).await?;
    }
    loop {
        let now = leader().await;
        if now == Some(id) {
            return Ok(());
        }
        if begun.elapsed() >= patience {
            let now = now.map_or("nobody".into(), |leader| format!("replica {leader}"));
            bail!("replica {id} did not take over in time; {now} leads");
        }
        client.timers().sleep(LOOK).await;
    }
}
