//! A sender that implements only section 2 of the specification, and whose datagrams the kernel joins.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use dunlin_net::udp::UdpTransport;
use dunlin_net::{Addr, Transport, TxPacket};

use crate::{bind, loopback_v4, receive, socket_addr, until};

/// A frame as section 2 defines it: length, packet, and a zero byte if the length is odd.
fn frame(packet: &[u8]) -> Vec<u8> {
    let mut bytes = (packet.len() as u16).to_le_bytes().to_vec();
    bytes.extend(packet);
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    bytes
}

/// Makes the kernel cut everything that `socket` sends into datagrams of `bytes`. Over loopback they arrive joined.
fn cut_into(socket: &UdpSocket, bytes: usize) {
    let bytes = bytes as libc::c_int;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a number of that length.
    let rc = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const bytes).cast(), len)
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// A server and a sender to it.
fn pair() -> (UdpTransport, UdpSocket, SocketAddr) {
    let server = bind(loopback_v4());
    let to = socket_addr(&server);
    (server, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), to)
}

/// Makes a sender the only peer for so long that the server receives from it through a socket of its own.
fn earn_a_socket(server: &mut UdpTransport, sender: &UdpSocket) {
    let from = sender.local_addr().unwrap();
    let route = server.resolve(&Addr::Udp(from)).unwrap();
    let to = socket_addr(server);
    let mut answer = [0; 64];
    for _ in 0..2_000 {
        sender.send_to(&frame(b"ping"), to).unwrap();
        assert_eq!(receive(server, 1)[0].bytes, *b"ping");
        server.tx_burst(&[TxPacket { route, header: b"pong", payload: &[] }]);
        server.tx_flush();
        sender.recv(&mut answer).unwrap();
    }
    // A poll that finds nothing gives the socket to the peer.
    assert_eq!(server.rx_burst(), 0);
}

fn bytes_of(server: &mut UdpTransport, count: usize) -> Vec<Vec<u8>> {
    receive(server, count).into_iter().map(|received| received.bytes).collect()
}

#[test]
fn frames_of_every_length_share_a_datagram() {
    let (mut server, sender, to) = pair();
    for first in 1..40usize {
        let packets: Vec<Vec<u8>> = (0..8).map(|i| vec![i as u8 + 1; first + i]).collect();
        let datagram: Vec<u8> = packets.iter().flat_map(|packet| frame(packet)).collect();
        sender.send_to(&datagram, to).unwrap();
        assert_eq!(bytes_of(&mut server, 8), packets);
    }
    assert_eq!(server.counters().rx_dropped_malformed, 0);
}

#[test]
fn datagrams_of_odd_length_are_told_apart_when_the_kernel_joins_them() {
    let (mut server, sender, to) = pair();
    // The pad byte of the last frame is missing, which a receiver must accept.
    let packets: Vec<[u8; 3]> = (0..40u8).map(|i| [i, 0xff, 0xff]).collect();
    let datagrams: Vec<u8> = packets.iter().flat_map(|packet| frame(packet)[..5].to_vec()).collect();
    cut_into(&sender, 5);
    for _ in 0..3 {
        sender.send_to(&datagrams, to).unwrap();
        assert_eq!(bytes_of(&mut server, 40), packets);
    }
    assert_eq!(server.counters().rx_dropped_malformed, 0);
}

/// Datagrams of six bytes: good ones with the numbers from `range`, and a bad one after each.
fn good_and_bad(range: std::ops::Range<u8>) -> Vec<u8> {
    range.flat_map(|i| [4, 0, i, i, i, i, 0xff, 0xff, 1, 2, 3, 4]).collect()
}

#[test]
fn a_bad_datagram_costs_no_other_that_the_kernel_joined_with_it() {
    let (mut server, sender, to) = pair();
    cut_into(&sender, 6);
    sender.send_to(&good_and_bad(0..20), to).unwrap();
    let expected: Vec<Vec<u8>> = (0..20).map(|i| vec![i; 4]).collect();
    assert_eq!(bytes_of(&mut server, 20), expected);
    until("the last bad one", || {
        server.rx_burst();
        server.counters().rx_dropped_malformed == 20
    });
}

#[test]
fn a_lone_peer_may_send_odd_and_bad_datagrams_too() {
    let (mut server, sender, to) = pair();
    earn_a_socket(&mut server, &sender);
    let packets: Vec<Vec<u8>> = (1..30).map(|len| vec![7; len]).collect();
    for _ in 0..100 {
        let datagram: Vec<u8> = packets.iter().flat_map(|packet| frame(packet)).collect();
        sender.send_to(&datagram, to).unwrap();
        assert_eq!(bytes_of(&mut server, packets.len()), packets);
    }
    assert_eq!(server.counters().rx_dropped_malformed, 0);
    cut_into(&sender, 6);
    for round in 0..50 {
        sender.send_to(&good_and_bad(0..20), to).unwrap();
        let bad = server.counters().rx_dropped_malformed;
        let mut good = 0;
        until("all of them", || {
            good += server.rx_burst();
            server.counters().rx_dropped_malformed == bad + 20
        });
        assert_eq!(good, 20, "round {round}");
    }
}

/// Polls until the server knows that both its sockets are empty: from a socket that was empty it receives in another
/// way.
fn idle(server: &mut UdpTransport) {
    for _ in 0..100 {
        assert_eq!(server.rx_burst(), 0);
    }
}

/// Makes a sender with a socket of its own send one frame at a time for a while.
fn call_for_a_while(server: &mut UdpTransport, sender: &UdpSocket) {
    let to = socket_addr(server);
    for _ in 0..200 {
        idle(server);
        sender.send_to(&frame(b"ping"), to).unwrap();
        assert_eq!(receive(server, 1)[0].bytes, *b"ping");
    }
    idle(server);
}

#[test]
fn a_lone_peer_of_short_calls_loses_nothing_to_bad_datagrams() {
    let (mut server, sender, to) = pair();
    earn_a_socket(&mut server, &sender);
    call_for_a_while(&mut server, &sender);
    cut_into(&sender, 6);
    let (mut good, before) = (0, server.counters().rx_dropped_malformed);
    for round in 1..=50 {
        sender.send_to(&good_and_bad(0..20), to).unwrap();
        until("all of them", || {
            good += server.rx_burst();
            good == round * 20 && server.counters().rx_dropped_malformed == before + 20 * round as u64
        });
    }
}

/// Frames of odd length without their pad byte, of which the kernel joins two, after calls that were a single frame
/// each.
#[test]
fn a_lone_peer_of_short_calls_may_go_over_to_datagrams_of_odd_length() {
    let (mut server, sender, to) = pair();
    earn_a_socket(&mut server, &sender);
    for round in 0..3 {
        cut_into(&sender, 0);
        call_for_a_while(&mut server, &sender);
        cut_into(&sender, 5);
        sender.send_to(&[3, 0, round, 1, 2, 3, 0, 7, 8, 9], to).unwrap();
        assert_eq!(bytes_of(&mut server, 2), [[round, 1, 2], [7, 8, 9]]);
    }
    assert_eq!(server.counters().rx_dropped_malformed, 0);
}
