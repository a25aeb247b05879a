//! What is visible only from inside: which socket and which path a packet took.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::thread;

use socket2::{Domain, Protocol, Socket, Type};

use super::super::open::set;
use super::*;

/// Makes the kernel or a route refuse segmentation offload, at a time of the test's choice: a socket that sends no
/// checksums may not use it.
fn forbid_offload(transport: &UdpTransport) {
    // SAFETY: the socket lives as long as the transport that is borrowed here.
    let socket = unsafe { BorrowedFd::borrow_raw(transport.link.socket.fd()) };
    set(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
}

#[test]
fn a_train_that_the_offload_refuses_leaves_without_it() {
    let config = || UdpConfig { mtu: Some(1470), ..UdpConfig::new((Ipv4Addr::LOCALHOST, 0).into()) };
    let mut server = UdpTransport::bind(config()).unwrap();
    let mut client = UdpTransport::bind(config()).unwrap();
    let route = client.resolve(&server.local_addr()).unwrap();
    forbid_offload(&client);
    let payloads: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; 20 + 30 * usize::from(i)]).collect();
    let packets: Vec<_> = payloads.iter().map(|p| TxPacket { route, header: &[], payload: p }).collect();
    for _ in 0..3 {
        client.tx_burst(&packets);
        client.tx_flush();
        let mut received = Vec::new();
        let start = server.now();
        while received.len() < packets.len() {
            assert!(server.now() - start < 10_000_000_000, "only {} packets came", received.len());
            for i in 0..server.rx_burst() {
                received.push(server.rx_packet(i).bytes().unwrap().to_vec());
            }
        }
        assert_eq!(received, payloads);
    }
    assert!(client.link.routes.get(route).unwrap().gso_refused);
    let counters = client.counters();
    assert_eq!((counters.tx_packets, counters.tx_dropped_error), (120, 0));
}

/// Runs `test` on a thread with a network of its own, which has a loopback interface and nothing else.
fn in_own_network(test: impl FnOnce() + Send) {
    let enter = || {
        // SAFETY: the call changes this thread's network and nothing else.
        match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
            0 => Command::new("ip").args(["link", "set", "lo", "up"]).status().map(|_| ()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| match enter() {
            Ok(()) => test(),
            Err(error) => eprintln!("skipped: a network namespace of this thread's cannot be made: {error}"),
        });
    });
}

/// A router's report that a datagram between two sockets was too long, as anyone may forge it.
fn too_long(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { panic!("of IPv4") };
    // ICMP: destination unreachable, fragmentation needed; its checksum; the MTU of the next hop.
    let mut bytes = vec![3, 4, 0, 0, 0, 0, 0xff, 0xff];
    // The header of the datagram: 20 bytes of IP, 8 of UDP.
    bytes.extend([0x45, 0, 0, 200, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend([from.ip().octets(), to.ip().octets()].concat());
    bytes.extend([from.port().to_be_bytes(), to.port().to_be_bytes(), [0, 180], [0, 0]].concat());
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    bytes[2..4].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    bytes
}

#[test]
fn reports_of_routers_do_not_turn_the_offload_off() {
    in_own_network(|| {
        let (mut server, mut client) = (loopback(), loopback());
        let route = client.resolve(&server.local_addr()).unwrap();
        let raw = Socket::new(Domain::IPV4, Type::from(libc::SOCK_RAW), Some(Protocol::ICMPV4)).unwrap();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into();
        // More than are taken at a time, so that another one is pending when the datagram is sent again.
        for _ in 0..100 {
            raw.send_to(&too_long(client.local, server.local), &to).unwrap();
        }
        let packets = [TxPacket { route, header: &[7; 9000], payload: &[] }; 4];
        client.tx_burst(&packets);
        client.tx_flush();
        let (mut received, start) = (0, server.now());
        while received < packets.len() {
            assert!(server.now() - start < 10_000_000_000, "only {received} packets came");
            received += server.rx_burst();
        }
        assert!(client.link.take_errors() == 0, "the reports were taken");
        assert!(!client.link.routes.get(route).unwrap().gso_refused);
        assert_eq!(client.counters().tx_dropped_error, 0);
    });
}

/// Rounds of ping-pong after which a peer gets a socket, if all goes well.
const ROUNDS: u32 = 1_000;
/// Rounds after which the test gives up waiting for it.
const ROUNDS_MAX: u32 = 200_000;

fn loopback() -> UdpTransport {
    UdpTransport::bind(UdpConfig::new((Ipv4Addr::LOCALHOST, 0).into())).unwrap()
}

/// Polls until a packet comes, and returns its bytes and route.
fn receive(transport: &mut UdpTransport) -> (Vec<u8>, Option<Route>) {
    let start = transport.now();
    while transport.rx_burst() == 0 {
        assert!(transport.now() - start < 10_000_000_000, "nothing came");
    }
    let packet = transport.rx_packet(0);
    (packet.bytes().unwrap().to_vec(), packet.route())
}

fn send(transport: &mut UdpTransport, route: Route, header: &[u8]) {
    transport.tx_burst(&[TxPacket { route, header, payload: &[] }]);
    transport.tx_flush();
}

/// Plays ping-pong until each has a socket connected to the other, and longer: another test may start a process, which
/// holds this test's sockets for a moment.
fn ping_pong(a: &mut UdpTransport, to_b: Route, b: &mut UdpTransport, to_a: Route) {
    let mut rounds = 0;
    while rounds < ROUNDS_MAX && (a.link.direct.socket_to(to_b).is_none() || b.link.direct.socket_to(to_a).is_none()) {
        play(a, to_b, b, to_a, ROUNDS);
        rounds += ROUNDS;
    }
    play(a, to_b, b, to_a, ROUNDS);
}

fn play(a: &mut UdpTransport, to_b: Route, b: &mut UdpTransport, to_a: Route, rounds: u32) {
    for number in 0..rounds {
        send(a, to_b, &number.to_le_bytes());
        assert_eq!(receive(b), (number.to_le_bytes().to_vec(), Some(to_a)));
        send(b, to_a, &number.to_le_bytes());
        assert_eq!(receive(a), (number.to_le_bytes().to_vec(), Some(to_b)));
    }
}

#[test]
fn a_lone_peer_gets_a_socket_and_nobody_else_is_lost() {
    let (mut a, mut b, mut c) = (loopback(), loopback(), loopback());
    let (to_b, to_a) = (a.resolve(&b.local_addr()).unwrap(), b.resolve(&a.local_addr()).unwrap());
    ping_pong(&mut a, to_b, &mut b, to_a);
    assert!(a.link.direct.socket_to(to_b).is_some() && b.link.direct.socket_to(to_a).is_some());

    // The port still belongs to this transport alone.
    let again = UdpTransport::bind(UdpConfig::new(a.local));
    assert!(matches!(again, Err(NetError::InUse { .. })));

    // Packets of strangers and other peers arrive, by polling and by waiting.
    let c_to_a = c.resolve(&a.local_addr()).unwrap();
    for number in 0..100u8 {
        send(&mut c, c_to_a, &[number]);
        send(&mut b, to_a, &[number]);
        let mut got = [receive(&mut a), receive(&mut a)];
        got.sort_by_key(|(_, route)| *route);
        assert_eq!(got, [(vec![number], None), (vec![number], Some(to_b))]);
        send(&mut c, c_to_a, b"wake");
        a.wait(Duration::from_secs(10));
        assert_eq!(a.rx_burst(), 1, "a poll after a sleep looks everywhere");
    }

    // Another lone peer takes the socket over; the first one still works as before.
    let to_c = a.resolve(&c.local_addr()).unwrap();
    ping_pong(&mut a, to_c, &mut c, c_to_a);
    assert!(a.link.direct.socket_to(to_c).is_some());
    ping_pong(&mut a, to_b, &mut b, to_a);

    // Releasing the route closes the socket.
    let route = a.link.direct.socket_to(to_b).is_some().then_some(to_b).unwrap();
    a.release(route);
    assert!(a.link.direct.socket().is_none());
    send(&mut b, to_a, b"still there?");
    assert_eq!(receive(&mut a), (b"still there?".to_vec(), None));
}

#[test]
fn a_socket_that_could_not_be_connected_is_tried_again() {
    let (mut a, mut b, mut c) = (loopback(), loopback(), loopback());
    let (to_b, to_a) = (a.resolve(&b.local_addr()).unwrap(), b.resolve(&a.local_addr()).unwrap());
    ping_pong(&mut a, to_b, &mut b, to_a);
    // The state in which a child process holds the socket between fork and exec: the address is in use although the
    // transport has closed the socket.
    let held = a.link.direct.socket().unwrap().inner().try_clone().unwrap();
    let (to_c, c_to_a) = (a.resolve(&c.local_addr()).unwrap(), c.resolve(&a.local_addr()).unwrap());
    play(&mut a, to_c, &mut c, c_to_a, ROUNDS);
    assert!(a.link.direct.socket().is_none());
    drop(held);
    ping_pong(&mut a, to_c, &mut c, c_to_a);
    assert!(a.link.direct.socket_to(to_c).is_some());
}

#[test]
fn sockets_connect_at_every_kind_of_address() {
    for (bound, reached) in [("0.0.0.0:0", "127.0.0.1"), ("[::]:0", "::1"), ("[::1]:0", "::1")] {
        let Ok(mut b) = UdpTransport::bind(UdpConfig::new(bound.parse().unwrap())) else {
            eprintln!("no address {bound} here: not tested");
            continue;
        };
        let mut a = UdpTransport::bind(UdpConfig::new(SocketAddr::new(reached.parse().unwrap(), 0))).unwrap();
        let b_addr = SocketAddr::new(reached.parse().unwrap(), b.local.port());
        let (to_b, to_a) = (a.resolve(&Addr::Udp(b_addr)).unwrap(), b.resolve(&a.local_addr()).unwrap());
        ping_pong(&mut a, to_b, &mut b, to_a);
        assert!(a.link.direct.socket_to(to_b).is_some() && b.link.direct.socket_to(to_a).is_some(), "{bound}");
    }
}

#[test]
fn the_connected_peer_may_die_and_come_back() {
    let (mut a, mut b) = (loopback(), loopback());
    let (to_b, to_a) = (a.resolve(&b.local_addr()).unwrap(), b.resolve(&a.local_addr()).unwrap());
    ping_pong(&mut a, to_b, &mut b, to_a);
    let addr = b.local;
    drop(b);
    let start = a.now();
    while a.peer_health(to_b) != PeerHealth::Refused {
        assert!(a.now() - start < 10_000_000_000, "the refusal was not noticed");
        send(&mut a, to_b, b"anyone?");
        a.rx_burst();
    }
    let mut b = UdpTransport::bind(UdpConfig::new(addr)).unwrap();
    let to_a = b.resolve(&a.local_addr()).unwrap();
    send(&mut b, to_a, b"here again");
    assert_eq!(receive(&mut a), (b"here again".to_vec(), Some(to_b)));
    assert_eq!(a.peer_health(to_b), PeerHealth::Unknown);
    send(&mut a, to_b, b"welcome");
    assert_eq!(receive(&mut b).0, b"welcome");
}

#[test]
fn packets_keep_their_order_when_the_socket_is_connected() {
    let (mut a, mut b) = (loopback(), loopback());
    let (to_b, to_a) = (a.resolve(&b.local_addr()).unwrap(), b.resolve(&a.local_addr()).unwrap());
    // b gets its connected socket in the middle of a stream that it reads slowly.
    let mut next = 0u32;
    for number in 0..5_000u32 {
        send(&mut a, to_b, &number.to_le_bytes());
        send(&mut b, to_a, &[1]);
        a.rx_burst();
        if number % 7 == 0 {
            for i in 0..b.rx_burst() {
                assert_eq!(b.rx_packet(i).bytes().unwrap(), next.to_le_bytes());
                next += 1;
            }
        }
    }
    while next < 5_000 {
        for i in 0..b.rx_burst() {
            assert_eq!(b.rx_packet(i).bytes().unwrap(), next.to_le_bytes());
            next += 1;
        }
    }
    assert!(b.link.direct.socket_to(to_a).is_some());
}

#[test]
fn trains_pass_the_connected_sockets() {
    let (mut a, mut b) = (loopback(), loopback());
    let (to_b, to_a) = (a.resolve(&b.local_addr()).unwrap(), b.resolve(&a.local_addr()).unwrap());
    ping_pong(&mut a, to_b, &mut b, to_a);
    let payloads: Vec<Vec<u8>> = (0..300usize).map(|i| vec![i as u8; 1 + i * 31 % a.mtu()]).collect();
    let packets: Vec<_> = payloads.iter().map(|p| TxPacket { route: to_b, header: &[], payload: p }).collect();
    a.tx_burst(&packets);
    a.tx_flush();
    let mut received = Vec::new();
    while received.len() < packets.len() {
        let (first, route) = receive(&mut b);
        assert_eq!(route, Some(to_a));
        received.push(first);
        let rest = b.rx.len();
        received.extend((1..rest).map(|i| b.rx_packet(i).bytes().unwrap().to_vec()));
    }
    assert_eq!(received, payloads);
}

/// Whether the kernel may have joined what arrives at the connected socket.
fn may_be_joined(transport: &mut UdpTransport) -> bool {
    transport.link.direct.connected().unwrap().joining.is_possible()
}

/// Sends a train of long packets from one to the other a few times: each is a datagram of its own.
fn send_trains(a: &mut UdpTransport, to_b: Route, b: &mut UdpTransport) {
    let payloads: Vec<Vec<u8>> = (0..7).map(|i| vec![i; a.mtu()]).collect();
    let packets: Vec<_> = payloads.iter().map(|p| TxPacket { route: to_b, header: &[], payload: p }).collect();
    for _ in 0..30 {
        a.tx_burst(&packets);
        a.tx_flush();
        let mut received = Vec::new();
        while received.len() < packets.len() {
            received.push(receive(b).0);
            let rest = b.rx.len();
            received.extend((1..rest).map(|i| b.rx_packet(i).bytes().unwrap().to_vec()));
        }
        assert_eq!(received, payloads);
    }
}

#[test]
fn the_kernel_joins_datagrams_of_a_lone_peer_only_while_they_come_together() {
    let (mut a, mut b) = (loopback(), loopback());
    let (to_b, to_a) = (a.resolve(&b.local_addr()).unwrap(), b.resolve(&a.local_addr()).unwrap());
    ping_pong(&mut a, to_b, &mut b, to_a);
    assert!(!may_be_joined(&mut b), "as the socket begins");
    for _ in 0..2 {
        send_trains(&mut a, to_b, &mut b);
        assert!(may_be_joined(&mut b), "many came together");
        for number in 0..3_000u32 {
            send(&mut a, to_b, &number.to_le_bytes());
            assert_eq!(receive(&mut b).0, number.to_le_bytes());
            assert_eq!((b.rx_burst(), b.rx_burst(), b.rx_burst()), (0, 0, 0));
        }
        assert!(!may_be_joined(&mut b), "each came alone to an empty queue");
    }
    assert_eq!(b.counters().rx_dropped_malformed, 0);
}

#[test]
fn a_socket_that_tells_more_than_bytes_is_always_asked() {
    let config = UdpConfig { ecn: super::super::Ecn::On, ..UdpConfig::new((Ipv4Addr::LOCALHOST, 0).into()) };
    let (mut a, mut b) = (loopback(), UdpTransport::bind(config).unwrap());
    let (to_b, to_a) = (a.resolve(&b.local_addr()).unwrap(), b.resolve(&a.local_addr()).unwrap());
    ping_pong(&mut a, to_b, &mut b, to_a);
    assert!(may_be_joined(&mut b) && !may_be_joined(&mut a));
}
