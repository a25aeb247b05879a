//! The meaning of a seed for the cluster manager.

use std::time::Duration;

use dunlin_coord::{Limits, WatchmanConfig};
use dunlin_trial::Random;

use crate::cluster::Scenario;

/// Maximum length of a value, if many together are to exceed a page of an answer.
const BULKY_BYTES_MAX: u64 = 60_000;

/// Bytes of a state without operations: members, sessions, and their events.
const BASE_BYTES: u64 = 2_000;
/// Bytes that an operation adds on average, excluding values.
const OPERATION_BYTES: u64 = 12;
/// One in this many operations sets a path.
const SET_EVERY: u64 = 4;

/// Settings drawn for each run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// For the watchmen with the shortest timeout.
    pub watchman: WatchmanConfig,
    /// Heartbeat interval of a member.
    pub heartbeat_every: Duration,
    /// Polling interval of watchers.
    pub watch_every: Duration,
    /// For all machines.
    pub limits: Limits,
    /// Number of paths of the tree, and of leases.
    pub paths: usize,
    pub leases: usize,
    /// Maximum time of a lease.
    pub ttl_max: Duration,
    /// Maximum length of a value, in bytes.
    pub value_bytes_max: u64,
}

impl Settings {
    pub fn draw(scenario: &Scenario) -> Settings {
        let mut random = Random::new(scenario.seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x7365_7474);
        let r = &mut random;
        let millis = |r: &mut Random, min, max| Duration::from_millis(r.between(min, max));
        let failure_timeout = millis(r, 60, 160);
        let history = if r.chance(60) { Limits::default().history_events_max } else { r.between(5, 100) as usize };
        Settings {
            watchman: WatchmanConfig { failure_timeout, look_every: failure_timeout / r.between(8, 40) as u32 },
            heartbeat_every: failure_timeout / r.between(5, 10) as u32,
            watch_every: millis(r, 2, 40),
            limits: Limits { history_events_max: history, epochs_max: r.between(3, 40) as usize, ..Limits::default() },
            paths: r.between(1, 3) as usize,
            leases: r.between(1, 2) as usize,
            ttl_max: millis(r, 10, 150),
            value_bytes_max: if r.chance(75) { 32 } else { BULKY_BYTES_MAX },
        }
    }

    /// Estimates the bytes of the state at the end of a run. Most of them are values, in events and in the tree.
    pub fn state_bytes(&self, scenario: &Scenario) -> u64 {
        let operations = u64::from(scenario.steps) * u64::from(scenario.clients);
        let events = (operations / SET_EVERY).min(self.limits.history_events_max as u64);
        BASE_BYTES + operations * OPERATION_BYTES + (events + self.paths as u64) * self.value_bytes_max / 2
    }

    /// Whether values together may fill pages of answers.
    pub fn has_long_answers(&self) -> bool {
        self.value_bytes_max == BULKY_BYTES_MAX
    }

    /// The settings of the watchman beside a replica: their timeouts differ.
    pub fn watchman_of(&self, id: u64) -> WatchmanConfig {
        let failure_timeout = self.watchman.failure_timeout * (2 + id as u32 % 3) / 2;
        WatchmanConfig { failure_timeout, ..self.watchman }
    }

    /// Number of histories: first the paths, then the leases.
    pub fn keys(&self) -> usize {
        self.paths + self.leases
    }

    /// Whether a key is a lease, not a path.
    pub fn is_lease(&self, key: usize) -> bool {
        key >= self.paths
    }
}

/// The name of a key, either a path or a lease.
pub fn name(key: usize) -> String {
    format!("/t/{}/{key}", key % 2)
}
