//! Policies and queues compared in virtual time: the experiments of the thesis that are simulations themselves.
//!
//! The policies and queues are those of the crate, unchanged. There are no packets: the network is a delay, and a
//! server is a queue with slots. Clients send requests in an open-loop Poisson process.
//!
//! ```
//! use dunlin_schedule::Policy;
//! use dunlin_schedule::simulator::{Contender, Setting, simulate};
//!
//! let setting = Setting { requests: 5_000, load: 0.9, ..Setting::default() };
//! let [fifo, shipped] = [Contender::of(Policy::Fifo), Contender::shipped()].map(|contender| {
//!     let outcome = simulate(&setting, &contender)?;
//!     Ok::<_, dunlin_schedule::simulator::SettingError>(outcome.latencies.quantile(0.5))
//! });
//! assert!(shipped? < fifo?);
//! # Ok::<(), dunlin_schedule::simulator::SettingError>(())
//! ```
//!
//! Start reading at `run.rs`.

mod cluster;
mod contender;
mod facts;
mod load;
mod outcome;
mod random;
mod run;
mod setting;
mod slack;
mod trace;
mod workload;

pub use cluster::Placement;
pub use contender::{Contender, Costs, Scheduled};
pub use facts::{LoadFacts, load_facts};
pub use load::{Arrival, Arrivals};
pub use outcome::{Latencies, Outcome};
pub use run::simulate;
pub use setting::{ReplicaChoice, Setting, SettingError};
pub use slack::{SlackBounds, slack_bounds};
pub use trace::{Trace, TraceError};
pub use workload::{KEYS_MAX, Keys, Law, Sizes};
