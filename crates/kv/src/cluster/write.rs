//! Writes: to all live replicas of the key's partition, with one version.

use std::collections::BTreeMap;
use std::rc::Rc;

use dunlin_net::Transport;
use dunlin_rpc::CallError;
use dunlin_store::{Condition, Put, Refused};
use futures::future::join_all;

use super::error::{ClusterError, Missed, ServerError};
use super::view::Seen;
use super::{Inner, KvCluster};
use crate::client::{KvError, Outcome};
use crate::wire::{Operation, Replicate, Verdict, Version};

/// How often the version of a conditional write is raised.
const RAISED_MAX: u32 = 4;

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
    /// Some have executed it, or may have.
    may_have_run: bool,
    /// Servers that told whether they had an item.
    told: Vec<(u32, Word)>,
    missed: Vec<Missed>,
    /// Servers that have a version which is not lower than that of the write.
    newer: Vec<(u32, Version)>,
    /// The version that the write must be above.
    must_be_above: Option<Version>,
    /// Some may have forgotten a deletion with that version.
    is_forgotten: bool,
    /// Some are in another epoch, or not sure of theirs.
    is_outdated: bool,
}

impl Round {
    fn meets(&mut self, version: Version) {
        self.must_be_above = self.must_be_above.max(Some(version));
    }

    /// Returns why no replica has the write. What is wrong with the write itself is said of it, and not of replicas.
    fn failure(self, partition: u32) -> ClusterError {
        let too_large = |missed: &Missed| match missed.error {
            ServerError::Refused(refused @ Refused::TooLarge { .. }) => Some(ClusterError::Refused(refused)),
            _ => None,
        };
        let refused = self.missed.iter().find_map(too_large);
        refused.unwrap_or(ClusterError::NoReplica { partition, missed: self.missed })
    }
}

/// A write in progress.
struct Write<'a, T: Transport> {
    inner: &'a Rc<Inner<T>>,
    operation: Operation<'a>,
    partition: u32,
    deadline: u64,
    version: Version,
    /// This version was not sent before.
    is_fresh: bool,
    /// How often the version was raised.
    raised: u32,
    /// The replica that has decided about the condition.
    decided_by: Option<u32>,
    /// In any round, with any version.
    may_have_run: bool,
    /// Whether servers had an item.
    told: BTreeMap<u32, Word>,
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
        self.inner.write(Operation::Put { key, value, put: Put { cas: None, ..put } }).await
    }

    /// Deletes an item; [`Written::had_item`] says whether there was one.
    ///
    /// # Errors
    /// As [`KvCluster::put`].
    pub async fn delete(&self, key: &[u8]) -> Result<Written, ClusterError> {
        self.inner.write(Operation::Delete { key, unchanged: None }).await
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
    async fn write(self: &Rc<Self>, operation: Operation<'_>) -> Result<Written, ClusterError> {
        crate::client::check_key(operation.key())?;
        let mut write = Write {
            inner: self,
            operation,
            partition: self.cluster.partition(operation.key()),
            deadline: self.deadline(),
            version: self.versions.next(),
            is_fresh: true,
            raised: 0,
            decided_by: None,
            may_have_run: false,
            told: BTreeMap::new(),
        };
        let done = write.run().await;
        match done {
            Err(error) if write.may_have_run && error.outcome() == Outcome::NotExecuted => {
                Err(ClusterError::InDoubt(Box::new(error)))
            }
            done => done,
        }
    }
}

/// Whether a replica had an item, and whether it did the write then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    had_item: bool,
    is_done: bool,
}

impl Word {
    /// A replica that did the write before has that as its item now, so its first word stands. If it did not, others may
    /// have stored an item meanwhile, which the write then met.
    fn note(told: &mut BTreeMap<u32, Word>, server: u32, word: Word) {
        let known = told.entry(server).or_insert(word);
        if !known.is_done {
            *known = word;
        }
    }
}

impl<T: Transport + 'static> Write<'_, T> {
    async fn run(&mut self) -> Result<Written, ClusterError> {
        let inner = self.inner;
        let mut attempt = 0;
        loop {
            let seen = inner.until(self.deadline, inner.seen()).await.ok_or(ClusterError::Late)??;
            let mut round = self.round(&seen).await?;
            self.may_have_run |= round.may_have_run;
            for (server, word) in std::mem::take(&mut round.told) {
                Word::note(&mut self.told, server, word);
            }
            if self.raise(&round) {
                continue;
            }
            if let Some(server) = self.decided_by
                && !round.newer.is_empty()
            {
                // A higher version would undo later writes that rest on this one. They went through the same replica.
                self.check_later(&seen, server, &mut round).await;
            }
            if round.is_outdated && inner.directory.is_some() && inner.pause(attempt, self.deadline).await {
                attempt += 1;
                inner.until(self.deadline, inner.look()).await.ok_or(ClusterError::Late)??;
                continue;
            }
            if round.reached == 0 {
                return Err(round.failure(self.partition));
            }
            let replicas = inner.cluster.replicas_of(self.partition);
            let absent = replicas.iter().filter(|server| !seen.is_live(**server)).count();
            let Round { reached, missed, .. } = round;
            let had_item = self.told.values().any(|word| word.had_item);
            return Ok(Written { reached, absent, missed, had_item, version: self.version });
        }
    }

    fn is_conditional(&self) -> bool {
        self.operation.condition() != Condition::Always
    }

    async fn round(&mut self, seen: &Seen) -> Result<Round, ClusterError> {
        let mut round = Round::default();
        let is_conditional = self.is_conditional();
        if is_conditional && self.decided_by.is_none() {
            self.decided_by = self.decide(seen, &mut round).await?;
            round.may_have_run |= self.decided_by.is_some();
        }
        if !is_conditional || self.decided_by.is_some() {
            self.send_to_all(seen, &mut round).await;
        }
        round.may_have_run |= round.missed.iter().any(|missed| missed.error.outcome() == Outcome::MaybeExecuted);
        Ok(round)
    }

    /// Raises the version if that was not high enough. The item may be of a writer whose clock is ahead, and older than
    /// this write. If this meets a newer one again, that one was written meanwhile, and wins. But two writes may not
    /// have one version, and what a server has forgotten is no later write.
    fn raise(&mut self, round: &Round) -> bool {
        let is_conditional = self.is_conditional();
        let is_taken = self.is_fresh && !is_conditional && round.must_be_above == Some(self.version);
        self.is_fresh = false;
        let Some(version) = round.must_be_above.filter(|_| self.decided_by.is_none()) else { return false };
        let meets_no_write = is_conditional || is_taken || round.is_forgotten;
        let max = if meets_no_write { RAISED_MAX } else { 1 };
        if self.raised >= max || !meets_no_write && version <= self.version {
            return false;
        }
        self.raised += 1;
        self.version = self.inner.versions.above(version);
        self.is_fresh = true;
        true
    }

    /// Has the replica that decides about conditions make the write. Returns its number if it has.
    async fn decide(&self, seen: &Seen, round: &mut Round) -> Result<Option<u32>, ClusterError> {
        let inner = self.inner;
        for &server in inner.cluster.replicas_of(self.partition).iter().filter(|server| seen.is_live(**server)) {
            match self.send(seen, server, &self.operation).await {
                Ok(Verdict::Done { had_item }) => {
                    round.told.push((server, Word { had_item, is_done: true }));
                    // Those before it get the write, too, and say whether they have it.
                    round.missed.clear();
                    return Ok(Some(server));
                }
                Ok(Verdict::Newer { version: newer, .. }) => {
                    if let Condition::Unchanged(token) = self.operation.condition()
                        && token != newer
                    {
                        return Err(ClusterError::Refused(Refused::Changed));
                    }
                    round.meets(newer);
                    round.missed.push(inner.missed(server, ServerError::Refused(Refused::Changed)));
                    return Ok(None);
                }
                Ok(Verdict::Refused(refused)) | Err(ServerError::Refused(refused)) => {
                    return Err(ClusterError::Refused(refused));
                }
                // With a cluster manager, all clients see the same members, and ask the same one next.
                Ok(Verdict::Closed) => round.missed.push(inner.missed(server, ServerError::Closed)),
                verdict => {
                    let error = verdict_missed(verdict, round);
                    round.missed.extend(error.map(|error| inner.missed(server, error)));
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    async fn send_to_all(&self, seen: &Seen, round: &mut Round) {
        let operation = without_condition(&self.operation);
        let replicas = self.inner.cluster.replicas_of(self.partition);
        let live: Vec<u32> = replicas.iter().copied().filter(|server| seen.is_live(*server)).collect();
        let verdicts = join_all(live.iter().map(|server| self.send(seen, *server, &operation))).await;
        for (server, verdict) in live.into_iter().zip(verdicts) {
            match verdict {
                Ok(Verdict::Done { had_item }) => {
                    round.reached += 1;
                    round.may_have_run = true;
                    round.told.push((server, Word { had_item, is_done: true }));
                }
                // This write itself, if it was sent before; otherwise a later one.
                Ok(Verdict::Newer { version: newer, has_item }) => {
                    round.reached += 1;
                    round.meets(newer);
                    if newer > self.version {
                        round.newer.push((server, newer));
                        round.told.push((server, Word { had_item: has_item, is_done: false }));
                    }
                }
                verdict => {
                    let error = verdict_missed(verdict, round);
                    round.missed.extend(error.map(|error| self.inner.missed(server, error)));
                }
            }
        }
    }

    /// After a conditional write has met higher versions on replicas, of writes or deletions: reports these replicas as
    /// missed, unless the one that decided has a version as high by now.
    async fn check_later(&self, seen: &Seen, server: u32, round: &mut Round) {
        let highest = match self.send(seen, server, &without_condition(&self.operation)).await {
            Ok(Verdict::Newer { version, .. }) => version,
            _ => 0,
        };
        for (server, _) in round.newer.iter().filter(|(_, newer)| *newer > highest) {
            round.reached = round.reached.saturating_sub(1);
            round.missed.push(self.inner.missed(*server, ServerError::Refused(Refused::Changed)));
        }
    }

    /// Sends the write to one server, until the deadline.
    async fn send(&self, seen: &Seen, server: u32, operation: &Operation<'_>) -> Result<Verdict, ServerError> {
        let sent = self.send_until_answered(seen, server, operation);
        let answer = self.inner.until(self.deadline, sent).await;
        answer.unwrap_or_else(|| {
            self.inner.nodes[server as usize].suspect();
            Err(ServerError::NoAnswer)
        })
    }

    async fn send_until_answered(
        &self,
        seen: &Seen,
        server: u32,
        operation: &Operation<'_>,
    ) -> Result<Verdict, ServerError> {
        let node = &self.inner.nodes[server as usize];
        let patience = self.inner.config.failover_after;
        let client = node.client_for_write(patience).await?;
        let head =
            Replicate { fingerprint: self.inner.cluster.fingerprint(), epoch: seen.epoch, version: self.version };
        let verdict = client.replicate(&head, operation).await;
        match &verdict {
            Ok(_) => node.answered(),
            Err(error) => node.failed(&client, error),
        }
        // The next server of this name is asked at once: nothing was sent to this one, or making the write twice does no
        // harm.
        let is_again = match &verdict {
            Err(KvError::Restarted { .. }) => true,
            Err(KvError::Call { error: CallError::PeerReset }) => operation.condition() == Condition::Always,
            _ => false,
        };
        if is_again {
            return Ok(node.client_for_write(patience).await?.replicate(&head, operation).await?);
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
        Ok(Verdict::Forgotten { floor }) => {
            round.meets(floor);
            round.is_forgotten = true;
            ServerError::Forgotten
        }
        Ok(Verdict::OtherMap { .. }) => ServerError::OtherMap,
        Ok(Verdict::Closed) => ServerError::Closed,
        Ok(Verdict::ClockAhead { seconds }) => ServerError::ClockAhead { seconds },
        Ok(Verdict::Refused(refused)) => refused.into(),
        Ok(Verdict::NotOwned | Verdict::Malformed | Verdict::Unsupported) => ServerError::Unsupported,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_the_round_that_did_the_write_stands() {
        let word = |had_item, is_done| Word { had_item, is_done };
        let cases = [
            // What it met was removed or stored between two rounds.
            ([word(false, false), word(true, true)], true),
            ([word(true, false), word(false, true)], false),
            // The item that it has now is the one of the first round.
            ([word(false, true), word(true, true)], false),
            ([word(false, true), word(true, false)], false),
        ];
        for (words, had_item) in cases {
            let mut told = BTreeMap::new();
            words.into_iter().for_each(|word| Word::note(&mut told, 1, word));
            assert_eq!(told[&1].had_item, had_item, "{words:?}");
        }
    }
}
