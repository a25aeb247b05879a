//! A datacenter in virtual time: hosts, NICs, links and switches behind the [`Transport`](dunlin_net::Transport) trait,
//! in one thread and exactly repeatable.
//!
//! ```
//! use dunlin_net::{Transport, TxPacket};
//! use dunlin_sim::{CostModel, Datacenter, Next, Topology};
//!
//! let mut datacenter = Datacenter::new(&Topology::cx5(), CostModel::default(), 1)?;
//! // Host 1 answers what it receives.
//! datacenter.spawn_from(1, 0, |mut transport| {
//!     move || {
//!         while transport.rx_burst() > 0 {
//!             let from = transport.rx_source(0).unwrap();
//!             let bytes = transport.rx_packet(0).bytes().unwrap().to_vec();
//!             transport.tx_to(&from, &bytes).unwrap();
//!         }
//!         Next::OnPacket { or_at: None }
//!     }
//! })?;
//! // Host 0 asks; this transport is used from outside, not by a program.
//! let mut client = datacenter.bind(0, 0)?;
//! let route = client.resolve(&Datacenter::addr(1, 0))?;
//! client.tx_burst(&[TxPacket { route, header: &[0; 16], payload: &[7; 32] }]);
//! datacenter.run_until(10_000);
//! assert_eq!(client.rx_burst(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod datacenter;
mod engine;
pub mod error;
pub mod fabric;
pub mod fault;
pub mod host;
pub mod topology;
pub mod trace;
mod world;

pub use datacenter::Datacenter;
pub use error::SimError;
pub use fabric::{Port, PortCounters};
pub use fault::{Fault, FaultPlan};
pub use host::{CostModel, Next, Program, SimTransport, ThreadClock};
pub use topology::Topology;
pub use world::{Counters, THREADS_PER_HOST_MAX};
