//! Settings of a UDP transport.

use std::net::SocketAddr;

use crate::addr::Addr;
use crate::error::NetError;

use super::frame::frame_bytes;
use super::train::TRAIN_BYTES_MAX;

/// UDP payload of a full datagram where the network is not known to carry more: 1500 bytes less the headers of IP and UDP.
const DATAGRAM_BYTES_V4: usize = 1472;
/// The same for IPv6.
const DATAGRAM_BYTES_V6: usize = 1452;
/// UDP payload of a full datagram over the loopback interface, whose MTU is 64 KiB. Seven of them fill one send with
/// segmentation offload, and each holds 8 KiB of data and its header. See docs/performance.md for the measurement.
const DATAGRAM_BYTES_LOOPBACK: usize = TRAIN_BYTES_MAX / 7 / 2 * 2;
/// Smallest packet size that may be configured, in bytes.
const MTU_MIN: usize = 64;

/// Use of a kernel offload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offload {
    /// Use it where the kernel and the route allow it.
    #[default]
    Auto,
    /// Do without it.
    Off,
}

/// Whether several packets to one destination may share a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Coalesce {
    /// As many packets in a datagram as fit.
    #[default]
    Fill,
    /// One packet in each datagram.
    Off,
}

/// Whether a peer that gets all packets gets a socket of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connect {
    /// After some hundred sends in a row to one peer: each further one is about 0.3 us cheaper.
    #[default]
    Auto,
    /// One socket for all.
    Off,
}

/// What [`UdpTransport::bind`](super::UdpTransport::bind) needs to know. Make one with [`UdpConfig::new`] and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UdpConfig {
    /// Local address. Port 0 takes a free one.
    pub addr: SocketAddr,
    /// Largest packet in bytes ([`Transport::mtu`](crate::Transport::mtu)); `None` chooses by the local address: 9352 on
    /// loopback, else what fits an Ethernet frame (1470 over IPv4, 1450 over IPv6).
    pub mtu: Option<usize>,
    /// Segmentation offload: many datagrams to one destination in one system call.
    pub gso: Offload,
    /// Receive offload: many datagrams of one sender in one system call.
    pub gro: Offload,
    /// Several packets in one datagram.
    pub coalesce: Coalesce,
    /// A second socket, connected to the only peer in use.
    pub connect: Connect,
    /// Receive buffer of the socket to ask for, in bytes. Beyond `net.core.rmem_max` only a process with `CAP_NET_ADMIN` gets
    /// it; others get the maximum, and fewer packets in [`Transport::rx_queue_len`](crate::Transport::rx_queue_len). To get
    /// more, raise it: `sysctl -w net.core.rmem_max=67108864`.
    pub recv_buffer_bytes: usize,
    /// Send buffer of the socket to ask for, in bytes; likewise limited by `net.core.wmem_max`.
    pub send_buffer_bytes: usize,
    /// Receive queue to claim, in packets, instead of the estimate from the buffer that was granted: see
    /// [`UdpTransport`](super::UdpTransport).
    pub rx_queue_len: Option<usize>,
    /// Most routes at a time.
    pub routes_max: usize,
}

impl UdpConfig {
    /// The defaults for a socket at `addr`: all offloads, 64 MiB to receive, 4 MiB to send, 65,536 routes.
    pub fn new(addr: SocketAddr) -> Self {
        UdpConfig {
            addr,
            mtu: None,
            gso: Offload::Auto,
            gro: Offload::Auto,
            coalesce: Coalesce::Fill,
            connect: Connect::Auto,
            recv_buffer_bytes: 64 << 20,
            send_buffer_bytes: 4 << 20,
            rx_queue_len: None,
            routes_max: 65_536,
        }
    }

    /// UDP payload of a full datagram, in bytes: an even number.
    pub(super) fn datagram_bytes(&self) -> Result<usize, NetError> {
        let Some(mtu) = self.mtu else {
            return Ok(match self.addr {
                addr if addr.ip().is_loopback() => DATAGRAM_BYTES_LOOPBACK,
                SocketAddr::V4(_) => DATAGRAM_BYTES_V4,
                SocketAddr::V6(_) => DATAGRAM_BYTES_V6,
            });
        };
        let mtu_max = TRAIN_BYTES_MAX - frame_bytes(0);
        if !(MTU_MIN..=mtu_max).contains(&mtu) {
            let why = format!("{mtu} bytes for {}; choose {MTU_MIN} to {mtu_max}", Addr::Udp(self.addr));
            return Err(NetError::BadSetting { name: "mtu", why });
        }
        Ok(frame_bytes(mtu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_sizes_follow_the_address() {
        let datagram = |addr: &str| UdpConfig::new(addr.parse().unwrap()).datagram_bytes().unwrap();
        assert_eq!(datagram("0.0.0.0:0"), 1472);
        assert_eq!(datagram("[::]:0"), 1452);
        assert_eq!(datagram("[::1]:0"), 9354);
        assert!(datagram("127.0.0.1:0") >= frame_bytes(8192 + 32));
    }

    #[test]
    fn packet_sizes_have_limits() {
        let mut config = UdpConfig::new("127.0.0.1:0".parse().unwrap());
        for bad in [0, 63, 65_485, usize::MAX] {
            config.mtu = Some(bad);
            assert!(matches!(config.datagram_bytes(), Err(NetError::BadSetting { name: "mtu", .. })));
        }
        config.mtu = Some(65_484);
        assert_eq!(config.datagram_bytes().unwrap(), TRAIN_BYTES_MAX);
    }
}
