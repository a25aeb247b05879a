//! The configuration of a queue.

use thiserror::Error;

use super::{Ageing, Damping};
use crate::LEVELS_MAX;

/// Default limit of operations in a queue.
const LIMIT: usize = 65_536;
/// Levels of the default order. With four, p99.9 is worse than with the exact order: see `docs/scheduling.md`.
const LEVELS: usize = 8;

/// Settings of a [`super::RequestQueue`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueConfig {
    /// The order of service.
    pub order: Order,
    /// Whether each client is limited to a fair share of the service by rank.
    pub damping: Option<Damping>,
    /// Maximum number of waiting operations, at least 1.
    pub limit: usize,
}

impl Default for QueueConfig {
    /// The default that Dunlin ships, for [`crate::Policy::ShortestTotal`].
    fn default() -> Self {
        QueueConfig { order: Order::default(), damping: Some(Damping::default()), limit: LIMIT }
    }
}

/// The order in which operations are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// In order of arrival.
    Fifo,
    /// Always the lowest rank; equal ranks in order of arrival. Push and pop take logarithmic time.
    Exact {
        /// Prevents starvation of high ranks. Without it they may wait forever.
        ageing: Option<Ageing>,
    },
    /// The rank is a level, the fastest of which is 0. Levels are served by deficit round robin with these weights
    /// (thesis, section 3.2.3). None starves: a level gets at least the share of its weight.
    Weighted {
        /// One for each level, 1 to [`LEVELS_MAX`] of them, at least 1 each.
        weights: Vec<u32>,
    },
    /// The rank is the size of the request. The queue learns the distribution of work by size, which gives the level:
    /// with eight levels, the smallest requests that make up an eighth of the work have level 0. A level is served only
    /// while those before it are empty.
    Learnt {
        /// Number of levels, 1 to [`LEVELS_MAX`].
        levels: usize,
        /// Prevents starvation of the last levels. Without it they may wait forever.
        ageing: Option<Ageing>,
    },
}

impl Default for Order {
    fn default() -> Self {
        Order::Learnt { levels: LEVELS, ageing: Some(Ageing::default()) }
    }
}

/// Why a configuration is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// There are no levels, or too many.
    #[error("a queue of {0} levels: choose 1 to {LEVELS_MAX}")]
    Levels(usize),
    /// A level has weight 0, and would never be served.
    #[error("level {0} has weight 0 and would starve: give it at least 1")]
    Weight(usize),
    /// The queue has no place.
    #[error("a queue for no operation: set its limit to at least 1")]
    Limit,
    /// The ageing has no turns.
    #[error("one in 0 operations is to be an aged one: choose at least 1")]
    Ageing,
}

impl QueueConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.limit == 0 {
            return Err(ConfigError::Limit);
        }
        let check_levels =
            |count| if (1..=LEVELS_MAX).contains(&count) { Ok(()) } else { Err(ConfigError::Levels(count)) };
        let ageing = match &self.order {
            Order::Fifo => None,
            Order::Exact { ageing } => *ageing,
            Order::Weighted { weights } => {
                check_levels(weights.len())?;
                if let Some(level) = weights.iter().position(|weight| *weight == 0) {
                    return Err(ConfigError::Weight(level));
                }
                None
            }
            Order::Learnt { levels, ageing } => {
                check_levels(*levels)?;
                *ageing
            }
        };
        if ageing.is_some_and(|ageing| ageing.one_in == 0) { Err(ConfigError::Ageing) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestQueue;

    fn refusal(order: Order, limit: usize) -> Option<ConfigError> {
        RequestQueue::<()>::new(&QueueConfig { order, damping: None, limit }).err()
    }

    #[test]
    fn queues_that_would_starve_or_hold_nothing_are_refused() {
        let never = Some(Ageing { one_in: 0, ..Ageing::default() });
        assert_eq!(refusal(Order::default(), 1), None);
        assert_eq!(refusal(Order::Fifo, 0), Some(ConfigError::Limit));
        assert_eq!(refusal(Order::Exact { ageing: never }, 1), Some(ConfigError::Ageing));
        assert_eq!(refusal(Order::Weighted { weights: vec![] }, 1), Some(ConfigError::Levels(0)));
        assert_eq!(refusal(Order::Weighted { weights: vec![1, 0] }, 1), Some(ConfigError::Weight(1)));
        let levels = LEVELS_MAX + 1;
        assert_eq!(refusal(Order::Learnt { levels, ageing: None }, 1), Some(ConfigError::Levels(levels)));
        assert_eq!(refusal(Order::Learnt { levels: 4, ageing: never }, 1), Some(ConfigError::Ageing));
    }
}
