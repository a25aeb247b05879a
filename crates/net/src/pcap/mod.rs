//! Records what a transport sends and receives, in a file that Wireshark and tshark open.
//!
//! [`PcapWriter`] wraps any [`Transport`]. Each packet becomes one record: an IP packet with a UDP datagram. Its
//! payload is the packet as the [`udp`](crate::udp) transport would carry it: its length in two bytes (little-endian),
//! then the packet. Endpoints that are reached through UDP appear under their own addresses. Others get an address of
//! `10.0.0.0/8`, always the same one, and port 31850; an unknown sender appears as `0.0.0.0`. With `docs/dunlin.lua`
//! Wireshark decodes the packets.
//!
//! ```
//! use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
//! use dunlin_net::pcap::PcapWriter;
//! use dunlin_net::{Addr, Transport, TxPacket};
//!
//! let net = LoopbackNetwork::new(LoopbackConfig::default());
//! let mut transport = PcapWriter::new(net.endpoint(1)?, Vec::new()); // Or a `BufWriter` of a file.
//! let route = transport.resolve(&Addr::Node(2))?;
//! transport.tx_burst(&[TxPacket { route, header: b"recorded", payload: &[] }]);
//! let (_transport, file) = transport.finish();
//! assert!(file?.ends_with(b"\x08\x00recorded"));
//! # Ok::<(), dunlin_net::NetError>(())
//! ```
#![forbid(unsafe_code)]

mod file;
mod format;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use file::PcapFile;
pub use format::socket_addr;

use crate::addr::Addr;
use crate::error::NetError;
use crate::transport::{Route, Transport, TxPacket};

/// Wraps a transport and records its packets. See the [module](self).
///
/// A packet is recorded when it is handed over to be sent, even if the transport then drops it, and when it is
/// received. Packets of more than 65,505 bytes are truncated. Packets keep flowing whatever happens to the file: the
/// first error ends the recording and is kept for [`PcapWriter::error`] and [`PcapWriter::finish`].
///
/// If a packet lies in memory that its sender can still write, the record holds what was there when it was received.
#[derive(Debug)]
pub struct PcapWriter<T, W> {
    inner: T,
    file: PcapFile<W>,
    /// Time of day, in nanoseconds since 1970, at which the transport's clock stood at zero.
    epoch: u64,
    local: SocketAddr,
    peers: HashMap<Route, SocketAddr>,
    packet: Vec<u8>,
}

impl<T: Transport, W: Write> PcapWriter<T, W> {
    /// Wraps `inner` and begins the file. Each packet is one write to `output`: make it buffered.
    pub fn new(inner: T, output: W) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::starting_at(inner, output, now)
    }

    /// As [`PcapWriter::new`], with `now`, since 1970, as the present time, so that the file does not depend on when it
    /// is written.
    pub fn starting_at(inner: T, output: W, now: Duration) -> Self {
        let epoch = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).saturating_sub(inner.now());
        let local = socket_addr(&inner.local_addr());
        PcapWriter { inner, file: PcapFile::new(output), epoch, local, peers: HashMap::new(), packet: Vec::new() }
    }

    /// The error that ended the recording, if one did.
    pub fn error(&self) -> Option<&NetError> {
        self.file.error()
    }

    /// Ends the recording, flushes the output, and returns the transport and the output.
    ///
    /// # Errors
    /// [`NetError::Io`], the first error of writing the file, in place of the output.
    pub fn finish(self) -> (T, Result<W, NetError>) {
        (self.inner, self.file.finish())
    }

    /// The wrapped transport.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The wrapped transport; what is sent through it directly is not recorded.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Records what is in `self.packet`.
    fn record(&mut self, from: SocketAddr, to: SocketAddr) {
        let time = self.epoch.saturating_add(self.inner.now());
        self.file.record(time, from, to, &self.packet);
    }
}

/// Stands for an unknown endpoint.
fn unknown() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}

impl<T: Transport, W: Write> Transport for PcapWriter<T, W> {
    crate::forward_transport!(inner: is_mtu_certain, limit_joining);
    crate::forward_transport!(inner: mtu, route_mtu, rx_queue_len, local_addr, local_addrs, is_local, is_local_route, release);
    crate::forward_transport!(inner: peer_health, tx_flush, rx_packet, rx_source, now, wait, waker, wake_fd, arm, disarm, counters);

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        let route = self.inner.resolve(addr)?;
        // Entries are never removed: a number that is given to another peer is overwritten here, so there are no more
        // entries than routes.
        self.peers.insert(route, socket_addr(addr));
        Ok(route)
    }

    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        for packet in packets {
            let to = self.peers.get(&packet.route).copied().unwrap_or_else(unknown);
            self.packet.clear();
            self.packet.extend_from_slice(packet.header);
            self.packet.extend_from_slice(packet.payload);
            self.record(self.local, to);
        }
        self.inner.tx_burst(packets);
    }

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        self.inner.tx_to(addr, packet)?;
        self.packet.clear();
        self.packet.extend_from_slice(packet);
        self.record(self.local, socket_addr(addr));
        Ok(())
    }

    fn rx_burst(&mut self) -> usize {
        let received = self.inner.rx_burst();
        for i in 0..received {
            let from = self.inner.rx_source(i).map_or_else(unknown, |addr| socket_addr(&addr));
            let packet = self.inner.rx_packet(i);
            self.packet.resize(packet.len(), 0);
            packet.copy_to(0, &mut self.packet);
            self.record(from, self.local);
        }
        received
    }
}
