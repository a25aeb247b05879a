//! Members and the epoch.

use std::collections::HashMap;

use etcd_client::{Compare, KeyValue, Txn, TxnOp};

use super::keys::member_of;
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
            let epoch = seen.number(2)? + 1;
            let failure_timeout_ms = seen.number(3)?;
            let join = [
                put(keys.member(member), about.clone()),
                delete(keys.failed(member)),
                put(keys.beat(member), failure_timeout_ms.to_string()),
                put(keys.joined(member), epoch.to_string()),
                put(keys.epoch(), epoch.to_string()),
                self.epoch_change(epoch, &[Happening::Joined { member, epoch }]),
                self.event(Happening::Joined { member, epoch }),
            ];
            let no_grant = none_since(keys.renewals_of(member), seen.revision);
            let conditions = [is_of(&keys.epoch(), seen.mod_revision(2)), no_grant];
            let outcome = self.commit(Txn::new().when(conditions).and_then(join)).await?;
            if outcome.done {
                return Ok(Joined { incarnation: outcome.revision, epoch, failure_timeout_ms });
            }
        }
    }

    /// Gives the epoch, and the failure timeout that the member goes by.
    pub async fn heartbeat(self, membership: Membership) -> Result<(u64, u64), CoordError> {
        match membership.failure_timeout_ms {
            0 => self.first_heartbeat(membership).await,
            failure_timeout_ms => Ok((self.beat(membership, failure_timeout_ms, Vec::new()).await?, failure_timeout_ms)),
        }
    }

    /// The same for a member that joined before any watchman reigned, and knows no failure timeout.
    async fn first_heartbeat(self, membership: Membership) -> Result<(u64, u64), CoordError> {
        let keys = &self.keys;
        let beat = keys.beat(membership.member);
        loop {
            let seen = self.read(vec![get(beat.clone()), get(keys.failure_timeout())]).await?;
            let told = seen.number(0)?;
            let failure_timeout_ms = if told > 0 { told } else { seen.number(1)? };
            // Another heartbeat may be told of the timeout of another watchman meanwhile.
            let unchanged = vec![is_of(&beat, seen.mod_revision(0))];
            match self.beat(membership, failure_timeout_ms, unchanged).await {
                Err(CoordError::NotLive { .. }) => self.check_is_live(&membership).await?,
                epoch => return Ok((epoch?, failure_timeout_ms)),
            }
        }
    }

    /// Writes a heartbeat if these conditions hold and the member is live, and gives the epoch.
    async fn beat(
        &self,
        membership: Membership,
        failure_timeout_ms: u64,
        mut conditions: Vec<Compare>,
    ) -> Result<u64, CoordError> {
        let Membership { member, incarnation, .. } = membership;
        conditions.extend(self.is_live(member, incarnation));
        let beat = [put(self.keys.beat(member), failure_timeout_ms.to_string()), get(self.keys.epoch())];
        let outcome = self.repeat(Txn::new().when(conditions).and_then(beat)).await?;
        if outcome.done { outcome.number(0) } else { Err(CoordError::NotLive { member, incarnation }) }
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
                delete(keys.joined(member)),
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
        vec![get_all(keys.members()), get_all(keys.all_failed()), get(keys.epoch()), get_all(keys.all_joined())]
    }

    /// The members that were found.
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

/// What must be said of an etcd that a program of before has written.
fn earlier_layout(epoch: &KeyValue) -> CoordError {
    let why = format!(
        "an earlier version of this program keeps a cluster there ({}): choose another prefix, or stop that cluster and delete its keys",
        String::from_utf8_lossy(epoch.key())
    );
    CoordError::Backend { why, may_have_run: false }
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
