//! What a watchman decides. All findings of a look go into one transaction, hence one epoch, or into as few as hold
//! them.

use std::collections::HashMap;

use etcd_client::{KeyValue, Txn};

use super::leases::{name_of, renewed_by};
use super::members::id_of;
use super::work::{Outcome, Work, delete, get, is_of, look, look_at_all, put, revision_for_etcd};
use crate::error::CoordError;
use crate::types::{Happening, MemberId, Revision};
use crate::watchman::{Beat, Pulse, Tenure};

/// Comparisons, and changes, that etcd accepts in one transaction by default (`--max-txn-ops`).
const TXN_OPS_MAX: usize = 128;
/// Operations of each decision, whatever its size: changing the epoch, the epoch list and the history.
const OPS_OF_ALL: usize = 3;
/// A failure takes one comparison and one change; a lapsed lease takes two of each.
const FAILURES_AT_ONCE: usize = TXN_OPS_MAX - OPS_OF_ALL;
const OPS_OF_LAPSE: usize = 2;

/// Counts of decisions that were made, and of those that came too late.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Decided {
    pub failures: u64,
    pub lapses: u64,
    pub refused: u64,
}

/// Takes as much as one transaction holds; `None` if nothing is left.
pub(super) fn next_part(over: &mut Pulse) -> Option<Pulse> {
    let members: Vec<Beat> = over.members.drain(..over.members.len().min(FAILURES_AT_ONCE)).collect();
    let room = (FAILURES_AT_ONCE - members.len()) / OPS_OF_LAPSE;
    let leases: Vec<Tenure> = over.leases.drain(..over.leases.len().min(room)).collect();
    (!members.is_empty() || !leases.is_empty()).then_some(Pulse { members, leases })
}

/// The state in etcd, at one moment, of the members and leases to be decided.
struct Seen(Outcome);

impl Seen {
    /// Members and leases that are unchanged since the watchman saw them last.
    fn standing(&self, work: &Work, part: &Pulse) -> Result<Pulse, CoordError> {
        let keys = &work.keys;
        let by_member = |place, prefix: String| self.by(place, |found| id_of(found, &prefix));
        let by_name = |place, prefix: String| self.by(place, |found| name_of(found, &prefix));
        let (live, failed) = (by_member(0, keys.members())?, by_member(1, keys.all_failed())?);
        let beats: HashMap<MemberId, Revision> = by_member(2, keys.beats())?;
        let held = by_name(3, keys.leases())?;
        let renewals = self.by(4, |found| renewed_by(found, &keys.renewals()))?;
        let is_silent = |beat: &&Beat| {
            let is_live = live.get(&beat.member) == Some(&beat.incarnation) && !failed.contains_key(&beat.member);
            is_live && beats.get(&beat.member) == Some(&beat.heartbeats)
        };
        let is_over = |tenure: &&Tenure| {
            let Tenure { name, member, token, renewals: counted, .. } = tenure;
            held.get(name) == Some(token) && renewals.get(&(*member, name.clone())) == Some(counted)
        };
        let members = part.members.iter().filter(is_silent).cloned().collect();
        Ok(Pulse { members, leases: part.leases.iter().filter(is_over).cloned().collect() })
    }

    fn by<K: std::hash::Hash + Eq>(
        &self,
        place: usize,
        key: impl Fn(&KeyValue) -> Result<K, CoordError>,
    ) -> Result<HashMap<K, Revision>, CoordError> {
        self.0.all(place).iter().map(|found| Ok((key(found)?, found.mod_revision() as Revision))).collect()
    }
}

impl Work {
    /// Fails members and ends leases for which the watchman has waited long enough, except those that were heard or
    /// renewed since.
    ///
    /// # Errors
    /// [`CoordError::ReignOver`] if another watchman has begun its reign; nothing is decided then.
    pub async fn decide(&self, reign: u64, part: &Pulse) -> Result<Decided, CoordError> {
        let keys = &self.keys;
        loop {
            let gets = vec![
                look_at_all(keys.members()),
                look_at_all(keys.all_failed()),
                look_at_all(keys.beats()),
                look_at_all(keys.leases()),
                look_at_all(keys.renewals()),
                get(keys.epoch()),
                look(keys.reign()),
            ];
            let seen = Seen(self.read(gets).await?);
            if seen.0.mod_revision(6) as Revision != reign {
                return Err(CoordError::ReignOver { reign });
            }
            let standing = seen.standing(self, part)?;
            let (failures, lapses) = (standing.members.len(), standing.leases.len());
            let refused = (part.members.len() + part.leases.len() - failures - lapses) as u64;
            let decided = Decided { failures: failures as u64, lapses: lapses as u64, refused };
            if failures + lapses == 0 {
                return Ok(decided);
            }
            let epoch = (seen.0.number(5)?, seen.0.mod_revision(5));
            if self.commit(self.decision(reign, epoch, &standing)).await?.done {
                return Ok(decided);
            }
        }
    }

    /// The transaction of a decision. `epoch` is the current epoch, with the revision of its key.
    fn decision(&self, reign: u64, (epoch, revision): (u64, i64), over: &Pulse) -> Txn {
        let keys = &self.keys;
        let (mut conditions, mut changes) = (vec![is_of(&keys.reign(), revision_for_etcd(reign))], Vec::new());
        let mut happenings = Vec::new();
        if !over.members.is_empty() {
            // Joins, leaves and failures change the epoch. While the epoch is unchanged, these members are live, as
            // they were when it was read.
            conditions.push(is_of(&keys.epoch(), revision));
            changes.push(put(keys.epoch(), (epoch + 1).to_string()));
            let failed = |beat: &Beat| Happening::Failed { member: beat.member, epoch: epoch + 1 };
            changes.push(self.epoch_change(epoch + 1, &over.members.iter().map(failed).collect::<Vec<_>>()));
        }
        for Beat { member, heartbeats, .. } in &over.members {
            conditions.push(is_of(&keys.beat(*member), revision_for_etcd(*heartbeats)));
            changes.push(put(keys.failed(*member), (epoch + 1).to_string()));
            happenings.push(Happening::Failed { member: *member, epoch: epoch + 1 });
        }
        for Tenure { name, member, token, renewals, .. } in &over.leases {
            let (lease, renewal) = (keys.lease(name), keys.renewal(*member, name));
            conditions.push(is_of(&lease, revision_for_etcd(*token)));
            conditions.push(is_of(&renewal, revision_for_etcd(*renewals)));
            changes.extend([delete(lease), delete(renewal)]);
            happenings.push(Happening::Ended { name: name.clone(), token: *token });
        }
        changes.push(self.events(&happenings));
        Txn::new().when(conditions).and_then(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse(members: usize, leases: usize) -> Pulse {
        let beat = |member| Beat { member, incarnation: 1, heartbeats: 1, failure_timeout_ms: 0 };
        let tenure = |name: usize| Tenure { name: format!("/{name}"), member: 1, token: 1, renewals: 1, ttl_ms: 1 };
        Pulse { members: (0..members as u64).map(beat).collect(), leases: (0..leases).map(tenure).collect() }
    }

    #[test]
    fn what_is_decided_at_once_fits_a_transaction() {
        for (members, leases) in [(0, 0), (1, 0), (0, 1), (125, 0), (126, 1), (10, 57), (10, 58), (1000, 4096)] {
            let (mut over, mut parts) = (pulse(members, leases), Vec::new());
            while let Some(part) = next_part(&mut over) {
                assert!(OPS_OF_ALL + part.members.len() + OPS_OF_LAPSE * part.leases.len() <= TXN_OPS_MAX);
                parts.push((part.members.len(), part.leases.len()));
            }
            assert_eq!(parts.iter().map(|part| part.0).sum::<usize>(), members);
            assert_eq!(parts.iter().map(|part| part.1).sum::<usize>(), leases);
            let fewest = (members + 2 * leases).div_ceil(FAILURES_AT_ONCE);
            assert!(parts.len() <= fewest + 1, "{parts:?}");
        }
    }
}
