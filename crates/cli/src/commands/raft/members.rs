//! Changes of who belongs to a cluster, and of who leads, as the commands for them make them.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use dunlin_smr::ClientError;
use dunlin_smr::wire::request::Change;
use dunlin_smr::wire::response::Status;

use super::cluster::Client;
use super::status::Overview;

/// How often the cluster is looked at while something is waited for.
pub const LOOK: Duration = Duration::from_millis(100);

/// What a refusal says that lasts a moment: one change at a time, and none by a leader that is new.
const ANOTHER_TIME: &str = "try again";

/// Makes a change, until it is made or cannot be. A leader that changes meanwhile, or another change that is under way, is waited for.
///
/// # Errors
/// As the client's; a refusal that is none of the moment.
pub async fn change(client: &Client, change: Change, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        match client.change(change.clone()).await {
            Ok(()) => return Ok(()),
            Err(ClientError::Refused(why)) => {
                // It may have been made by an attempt whose answer was lost.
                if Overview::look(client).await.leader().is_some_and(|leader| is_made(&change, leader)) {
                    return Ok(());
                }
                if !why.contains(ANOTHER_TIME) || begun.elapsed() >= patience {
                    bail!("refused: {why}");
                }
            }
            Err(error) => return Err(error.into()),
        }
        client.timers().sleep(LOOK).await;
    }
}

/// Whether the members are as a change makes them.
fn is_made(change: &Change, leader: &Status) -> bool {
    let is_member = |id| leader.voters.contains(id) || leader.learners.contains(id);
    match change {
        Change::AddLearner { id, address } => is_member(id) && leader.addresses.get(id) == Some(address),
        Change::Move { id, address } => leader.addresses.get(id) == Some(address),
        Change::Promote { id } => leader.voters.contains(id),
        Change::Remove { id } => !is_member(id),
    }
}

/// Entries that a member is behind what the leader has committed, as the leader knows. `None` while it is not known to have any.
pub fn behind(leader: &Status, id: u64) -> Option<u64> {
    let at = leader.voters.iter().chain(&leader.learners).position(|member| *member == id)?;
    let matched = leader.matched.get(at).copied().filter(|matched| *matched > 0)?;
    Some(leader.committed.saturating_sub(matched))
}
