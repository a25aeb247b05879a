//! `dunlin raft add`.

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use dunlin_net::Addr;
use dunlin_serve::Interrupt;
use dunlin_smr::wire::request::Change;

use super::cluster::{Client, Cluster, Outcome, ask, groups, replica};
use super::members::{LOOK, behind, change};
use super::status::Overview;
use crate::arguments::time::ordinary;
use crate::output;

/// A learner that is at most this many entries behind gets its vote.
const BEHIND_ENOUGH: u64 = 1000;

/// Add a replica to the cluster
///
/// It is added as a learner, which gets all entries and has no vote, and gets a vote when it has caught up. Start it
/// first: dunlin raft serve --join. Exit code 0 when that is done, 2 if it failed, 4 if the outcome is unknown. In that
/// case run the same command again: it continues where it stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft serve --id 4 --data r4 --peers 4=udp://127.0.0.1:7804 --join      in another terminal
  dunlin raft add 4=udp://127.0.0.1:7804
  dunlin raft add 4=udp://127.0.0.1:7804 --learner                          never gives it a vote")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The replica: an id that was never used, and its address
    #[arg(value_name = "ID=ADDRESS", value_parser = replica)]
    replica: (u64, Addr),
    /// Leave it a learner, without a vote
    #[arg(long)]
    learner: bool,
    /// How long it may take to catch up
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = ordinary)]
    catch_up: Duration,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let (id, addr) = &arguments.replica;
        let patience = arguments.cluster.timeout;
        let groups = match groups(client).await {
            Ok(groups) => groups,
            Err(error) => {
                // This error says more if there is no leader.
                Overview::look(client).await.require_leader()?;
                return Err(error);
            }
        };
        for group in &groups {
            add_learner(group, *id, addr, patience).await?;
        }
        eprintln!("dunlin: replica {id} is a learner");
        if !arguments.learner {
            for group in &groups {
                catch_up(group, *id, arguments.catch_up).await?;
                change(group, Change::Promote { id: *id }, patience).await?;
            }
            output::line(format_args!("replica {id} is a member with a vote"))?;
        } else {
            output::line(format_args!("replica {id} is a learner"))?;
        }
        Ok(Outcome::Done)
    })
}

/// Adds a learner to a group, unless an earlier attempt has. The group may be about to elect a leader.
async fn add_learner(client: &Client, id: u64, addr: &Addr, patience: Duration) -> Result<()> {
    let (begun, mut overview) = (Instant::now(), Overview::look(client).await);
    while overview.leader().is_none() && begun.elapsed() < patience {
        client.timers().sleep(LOOK).await;
        overview = Overview::look(client).await;
    }
    match overview.require_leader()?.addresses.get(&id) {
        Some(known) => {
            ensure!(
                *known == addr.to_string(),
                "{id} is a member already, at {known}: choose an id that was never used"
            );
            Ok(())
        }
        None => change(client, Change::AddLearner { id, address: addr.to_string() }, patience).await,
    }
}

/// Waits until a learner has nearly all entries.
async fn catch_up(client: &Client, id: u64, patience: Duration) -> Result<()> {
    let (begun, mut said) = (Instant::now(), None);
    loop {
        let overview = Overview::look(client).await;
        let left = overview.leader().and_then(|leader| behind(leader, id));
        if left.is_some_and(|left| left <= BEHIND_ENOUGH) {
            end_line();
            return Ok(());
        }
        if begun.elapsed() >= patience {
            end_line();
            let left = left.map_or("without anything".into(), |left| format!("{left} entries behind"));
            let there = if overview.has_answered(id) { "is there" } else { "does not answer" };
            bail!(
                "replica {id} {there}, and is {left} after {patience:?}: is it started? It stays a learner: the same command goes on with it, `dunlin raft remove` \
                 removes it"
            );
        }
        if said != Some(left) {
            said = Some(left);
            show(id, left);
        }
        client.timers().sleep(LOOK).await;
    }
}

fn show(id: u64, left: Option<u64>) {
    let Some(left) = left else { return };
    if stderr().is_terminal() {
        eprint!("\rreplica {id} is {left} entries behind            ");
    } else {
        eprintln!("dunlin: replica {id} is {left} entries behind");
    }
}

fn end_line() {
    if stderr().is_terminal() {
        eprint!("\r{:<60}\r", "");
    }
}
