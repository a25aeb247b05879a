//! What is compared on real servers, and its counterpart in the simulator.

use dunlin_schedule::simulator::{Contender, ReplicaChoice, Setting};
use dunlin_schedule::{C3Ranking, ChooseReplica, LeastOutstanding, Levels, Policy, RoundRobin, SlackReading};
use serde::{Deserialize, Serialize};

use super::roles::ServerOrder;

/// Everything that decides how multigets are served: ranks, queues, replicas and copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policies {
    /// In order of arrival, replicas in turn: the baseline.
    Fifo,
    /// Each operation at two replicas at once.
    Duplication,
    /// At a second replica after the 90th percentile of the last response times.
    Speculation,
    /// C3's ranking of replicas.
    C3,
    /// Slack-driven.
    Sds,
    /// Shortest bottleneck first.
    Sbf,
    /// Rein.
    Rein,
    /// The queue that Dunlin ships, with replicas in turn.
    ShippedQueue,
    /// The replicas that Dunlin ships, in order of arrival.
    ShippedReplicas,
    /// What Dunlin ships: both.
    Shipped,
}

/// More work for the devices than this share of what they can do, and a run would end long before queues are steady.
const WORK_MAX: f64 = 0.9;

/// How many replicas are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// One.
    One,
    /// Two at once.
    Two,
    /// One, and another one if it is slow.
    Speculative,
}

impl Policies {
    /// All, the baseline first.
    pub const ALL: [Policies; 10] = [
        Policies::Fifo,
        Policies::Duplication,
        Policies::Speculation,
        Policies::C3,
        Policies::Sds,
        Policies::Sbf,
        Policies::Rein,
        Policies::ShippedQueue,
        Policies::ShippedReplicas,
        Policies::Shipped,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Policies::Fifo => "FIFO",
            Policies::Duplication => "duplication",
            Policies::Speculation => "speculative retries",
            Policies::C3 => "C3",
            Policies::Sds => "SDS",
            Policies::Sbf => "SBF",
            Policies::Rein => "Rein",
            Policies::ShippedQueue => "shipped queue",
            Policies::ShippedReplicas => "FIFO, least outstanding",
            Policies::Shipped => "shipped queue, least outstanding",
        }
    }

    /// The order at servers.
    pub fn order(self) -> ServerOrder {
        match self {
            Policies::Sds | Policies::Sbf => ServerOrder::Exact,
            Policies::Rein => ServerOrder::Levels,
            Policies::ShippedQueue | Policies::Shipped => ServerOrder::Learnt,
            _ => ServerOrder::Fifo,
        }
    }

    /// The ranks.
    pub fn policy(self) -> Policy {
        match self {
            Policies::Sds => Policy::SlackDriven(SlackReading::Opset),
            Policies::Sbf => Policy::ShortestBottleneck,
            Policies::Rein => Policy::Rein(Levels::default()),
            Policies::ShippedQueue | Policies::Shipped => Policy::default(),
            _ => Policy::Fifo,
        }
    }

    fn replica_choice(self) -> ReplicaChoice {
        match self {
            Policies::C3 => ReplicaChoice::C3,
            Policies::ShippedReplicas | Policies::Shipped => ReplicaChoice::LeastOutstanding,
            _ => ReplicaChoice::RoundRobin,
        }
    }

    /// The state of a client's choice of replicas.
    pub fn choice(self, setting: &Setting) -> Box<dyn ChooseReplica> {
        match self.replica_choice() {
            ReplicaChoice::C3 => Box::new(C3Ranking::new(setting.servers, setting.clients)),
            ReplicaChoice::LeastOutstanding => Box::new(LeastOutstanding::new(setting.servers)),
            _ => Box::new(RoundRobin::new(setting.partitions)),
        }
    }

    /// How many replicas are asked.
    pub fn copies(self) -> Copies {
        match self {
            Policies::Duplication => Copies::Two,
            Policies::Speculation => Copies::Speculative,
            _ => Copies::One,
        }
    }

    /// Work for the devices at a load, as a share of what they can do.
    pub fn work(self, load: f64) -> f64 {
        load * match self.copies() {
            Copies::One => 1.0,
            Copies::Two => 2.0,
            // A tenth of the requests, but those with most keys: nearly half of the keys in a model of these servers.
            Copies::Speculative => 1.5,
        }
    }

    /// Whether queues stop growing at a load.
    pub fn is_steady(self, load: f64) -> bool {
        self.work(load) <= WORK_MAX
    }

    /// The same in the simulator, which sends no copies, and whose C3 is told of queues.
    pub fn simulated(self, setting: &Setting) -> Option<(Contender, Setting)> {
        let contender = Contender::with_order(self.policy(), self.order().order());
        let setting = Setting { choice: self.replica_choice(), ..setting.clone() };
        (self.copies() == Copies::One && self != Policies::C3).then_some((contender, setting))
    }
}
