//! The network between the hosts' NICs: packets, links, switches.

pub(crate) mod build;
pub(crate) mod link;
pub(crate) mod packet;
pub(crate) mod port;
pub(crate) mod switch;

pub use port::{Port, PortCounters};
