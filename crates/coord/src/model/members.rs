//! Members and the epoch.

use super::state::{Record, State};
use crate::error::CoordError;
use crate::limits::Limits;
use crate::mutation::{Mutation, is_planted};
use crate::types::{Happening, Health, Incarnation, Joined, Member, MemberId, Members};
use crate::wire::{Answer, Beat, Pulse, Tenure};

impl State {
    /// The record of a member that is live as this incarnation.
    pub fn live(&mut self, member: MemberId, incarnation: Incarnation) -> Result<&mut Record, CoordError> {
        let record = self.members.get_mut(&member);
        let live = record.filter(|record| record.health == Health::Live && record.incarnation == incarnation);
        live.ok_or(CoordError::NotLive { member, incarnation })
    }

    pub fn join(&mut self, limits: &Limits, member: MemberId, about: Vec<u8>) -> Result<Answer, CoordError> {
        limits.check_about(&about)?;
        if !self.members.contains_key(&member) && self.members.len() >= limits.members_max {
            return Err(CoordError::Full { what: "members".into(), max: limits.members_max as u64 });
        }
        if let Some((name, _)) = self.leases.iter().find(|(_, held)| held.member == member) {
            return Err(CoordError::LeasesRun { member, name: name.clone() });
        }
        let is_known = self.members.contains_key(&member);
        self.epoch += u64::from(!(is_known && is_planted(Mutation::EpochKept)));
        let incarnation = self.happen(Happening::Joined { member, epoch: self.epoch });
        let failure_timeout_ms = self.failure_timeout_ms;
        self.members.insert(member, Record { incarnation, health: Health::Live, heartbeats: 0, failure_timeout_ms, about });
        Ok(Answer::Joined { joined: Joined { incarnation, epoch: self.epoch, failure_timeout_ms } })
    }

    pub fn heartbeat(&mut self, member: MemberId, incarnation: Incarnation) -> Result<Answer, CoordError> {
        let (epoch, failure_timeout_ms) = (self.epoch, self.failure_timeout_ms);
        let record = self.live(member, incarnation)?;
        record.heartbeats += 1;
        if record.failure_timeout_ms == 0 {
            record.failure_timeout_ms = failure_timeout_ms;
        }
        Ok(Answer::Heard { epoch, failure_timeout_ms: record.failure_timeout_ms })
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

    /// The watchman has waited for long enough for all of these, but for those that were heard since.
    pub fn decide(&mut self, over: Pulse) -> Answer {
        let (mut failures, mut lapses, mut refused) = (0, 0, 0);
        // All failures of a step begin one epoch.
        let epoch = self.epoch + 1;
        for Beat { member, incarnation, heartbeats, .. } in over.members {
            match self.live(member, incarnation) {
                Ok(record) if record.heartbeats == heartbeats => {
                    record.health = Health::Failed;
                    self.epoch = epoch;
                    self.happen(Happening::Failed { member, epoch });
                    failures += 1;
                }
                _ => refused += 1,
            }
        }
        for Tenure { name, token, renewals, .. } in over.leases {
            let is_over = self.lapse(name, token, renewals);
            lapses += u64::from(is_over);
            refused += u64::from(!is_over);
        }
        Answer::Decided { failures, lapses, refused }
    }

    pub fn all_members(&self) -> Members {
        let member = |(id, record): (&MemberId, &Record)| Member {
            id: *id,
            incarnation: record.incarnation,
            health: record.health,
            about: record.about.clone(),
        };
        Members { epoch: self.epoch, revision: self.revision, members: self.members.iter().map(member).collect() }
    }

    pub fn beats(&self) -> Vec<Beat> {
        let live = self.members.iter().filter(|(_, record)| record.health == Health::Live);
        let beat = |(member, record): (&MemberId, &Record)| Beat {
            member: *member,
            incarnation: record.incarnation,
            heartbeats: record.heartbeats,
            failure_timeout_ms: record.failure_timeout_ms,
        };
        live.map(beat).collect()
    }
}
