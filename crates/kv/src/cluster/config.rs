//! Settings of a client of a cluster.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use dunlin_schedule::{C3Ranking, ChooseReplica, LeastOutstanding, Policy, RoundRobin};
use thiserror::Error;

use super::description::Description;
use super::version::wall_micros;
use crate::service::deleted::KEPT_SECONDS;

/// Requests of one multiget in flight, by default and at most.
pub const IN_FLIGHT_DEFAULT: usize = 64;

/// How long a write may take, at most: servers keep deletions in mind for as long, and wait for as long before they copy.
pub const WRITE_TIME_MAX: Duration = Duration::from_secs(KEPT_SECONDS as u64);

/// Why a client of a cluster is not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A server may forget that a key was deleted while such a write is on its way.
    #[error(
        "operations on a cluster may not take {deadline:?}: give a deadline below {WRITE_TIME_MAX:?}, for which servers \
         keep deletions in mind"
    )]
    Deadline {
        /// The deadline.
        deadline: Duration,
    },
}

/// Which replicas a part of a read is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copies {
    /// One. If it fails, or has not answered after [`ClusterConfig::failover_after`], another one is asked, too.
    #[default]
    One,
    /// Two at once, and the first answer counts: request duplication, as in the thesis.
    Two,
    /// One, and another one if there is no answer after the 90th percentile of the last response times: speculative
    /// retry, as in the thesis.
    Speculative,
}

/// How the replica to read is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// In turn.
    RoundRobin,
    /// The one with the fewest keys of this client outstanding. What Dunlin ships.
    #[default]
    LeastOutstanding,
    /// C3's ranking, without its rate limiter, for this many clients. Answers do not tell of the server's queue: response
    /// times stand for service times.
    C3 {
        /// How many clients are assumed to be as busy as this one, itself included.
        clients: u32,
    },
}

impl Choice {
    /// Returns the state of such a choice for a cluster.
    pub fn start(self, cluster: &Description) -> Box<dyn ChooseReplica> {
        // A cluster has at most 1,024 servers.
        let servers = cluster.servers().len() as u32;
        match self {
            Choice::RoundRobin => Box::new(RoundRobin::new(cluster.partitions())),
            Choice::LeastOutstanding => Box::new(LeastOutstanding::new(servers)),
            Choice::C3 { clients } => Box::new(C3Ranking::new(servers, clients)),
        }
    }
}

/// Makes the state of a replica choice for a cluster.
pub type MakeChoice = Rc<dyn Fn(&Description) -> Box<dyn ChooseReplica>>;

/// Settings of a client of a cluster. Start from `ClusterConfig::default()`.
#[derive(Clone)]
#[non_exhaustive]
pub struct ClusterConfig {
    /// How long an operation may take, with all its retries: less than [`WRITE_TIME_MAX`]. Default 2 s.
    pub deadline: Duration,
    /// How long a replica that is read may take before another one is asked, too. Default 100 ms.
    pub failover_after: Duration,
    /// How many replicas are read.
    pub copies: Copies,
    /// How the replica to read is chosen. Default [`Choice::LeastOutstanding`].
    pub choice: MakeChoice,
    /// How the parts of a multiget are ranked. Default [`Policy::ShortestTotal`].
    pub policy: Policy,
    /// Requests of one multiget in flight at most; further parts wait. Default [`IN_FLIGHT_DEFAULT`].
    pub in_flight_max: usize,
    /// Sessions with each core of each server. Default 1.
    pub sessions_per_core: usize,
    /// Seeds random choices, and the number of this client in versions; drawn by default.
    pub seed: Option<u64>,
    /// The wall clock for versions, in microseconds since 1970. For tests.
    pub wall_micros: fn() -> u64,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig {
            deadline: Duration::from_secs(2),
            failover_after: Duration::from_millis(100),
            copies: Copies::default(),
            choice: Rc::new(|cluster: &Description| Choice::default().start(cluster)),
            policy: Policy::default(),
            in_flight_max: IN_FLIGHT_DEFAULT,
            sessions_per_core: 1,
            seed: None,
            wall_micros,
        }
    }
}

impl ClusterConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let deadline = self.deadline;
        if deadline < WRITE_TIME_MAX { Ok(()) } else { Err(ConfigError::Deadline { deadline }) }
    }

    /// The same with one of the choices of this crate.
    #[must_use]
    pub fn choosing(self, choice: Choice) -> ClusterConfig {
        ClusterConfig { choice: Rc::new(move |cluster: &Description| choice.start(cluster)), ..self }
    }
}

impl fmt::Debug for ClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClusterConfig { deadline, failover_after, copies, policy, in_flight_max, .. } = self;
        f.debug_struct("ClusterConfig")
            .field("deadline", deadline)
            .field("failover_after", failover_after)
            .field("copies", copies)
            .field("policy", policy)
            .field("in_flight_max", in_flight_max)
            .finish_non_exhaustive()
    }
}
