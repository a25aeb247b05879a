//! Packet I/O: unreliable datagrams between endpoints, over any medium.
//!
//! This is the lowest layer of Dunlin. A [`Transport`] moves packets of at most [`Transport::mtu`] bytes, in bursts, to
//! destinations that were resolved once into a small [`Route`]. It may lose, duplicate and reorder packets, but it
//! never corrupts memory, whatever arrives. Everything that turns packets into calls lives above, in `dunlin-rpc`.
//!
//! | Module | What it carries packets over |
//! |---|---|
//! | [`shm`] | memory shared between processes of one host |
//! | [`udp`] | kernel UDP, with segmentation and receive offload |
//! | [`loopback`] | queues inside one process, with a clock the test moves |
//! | [`composite`] | two other transports at once |
//! | [`fault`], [`pcap`] | wrappers that inject faults into another transport or record its packets; [`forward_transport!`] helps to write more |
//!
//! Start reading at [`transport`], which defines what every transport promises, then [`loopback`], the smallest
//! implementation.
#![deny(unsafe_code)]

pub mod addr;
pub mod any;
pub mod clock;
pub mod composite;
pub mod error;
pub mod fault;
mod forward;
pub mod loopback;
pub mod pcap;
pub mod poll;
#[allow(unsafe_code)]
pub mod prefetch;
pub mod random;
#[allow(unsafe_code)]
pub mod shm;
pub mod transport;
#[allow(unsafe_code)]
pub mod udp;
pub mod wake;

pub use addr::{Addr, ShmName, host_of};
pub use any::AnyTransport;
pub use clock::{BootClock, Clock};
pub use composite::Composite;
pub use error::NetError;
pub use poll::PollPolicy;
pub use transport::{Arm, PeerHealth, Route, RxPacket, Transport, TransportCounters, TxPacket, Waker};
