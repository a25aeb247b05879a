//! Members and the epoch.

use std::collections::HashMap;

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};

use super::keys::number_of;
use super::leases::renewed_by;
use super::work::{Outcome, Work, count, delete, foreign, get, get_all, is_of, look, none_since, number, page, put};
use crate::error::CoordError;
use crate::types::{Happening, Health, Incarnation, Joined, Member, MemberId, Members, Membership};

impl Work {
    pub async fn join(self, member: MemberId, about: Vec<u8>) -> Result<Joined, CoordError> {
        self.limits.check_about(&about)?;
        let keys = &self.keys;
        loop {
            let seen = self
                .read(vec![
                    look(keys.member(member)),
                    count(keys.members()),
                    get(keys.epoch()),
                    get(keys.failure_timeout()),
                    page(&keys.renewals_of(member), None),
                    look(keys.earlier_epoch()),
                    look(keys.failed(member)),
                ])
                .await?;
            if let Some(earlier) = seen.one(5) {
                return Err(earlier_layout(earlier));
            }
            if seen.one(0).is_none() && seen.count(1) >= self.limits.members_max {
                return Err(CoordError::Full { what: "members".into(), max: self.limits.members_max as u64 });
            }
            if let Some(held) = seen.one(4) {
                let (_, name) = renewed_by(held, &keys.renewals())?;
                return Err(CoordError::LeasesRun { member, name });
            }
            // Its process may still work as a member, and would do so in an earlier epoch.
            if seen.one(0).is_some() && seen.one(6).is_none() {
                return Err(CoordError::Live { member });
            }
            let epoch = seen.number(2)? + 1;
            let failure_timeout_ms = seen.number(3)?;
            let join = [
                put(keys.member(member), about.clone()),
                delete(keys.failed(member)),
                put(keys.beat(member), failure_timeout_ms.to_string()),
                put(keys.joined(member), epoch.to_string()),
                put(keys.acknowledged(member), epoch.to_string()),
                put(keys.epoch(), epoch.to_string()),
                self.epoch_change(epoch, &[Happening::Joined { member, epoch }]),
                self.event(Happening::Joined { member, epoch }),
            ];
            // As long as the epoch is what it was, nobody has joined.
            let no_grant = none_since(keys.renewals_of(member), seen.revision);
            let conditions = [is_of(&keys.epoch(), seen.mod_revision(2)), no_grant];
            let outcome = self.commit(Txn::new().when(conditions).and_then(join)).await?;
            if outcome.done {
                return Ok(Joined { incarnation: outcome.revision, epoch, failure_timeout_ms });
            }
        }
    }

    /// Returns the epoch, whether it is settled, and the failure timeout that applies to the member.
    pub async fn heartbeat(self, membership: Membership) -> Result<(u64, bool, u64), CoordError> {
        match membership.failure_timeout_ms {
            0 => self.first_heartbeat(membership).await,
            failure_timeout_ms => {
                let (epoch, is_settled) = self.beat(membership, failure_timeout_ms, Vec::new()).await?;
                Ok((epoch, is_settled, failure_timeout_ms))
            }
        }
    }

    /// The same for a member that joined before any watchman reigned, and so has no failure timeout yet.
    async fn first_heartbeat(self, membership: Membership) -> Result<(u64, bool, u64), CoordError> {
        let keys = &self.keys;
        let beat = keys.beat(membership.member);
        loop {
            let seen = self.read(vec![get(beat.clone()), get(keys.failure_timeout())]).await?;
            let told = seen.number(0)?;
            let failure_timeout_ms = if told > 0 { told } else { seen.number(1)? };
            // Meanwhile another heartbeat may have been given the timeout of another watchman.
            let unchanged = vec![is_of(&beat, seen.mod_revision(0))];
            match self.beat(membership, failure_timeout_ms, unchanged).await {
                Err(CoordError::NotLive { .. }) => self.check_is_live(&membership).await?,
                heard => return heard.map(|(epoch, is_settled)| (epoch, is_settled, failure_timeout_ms)),
            }
        }
    }

    /// Writes a heartbeat if these conditions hold and the member is live. Returns the epoch, and whether it is
    /// settled.
    async fn beat(
        &self,
        membership: Membership,
        failure_timeout_ms: u64,
        mut conditions: Vec<Compare>,
    ) -> Result<(u64, bool), CoordError> {
        let Membership { member, incarnation, epoch, .. } = membership;
        let keys = &self.keys;
        conditions.extend(self.is_live(member, incarnation));
        // Written once in each epoch, not with each heartbeat.
        let (acknowledged, known) = (keys.acknowledged(member), epoch.to_string());
        let is_new = Compare::value(acknowledged.clone(), CompareOp::NotEqual, known.clone());
        let beat = [
            put(keys.beat(member), failure_timeout_ms.to_string()),
            get(keys.epoch()),
            get(keys.settled()),
            TxnOp::txn(Txn::new().when([is_new]).and_then([put(acknowledged, known)])),
        ];
        let outcome = self.repeat(Txn::new().when(conditions).and_then(beat)).await?;
        if !outcome.done {
            return Err(CoordError::NotLive { member, incarnation });
        }
        let epoch = outcome.number(0)?;
        Ok((epoch, epoch == outcome.number(1)?))
    }

    pub async fn leave(self, membership: Membership) -> Result<(), CoordError> {
        let Membership { member, incarnation, .. } = membership;
        let keys = &self.keys;
        self.check_is_live(&membership).await?;
        self.end_leases(member, incarnation).await?;
        loop {
            let seen = self.read(vec![look(keys.member(member)), look(keys.failed(member)), get(keys.epoch())]).await?;
            check_live(&membership, seen.one(0), seen.one(1))?;
            let epoch = seen.number(2)? + 1;
            let leave = [
                delete(keys.member(member)),
                delete(keys.beat(member)),
                delete(keys.joined(member)),
                delete(keys.acknowledged(member)),
                put(keys.epoch(), epoch.to_string()),
                self.epoch_change(epoch, &[Happening::Left { member, epoch }]),
                self.event(Happening::Left { member, epoch }),
            ];
            let [live, not_failed] = self.is_live(member, incarnation);
            let conditions = [live, not_failed, is_of(&keys.epoch(), seen.mod_revision(2))];
            if self.commit(Txn::new().when(conditions).and_then(leave)).await?.done {
                break;
            }
        }
        // This incarnation can be granted no more leases: these are the ones it got while it left.
        self.end_leases(member, incarnation).await
    }

    pub async fn forget(self, member: MemberId) -> Result<(), CoordError> {
        let keys = &self.keys;
        loop {
            let seen = self.read(vec![look(keys.member(member)), look(keys.failed(member))]).await?;
            if seen.one(0).is_none() {
                return Err(CoordError::NotFound { what: format!("member {member}") });
            }
            if seen.one(1).is_none() {
                return Err(CoordError::Live { member });
            }
            let forget = [
                delete(keys.member(member)),
                delete(keys.failed(member)),
                delete(keys.beat(member)),
                delete(keys.joined(member)),
                delete(keys.acknowledged(member)),
                self.event(Happening::Forgotten { member }),
            ];
            let conditions =
                [is_of(&keys.member(member), seen.mod_revision(0)), is_of(&keys.failed(member), seen.mod_revision(1))];
            if self.commit(Txn::new().when(conditions).and_then(forget)).await?.done {
                return Ok(());
            }
        }
    }

    pub async fn members(self) -> Result<Members, CoordError> {
        self.members_in(&self.read(self.look_at_members()).await?)
    }

    /// The reads that [`Work::members_in`] expects at the first places of a transaction.
    pub fn look_at_members(&self) -> Vec<TxnOp> {
        let keys = &self.keys;
        vec![get_all(keys.members()), get_all(keys.all_failed()), get(keys.epoch()), get_all(keys.all_joined())]
    }

    /// The members that those reads found.
    pub fn members_in(&self, seen: &Outcome) -> Result<Members, CoordError> {
        let keys = &self.keys;
        let epochs = |place, prefix: String| {
            let found = seen.all(place).iter().map(|found| Ok((id_of(found, &prefix)?, number(found)?)));
            found.collect::<Result<HashMap<_, _>, CoordError>>()
        };
        let (failed, joined) = (epochs(1, keys.all_failed())?, epochs(3, keys.all_joined())?);
        let member = |found: &KeyValue| {
            let id = id_of(found, &keys.members())?;
            let health = if failed.contains_key(&id) { Health::Failed } else { Health::Live };
            let epoch = failed.get(&id).or(joined.get(&id)).copied().unwrap_or(0);
            let (incarnation, about) = (found.mod_revision() as Incarnation, found.value().to_vec());
            Ok(Member { id, incarnation, health, epoch, about })
        };
        let members = seen.all(0).iter().map(member).collect::<Result<_, CoordError>>()?;
        Ok(Members { epoch: seen.number(2)?, revision: seen.revision, members })
    }

    async fn check_is_live(&self, membership: &Membership) -> Result<(), CoordError> {
        let member = membership.member;
        let seen = self.read(vec![look(self.keys.member(member)), look(self.keys.failed(member))]).await?;
        check_live(membership, seen.one(0), seen.one(1))
    }
}

/// The error for an etcd that an earlier version has written.
fn earlier_layout(epoch: &KeyValue) -> CoordError {
    let why = format!(
        "an earlier version of this program keeps a cluster there ({}): choose another prefix, or stop that cluster and delete its keys",
        String::from_utf8_lossy(epoch.key())
    );
    CoordError::Backend { why, may_have_run: false }
}

/// Checks that a member is live as an incarnation, by its own key and the key of its failure.
pub(super) fn check_live(
    membership: &Membership,
    found: Option<&KeyValue>,
    failed: Option<&KeyValue>,
) -> Result<(), CoordError> {
    let is_it = found.is_some_and(|found| found.mod_revision() as Incarnation == membership.incarnation);
    if is_it && failed.is_none() {
        return Ok(());
    }
    Err(CoordError::NotLive { member: membership.member, incarnation: membership.incarnation })
}

/// The member that a key belongs to.
pub(super) fn id_of(found: &KeyValue, prefix: &str) -> Result<MemberId, CoordError> {
    let key = found.key_str().map_err(|error| foreign(prefix, error))?;
    number_of(key, prefix).ok_or_else(|| foreign(key, "it ends in no number"))
}
