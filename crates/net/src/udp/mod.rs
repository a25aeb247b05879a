//! Datagrams over kernel UDP, IPv4 and IPv6, with segmentation and receive offload.
//!
//! A system call for every datagram costs about 2 us for both ends together, however small the datagram, so batching by
//! destination matters most. There are three ways to batch, each of which can be switched off in [`UdpConfig`]:
//!
//! - small packets to one destination share a datagram ([`Coalesce`]; FaSST's coalescing);
//! - datagrams to one destination leave in one system call and pass the kernel as one (`UDP_SEGMENT`);
//! - datagrams of one sender are received in one system call (`UDP_GRO`).
//!
//! A transport that sends to only one peer also gets a second socket, connected to it, which saves the kernel a look-up
//! per send ([`Connect`]).
//!
//! | File | What it holds |
//! |---|---|
//! | `frame` | the format of a datagram |
//! | `train`, `tx` | packing packets into trains of datagrams; sending them |
//! | `rx` | receiving, and splitting into packets |
//! | `routes` | peers: destination by route, route by source |
//! | `direct`, `joining` | the socket for a single peer; whether the kernel joins its datagrams |
//! | `open`, `socket`, `control`, `sockaddr`, `wake` | system calls behind safe functions |
//! | [`raw`] | what the bare system calls can do: the floor that benchmarks compare with |
//!
//! # Datagram format
//! A datagram is one or more frames, each a packet of the [`Transport`](crate::Transport) after its length.
//!
//! ```text
//! datagram := (frame | padding)+
//! frame    := length: u16, little-endian, not 0 · that many bytes · one byte 0 if the length is odd
//! padding  := 0: u16
//! ```
//!
//! `docs/wire-protocol.md`, section 2, is the specification.
//!
//! The length lets several small packets to one destination share a datagram. The padding lets datagrams of different
//! lengths leave in one system call: segmentation offload cuts its input into segments of one size (only the last may
//! be shorter). Every frame takes an even number of bytes, so padding always fits. The pad byte of the last frame may
//! be missing. An empty packet cannot be sent: it is dropped and counted as an error of the caller.
//!
//! A datagram is malformed if it has no frame, if a frame runs past its end, or if a packet is longer than the
//! receiver's own longest. The frames before the malformed one are delivered, the rest of the datagram is dropped, and
//! one is counted. Datagrams that the kernel joined are split where it joined them, so a malformed one affects no
//! other.

mod config;
mod control;
mod direct;
mod frame;
mod joining;
mod open;
pub mod raw;
mod routes;
mod rx;
mod sockaddr;
mod socket;
mod train;
mod transport;
mod tx;
mod wake;

pub use config::{Coalesce, Connect, Ecn, Offload, UdpConfig};
pub use transport::UdpTransport;

use crate::transport::{Route, TransportCounters};

use direct::Direct;
use routes::Routes;
use socket::Socket;

/// Errors taken from the socket's queue at a time.
const ERRORS_MAX: usize = 64;

/// What sending and receiving share.
struct Link {
    /// The socket that receives from everyone.
    socket: Socket,
    /// The one for a single peer.
    direct: Direct,
    routes: Routes,
    counters: TransportCounters,
}

impl Link {
    /// Takes the errors that the network reported for earlier datagrams, marks the peers that refuse, and returns how
    /// many there were.
    #[cold]
    fn take_errors(&mut self) -> usize {
        for taken in 0..ERRORS_MAX {
            let error = self.socket.take_error().or_else(|| self.direct.socket().and_then(Socket::take_error));
            let Some(error) = error else { return taken };
            if let (true, Some(to)) = (error.refused, error.to) {
                self.counters.tx_refused += u64::from(self.routes.on_refused(to));
            }
        }
        ERRORS_MAX
    }

    /// Gives the connected socket to the peer at `route`.
    #[cold]
    fn connect(&mut self, route: Route) {
        if let Some(peer) = self.routes.get(route) {
            self.direct.connect(&self.socket, route, peer.addr);
        }
    }
}
