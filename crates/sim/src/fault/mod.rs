//! What goes wrong: faults of packets, links and hosts, on a schedule or at random from a seed.

mod packet;

pub use packet::PacketFaults;
