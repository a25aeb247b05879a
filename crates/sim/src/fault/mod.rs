//! Faults of packets, links and hosts, on a schedule or at random from a seed, as data that can be printed.
//!
//! ```
//! use dunlin_sim::fault::{Fault, FaultPlan, PacketFaults, Place};
//!
//! let mut plan = FaultPlan::default();
//! plan.add(1_000_000, Some(2_000_000), Fault::Packets { place: Place::Everywhere, faults: PacketFaults::loss(0.01) });
//! plan.add(1_500_000, Some(9_000_000), Fault::Crash { host: 3 });
//! assert_eq!(FaultPlan::from_toml(&plan.to_toml())?, plan);
//! # Ok::<(), dunlin_sim::SimError>(())
//! ```
//!
//! Overlapping faults add up: probabilities combine as independent; a link is down, or a host crashed or paused, while
//! any fault holds it so; clock rates are summed.

mod active;
mod packet;
mod plan;
mod random;

pub(crate) use active::ActiveFaults;
pub use active::FaultId;
pub use packet::PacketFaults;
pub use plan::{Fault, FaultPlan, Place, Scheduled};
pub use random::{Crashes, RandomFaults};
