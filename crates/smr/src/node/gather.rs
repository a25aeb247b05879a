//! Gathers commands that are flushed together.
//!
//! Clients that wait for their commands all return when a flush is over. If the first of them began the next flush at
//! once, all others would wait for that flush and then for their own: in the long run, half of the clients wait while
//! the other half is flushed. So a leader whose log is on disk holds commands while others are in flight, and then for
//! the clients that it has just answered. It never holds them longer than a flush and a half, or [`WAIT_MAX`], and not
//! at all if clients do not return.

use std::time::Duration;

use super::core::{Core, Job};
use crate::config::Batching;
use crate::erased::AnyLog;

/// The most commands that are held.
const HELD_MAX: usize = 1024;
/// Nanoseconds for which commands are held at most, however slow the disk is: far less than a client's timeout for one
/// replica.
const WAIT_MAX: u64 = 100_000_000;
/// Batches that are not held after clients did not return; doubled each time, up to the second constant.
const SKIPPED_MIN: u32 = 4;
const SKIPPED_MAX: u32 = 256;

/// What a leader knows of its flushes and clients.
#[derive(Debug, Default)]
pub(super) struct Gather {
    is_on: bool,
    /// The duration of a flush, in nanoseconds: a moving average in which the latest flush counts an eighth.
    flush: u64,
    /// The write that is being timed: its number, and when it began.
    timed: Option<(u64, u64)>,
    /// Clients that were answered since the last batch and have not returned.
    due: usize,
    /// When commands began to be held.
    held_since: Option<u64>,
    /// A task is going to check the held commands.
    is_watched: bool,
    /// Batches that are still to be sent without holding.
    skip: u32,
    /// The length of the last such run.
    skipped: u32,
}

/// What to do with commands that arrived.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// Submit them.
    Go,
    /// Hold them.
    Hold,
    /// Hold them, and have a task check them after this many nanoseconds.
    HoldFor(u64),
}

impl Gather {
    pub fn new(batching: Batching, log: &AnyLog) -> Gather {
        Gather { is_on: batching == Batching::Gathered && log.flushes(), ..Gather::default() }
    }

    /// A command arrived.
    pub fn came(&mut self) {
        self.due = self.due.saturating_sub(1);
    }

    /// A command was answered.
    pub fn answered(&mut self) {
        self.due += 1;
    }

    /// The task checks the held commands now. Its clock may differ from the replica's, so it may be too early.
    pub fn looked(&mut self) {
        self.is_watched = false;
    }

    fn began(&mut self, write: u64, now: u64) {
        self.timed = Some((write, now));
    }

    /// Writes up to this one are durable. Others may have begun since, so only the timed write's own flush counts:
    /// otherwise a leader that is never idle would believe that its disk takes for ever.
    fn ended(&mut self, write: u64, now: u64) {
        if let Some((_, since)) = self.timed.take_if(|(timed, _)| *timed <= write) {
            let (took, average) = (now - since, self.flush);
            self.flush = if average == 0 { took } else { average - average / 8 + took / 8 };
        }
    }

    fn wait_max(&self) -> u64 {
        (self.flush + self.flush / 2).min(WAIT_MAX)
    }

    /// Decides about this many commands. `has_others` says whether earlier commands are still in flight.
    fn decide(&mut self, now: u64, commands: usize, has_others: bool) -> Decision {
        if self.skip > 0 {
            self.skip -= 1;
            self.due = 0;
            return Decision::Go;
        }
        if commands >= HELD_MAX {
            self.held_since = None;
            return Decision::Go;
        }
        if self.due == 0 && !has_others {
            (self.held_since, self.skipped) = (None, 0);
            return Decision::Go;
        }
        let until = *self.held_since.get_or_insert(now) + self.wait_max();
        if now < until {
            let is_watched = std::mem::replace(&mut self.is_watched, true);
            return if is_watched { Decision::Hold } else { Decision::HoldFor(until - now) };
        }
        if !has_others {
            // The answered clients did not return.
            self.skipped = (2 * self.skipped).clamp(SKIPPED_MIN, SKIPPED_MAX);
            self.skip = self.skipped;
        }
        (self.due, self.held_since) = (0, None);
        Decision::Go
    }
}

impl Core {
    /// A write began, and nothing else waits for the disk.
    pub fn flush_began(&mut self, write: u64) {
        if self.gather.is_on {
            self.gather.began(write, self.now());
        }
    }

    /// All writes up to this one are durable.
    pub fn flush_ended(&mut self, write: u64) {
        if self.gather.is_on {
            self.gather.ended(write, self.now());
        }
    }

    /// Whether the commands that arrived are to wait for others.
    pub fn holds(&mut self) -> bool {
        // Until a flush has been timed, the benefit of waiting is unknown.
        if !self.gather.is_on || self.gather.flush == 0 {
            return false;
        }
        let (commands, has_others) = (self.waiters.fresh_len(), self.waiters.has_appended());
        match self.gather.decide(self.now(), commands, has_others) {
            Decision::Go => false,
            Decision::Hold => true,
            Decision::HoldFor(nanos) => {
                self.jobs.push(Job::Gather(Duration::from_nanos(nanos)));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSH: u64 = 100;

    fn gather() -> Gather {
        let mut gather = Gather { is_on: true, ..Gather::default() };
        gather.began(1, 0);
        gather.ended(1, FLUSH);
        gather
    }

    #[test]
    fn a_client_alone_never_waits() {
        let mut gather = gather();
        for now in 0..10 {
            gather.came();
            assert_eq!(gather.decide(now, 1, false), Decision::Go);
            gather.answered();
        }
    }

    #[test]
    fn two_halves_become_one() {
        let mut gather = gather();
        (0..8).for_each(|_| gather.came());
        assert_eq!(gather.decide(0, 8, false), Decision::Go);
        // Eight more arrive during the first flush, and wait for it.
        (0..8).for_each(|_| gather.came());
        assert_eq!(gather.decide(30, 8, true), Decision::HoldFor(FLUSH * 3 / 2));
        (0..8).for_each(|_| gather.answered());
        assert_eq!(gather.decide(100, 8, false), Decision::Hold, "those that were answered may come back");
        (0..7).for_each(|_| gather.came());
        assert_eq!(gather.decide(110, 15, false), Decision::Hold);
        gather.came();
        assert_eq!(gather.decide(111, 16, false), Decision::Go);
        (0..16).for_each(|_| gather.answered());
        (0..16).for_each(|_| gather.came());
        assert_eq!(gather.decide(220, 16, false), Decision::Go, "all of them from now on");
    }

    #[test]
    fn nobody_waits_long_for_what_a_majority_has_not() {
        let mut gather = gather();
        gather.came();
        assert_eq!(gather.decide(0, 1, false), Decision::Go);
        gather.came();
        assert_eq!(gather.decide(10, 1, true), Decision::HoldFor(150));
        assert_eq!(gather.decide(159, 1, true), Decision::Hold);
        gather.looked();
        assert_eq!(gather.decide(160, 1, true), Decision::Go);
        gather.came();
        assert_eq!(gather.decide(170, 1, true), Decision::HoldFor(150), "the next wait as long");
    }

    #[test]
    fn clients_that_do_not_come_back_are_not_waited_for_again_and_again() {
        let mut gather = gather();
        let (mut now, mut held) = (0, 0);
        // Each client has one command and never returns.
        for _ in 0..1000 {
            (gather.due, now) = (0, now + 1000);
            gather.answered();
            gather.answered();
            gather.came();
            if gather.decide(now, 1, false) != Decision::Go {
                held += 1;
                assert_eq!(gather.decide(now + gather.wait_max(), 1, false), Decision::Go);
            }
        }
        assert!((5..=12).contains(&held), "{held} of 1000 batches were held");
        // Then clients do return: this is noticed within a limited number of batches.
        let mut batches = 0;
        gather.skipped = SKIPPED_MAX;
        while gather.skipped > 0 {
            gather.due = 0;
            gather.decide(now, 1, false);
            batches += 1;
        }
        assert!(batches <= SKIPPED_MAX + 1);
    }

    #[test]
    fn so_many_go_at_once() {
        let mut gather = gather();
        gather.answered();
        assert_eq!(gather.decide(0, HELD_MAX, true), Decision::Go);
    }

    #[test]
    fn the_average_follows() {
        let mut gather = gather();
        for write in 2..100 {
            gather.began(write, 1000);
            gather.ended(write, 1800);
        }
        assert!((700..=800).contains(&gather.flush));
    }

    #[test]
    fn who_looks_too_early_looks_again() {
        let mut gather = gather();
        gather.came();
        assert_eq!(gather.decide(10, 1, true), Decision::HoldFor(150));
        gather.looked();
        assert_eq!(gather.decide(158, 1, true), Decision::HoldFor(2));
        assert_eq!(gather.decide(159, 1, true), Decision::Hold);
        gather.looked();
        assert_eq!(gather.decide(160, 1, true), Decision::Go);
    }

    #[test]
    fn a_disk_that_is_never_idle_is_not_a_slow_one() {
        let mut gather = gather();
        gather.began(5, 1000);
        gather.ended(4, 1050);
        // Others were written meanwhile, and are not durable when this one is.
        gather.ended(5, 1100);
        gather.ended(900, 1_000_000);
        assert_eq!(gather.flush, FLUSH - FLUSH / 8 + FLUSH / 8);
        // One flush that stalls for seconds does not make the next wait as long.
        gather.began(901, 0);
        gather.ended(901, 5_000_000_000);
        assert_eq!(gather.decide(0, 1, true), Decision::HoldFor(WAIT_MAX));
    }
}
