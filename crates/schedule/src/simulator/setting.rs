//! The setting of a simulation.

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use super::{Keys, Law, Sizes, Trace};

/// A cluster and its load. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Clients. All send equally many requests.
    pub clients: u32,
    /// Servers.
    pub servers: u32,
    /// Operations that a server runs concurrently.
    pub slots: u32,
    /// Replicas of each partition.
    pub replicas: u32,
    /// Data partitions.
    pub partitions: u32,
    /// Latency of the network, one way.
    pub network: u64,
    /// Mean service time of an operation.
    pub service: u64,
    /// Its distribution.
    pub law: Law,
    /// Mean share of busy slots. From 1 on, the queues grow throughout the run.
    pub load: f64,
    /// Distribution of the number of keys in a request.
    pub sizes: Sizes,
    /// Distribution of the keys.
    pub keys: Keys,
    /// Recorded requests, in place of sizes and keys.
    pub trace: Option<Arc<Trace>>,
    /// Choice of the replica to read.
    pub choice: ReplicaChoice,
    /// Measured requests. Half as many come before them, and a twentieth after them.
    pub requests: u32,
    /// Determines arrivals, sizes, keys and service times: they are the same for every contender.
    pub seed: u64,
}

impl Default for Setting {
    /// The setting of the thesis' section 3.4.3. Its 3,750 requests per second are taken as the rate of a slot.
    fn default() -> Self {
        Setting {
            clients: 128,
            servers: 128,
            slots: 8,
            replicas: 3,
            partitions: 128,
            network: 50_000,
            service: 1_000_000_000 / 3750,
            law: Law::Exponential,
            load: 0.75,
            sizes: Sizes::Soundcloud,
            keys: Keys::Uniform(1_000_000),
            trace: None,
            choice: ReplicaChoice::RoundRobin,
            requests: 400_000,
            seed: 1,
        }
    }
}

/// How a client chooses the replica that it reads a key from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaChoice {
    /// Round robin over the partition's replicas for each operation, each client for itself.
    RoundRobin,
    /// A random one for each operation.
    Drawn,
    /// A random one for all operations of an opset.
    DrawnPerOpset,
    /// For each operation, the one at which the client has the fewest outstanding operations.
    LeastOutstanding,
    /// For each operation, the one that C3 ranks best (Suresh et al., NSDI 2015), without its rate limiter, as in the
    /// thesis.
    C3,
}

/// Why a setting is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum SettingError {
    /// A count is 0.
    #[error("a simulation needs at least one of each: {0}")]
    None(&'static str),
    /// More replicas than servers.
    #[error("{replicas} replicas on {servers} servers: choose at most as many replicas as servers")]
    Replicas {
        /// Replicas.
        replicas: u32,
        /// Servers.
        servers: u32,
    },
    /// The load is 0, or not a number.
    #[error("a load of {0}: choose a share of the slots above 0, such as 0.75")]
    Load(f64),
    /// An invalid distribution of sizes or service times.
    #[error("{0} cannot be drawn: their parameters must be finite, shares from 0 to 1, and ratios above 0")]
    Distribution(&'static str),
    /// An invalid skew.
    #[error("keys with a skew of {0}: choose one between 0 and 1, both excluded, or uniform keys")]
    Skew(f64),
}

impl Setting {
    /// Numbers of the measured requests. Half as many come before them: 500 ms at 90 % load, with 400,000 requests on
    /// the default cluster. The busiest server (Zipf keys, 97 %) needs about 150 ms to reach its steady state.
    pub fn measured(&self) -> Range<u32> {
        let first = self.requests / 2;
        first..first.saturating_add(self.requests)
    }

    /// # Errors
    /// [`SettingError`].
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        let keys = match self.keys {
            Keys::Uniform(keys) | Keys::Zipf { keys, .. } => keys,
        };
        for (count, what) in [
            (u64::from(self.clients), "clients"),
            (u64::from(self.servers), "servers"),
            (u64::from(self.slots), "slots"),
            (u64::from(self.replicas), "replicas"),
            (u64::from(self.partitions), "partitions"),
            (u64::from(self.requests), "requests"),
            (keys, "keys"),
            (self.service, "nanoseconds of service"),
        ] {
            if count == 0 {
                return Err(SettingError::None(what));
            }
        }
        if self.replicas > self.servers {
            return Err(SettingError::Replicas { replicas: self.replicas, servers: self.servers });
        }
        if !(self.load > 0.0 && self.load.is_finite()) {
            return Err(SettingError::Load(self.load));
        }
        if !self.sizes.is_valid() {
            return Err(SettingError::Distribution("sizes"));
        }
        if !self.law.is_valid() {
            return Err(SettingError::Distribution("service times"));
        }
        match self.keys {
            Keys::Zipf { skew, .. } if !(skew > 0.0 && skew < 1.0) => Err(SettingError::Skew(skew)),
            _ => Ok(()),
        }
    }
}
