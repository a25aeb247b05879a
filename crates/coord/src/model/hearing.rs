//! What the replica that leads hears outside the log: heartbeats and renewals.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::state::State;
use crate::error::CoordError;
use crate::mutation::{Mutation, is_planted};
use crate::types::Revision;
use crate::watchman::Pulse;
use crate::wire::{Answer, Lapsed, Silent};

/// What a replica hears while its watchman reigns: how often each live member, and each renewal of a lease. The [machine](super::Machine) of the replica notes it, and the
/// [watchman](crate::embedded::Watchman) beside it reads it. Make one for each replica, and give it to both. Clones are the same one.
///
/// It is no part of the replicated state: a heartbeat costs no entry of the log and no flush. Why that is safe is argued in [`crate::model`].
#[derive(Debug, Clone, Default)]
pub struct Hearing(Arc<Mutex<Heard>>);

#[derive(Debug, Default)]
struct Heard {
    /// That of the watchman beside the replica; 0 if it does not reign.
    reign: u64,
    /// By incarnation of a live member, or token of a lease: no two of either have the same revision.
    counts: HashMap<Revision, u64>,
    /// Those that the watchman is having ended: whether it succeeds is not known.
    condemned: HashSet<Revision>,
    /// As the watchman asked for it last.
    pulse: Option<Pulse>,
}

impl Hearing {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to hear: the watchman's reign has begun.
    pub(crate) fn open(&self, reign: u64) {
        *self.heard() = Heard { reign, ..Heard::default() };
    }

    /// Hears nothing any more.
    pub(crate) fn close(&self) {
        *self.heard() = Heard::default();
    }

    /// Notes a heartbeat, or a renewal; says whether it counts. It does not unless the watchman beside this replica is the last that began to reign, nor while
    /// that is having an end made to it.
    pub(super) fn hear(&self, state: &State, revision: Revision) -> bool {
        let mut heard = self.heard();
        let is_condemned = heard.condemned.contains(&revision) && !is_planted(Mutation::CondemnedHeard);
        if heard.reign == 0 || heard.reign != state.reign || is_condemned {
            return false;
        }
        *heard.counts.entry(revision).or_default() += 1;
        true
    }

    /// Takes all counts, for the watchman. It is asked as a query so that it has an answer only while a majority follows this replica.
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
        heard.pulse = Some(pulse);
        Ok(Answer::Reigns { reign })
    }

    /// What was taken last.
    pub(crate) fn pulse(&self) -> Option<Pulse> {
        self.heard().pulse.take()
    }

    /// Condemns those that were not heard since they were counted so: nothing of them is heard until they are pardoned.
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

    /// The decision is made. Condemned members and leases have ended, or have been replaced by newer ones.
    pub(crate) fn pardon_all(&self) {
        self.heard().condemned.clear();
    }
}
