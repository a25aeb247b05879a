//! The key-value service: HERD's server and client (Kalia et al., SIGCOMM 2014; thesis chapter 4), and the memcached protocol.
//!
//! Keys are divided over the cores of a server by a keyed hash ([`routing`]); each core has one partition ([`dunlin_store::Store`]) that no
//! other thread touches (MICA's EREW), so that no operation takes a lock. Clients know the division and send each request to the core that
//! owns its key.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`metrics`] | what a core counts, and how it is told |
//! | [`routing`] | which core owns a key |
#![deny(unsafe_code)]

pub mod metrics;
pub mod routing;
