//! Handshakes of one peer that arrive together: each is counted before the next is processed.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use dunlin_net::loopback::LoopbackConfig;
use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Addr, Transport};
use dunlin_rpc::wire::control::{Body, Connect, Cookie};
use dunlin_rpc::wire::{Header, Kind, MASK_24};
use dunlin_rpc::{Endpoint, EndpointConfig, PeerLimits};

use crate::pair::{Lab, config};
use crate::raw::{Raw, connect, control};

/// Longest wait for a real socket.
const PATIENCE: Duration = Duration::from_secs(30);
/// Packets that a transport hands over in one burst.
const BURST: u64 = dunlin_net::transport::RX_BURST as u64;

fn lab(peer_limits: PeerLimits) -> Lab {
    Lab::over(LoopbackConfig::default(), &[EndpointConfig { peer_limits, ..config() }])
}

/// CONNECTs of one endpoint, each for a session of its own and with its valid cookie.
fn connects(lab: &Lab, raw: &mut Raw, incarnation: u64) -> Vec<Connect> {
    let mut connects = Vec::new();
    for nonce in 0..BURST {
        let asked = Connect { nonce, session: nonce as u32, incarnation, ..connect() };
        connects.push(Connect { cookie: raw.cookie(lab, &asked).cookie, ..asked });
    }
    connects
}

/// The number of packets of a kind that the server sends back.
fn count(lab: &Lab, raw: &mut Raw, kind: Kind) -> usize {
    raw.answers(lab).iter().filter(|(header, _)| header.kind == kind).count()
}

#[test]
fn one_burst_does_not_pass_over_the_limit_of_sessions() {
    let lab = lab(PeerLimits { sessions_max: 10, ..PeerLimits::default() });
    let mut hoarder = Raw::new(&lab, 66);
    for asked in connects(&lab, &mut hoarder, 1) {
        hoarder.send_connect(&asked);
    }
    assert_eq!(count(&lab, &mut hoarder, Kind::Accept), 10);
    let stats = lab.server().stats();
    assert_eq!((stats.sessions, stats.counters.sessions_refused), (10, BURST - 10));
}

#[test]
fn one_burst_does_not_pass_over_the_limit_of_places() {
    let lab = lab(PeerLimits { places_max: 64, ..PeerLimits::default() });
    let mut hoarder = Raw::new(&lab, 66);
    for asked in connects(&lab, &mut hoarder, 1) {
        hoarder.send_connect(&asked);
    }
    // Each session wants sixteen.
    assert_eq!(count(&lab, &mut hoarder, Kind::Accept), 4);
    assert_eq!(lab.server().stats().credits_reserved, 64);
}

#[test]
fn two_incarnations_in_one_burst_are_not_both_taken() {
    let lab = lab(PeerLimits::default());
    let mut raw = Raw::new(&lab, 66);
    let both = [connects(&lab, &mut raw, 1).remove(0), connects(&lab, &mut raw, 2).remove(0)];
    both.iter().for_each(|asked| raw.send_connect(asked));
    assert_eq!(count(&lab, &mut raw, Kind::Accept), 1);
    assert_eq!(lab.server().stats().sessions, 1);
}

#[test]
fn two_addresses_may_draw_the_same_numbers() {
    let lab = lab(PeerLimits::default());
    let mut peers = [Raw::new(&lab, 66), Raw::new(&lab, 67)];
    for peer in &mut peers {
        let asked = connects(&lab, peer, 1).remove(0);
        peer.send_connect(&asked);
        assert_eq!(count(&lab, peer, Kind::Accept), 1, "a session of its own");
    }
    assert_eq!(lab.server().stats().sessions, 2);
}

#[test]
fn a_refused_burst_leaves_no_route_behind() {
    let lab = lab(PeerLimits { sessions_max: 0, ..PeerLimits::default() });
    for node in 60..70 {
        let mut hoarder = Raw::new(&lab, node);
        let all = connects(&lab, &mut hoarder, 1);
        all.iter().for_each(|asked| hoarder.send_connect(asked));
        assert_eq!(count(&lab, &mut hoarder, Kind::Refuse), BURST as usize);
        let route = lab.server().with_transport(|transport| transport.resolve(&Addr::Node(node))).unwrap();
        assert_eq!(route.0, 0, "the place of the stranger before");
        lab.server().with_transport(|transport| transport.release(route));
    }
}

/// A hand-written endpoint over a real socket: many packets to a datagram.
struct Sender {
    socket: UdpSocket,
}

type Server = Endpoint<UdpTransport>;

impl Sender {
    fn new(address: &str, server: &Server) -> Sender {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        let Addr::Udp(to) = server.local_addr() else { panic!("a UDP endpoint has a UDP address") };
        socket.connect(to).unwrap();
        Sender { socket }
    }

    fn send(&self, connects: &[Connect]) {
        let mut datagram = Vec::new();
        for asked in connects {
            let packet = control(&Header::new(Kind::Connect, 0, MASK_24, 0, 0), asked);
            datagram.extend((packet.len() as u16).to_le_bytes());
            datagram.extend(packet);
        }
        self.socket.send(&datagram).unwrap();
    }

    /// Receives until there are `count` packets.
    fn receive(&self, server: &Server, count: usize) -> Vec<(Header, Vec<u8>)> {
        let (mut packets, mut datagram) = (Vec::new(), vec![0; 65_536]);
        let start = Instant::now();
        while packets.len() < count {
            assert!(start.elapsed() < PATIENCE, "{} of {count} packets came", packets.len());
            server.run_once();
            let len = match self.socket.recv(&mut datagram) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => panic!("{error}"),
            };
            let mut rest = &datagram[..len];
            while let Some((frame, after)) = rest.split_first_chunk::<2>() {
                let bytes = u16::from_le_bytes(*frame) as usize;
                if bytes == 0 || bytes > after.len() {
                    break;
                }
                let header = Header::parse(&after[..bytes], bytes).unwrap();
                packets.push((header, after[header.wire_len()..bytes].to_vec()));
                rest = &after[bytes..];
            }
        }
        packets
    }

    /// CONNECTs with their valid cookies.
    fn connects(&self, server: &Server, count: u64) -> Vec<Connect> {
        let mut asked: Vec<_> = (0..count).map(|nonce| Connect { nonce, session: nonce as u32, ..connect() }).collect();
        for some in asked.chunks_mut(100) {
            self.send(some);
            for (header, body) in self.receive(server, some.len()) {
                assert_eq!(header.kind, Kind::Cookie);
                let cookie = Cookie::parse(&body).unwrap();
                let place = some.iter_mut().find(|asked| asked.nonce == cookie.nonce).unwrap();
                place.cookie = cookie.cookie;
            }
        }
        asked
    }
}

fn udp_server(peer_limits: PeerLimits) -> Server {
    let transport = UdpTransport::bind(UdpConfig::new("127.0.0.1:0".parse().unwrap())).unwrap();
    Endpoint::new(transport, EndpointConfig { peer_limits, ..config() }).unwrap()
}

#[test]
fn one_datagram_does_not_pass_over_the_limits_of_a_peer() {
    let limits = [
        (PeerLimits { sessions_max: 10, ..PeerLimits::default() }, 10),
        // Each session wants sixteen.
        (PeerLimits { places_max: 64, ..PeerLimits::default() }, 4),
    ];
    for (limits, sessions) in limits {
        let server = udp_server(limits);
        let hoarder = Sender::new("127.0.0.1:0", &server);
        let connects = hoarder.connects(&server, 700);
        hoarder.send(&connects);
        let start = Instant::now();
        let decided = || server.stats().counters.sessions_accepted + server.stats().counters.sessions_refused;
        while decided() < connects.len() as u64 {
            server.run_once();
            assert!(start.elapsed() < PATIENCE, "{}", server.stats());
        }
        let stats = server.stats();
        assert_eq!((u64::from(stats.sessions), stats.counters.sessions_accepted), (sessions, sessions));
        assert_eq!(stats.credits_reserved as u64, 16 * sessions);
    }
}

#[test]
fn ports_of_one_host_share_its_limits() {
    let server = udp_server(PeerLimits { sessions_max: 10, ..PeerLimits::default() });
    let accepted = |address: &str| {
        let sender = Sender::new(address, &server);
        let connects = sender.connects(&server, 4);
        sender.send(&connects);
        let answers = sender.receive(&server, connects.len());
        answers.iter().filter(|(header, _)| header.kind == Kind::Accept).count()
    };
    assert_eq!([(); 4].map(|()| accepted("127.0.0.1:0")), [4, 4, 2, 0]);
    assert_eq!(accepted("127.0.0.2:0"), 4, "another host");
}
