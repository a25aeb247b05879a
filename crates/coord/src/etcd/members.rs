//! Members and the epoch.

use etcd_client::{KeyValue, Txn, TxnOp};

use super::keys::member_of;
use super::work::{Outcome, Work, count, delete, foreign, get, get_all, is_of, look, look_at_all, put};
use crate::error::CoordError;
use crate::types::{Happening, Health, Incarnation, Member, MemberId, Members, Membership};

impl Work {
    pub async fn join(self, member: MemberId, about: Vec<u8>) -> Result<Membership, CoordError> {
        self.limits.check_about(&about)?;
        let keys = &self.keys;
        loop {
            let seen = self.read(vec![look(keys.member(member)), count(keys.members()), get(keys.epoch())]).await?;
            if seen.one(0).is_none() && seen.count(1) >= self.limits.members_max {
                return Err(CoordError::Full { what: "members".into(), max: self.limits.members_max as u64 });
            }
            let epoch = seen.number(2, &keys.epoch())? + 1;
            let join = [
                put(keys.member(member), about.clone()),
                delete(keys.failed(member)),
                put(keys.beat(member), ""),
                put(keys.epoch(), epoch.to_string()),
                self.event(Happening::Joined { member, epoch }),
            ];
            let outcome = self.commit(Txn::new().when([is_of(&keys.epoch(), seen.mod_revision(2))]).and_then(join)).await?;
            if outcome.done {
                return Ok(Membership { member, incarnation: outcome.revision, epoch });
            }
        }
    }

    pub async fn heartbeat(self, membership: Membership) -> Result<u64, CoordError> {
        let Membership { member, incarnation, .. } = membership;
        let beat = [put(self.keys.beat(member), ""), get(self.keys.epoch())];
        let outcome = self.repeat(Txn::new().when(self.is_live(member, incarnation)).and_then(beat)).await?;
        if !outcome.done {
            return Err(CoordError::NotLive { member, incarnation });
        }
        outcome.number(0, &self.keys.epoch())
    }

    pub async fn leave(self, membership: Membership) -> Result<(), CoordError> {
        let Membership { member, incarnation, .. } = membership;
        let keys = &self.keys;
        self.check_is_live(&membership).await?;
        self.end_leases(member, incarnation).await?;
        loop {
            let seen = self.read(vec![look(keys.member(member)), look(keys.failed(member)), get(keys.epoch())]).await?;
            check_live(&membership, seen.one(0), seen.one(1))?;
            let epoch = seen.number(2, &keys.epoch())? + 1;
            let leave = [
                delete(keys.member(member)),
                delete(keys.beat(member)),
                put(keys.epoch(), epoch.to_string()),
                self.event(Happening::Left { member, epoch }),
            ];
            let [live, not_failed] = self.is_live(member, incarnation);
            let conditions = [live, not_failed, is_of(&keys.epoch(), seen.mod_revision(2))];
            if self.commit(Txn::new().when(conditions).and_then(leave)).await?.done {
                break;
            }
        }
        // None can be granted to this incarnation any more: these are what it got while it left.
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

    /// What [`Work::members_in`] reads, at the first places of what is asked.
    pub fn look_at_members(&self) -> Vec<TxnOp> {
        let keys = &self.keys;
        vec![get_all(keys.members()), look_at_all(keys.all_failed()), get(keys.epoch())]
    }

    /// The members that were found.
    pub fn members_in(&self, seen: &Outcome) -> Result<Members, CoordError> {
        let keys = &self.keys;
        let failed = seen.all(1).iter().map(|key| id_of(key, &keys.all_failed())).collect::<Result<Vec<_>, _>>()?;
        let member = |found: &KeyValue| {
            let id = id_of(found, &keys.members())?;
            let health = if failed.contains(&id) { Health::Failed } else { Health::Live };
            let (incarnation, about) = (found.mod_revision() as Incarnation, found.value().to_vec());
            Ok(Member { id, incarnation, health, about })
        };
        let members = seen.all(0).iter().map(member).collect::<Result<_, CoordError>>()?;
        Ok(Members { epoch: seen.number(2, &keys.epoch())?, revision: seen.revision, members })
    }

    async fn check_is_live(&self, membership: &Membership) -> Result<(), CoordError> {
        let member = membership.member;
        let seen = self.read(vec![look(self.keys.member(member)), look(self.keys.failed(member))]).await?;
        check_live(membership, seen.one(0), seen.one(1))
    }
}

/// Checks that a member is live as an incarnation, by what is under its key and under that of its failure.
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

/// The member that a key is of.
pub(super) fn id_of(found: &KeyValue, prefix: &str) -> Result<MemberId, CoordError> {
    let key = found.key_str().map_err(|error| foreign(prefix, error))?;
    member_of(key, prefix).ok_or_else(|| foreign(key, "it ends in no number"))
}
