//! Transactions as a service: nodes that a cluster manager keeps together.
//!
//! A node is some cores (threads, by [`dunlin_serve`]) with an *agent*. The agents join a cluster manager
//! ([`dunlin_coord`]), which has the configuration in its tree: members, tables, and where each partition has its
//! copies. One of the agents, the *placer*, changes it when members fail or join, and recovers. Clients learn it from
//! any node.
//!
//! | File | What it holds |
//! |---|---|
//! | `plan` | what the next configuration is; no I/O |
//! | `document` | the text of a configuration |
//! | `agent` | membership, epochs, placing |
//! | `core` | one core: a participant and a client |
//! | `control` | requests for configurations, reports and tables |
//! | `stats` | the counters that a node tells |
//! | `remote` | clients |
//!
//! Start reading at [`plan::next`], then `agent.rs`.

mod agent;
pub mod control;
mod core;
pub mod document;
pub mod plan;
mod remote;
mod stats;

use dunlin_coord::Coordinator;
use dunlin_serve::Mailboxes;
use tokio::sync::mpsc;

pub use self::core::{CoreConfig, Counts, Letter, TxnCore, TxnService};
pub use agent::{Agent, AgentConfig, BadAgent};
pub use control::{CopyReport, Report};
pub use plan::{NotMade, Wanted};
pub use remote::{Remote, RemoteConfig, RemoteError, stats_of};
pub use stats::{CoreStats, NodeStats};

/// The two parts of a node, before they begin: the service for [`dunlin_serve::Server`], and what becomes the agent when
/// the addresses of the cores are known.
pub fn node(config: CoreConfig) -> (TxnService, AgentSeed) {
    let (asks, asked) = mpsc::channel(core::ASKS_MAX);
    (TxnService::new(config, asks), AgentSeed { asked })
}

/// What becomes the agent of a node.
pub struct AgentSeed {
    asked: mpsc::Receiver<core::Ask>,
}

impl AgentSeed {
    /// The agent, on any thread. Its tasks are those of the cluster manager's client.
    ///
    /// # Errors
    /// [`BadAgent`].
    pub fn agent<C: Coordinator>(
        self,
        coordinator: C,
        mailboxes: Mailboxes<Letter>,
        config: AgentConfig,
    ) -> Result<Agent<C>, BadAgent> {
        Agent::new(coordinator, mailboxes, config, self.asked)
    }
}
