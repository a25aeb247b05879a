//! Leases.

use std::ops::Bound;

use super::PAGE_BYTES_MAX;
use super::state::{Held, State};
use crate::error::CoordError;
use crate::limits::{Limits, check_ttl};
use crate::mutation::{Mutation, is_planted};
use crate::path::check_path;
use crate::types::{Happening, HeldLease, Holder, Incarnation, Leases, MemberId, Revision, Token};
use crate::wire::Answer;

/// Bytes that a lease counts in a page, beyond its name.
const LEASE_BYTES: usize = 40;

impl Held {
    /// The lease, as other members see it.
    pub fn seen(&self, name: &str) -> HeldLease {
        let holder = Holder { member: self.member, incarnation: self.incarnation, token: self.token };
        HeldLease { name: name.to_owned(), holder, ttl_ms: self.ttl_ms }
    }
}

impl State {
    pub fn acquire(
        &mut self,
        limits: &Limits,
        name: String,
        (member, incarnation): (MemberId, Incarnation),
        mut ttl_ms: u64,
    ) -> Result<Answer, CoordError> {
        check_path(&name)?;
        check_ttl(ttl_ms)?;
        self.live(member, incarnation)?;
        match self.leases.get(&name) {
            Some(held) if held.member != member => {
                return Err(CoordError::Held { name, holder: held.member, token: held.token });
            }
            Some(held) if is_planted(Mutation::TokenKept) => {
                let token = held.token;
                self.happen(Happening::Granted { name, member });
                return Ok(Answer::Granted { token, ttl_ms });
            }
            Some(held) => {
                // The holder may not know of this grant yet, and may rely on the earlier one.
                ttl_ms = ttl_ms.max(held.ttl_ms);
                let token = held.token;
                self.end_lease(name.clone(), token);
            }
            None if self.leases.len() >= limits.leases_max => {
                return Err(CoordError::Full { what: "leases".into(), max: limits.leases_max as u64 });
            }
            None => {}
        }
        let token = self.happen(Happening::Granted { name: name.clone(), member });
        self.leases.insert(name, Held { member, incarnation, token, ttl_ms });
        Ok(Answer::Granted { token, ttl_ms })
    }

    /// The lease, if it is held with this token.
    pub fn held(&self, name: &str, token: Token) -> Result<&Held, CoordError> {
        let held = self.leases.get(name).filter(|held| held.token == token);
        held.ok_or_else(|| CoordError::LeaseLost { name: name.to_owned(), token })
    }

    /// The token with which the holder of `token` may renew the lease, and the lease's time.
    pub fn renewable(&self, name: &str, mut token: Token) -> Result<(Token, u64), CoordError> {
        if let Some(held) = self.leases.get(name).filter(|_| is_planted(Mutation::FormerHolderRenews)) {
            token = token.max(held.token);
        }
        let held = self.held(name, token)?;
        // A failed holder cannot renew its lease; the lease runs out at its normal time.
        if !is_planted(Mutation::FailedHolderRenews) {
            self.live(held.member, held.incarnation)?;
        }
        Ok((token, held.ttl_ms))
    }

    pub fn release(&mut self, name: String, token: Token) -> Result<Answer, CoordError> {
        self.held(&name, token)?;
        Ok(Answer::Done { revision: self.end_lease(name, token) })
    }

    /// Ends a lease for which the watchman has waited long enough; returns whether it is still that lease.
    pub fn lapse(&mut self, name: String, token: Token) -> bool {
        let is_over = self.held(&name, token).is_ok();
        if is_over {
            self.end_lease(name, token);
        }
        is_over
    }

    pub fn end_leases_of(&mut self, member: MemberId) {
        let of_member = self.leases.iter().filter(|(_, held)| held.member == member);
        let ended: Vec<_> = of_member.map(|(name, held)| (name.clone(), held.token)).collect();
        ended.into_iter().for_each(|(name, token)| _ = self.end_lease(name, token));
    }

    fn end_lease(&mut self, name: String, token: Token) -> Revision {
        self.leases.remove(&name);
        self.happen(Happening::Ended { name, token })
    }

    pub fn holder(&self, name: &str) -> Result<Answer, CoordError> {
        check_path(name)?;
        Ok(Answer::Holder { holder: self.leases.get(name).map(|held| held.seen(name).holder) })
    }

    /// A page of all leases.
    pub fn all_leases(&self, after: Option<String>) -> Answer {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut leases, mut bytes, mut more_after) = (Vec::<HeldLease>::new(), 0, None);
        for (name, held) in self.leases.range((start, Bound::Unbounded)) {
            bytes += LEASE_BYTES + name.len();
            if bytes > PAGE_BYTES_MAX && !leases.is_empty() {
                more_after = leases.last().map(|lease| lease.name.clone());
                break;
            }
            leases.push(held.seen(name));
        }
        Answer::Leases { leases: Leases { revision: self.revision, leases, more_after } }
    }
}
