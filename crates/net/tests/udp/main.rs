//! The UDP transport over the loopback interface.

mod delivery;
mod failures;
mod frames;
mod hostile;
mod marks;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Addr, Route, Transport};

/// Longest wait for any condition. Only a failing test takes this long.
const DEADLINE: Duration = Duration::from_secs(10);

fn loopback_v4() -> UdpConfig {
    UdpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

fn bind(config: UdpConfig) -> UdpTransport {
    UdpTransport::bind(config).unwrap()
}

fn socket_addr(transport: &UdpTransport) -> SocketAddr {
    match transport.local_addr() {
        Addr::Udp(addr) => addr,
        other => panic!("not a UDP address: {other}"),
    }
}

/// A packet as received.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Received {
    route: Option<Route>,
    from: Option<Addr>,
    bytes: Vec<u8>,
}

/// Takes one burst.
fn burst(transport: &mut UdpTransport) -> Vec<Received> {
    let count = transport.rx_burst();
    let packets = (0..count).map(|i| {
        let packet = transport.rx_packet(i);
        let bytes = packet.bytes().expect("UDP packets are private").to_vec();
        assert_eq!(packet.len(), bytes.len());
        Received { route: packet.route(), from: transport.rx_source(i), bytes }
    });
    packets.collect()
}

/// Receives until there are `count` packets.
fn receive(transport: &mut UdpTransport, count: usize) -> Vec<Received> {
    let mut all = Vec::new();
    until("packets", || {
        all.extend(burst(transport));
        all.len() >= count
    });
    assert_eq!(all.len(), count, "more packets than were sent");
    all
}

/// Repeats `attempt` until it succeeds.
fn until(what: &str, mut attempt: impl FnMut() -> bool) {
    let start = Instant::now();
    while !attempt() {
        assert!(start.elapsed() < DEADLINE, "gave up waiting for {what}");
    }
}

/// Pseudo-random numbers (splitmix64), the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}
