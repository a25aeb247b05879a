//! What a watchman decides: failed members, and leases that are over. Each back end has a task that looks and has the
//! decisions executed. [`crate::model`] argues why that is safe.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use dunlin_net::clock::nanos;

use crate::error::CoordError;
use crate::mutation::{Mutation, is_planted};
use crate::types::{Incarnation, MemberId, Token};

/// Members and leases together in one command. Names have up to a kibibyte each, so a command easily fits the log.
const DECIDED_AT_ONCE: usize = 512;

/// Settings of a watchman. All nodes should have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchmanConfig {
    /// A member that is silent for this long has failed. Choose several times the heartbeat interval. Members are told
    /// it as they join, and keep that value until they join again. Default 5 s.
    pub failure_timeout: Duration,
    /// Interval between looks: a failure or the end of a lease may be noticed this late. At most a quarter of
    /// `failure_timeout`. Default 100 ms.
    pub look_every: Duration,
}

impl Default for WatchmanConfig {
    fn default() -> Self {
        WatchmanConfig { failure_timeout: Duration::from_secs(5), look_every: Duration::from_millis(100) }
    }
}

impl WatchmanConfig {
    /// As told to members: in whole milliseconds, at least one.
    pub(crate) fn failure_timeout_ms(&self) -> u64 {
        (self.failure_timeout.as_millis() as u64).max(1)
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`CoordError::Backend`] if one is out of range.
    pub fn check(&self) -> Result<(), CoordError> {
        if self.look_every.is_zero() || self.look_every > self.failure_timeout / 4 {
            let why =
                "setting look_every is out of range: choose more than 0, and at most a quarter of failure_timeout";
            return Err(CoordError::Backend { why: why.into(), may_have_run: false });
        }
        Ok(())
    }

    /// If two looks are further apart than this, heartbeats may have been impossible in between.
    pub(crate) fn gap_max(&self) -> Duration {
        self.failure_timeout / 2
    }

    /// The same, for a member or lease that may be silent for this many nanoseconds; never less than two looks.
    fn gap_max_of(&self, patience: u64) -> u64 {
        let looks = 2 * nanos(self.look_every);
        (patience / 2).max(looks).min(nanos(self.gap_max()))
    }
}

/// The counters of a watchman.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WatchmanCounters {
    /// Reigns begun.
    pub reigns: u64,
    /// Looks.
    pub looks: u64,
    /// Looks that came so late that all waiting restarted.
    pub late_looks: u64,
    /// Members marked as failed.
    pub failures: u64,
    /// Leases ended.
    pub lapses: u64,
    /// Commands that recorded decisions: one for each look with findings, or several if there were many.
    pub steps: u64,
    /// Decisions that were refused, since the member or lease was heard or had ended, or another watchman had begun.
    pub refused: u64,
}

/// The counts that a watchman reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pulse {
    /// Live members.
    pub members: Vec<Beat>,
    /// Leases that are held.
    pub leases: Vec<Tenure>,
}

/// Heartbeats of a live member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beat {
    pub member: MemberId,
    pub incarnation: Incarnation,
    /// A count of heartbeats, or with etcd the revision of the last.
    pub heartbeats: u64,
    /// How long it may be silent, in milliseconds; 0 if it was not told.
    pub failure_timeout_ms: u64,
}

/// Renewals of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tenure {
    pub name: String,
    pub member: MemberId,
    pub token: Token,
    /// A count of renewals, or with etcd the revision of the last.
    pub renewals: u64,
    /// The time of the lease after each renewal, in milliseconds.
    pub ttl_ms: u64,
}

/// How long each count has been unchanged.
pub(crate) struct Silence<K> {
    since: HashMap<K, (u64, u64)>,
}

impl<K: Hash + Eq + Clone> Silence<K> {
    pub fn new() -> Silence<K> {
        Silence { since: HashMap::new() }
    }

    /// Takes the counts of a look at `now`; returns those that were unchanged for their patience, in nanoseconds. Keys
    /// without a count are forgotten. If `is_late` holds for a patience, heartbeats may have been impossible since the
    /// last look, and the waiting restarts.
    pub fn look(
        &mut self,
        now: u64,
        is_late: impl Fn(u64) -> bool,
        counts: impl Iterator<Item = (K, u64, u64)>,
    ) -> Vec<(K, u64)> {
        let before = std::mem::take(&mut self.since);
        let mut over = Vec::new();
        for (key, count, patience) in counts {
            let is_same = |seen: u64| seen == count || is_planted(Mutation::RenewalNotCounted);
            let goes_on = |(seen, _): &&(u64, u64)| is_same(*seen) && !is_late(patience);
            let since = before.get(&key).filter(goes_on).map_or(now, |(_, since)| *since);
            if now - since >= patience {
                over.push((key.clone(), count));
            }
            self.since.insert(key, (count, since));
        }
        over
    }
}

/// The state of one reign.
pub(crate) struct Reign {
    number: u64,
    members: Silence<(MemberId, Incarnation)>,
    leases: Silence<(String, MemberId, Token)>,
    looked_at: u64,
}

/// The findings of a look.
pub(crate) struct Seen {
    pub was_late: bool,
    /// Members that have failed, and leases that are over.
    pub over: Pulse,
}

impl Seen {
    /// The findings, in as few parts as commands can hold.
    pub fn parts(self) -> impl Iterator<Item = Pulse> {
        let Pulse { members, leases } = self.over;
        let (mut members, mut leases) = (members.into_iter(), leases.into_iter());
        std::iter::from_fn(move || {
            let members: Vec<Beat> = members.by_ref().take(DECIDED_AT_ONCE).collect();
            let leases: Vec<Tenure> = leases.by_ref().take(DECIDED_AT_ONCE - members.len()).collect();
            let is_something = !members.is_empty() || !leases.is_empty();
            is_something.then_some(Pulse { members, leases })
        })
    }
}

impl Reign {
    pub fn new(number: u64, now: u64) -> Reign {
        Reign { number, members: Silence::new(), leases: Silence::new(), looked_at: now }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Takes the counts at `now`, and decides.
    pub fn see(&mut self, now: u64, pulse: Pulse, config: &WatchmanConfig) -> Seen {
        let gap = now - std::mem::replace(&mut self.looked_at, now);
        let was_late = gap > nanos(config.gap_max());
        let is_late = |patience| gap > config.gap_max_of(patience);
        if was_late {
            (self.members, self.leases) = (Silence::new(), Silence::new());
        }
        // What the member was told, if anything. An earlier watchman may have told it a longer timeout.
        let patience = |told: u64| match told {
            told if told == 0 || is_planted(Mutation::PromiseForgotten) => nanos(config.failure_timeout),
            told => told.saturating_mul(1_000_000),
        };
        let beats = pulse.members.into_iter();
        let beats =
            beats.map(|beat| ((beat.member, beat.incarnation), beat.heartbeats, patience(beat.failure_timeout_ms)));
        let silent = self.members.look(now, is_late, beats).into_iter();
        // The patience is no longer needed.
        let beat =
            |((member, incarnation), heartbeats)| Beat { member, incarnation, heartbeats, failure_timeout_ms: 0 };
        let members = silent.map(beat);
        let tenures = pulse.leases.into_iter();
        let quarters = if is_planted(Mutation::NoMargin) { 3 } else { 4 };
        let time = |ttl_ms: u64| ttl_ms.saturating_mul(1_000_000) / 4 * quarters;
        let tenures = tenures.map(|held| ((held.name, held.member, held.token), held.renewals, time(held.ttl_ms)));
        let over = self.leases.look(now, is_late, tenures).into_iter();
        // The lease times are no longer needed.
        let leases = over.map(|((name, member, token), renewals)| Tenure { name, member, token, renewals, ttl_ms: 0 });
        Seen { was_late, over: Pulse { members: members.collect(), leases: leases.collect() } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_counted_from_the_first_sight_of_a_count() {
        let mut silence = Silence::new();
        let mut look = |now, counts: &[(u64, u64)]| {
            silence.look(now, |_| false, counts.iter().map(|(key, count)| (*key, *count, 100)))
        };
        assert_eq!(look(1000, &[(1, 5), (2, 0)]), []);
        assert_eq!(look(1099, &[(1, 5), (2, 1)]), []);
        assert_eq!(look(1100, &[(1, 5), (2, 1)]), [(1, 5)]);
        assert_eq!(look(1199, &[(2, 1)]), [(2, 1)]);
        assert_eq!(look(1200, &[(1, 5)]), [], "who went and came is seen for the first time");
        assert_eq!(look(1300, &[(1, 6)]), []);
    }

    #[test]
    fn a_command_holds_as_many_decisions_as_it_may() {
        let beat = |member| Beat { member, incarnation: 1, heartbeats: 2, failure_timeout_ms: 10 };
        let tenure = |number| Tenure { name: format!("/{number}"), member: 1, token: number, renewals: 0, ttl_ms: 0 };
        let all = |members, leases| {
            let (members, leases) = ((0..members).map(beat), (0..leases).map(tenure));
            Pulse { members: members.collect(), leases: leases.collect() }
        };
        for (members, leases, expected) in
            [(0, 0, vec![]), (3, 2, vec![(3, 2)]), (600, 700, vec![(512, 0), (88, 424), (0, 276)])]
        {
            let over = all(members, leases);
            let parts: Vec<Pulse> = Seen { was_late: false, over: over.clone() }.parts().collect();
            assert_eq!(parts.iter().map(|part| (part.members.len(), part.leases.len())).collect::<Vec<_>>(), expected);
            let [mut found, expected] = [Pulse::default(), over];
            for part in parts {
                found.members.extend(part.members);
                found.leases.extend(part.leases);
            }
            assert_eq!(found, expected);
        }
    }

    /// For a watchman with a longer timeout than the earlier one, which told the members.
    #[test]
    fn a_gap_counts_by_the_time_that_a_member_was_told() {
        let (failure_timeout, look_every) = (Duration::from_millis(5000), Duration::from_millis(100));
        let config = WatchmanConfig { failure_timeout, look_every };
        let mut reign = Reign::new(4, 0);
        let mut failed_at = |millis: u64| {
            let members = vec![Beat { member: 1, incarnation: 7, heartbeats: 3, failure_timeout_ms: 1000 }];
            let pulse = Pulse { members, leases: Vec::new() };
            reign.see(millis * 1_000_000, pulse, &config).over.members.len()
        };
        assert_eq!([0, 2000, 2400, 2800].map(&mut failed_at), [0; 4]);
        assert_eq!(failed_at(3000), 1);
    }

    #[test]
    fn time_in_which_nobody_was_looked_at_does_not_count() {
        let config =
            WatchmanConfig { failure_timeout: Duration::from_nanos(100), look_every: Duration::from_nanos(10) };
        let pulse = || Pulse {
            members: vec![Beat { member: 1, incarnation: 7, heartbeats: 3, failure_timeout_ms: 0 }],
            leases: vec![Tenure { name: "/a".into(), member: 1, token: 8, renewals: 2, ttl_ms: 0 }],
        };
        let (all, none) = (pulse(), Pulse::default());
        let failed = Pulse { leases: none.leases.clone(), ..all.clone() };
        let mut reign = Reign::new(4, 0);
        let mut see = |now| {
            let seen = reign.see(now, pulse(), &config);
            (seen.was_late, seen.over.members == failed.members, seen.over.leases == all.leases)
        };
        assert_eq!(see(10), (false, false, true), "a lease of no time is over when it is seen");
        assert_eq!(see(60), (false, false, true));
        assert_eq!(see(109), (false, false, true));
        // Not since 10, though that is long enough: this look comes more than half of the timeout after the last.
        assert_eq!(see(160), (true, false, true));
        assert_eq!(see(210), (false, false, true));
        assert_eq!(see(259), (false, false, true));
        assert_eq!(see(260), (false, true, true));
    }
}
