//! The counters of a sequencer, as metrics.

use dunlin_seq::reserve::KeeperStats;
use dunlin_seq::{Counter, ServiceStats};
use dunlin_serve::metrics::{Family, Kind};

/// What a sequencer counts by RPC, and the state of its counter.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    service: ServiceStats,
    epoch: u64,
    is_serving: bool,
    left: u64,
}

impl Figures {
    /// The figures of this moment; `now` reads the clock of terms.
    pub fn of(service: ServiceStats, counter: &Counter, now: impl FnOnce() -> u64) -> Figures {
        Figures { service, epoch: counter.epoch(), is_serving: counter.is_serving(now), left: counter.left() }
    }

    /// Numbers handed out by RPC.
    pub fn numbers(&self) -> u64 {
        self.service.numbers
    }

    /// The figures as metrics.
    pub fn families(&self) -> Vec<Family> {
        let Figures { service, epoch, is_serving, left } = *self;
        let ServiceStats { requests, numbers, draws, pushed_back, not_serving, other_epoch, exhausted, bad } = service;
        let refused = [
            ("pushed_back", pushed_back),
            ("not_serving", not_serving),
            ("other_epoch", other_epoch),
            ("exhausted", exhausted),
            ("malformed", bad),
        ];
        vec![
            Family::one(Kind::Counter, "numbers", "Numbers handed out.", numbers),
            Family::one(Kind::Counter, "requests", "Requests answered with numbers.", requests),
            Family::one(Kind::Counter, "draws", "Additions to the counter.", draws),
            Family::one(Kind::Gauge, "epoch", "Its term of office; 0 without reservations.", epoch),
            Family::one(Kind::Gauge, "serving", "1 if it may hand out numbers now.", u64::from(is_serving)),
            Family::one(Kind::Gauge, "reserved", "Numbers that it may still hand out without reserving more.", left),
            Family::events("refused", "Requests that got no numbers.", refused),
        ]
    }
}

/// The counters of a keeper as metrics.
pub fn of_keeper(stats: &KeeperStats) -> Family {
    let KeeperStats { taken, ranges, renewals, fenced, expired, failures } = *stats;
    let events = [
        ("taken", taken),
        ("ranges", ranges),
        ("renewals", renewals),
        ("fenced", fenced),
        ("expired", expired),
        ("failures", failures),
    ];
    Family::events("office", "Changes of the office of the sequencer, and its reservations.", events)
}
