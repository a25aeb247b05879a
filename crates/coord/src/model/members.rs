//! Members and the epoch.

use super::state::{Held, Record, State};
use crate::error::CoordError;
use crate::limits::Limits;
use crate::mutation::{Mutation, is_planted};
use crate::types::{Happening, Health, Incarnation, Joined, Member, MemberId, Members, Revision};
use crate::watchman::{Beat, Pulse, Tenure};
use crate::wire::{Answer, Lapsed, Silent};

impl State {
    /// The record of a member that is live as this incarnation.
    pub fn live(&self, member: MemberId, incarnation: Incarnation) -> Result<&Record, CoordError> {
        let record = self.members.get(&member);
        let live = record.filter(|record| record.health == Health::Live && record.incarnation == incarnation);
        live.ok_or(CoordError::NotLive { member, incarnation })
    }

    /// Begins another watchman's reign, with this failure timeout. It also applies to members that were told none yet.
    pub fn begin_reign(&mut self, failure_timeout_ms: u64) {
        self.reign += 1;
        self.failure_timeout_ms = failure_timeout_ms;
        let untold = self.members.values_mut().filter(|record| record.failure_timeout_ms == 0);
        untold.for_each(|record| record.failure_timeout_ms = failure_timeout_ms);
    }

    pub fn join(&mut self, limits: &Limits, member: MemberId, about: Vec<u8>) -> Result<Answer, CoordError> {
        limits.check_about(&about)?;
        if !self.members.contains_key(&member) && self.members.len() >= limits.members_max {
            return Err(CoordError::Full { what: "members".into(), max: limits.members_max as u64 });
        }
        if let Some((name, _)) = self.leases.iter().find(|(_, held)| held.member == member) {
            return Err(CoordError::LeasesRun { member, name: name.clone() });
        }
        let known = self.members.get(&member).map(|record| record.health);
        // Its process may still work as a member, and would do so in an earlier epoch.
        if known == Some(Health::Live) {
            return Err(CoordError::Live { member });
        }
        self.epoch += u64::from(!(known.is_some() && is_planted(Mutation::EpochKept)));
        let incarnation = self.happen(Happening::Joined { member, epoch: self.epoch });
        let failure_timeout_ms = self.failure_timeout_ms;
        self.members
            .insert(member, Record { incarnation, health: Health::Live, epoch: self.epoch, failure_timeout_ms, about });
        Ok(Answer::Joined { joined: Joined { incarnation, epoch: self.epoch, failure_timeout_ms } })
    }

    pub fn leave(&mut self, member: MemberId, incarnation: Incarnation) -> Result<Answer, CoordError> {
        self.live(member, incarnation)?;
        self.end_leases_of(member);
        self.members.remove(&member);
        self.epoch += 1;
        Ok(Answer::Done { revision: self.happen(Happening::Left { member, epoch: self.epoch }) })
    }

    pub fn forget(&mut self, member: MemberId) -> Result<Answer, CoordError> {
        match self.members.get(&member).map(|record| record.health) {
            None => Err(CoordError::NotFound { what: format!("member {member}") }),
            Some(Health::Live) => Err(CoordError::Live { member }),
            Some(Health::Failed) => {
                self.members.remove(&member);
                Ok(Answer::Done { revision: self.happen(Happening::Forgotten { member }) })
            }
        }
    }

    /// Ends all of these, for which the watchman has waited long enough, except those that ended or began anew since.
    pub fn decide(&mut self, members: Vec<Silent>, leases: Vec<Lapsed>) -> Answer {
        let asked = (members.len() + leases.len()) as u64;
        let (mut failures, mut lapses) = (0, 0);
        // All failures of a step begin one epoch.
        let epoch = self.epoch + 1;
        for Silent { member, incarnation } in members {
            if self.live(member, incarnation).is_err() {
                continue;
            }
            self.members.entry(member).and_modify(|record| (record.health, record.epoch) = (Health::Failed, epoch));
            self.epoch = epoch;
            self.happen(Happening::Failed { member, epoch });
            failures += 1;
        }
        for Lapsed { name, token } in leases {
            lapses += u64::from(self.lapse(name, token));
        }
        Answer::Decided { failures, lapses, refused: asked - failures - lapses }
    }

    pub fn all_members(&self) -> Members {
        let member = |(id, record): (&MemberId, &Record)| Member {
            id: *id,
            incarnation: record.incarnation,
            health: record.health,
            epoch: record.epoch,
            about: record.about.clone(),
        };
        Members { epoch: self.epoch, revision: self.revision, members: self.members.iter().map(member).collect() }
    }

    /// Live members, and leases that are held, each with its count, by incarnation or token.
    pub fn pulse(&self, heard: impl Fn(Revision) -> u64) -> Pulse {
        let live = self.members.iter().filter(|(_, record)| record.health == Health::Live);
        let beat = |(member, record): (&MemberId, &Record)| Beat {
            member: *member,
            incarnation: record.incarnation,
            heartbeats: heard(record.incarnation),
            failure_timeout_ms: record.failure_timeout_ms,
        };
        let tenure = |(name, held): (&String, &Held)| Tenure {
            name: name.clone(),
            member: held.member,
            token: held.token,
            renewals: heard(held.token),
            ttl_ms: held.ttl_ms,
        };
        Pulse { members: live.map(beat).collect(), leases: self.leases.iter().map(tenure).collect() }
    }
}
