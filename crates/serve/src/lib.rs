//! One way to start, stop, watch and reach a service.
//!
//! A service is a [`Service`]: it builds one [`Core`] for each processor. A core is one thread with one endpoint, its
//! own state and a bounded mailbox; cores share nothing else. [`Server::start`] starts all of them, and [`Server::run`]
//! serves until a signal comes. A client reaches a service through a [`Channel`], or from any thread through a
//! [`Handle`].
//!
//! What it promises:
//! - **One start.** [`Server::start`] returns when every core serves, or with the error of the core that does not.
//! - **One graceful shutdown, with a bound.** Requests in progress are answered, and peers are told. The server waits
//!   for its cores no longer than [`ServeConfig::stop_max`].
//! - **A core that fails, or hangs, ends the server with its reason.** The core executes nothing more;
//!   [`Service::rescue`] saves what can be saved first.
//! - **The same for a thread beside the cores**: a [`Companion`] that fails ends the server.
//! - **Back-pressure.** A full mailbox makes its senders wait; nothing grows with load.
//! - **No thread in the simulator.** [`Inline`] runs the same core on an endpoint of any transport, turned by a test.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`service`] | the traits: what a program writes |
//! | [`server`] | the owner of the cores: start, run, stop |
//! | `core` | a core, from its first letter to its last; `thread`, [`inline`] and [`drive`] run it |
//! | [`companion`] | a thread beside the cores |
//! | [`mailbox`] | letters between cores |
//! | [`failure`] | what happens when a core fails; `watch` finds those that hang |
//! | [`addresses`] | where each core listens |
//! | [`interrupt`], [`signals`], [`notify`], [`limits`] | the process: signals, readiness for a service manager, limits of the system |
//! | [`channel`], [`handle`] | how a client reaches a service, on one thread and from many; `blocking` is how a thread waits for its call |
//! | [`epoch`] | requests that carry the epoch of the cluster in which they were sent |
//! | [`port`], [`metrics`] | metrics and health over HTTP |
//! | `joint`, `owned_task` | work that several calls wait for; tasks that end with their owner |
//! | [`side`], `long_work` | threads for blocking work; long work that holds an event loop without being a fault |
//!
//! Start reading at [`service`], then `core.rs`: `attend` is the whole life of a core.
#![forbid(unsafe_code)]

pub mod addresses;
mod blocking;
pub mod channel;
pub mod companion;
mod config;
mod core;
pub mod drive;
pub mod epoch;
mod error;
pub mod failure;
pub mod handle;
pub mod inline;
pub mod interrupt;
mod joint;
pub mod limits;
mod long_work;
pub mod mailbox;
pub mod metrics;
pub mod notify;
mod owned_task;
mod panics;
pub mod port;
pub mod server;
pub mod service;
pub mod side;
pub mod signals;
mod thread;
mod waiting;
mod watch;

pub use channel::{CallPolicy, Channel, ChannelConfig, ChannelError};
pub use companion::{Companion, Stopped};
pub use config::{EventLoop, ServeConfig};
pub use error::{ServeError, StartError};
pub use failure::{Failed, Failure, Health};
pub use handle::{Handle, HandleConfig, HandleError};
pub use inline::Inline;
pub use interrupt::Interrupt;
pub use joint::Joint;
pub use long_work::long_work;
pub use mailbox::{Mailbox, Mailboxes, SendError};
pub use panics::{guarded, guarded_now};
pub use server::Server;
pub use service::{Core, Draining, Pace, Service, Site};
