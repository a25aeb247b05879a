//! Leases.

use etcd_client::{KeyValue, Txn, TxnOp};

use super::keys::{Tenancy, path_of, renewal_of};
use super::members::check_live;
use super::work::{Work, count, delete, foreign, get, is_of, look, look_at_all, page, put, revision_for_etcd};
use crate::error::CoordError;
use crate::limits::check_ttl;
use crate::path::check_path;
use crate::types::{Happening, HeldLease, Holder, Incarnation, Leases, MemberId, Membership, Token};
use crate::wire::Wire;

/// The token and the tenancy in a lease's key.
pub(super) fn tenancy(found: &KeyValue) -> Result<(Token, Tenancy), CoordError> {
    let key = String::from_utf8_lossy(found.key());
    let tenancy = Tenancy::from_bytes(found.value()).map_err(|error| foreign(&key, error))?;
    Ok((found.mod_revision() as Token, tenancy))
}

/// The lease that a key belongs to.
pub(super) fn name_of(found: &KeyValue, prefix: &str) -> Result<String, CoordError> {
    let key = found.key_str().map_err(|error| foreign(prefix, error))?;
    path_of(key, prefix).map(str::to_owned).ok_or_else(|| foreign(key, "it is no lease's"))
}

/// The member and the lease in the key of a renewal.
pub(super) fn renewed_by(found: &KeyValue, prefix: &str) -> Result<(MemberId, String), CoordError> {
    let key = found.key_str().map_err(|error| foreign(prefix, error))?;
    let (member, name) = renewal_of(key, prefix).ok_or_else(|| foreign(key, "it is of no renewal"))?;
    Ok((member, name.to_owned()))
}

/// The lease, as other members see it.
pub(super) fn held_lease(found: &KeyValue, prefix: &str) -> Result<HeldLease, CoordError> {
    let (token, held) = tenancy(found)?;
    let holder = Holder { member: held.member, incarnation: held.incarnation, token };
    Ok(HeldLease { name: name_of(found, prefix)?, holder, ttl_ms: held.ttl_ms })
}

impl Work {
    /// Returns the token, and the time of the lease.
    pub async fn acquire(
        self,
        membership: Membership,
        name: String,
        asked_ms: u64,
    ) -> Result<(Token, u64), CoordError> {
        check_path(&name)?;
        check_ttl(asked_ms)?;
        let (keys, Membership { member, incarnation, .. }) = (&self.keys, membership);
        let lease = keys.lease(&name);
        loop {
            let its_state = [look(keys.member(member)), look(keys.failed(member))];
            let seen =
                self.read(its_state.into_iter().chain([get(lease.clone()), count(keys.leases())]).collect()).await?;
            check_live(&membership, seen.one(0), seen.one(1))?;
            let held = seen.one(2).map(tenancy).transpose()?;
            // The holder may not know of this grant yet, and may rely on the earlier one.
            let ttl_ms = held.as_ref().map_or(asked_ms, |(_, held)| held.ttl_ms.max(asked_ms));
            match held {
                Some((token, held)) if held.member != member => {
                    return Err(CoordError::Held { name, holder: held.member, token });
                }
                None if seen.count(3) >= self.limits.leases_max => {
                    return Err(CoordError::Full { what: "leases".into(), max: self.limits.leases_max as u64 });
                }
                _ => {}
            }
            let grant = [
                put(lease.clone(), Tenancy { member, incarnation, ttl_ms }.to_bytes()),
                put(keys.renewal(member, &name), ""),
                self.event(Happening::Granted { name: name.clone(), member }),
            ];
            let [live, not_failed] = self.is_live(member, incarnation);
            let conditions = [live, not_failed, is_of(&lease, seen.mod_revision(2))];
            let outcome = self.commit(Txn::new().when(conditions).and_then(grant)).await?;
            if outcome.done {
                return Ok((outcome.revision, ttl_ms));
            }
        }
    }

    /// Returns the time of the lease.
    pub async fn renew(self, name: String, token: Token) -> Result<u64, CoordError> {
        let lease = self.keys.lease(&name);
        let seen = self.read(vec![get(lease.clone())]).await?;
        let lost = || CoordError::LeaseLost { name: name.clone(), token };
        let (now, held) = seen.one(0).map(tenancy).transpose()?.ok_or_else(lost)?;
        if now != token {
            return Err(lost());
        }
        let (member, incarnation) = (held.member, held.incarnation);
        let [live, not_failed] = self.is_live(member, incarnation);
        let conditions = [live, not_failed, is_of(&lease, revision_for_etcd(token))];
        let renew =
            Txn::new().when(conditions).and_then([put(self.keys.renewal(member, &name), "")]).or_else([look(lease)]);
        let outcome = self.repeat(renew).await?;
        if outcome.done {
            return Ok(held.ttl_ms);
        }
        if outcome.mod_revision(0) as Token != token {
            return Err(lost());
        }
        // A failed holder cannot renew its lease; the lease runs out at its normal time.
        Err(CoordError::NotLive { member, incarnation })
    }

    /// The operations that end a lease that a member holds with this token.
    fn end(&self, member: MemberId, name: &str, token: Token) -> [TxnOp; 3] {
        let ended = Happening::Ended { name: name.to_owned(), token };
        [delete(self.keys.lease(name)), delete(self.keys.renewal(member, name)), self.event(ended)]
    }

    pub async fn release(&self, name: String, token: Token) -> Result<(), CoordError> {
        let is_ended = self.end_if(&name, |held_with, _| held_with == token).await?;
        if is_ended { Ok(()) } else { Err(CoordError::LeaseLost { name, token }) }
    }

    /// Ends a lease if `is_meant` holds for it; returns whether it did.
    async fn end_if(&self, name: &str, is_meant: impl Fn(Token, &Tenancy) -> bool) -> Result<bool, CoordError> {
        let lease = self.keys.lease(name);
        let seen = self.read(vec![get(lease.clone())]).await?;
        let held = seen.one(0).map(tenancy).transpose()?;
        let Some((token, held)) = held.filter(|(token, held)| is_meant(*token, held)) else { return Ok(false) };
        let is_held = is_of(&lease, revision_for_etcd(token));
        let outcome = self.commit(Txn::new().when([is_held]).and_then(self.end(held.member, name, token))).await?;
        Ok(outcome.done)
    }

    /// Ends the leases of a member, up to this incarnation, one by one: each end is an event.
    pub async fn end_leases(&self, member: MemberId, incarnation: Incarnation) -> Result<(), CoordError> {
        let seen = self.read(vec![look_at_all(self.keys.renewals_of(member))]).await?;
        for found in seen.all(0) {
            let (_, name) = renewed_by(found, &self.keys.renewals())?;
            // A lease that was granted anew meanwhile belongs to a later incarnation, or ended when this incarnation
            // left.
            self.end_if(&name, |_, held| held.member == member && held.incarnation <= incarnation).await?;
        }
        Ok(())
    }

    pub async fn all_leases(self, after: Option<String>) -> Result<Leases, CoordError> {
        let prefix = self.keys.leases();
        let seen = self.read(vec![page(&prefix, after.map(|after| self.keys.lease(&after)))]).await?;
        let leases = seen.all(0).iter().map(|found| held_lease(found, &prefix)).collect::<Result<Vec<_>, _>>()?;
        let more_after = leases.last().filter(|_| seen.has_more(0)).map(|lease| lease.name.clone());
        Ok(Leases { revision: seen.revision, leases, more_after })
    }

    pub async fn holder(self, name: String) -> Result<Option<Holder>, CoordError> {
        check_path(&name)?;
        let seen = self.read(vec![get(self.keys.lease(&name))]).await?;
        let held = seen.one(0).map(tenancy).transpose()?;
        Ok(held.map(|(token, held)| Holder { member: held.member, incarnation: held.incarnation, token }))
    }
}
