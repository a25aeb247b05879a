//! Writes: to all live replicas of the key's partition, with one version.

use std::rc::Rc;

use dunlin_net::Transport;
use dunlin_rpc::CallError;
use dunlin_store::{Condition, Put, Refused};
use futures::future::join_all;

use super::error::{ClusterError, Missed, ServerError};
use super::view::Seen;
use super::{Inner, KvCluster};
use crate::client::KvError;
use crate::wire::{Operation, Replicate, Verdict, Version};

/// Attempts of a conditional write whose version is not high enough.
const DECISIONS_MAX: u32 = 4;

/// Which replicas have a write.
#[derive(Debug, Clone)]
#[must_use = "a write may have reached some replicas only: look at `missed`, or call `everywhere`"]
pub struct Written {
    /// Live replicas that have it, or a later one.
    pub reached: usize,
    /// Replicas that are no live members. They are filled before they are read. Always 0 without a cluster manager.
    pub absent: usize,
    /// Live replicas that do not have it, or of which that is not known.
    pub missed: Vec<Missed>,
    /// Whether there was an item before, on any replica.
    pub had_item: bool,
    /// The version that it has: the CAS token on all replicas.
    pub version: Version,
}

/// A write that all live replicas have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Complete {
    /// Live replicas, all of which have it, or a later one.
    pub reached: usize,
    /// As [`Written::absent`].
    pub absent: usize,
    /// As [`Written::had_item`].
    pub had_item: bool,
    /// As [`Written::version`].
    pub version: Version,
}

impl Written {
    /// Checks that all live replicas have it.
    ///
    /// # Errors
    /// [`ClusterError::Partial`].
    pub fn everywhere(self) -> Result<Complete, ClusterError> {
        let Written { reached, absent, missed, had_item, version } = self;
        if missed.is_empty() {
            Ok(Complete { reached, absent, had_item, version })
        } else {
            Err(ClusterError::Partial { reached, missed })
        }
    }
}

/// What the servers said to one round of a write.
#[derive(Default)]
struct Round {
    reached: usize,
    had_item: bool,
    missed: Vec<Missed>,
    /// The highest version that stands in the way.
    newer: Option<Version>,
    /// Some are in another epoch, or not sure of theirs.
    is_outdated: bool,
}

impl<T: Transport + 'static> KvCluster<T> {
    /// Stores a value unconditionally, without flags or expiry.
    ///
    /// # Errors
    /// As [`KvCluster::put`].
    pub async fn set(&self, key: &[u8], value: &[u8]) -> Result<Written, ClusterError> {
        self.put(key, value, Put::default()).await
    }

    /// Stores a value, with flags and an expiry. With a condition, the first replica of the partition that may be read
    /// decides, and the others get the value unconditionally.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] if the condition does not hold, [`ClusterError::NoReplica`] if no replica has it for
    /// certain. A write that reached some replicas is no error: look at [`Written::missed`].
    pub async fn put(&self, key: &[u8], value: &[u8], put: Put) -> Result<Written, ClusterError> {
        self.inner.write(&Operation::Put { key, value, put: Put { cas: None, ..put } }).await
    }

    /// Deletes an item; [`Written::had_item`] says whether there was one.
    ///
    /// # Errors
    /// As [`KvCluster::put`].
    pub async fn delete(&self, key: &[u8]) -> Result<Written, ClusterError> {
        self.inner.write(&Operation::Delete { key, unchanged: None }).await
    }
}

fn condition(operation: &Operation<'_>) -> Condition {
    match operation {
        Operation::Put { put, .. } => put.condition,
        _ => Condition::Always,
    }
}

fn without_condition<'a>(operation: &Operation<'a>) -> Operation<'a> {
    match *operation {
        Operation::Put { key, value, put } => {
            Operation::Put { key, value, put: Put { condition: Condition::Always, ..put } }
        }
        operation => operation,
    }
}

impl<T: Transport + 'static> Inner<T> {
    async fn write(self: &Rc<Self>, operation: &Operation<'_>) -> Result<Written, ClusterError> {
        crate::client::check_key(operation.key())?;
        let deadline = self.deadline();
        let partition = self.cluster.partition(operation.key());
        let is_conditional = condition(operation) != Condition::Always;
        let mut version = self.versions.next();
        let newer_max = if is_conditional { DECISIONS_MAX } else { 1 };
        let (mut attempt, mut newer_met, mut had_item) = (0, 0, false);
        // The replica that has decided about the condition.
        let mut decided_by = None;
        loop {
            let seen = self.seen().await?;
            let mut round = Round::default();
            if is_conditional && decided_by.is_none() {
                decided_by = self.decide(&seen, partition, operation, version, &mut round).await?;
            }
            if !is_conditional || decided_by.is_some() {
                self.send_to_all(&seen, partition, operation, version, &mut round).await;
            }
            had_item |= round.had_item;
            if let Some(newer) = round.newer
                && decided_by.is_none()
                && newer_met < newer_max
            {
                // The item may be of a writer whose clock is ahead, and older than this write: so this write must get a
                // higher version. If it meets a newer one again, that one was written meanwhile, and wins.
                newer_met += 1;
                self.versions.meet(newer);
                version = self.versions.next();
                continue;
            }
            if let (Some(newer), Some(server)) = (round.newer, decided_by) {
                // A higher version would undo later writes that rest on this one. They went through the same replica.
                self.check_later(server, operation.key(), newer, &mut round).await;
            }
            if round.is_outdated && self.directory.is_some() && self.pause(attempt, deadline).await {
                attempt += 1;
                self.look().await?;
                continue;
            }
            if round.reached == 0 {
                return Err(ClusterError::NoReplica { partition, missed: round.missed });
            }
            let replicas = self.cluster.replicas_of(partition);
            let absent = replicas.iter().filter(|server| !seen.is_live(**server)).count();
            return Ok(Written { reached: round.reached, absent, missed: round.missed, had_item, version });
        }
    }

    /// Has the replica that decides about conditions make the write. Returns its number if it has.
    async fn decide(
        self: &Rc<Self>,
        seen: &Seen,
        partition: u32,
        operation: &Operation<'_>,
        version: Version,
        round: &mut Round,
    ) -> Result<Option<u32>, ClusterError> {
        for &server in self.cluster.replicas_of(partition).iter().filter(|server| seen.is_live(**server)) {
            match self.send(seen, server, operation, version).await {
                Ok(Verdict::Done { .. }) => return Ok(Some(server)),
                Ok(Verdict::Newer { version: newer }) => {
                    if let Condition::Unchanged(token) = condition(operation)
                        && token != newer
                    {
                        return Err(ClusterError::Refused(Refused::Changed));
                    }
                    round.newer = Some(newer);
                    round.missed.push(self.missed(server, ServerError::Refused(Refused::Changed)));
                    return Ok(None);
                }
                Ok(Verdict::Refused(refused)) => return Err(ClusterError::Refused(refused)),
                // With a cluster manager, all clients see the same members, and ask the same one next.
                Ok(Verdict::Closed) => round.missed.push(self.missed(server, ServerError::Closed)),
                verdict => {
                    let error = verdict_missed(verdict, round);
                    round.missed.extend(error.map(|error| self.missed(server, error)));
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    async fn send_to_all(
        self: &Rc<Self>,
        seen: &Seen,
        partition: u32,
        operation: &Operation<'_>,
        version: Version,
        round: &mut Round,
    ) {
        let operation = without_condition(operation);
        let replicas = self.cluster.replicas_of(partition);
        let live: Vec<u32> = replicas.iter().copied().filter(|server| seen.is_live(*server)).collect();
        let verdicts = join_all(live.iter().map(|server| self.send(seen, *server, &operation, version))).await;
        for (server, verdict) in live.into_iter().zip(verdicts) {
            match verdict {
                Ok(Verdict::Done { had_item }) => {
                    round.reached += 1;
                    round.had_item |= had_item;
                }
                // This write itself, if it was sent before; otherwise a later one.
                Ok(Verdict::Newer { version: newer }) => {
                    round.reached += 1;
                    if newer > version {
                        round.newer = round.newer.max(Some(newer));
                        round.had_item = true;
                    }
                }
                verdict => {
                    let error = verdict_missed(verdict, round);
                    round.missed.extend(error.map(|error| self.missed(server, error)));
                }
            }
        }
    }

    /// After a conditional write has met an item with a higher version on a replica: reports that replica as missed,
    /// unless the one that decided has so high a version, too.
    async fn check_later(self: &Rc<Self>, server: u32, key: &[u8], newer: Version, round: &mut Round) {
        let present = self.read_at(server, key).await;
        if present.is_ok_and(|found| found.is_none_or(|(facts, _)| facts.cas >= newer)) {
            return;
        }
        round.reached = round.reached.saturating_sub(1);
        round.missed.push(self.missed(server, ServerError::Refused(Refused::Changed)));
    }

    async fn send(
        self: &Rc<Self>,
        seen: &Seen,
        server: u32,
        operation: &Operation<'_>,
        version: Version,
    ) -> Result<Verdict, ServerError> {
        let node = &self.nodes[server as usize];
        let client = node.client().await?;
        let head = Replicate { fingerprint: self.cluster.fingerprint(), epoch: seen.epoch, version };
        let verdict = client.replicate(&head, operation).await;
        match &verdict {
            Ok(_) => node.answered(),
            Err(error) => node.failed(error),
        }
        // The next server of this name is asked at once: nothing was sent to this one, or making the write twice does no
        // harm.
        let is_again = match &verdict {
            Err(KvError::Restarted { .. }) => true,
            Err(KvError::Call { error: CallError::PeerReset }) => condition(operation) == Condition::Always,
            _ => false,
        };
        if is_again {
            return Ok(node.client().await?.replicate(&head, operation).await?);
        }
        Ok(verdict?)
    }
}

/// Returns why a server does not have a write.
fn verdict_missed(verdict: Result<Verdict, ServerError>, round: &mut Round) -> Option<ServerError> {
    Some(match verdict {
        Err(error) => error,
        Ok(Verdict::Done { .. } | Verdict::Newer { .. }) => return None,
        Ok(Verdict::OtherEpoch { epoch }) => {
            round.is_outdated = true;
            ServerError::OtherEpoch { epoch }
        }
        Ok(Verdict::NotSafe) => {
            round.is_outdated = true;
            ServerError::NotSafe
        }
        Ok(Verdict::OtherMap { .. }) => ServerError::OtherMap,
        Ok(Verdict::Closed) => ServerError::Closed,
        Ok(Verdict::ClockAhead { seconds }) => ServerError::ClockAhead { seconds },
        Ok(Verdict::Refused(refused)) => refused.into(),
        Ok(Verdict::NotOwned | Verdict::Malformed | Verdict::Unsupported) => ServerError::Unsupported,
    })
}
