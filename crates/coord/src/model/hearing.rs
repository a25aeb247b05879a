//! What the leader hears outside the log: heartbeats and renewals.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::state::{Record, State};
use crate::error::CoordError;
use crate::mutation::{Mutation, is_planted};
use crate::types::{Health, Incarnation, MemberId, Revision};
use crate::watchman::Pulse;
use crate::wire::{Answer, Lapsed, Silent};

/// Counts, while the watchman reigns, the heartbeats of each live member and the renewals of each lease. The replica's
/// [machine](super::Machine) writes it, and the [watchman](crate::embedded::Watchman) beside it reads it. Make one for
/// each replica, and give it to both. Clones share one state.
///
/// It is not part of the replicated state: a heartbeat costs no entry of the log and no flush. [`crate::model`] argues
/// why that is safe.
#[derive(Debug, Clone, Default)]
pub struct Hearing(Arc<Mutex<Heard>>);

#[derive(Debug, Default)]
struct Heard {
    /// The reign of the watchman beside the replica; 0 if it does not reign.
    reign: u64,
    /// By incarnation of a live member, or token of a lease: these revisions are unique.
    counts: HashMap<Revision, u64>,
    /// By incarnation: the last epoch that the member says it knows.
    epochs: HashMap<Revision, u64>,
    /// The last epoch that is settled.
    settled: u64,
    /// A live member that had not acknowledged the epoch at the last check.
    behind: Option<MemberId>,
    /// Members and leases that the watchman is ending; the outcome is not known yet.
    condemned: HashSet<Revision>,
    /// The counts that the watchman asked for last.
    pulse: Option<Pulse>,
}

impl Hearing {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens: the watchman's reign has begun.
    pub(crate) fn open(&self, reign: u64) {
        *self.heard() = Heard { reign, ..Heard::default() };
    }

    /// Closes: nothing counts any more.
    pub(crate) fn close(&self) {
        *self.heard() = Heard::default();
    }

    /// Counts a heartbeat or a renewal, and returns whether it counts. It does not unless the watchman beside this
    /// replica has the latest reign, nor while the member or lease is condemned.
    pub(super) fn hear(&self, state: &State, revision: Revision) -> bool {
        let mut heard = self.heard();
        let is_condemned = heard.condemned.contains(&revision) && !is_planted(Mutation::CondemnedHeard);
        if heard.reign == 0 || heard.reign != state.reign || is_condemned {
            return false;
        }
        *heard.counts.entry(revision).or_default() += 1;
        true
    }

    /// Records the epoch that a live member knows; returns whether the current epoch is settled.
    pub(super) fn acknowledge(&self, state: &State, incarnation: Incarnation, epoch: u64) -> bool {
        let mut heard = self.heard();
        let known = heard.epochs.entry(incarnation).or_default();
        // It has not been told of a later one than there is: otherwise it would have acknowledged all that follow.
        *known = epoch.min(state.epoch).max(*known);
        if heard.settled == state.epoch || is_planted(Mutation::SettledTooSoon) {
            return true;
        }
        let known = |incarnation: &Incarnation| heard.epochs.get(incarnation).copied().unwrap_or(0);
        // The epoch in the record is that in which the member joined.
        let is_behind = |record: &Record| {
            record.health == Health::Live && record.epoch.max(known(&record.incarnation)) < state.epoch
        };
        let last = heard.behind.filter(|member| state.members.get(member).is_some_and(is_behind));
        // Check all members only once this one has caught up.
        let mut all = state.members.iter();
        let behind = last.or_else(|| all.find(|(_, record)| is_behind(record)).map(|(member, _)| *member));
        if behind.is_none() {
            heard.settled = state.epoch;
        }
        heard.behind = behind;
        heard.settled == state.epoch
    }

    /// Takes all counts, for the watchman. This is a query, so it is answered only while a majority follows this
    /// replica.
    pub(super) fn take(&self, state: &State, reign: u64) -> Result<Answer, CoordError> {
        state.check_reign(reign)?;
        let mut heard = self.heard();
        if heard.reign != reign {
            return Err(CoordError::ReignOver { reign });
        }
        let pulse = state.pulse(|revision| heard.counts.get(&revision).copied().unwrap_or(0));
        let counted = pulse.members.iter().map(|beat| beat.incarnation);
        let counted: HashSet<Revision> = counted.chain(pulse.leases.iter().map(|tenure| tenure.token)).collect();
        heard.counts.retain(|revision, _| counted.contains(revision));
        heard.epochs.retain(|incarnation, _| counted.contains(incarnation));
        heard.pulse = Some(pulse);
        Ok(Answer::Reigns { reign })
    }

    /// The counts that were taken last.
    pub(crate) fn pulse(&self) -> Option<Pulse> {
        self.heard().pulse.take()
    }

    /// Condemns those whose counts are unchanged: they are not heard again until they are pardoned.
    pub(crate) fn condemn(&self, over: Pulse) -> (Vec<Silent>, Vec<Lapsed>) {
        let mut heard = self.heard();
        let mut condemn = |revision: Revision, count: u64| {
            let is_silent = heard.counts.get(&revision).copied().unwrap_or(0) == count;
            is_silent && heard.condemned.insert(revision)
        };
        let members = over.members.into_iter().filter(|beat| condemn(beat.incarnation, beat.heartbeats));
        let members = members.map(|beat| Silent { member: beat.member, incarnation: beat.incarnation }).collect();
        let leases = over.leases.into_iter().filter(|tenure| condemn(tenure.token, tenure.renewals));
        (members, leases.map(|tenure| Lapsed { name: tenure.name, token: tenure.token }).collect())
    }

    /// The decision was made. Condemned members and leases have ended, or have been replaced by newer ones.
    pub(crate) fn pardon_all(&self) {
        self.heard().condemned.clear();
    }
}
