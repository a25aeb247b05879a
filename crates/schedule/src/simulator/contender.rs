//! The policies and queues to compare.

use crate::{Damping, Levels, Order, Policy, QueueConfig};

/// A way to schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum Contender {
    /// A real policy: ranks of the requester, and a queue at each server.
    Scheduled(Scheduled),
    /// The thesis' clairvoyant oracle (section 3.4.3): Rein, where the cost of an opset also includes the work that
    /// waits or runs on its servers, including operations in flight: the maximum over its operations. The sum is
    /// divided by the rate of a server, which is its number of slots.
    Oracle(Levels),
    /// Clairvoyant shortest remaining first: a server runs an operation of the waiting request that has the least
    /// service left to begin, on all servers together. A yardstick: no real client knows service times, and no real
    /// server knows the progress of others.
    ShortestRemaining,
}

/// A policy, and a queue for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scheduled {
    /// Ranks.
    pub policy: Policy,
    /// The order of service at servers.
    pub order: Order,
    /// Whether servers limit clients to fair shares.
    pub damping: Option<Damping>,
    /// The requesters' knowledge of costs.
    pub costs: Costs,
}

/// A requester's knowledge of the cost of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Costs {
    /// None: each costs 1.
    #[default]
    Count,
    /// The service time: the best possible estimate from sizes and cache state.
    ServiceTime,
}

impl Contender {
    /// A policy with its queue in the thesis, without ageing: weighted levels, or exact ranks.
    pub fn of(policy: Policy) -> Self {
        let order = match &policy {
            Policy::Fifo => Order::Fifo,
            Policy::ShortestTotal | Policy::ShortestBottleneck | Policy::SlackDriven(_) => {
                Order::Exact { ageing: None }
            }
            Policy::MlqShortestBottleneck(levels) | Policy::MlqSlackDriven(levels) | Policy::Rein(levels) => {
                Order::Weighted { weights: levels.weights().to_vec() }
            }
        };
        Contender::Scheduled(Scheduled { policy, order, damping: None, costs: Costs::Count })
    }

    /// The combination that Dunlin ships.
    pub fn shipped() -> Self {
        let QueueConfig { order, damping, .. } = QueueConfig::default();
        Contender::Scheduled(Scheduled { policy: Policy::default(), order, damping, costs: Costs::Count })
    }

    /// A policy with another queue, without damping.
    pub fn with_order(policy: Policy, order: Order) -> Self {
        Contender::Scheduled(Scheduled { policy, order, damping: None, costs: Costs::Count })
    }

    /// The ranking policy, for servers with this many slots.
    pub(super) fn policy(&self, slots: u32) -> Policy {
        match self {
            Contender::Scheduled(scheduled) => scheduled.policy.clone(),
            Contender::Oracle(levels) => Policy::Rein(levels.scaled(slots)),
            Contender::ShortestRemaining => Policy::Fifo,
        }
    }

    /// The queue of each server. It never rejects: a simulation measures waiting, not loss.
    pub(super) fn queue(&self) -> QueueConfig {
        let (order, damping) = match self {
            Contender::Scheduled(scheduled) => (scheduled.order.clone(), scheduled.damping),
            Contender::Oracle(levels) => (Order::Weighted { weights: levels.weights().to_vec() }, None),
            Contender::ShortestRemaining => (Order::Fifo, None),
        };
        QueueConfig { order, damping, limit: usize::MAX }
    }

    pub(super) fn costs(&self) -> Costs {
        match self {
            Contender::Scheduled(scheduled) => scheduled.costs,
            _ => Costs::Count,
        }
    }
}
