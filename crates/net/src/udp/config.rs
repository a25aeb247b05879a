//! Settings of a UDP transport.

use std::net::SocketAddr;

use crate::addr::Addr;
use crate::error::NetError;

use super::frame::frame_bytes;
use super::train::TRAIN_BYTES_MAX;

/// UDP payload of a full datagram if the network is not known to carry more: 1500 bytes minus the headers of IP and
/// UDP.
const DATAGRAM_BYTES_V4: usize = 1472;
/// The same for IPv6.
const DATAGRAM_BYTES_V6: usize = 1452;
/// UDP payload of a full datagram over the loopback interface, whose MTU is 64 KiB. Seven of them fill one send with
/// segmentation offload, and each holds 8 KiB of data and its header. docs/performance.md has the measurement.
const DATAGRAM_BYTES_LOOPBACK: usize = TRAIN_BYTES_MAX / 7 / 2 * 2;
/// Packets that the receive queue must hold for the longer datagrams over loopback: room for 64 sessions with all their
/// default credits.
const LOOPBACK_QUEUE_MIN: usize = 1024;
/// Smallest packet size that may be configured, in bytes.
const MTU_MIN: usize = 64;

/// Whether to use a kernel offload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offload {
    /// Use it where the kernel and the route allow it.
    #[default]
    Auto,
    /// Do not use it.
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

/// Whether a peer to which all packets go gets a socket of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connect {
    /// After some hundred sends in a row to one peer: each further one is about 0.3 us cheaper.
    #[default]
    Auto,
    /// One socket for all.
    Off,
}

/// Whether switches may mark datagrams instead of dropping them, and whether the marks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// Marks are off: few programs use them, and reading them costs every receiving system call a control message.
    #[default]
    Off,
    /// Datagrams are sent as ECN-capable (ECT(0), RFC 3168), and packets of marked datagrams report the mark
    /// ([`RxPacket::ecn_marked`](crate::RxPacket::ecn_marked)). For congestion control by marks, if the switches are
    /// configured for it.
    On,
}

/// Settings for [`UdpTransport::bind`](super::UdpTransport::bind). Create them with [`UdpConfig::new`] and change
/// fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UdpConfig {
    /// Local address. Port 0 picks a free one.
    pub addr: SocketAddr,
    /// Largest packet in bytes ([`Transport::mtu`](crate::Transport::mtu)); `None` chooses by the local address: 9352
    /// on loopback if the granted receive buffer holds 1,024 of them, otherwise what fits an Ethernet frame (1470 over
    /// IPv4, 1450 over IPv6). A path may carry less, see
    /// [`Transport::is_mtu_certain`](crate::Transport::is_mtu_certain); a path of jumbo frames may carry more, up to
    /// 8,970 over IPv4.
    pub mtu: Option<usize>,
    /// Segmentation offload: many datagrams to one destination in one system call.
    pub gso: Offload,
    /// Receive offload: many datagrams of one sender in one system call. The socket of a peer to which all packets go
    /// ([`Connect`]) uses it only while datagrams come several at a time, because a receive that expects joined
    /// datagrams takes longer.
    pub gro: Offload,
    /// Several packets in one datagram.
    pub coalesce: Coalesce,
    /// A second socket, connected to the only peer in use.
    pub connect: Connect,
    /// ECN marks of switches.
    pub ecn: Ecn,
    /// Receive buffer to request for the socket, in bytes. Beyond `net.core.rmem_max` only a process with
    /// `CAP_NET_ADMIN` gets it; others get the maximum, and a smaller
    /// [`Transport::rx_queue_len`](crate::Transport::rx_queue_len). To get more, raise the limit: `sysctl -w
    /// net.core.rmem_max=67108864`.
    pub recv_buffer_bytes: usize,
    /// Send buffer to request for the socket, in bytes; likewise limited by `net.core.wmem_max`.
    pub send_buffer_bytes: usize,
    /// Packet length in bytes for which [`Transport::rx_queue_len`](crate::Transport::rx_queue_len) is computed: a full
    /// receive queue holds that many packets of this length. `None` means the longest. A smaller number admits more
    /// sessions to a server whose messages are small: see [`UdpTransport`](super::UdpTransport).
    pub queued_packet_bytes: Option<usize>,
    /// Receive queue length to claim, in packets, instead of the one computed from the granted buffer: for callers that
    /// know how much is in flight at a time.
    pub rx_queue_len: Option<usize>,
    /// Most routes in use at a time.
    pub routes_max: usize,
}

impl UdpConfig {
    /// The defaults for a socket at `addr`: all offloads, a receive buffer of 64 MiB, a send buffer of 4 MiB, 65,536
    /// routes.
    pub fn new(addr: SocketAddr) -> Self {
        UdpConfig {
            addr,
            mtu: None,
            gso: Offload::Auto,
            gro: Offload::Auto,
            coalesce: Coalesce::Fill,
            connect: Connect::Auto,
            ecn: Ecn::Off,
            recv_buffer_bytes: 64 << 20,
            send_buffer_bytes: 4 << 20,
            queued_packet_bytes: None,
            rx_queue_len: None,
            routes_max: 65_536,
        }
    }

    /// UDP payload of a full datagram, in bytes: an even number. `recv_buffer_bytes` is what the kernel granted.
    pub(super) fn datagram_bytes(&self, recv_buffer_bytes: usize) -> Result<usize, NetError> {
        if let Some(mtu) = self.mtu {
            self.in_range("mtu", mtu, MTU_MIN)?;
            return Ok(frame_bytes(mtu));
        }
        let holds_long_ones = recv_buffer_bytes / charge(DATAGRAM_BYTES_LOOPBACK) >= LOOPBACK_QUEUE_MIN;
        Ok(match self.addr {
            addr if addr.ip().is_loopback() && holds_long_ones => DATAGRAM_BYTES_LOOPBACK,
            SocketAddr::V4(_) => DATAGRAM_BYTES_V4,
            SocketAddr::V6(_) => DATAGRAM_BYTES_V6,
        })
    }

    /// Packets that fit a receive buffer of `recv_buffer_bytes` if the longest take `datagram_bytes`, or the claimed
    /// length.
    pub(super) fn queue_len(&self, recv_buffer_bytes: usize, datagram_bytes: usize) -> Result<usize, NetError> {
        let lone = match self.queued_packet_bytes {
            Some(bytes) => {
                self.in_range("queued_packet_bytes", bytes, 1)?;
                frame_bytes(bytes).min(datagram_bytes)
            }
            None => datagram_bytes,
        };
        Ok(self.rx_queue_len.unwrap_or(recv_buffer_bytes / charge(lone)).max(1))
    }

    fn in_range(&self, name: &'static str, bytes: usize, min: usize) -> Result<(), NetError> {
        let max = TRAIN_BYTES_MAX - frame_bytes(0);
        if (min..=max).contains(&bytes) {
            return Ok(());
        }
        let why = format!("{bytes} bytes for {}; choose {min} to {max}", Addr::Udp(self.addr));
        Err(NetError::BadSetting { name, why })
    }
}

/// The most that the kernel charges a receive buffer for a datagram of `payload` bytes that arrives alone: the memory
/// it allocates for the datagram, not its bytes. Up to 16 KiB that is one piece, whose size is a power of two with room
/// for headers and bookkeeping, plus the packet's descriptor; beyond that, pages counted by the byte. (`truesize` in
/// Linux. Packets that a network card wrote may be charged more if its driver spends a page of 4 KiB on each, and
/// packets that the kernel joins are charged less.)
fn charge(payload: usize) -> usize {
    /// Headers of IPv6 and UDP, room for a link header, and what the kernel keeps after the data (320 bytes).
    const IN_PIECE: usize = 400;
    /// The largest piece.
    const PIECE_MAX: usize = 16_384;
    /// The descriptor; beyond `PIECE_MAX` with a small piece for the headers.
    const DESCRIPTION: usize = 256;
    const DESCRIPTION_PAGED: usize = 1024;
    /// The smallest charge: small packets come from a cache of pieces of 576 bytes.
    const CHARGE_MIN: usize = 832;
    match payload + IN_PIECE {
        piece if piece <= PIECE_MAX => (piece.next_power_of_two() + DESCRIPTION).max(CHARGE_MIN),
        _ => payload + DESCRIPTION_PAGED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Granted to callers that may use the default.
    const PLENTY: usize = 128 << 20;
    /// Granted to an ordinary user by a kernel with default settings.
    const ORDINARY: usize = 2 * 212_992;

    fn config(addr: &str) -> UdpConfig {
        UdpConfig::new(addr.parse().unwrap())
    }

    #[test]
    fn packet_sizes_follow_the_address_and_the_buffer() {
        let datagram = |addr, granted| config(addr).datagram_bytes(granted).unwrap();
        assert_eq!(datagram("0.0.0.0:0", PLENTY), 1472);
        assert_eq!(datagram("[::]:0", PLENTY), 1452);
        assert_eq!(datagram("[::1]:0", PLENTY), 9354);
        assert!(datagram("127.0.0.1:0", PLENTY) >= frame_bytes(8192 + 32));
        assert_eq!((datagram("127.0.0.1:0", ORDINARY), datagram("[::1]:0", ORDINARY)), (1472, 1452));
    }

    #[test]
    fn packet_sizes_have_limits() {
        let mut config = config("127.0.0.1:0");
        for bad in [0, 63, 65_485, usize::MAX] {
            config.mtu = Some(bad);
            assert!(matches!(config.datagram_bytes(PLENTY), Err(NetError::BadSetting { name: "mtu", .. })));
        }
        config.mtu = Some(65_484);
        assert_eq!(config.datagram_bytes(PLENTY).unwrap(), TRAIN_BYTES_MAX);
        for bad in [0, 65_485, usize::MAX] {
            config.queued_packet_bytes = Some(bad);
            let refused = config.queue_len(PLENTY, 1472);
            assert!(matches!(refused, Err(NetError::BadSetting { name: "queued_packet_bytes", .. })));
        }
    }

    #[test]
    fn queue_holds_the_longest_packets_unless_told_otherwise() {
        let mut config = config("127.0.0.1:0");
        assert_eq!(config.queue_len(PLENTY, 9354).unwrap(), PLENTY / (16_384 + 256));
        assert_eq!(config.queue_len(ORDINARY, 1472).unwrap(), ORDINARY / (2048 + 256));
        assert_eq!(config.queue_len(100, 1472).unwrap(), 1);
        config.queued_packet_bytes = Some(64);
        assert_eq!(config.queue_len(PLENTY, 9354).unwrap(), PLENTY / 832);
        config.queued_packet_bytes = Some(20_000);
        assert_eq!(config.queue_len(PLENTY, 9354).unwrap(), PLENTY / (16_384 + 256), "none is longer than the MTU");
        config.rx_queue_len = Some(777);
        assert_eq!(config.queue_len(PLENTY, 9354).unwrap(), 777);
    }
}
