//! Changes of the members of a cluster, and of its leader, for the commands that make them.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use dunlin_smr::ClientError;
use dunlin_smr::wire::request::Change;
use dunlin_smr::wire::response::Status;

use super::cluster::Client;
use super::status::Overview;

/// Interval at which the cluster is checked while waiting.
pub const LOOK: Duration = Duration::from_millis(100);

/// Text of a temporary refusal: only one change at a time, and none by a new leader.
const ANOTHER_TIME: &str = "try again";

/// Retries a change until it is made or is impossible. Waits for a change of the leader, or another change in progress.
///
/// # Errors
/// As the client's; a refusal that is not temporary.
pub async fn change(client: &Client, change: Change, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        match client.change(change.clone()).await {
            Ok(()) => return Ok(()),
            Err(ClientError::Refused(why)) => {
                // An earlier attempt whose answer was lost may have made it.
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

/// Whether the members already match a change.
fn is_made(change: &Change, leader: &Status) -> bool {
    let is_member = |id| leader.voters.contains(id) || leader.learners.contains(id);
    match change {
        Change::AddLearner { id, address } => is_member(id) && leader.addresses.get(id) == Some(address),
        Change::Move { id, address } => leader.addresses.get(id) == Some(address),
        Change::Promote { id } => leader.voters.contains(id),
        Change::Remove { id } => !is_member(id),
    }
}

/// Entries that a member is behind the leader's commit index, as the leader knows. `None` while the leader does not
/// know of any entry of it.
pub fn behind(leader: &Status, id: u64) -> Option<u64> {
    let at = leader.voters.iter().chain(&leader.learners).position(|member| *member == id)?;
    let matched = leader.matched.get(at).copied().filter(|matched| *matched > 0)?;
    Some(leader.committed.saturating_sub(matched))
}
