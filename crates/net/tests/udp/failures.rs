//! Ports in use, peers that are gone, and sleeping until something happens.

use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Addr, NetError, PeerHealth, Transport, TxPacket};

use super::{DEADLINE, bind, burst, loopback_v4, receive, socket_addr, until};

fn bind_error(addr: &str) -> NetError {
    match UdpTransport::bind(UdpConfig::new(addr.parse().unwrap())) {
        Ok(_) => panic!("{addr} could be bound"),
        Err(error) => error,
    }
}

#[test]
fn a_port_in_use_is_named() {
    let holder = bind(loopback_v4());
    let addr = socket_addr(&holder).to_string();
    let error = bind_error(&addr);
    assert!(matches!(&error, NetError::InUse { addr } if *addr == holder.local_addr()), "{error}");
}

#[test]
fn an_address_of_another_host_is_refused_with_advice() {
    let error = bind_error("192.0.2.1:0");
    assert!(matches!(error, NetError::Io { .. }));
    assert!(error.to_string().contains("udp://192.0.2.1:0") && error.to_string().contains("interface"), "{error}");
}

#[test]
fn addresses_of_another_kind_are_refused() {
    let mut transport = bind(loopback_v4());
    for text in ["shm:echo", "node:1", "udp://[::1]:1"] {
        let addr: Addr = text.parse().unwrap();
        assert!(matches!(transport.resolve(&addr), Err(NetError::WrongKind { .. })), "{text}");
        assert!(matches!(transport.tx_to(&addr, &[1]), Err(NetError::WrongKind { .. })), "{text}");
    }
}

#[test]
fn a_port_that_refuses_is_a_dead_peer_until_it_answers() {
    let mut client = bind(loopback_v4());
    let live = bind(loopback_v4());
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = socket.local_addr().unwrap();
    drop(socket);
    let dead = client.resolve(&Addr::Udp(addr)).unwrap();
    let alive = client.resolve(&live.local_addr()).unwrap();
    assert_eq!(client.peer_health(dead), PeerHealth::Unknown);

    until("the refusal", || {
        client.tx_burst(&[TxPacket { route: dead, header: b"anyone?", payload: &[] }]);
        client.tx_burst(&[TxPacket { route: alive, header: b"hello", payload: &[] }]);
        client.tx_flush();
        client.rx_burst();
        client.peer_health(dead) == PeerHealth::Refused
    });
    assert_eq!(client.peer_health(alive), PeerHealth::Unknown);
    assert!(client.counters().tx_refused > 0);

    // Another transport binds the port again.
    let mut reborn = bind(UdpConfig::new(addr));
    let back = reborn.resolve(&client.local_addr()).unwrap();
    reborn.tx_burst(&[TxPacket { route: back, header: b"here", payload: &[] }]);
    reborn.tx_flush();
    assert_eq!(receive(&mut client, 1)[0].route, Some(dead));
    assert_eq!(client.peer_health(dead), PeerHealth::Unknown);
}

#[test]
fn a_refusing_peer_does_not_cost_others_their_packets() {
    let mut client = bind(loopback_v4());
    let mut live = bind(loopback_v4());
    let gone = bind(loopback_v4());
    let dead = client.resolve(&gone.local_addr()).unwrap();
    let alive = client.resolve(&live.local_addr()).unwrap();
    drop(gone);
    for number in 0..100u8 {
        // The refusal of the first packet is reported by the system call that sends the second, which must still be
        // sent.
        for (route, header) in [(dead, [0xff]), (alive, [number])] {
            client.tx_burst(&[TxPacket { route, header: &header, payload: &[] }]);
            client.tx_flush();
        }
    }
    let received = receive(&mut live, 100);
    assert!(received.iter().enumerate().all(|(i, r)| r.bytes == [i as u8]));
}

#[test]
fn a_packet_ends_the_wait() {
    let (mut server, mut client) = (bind(loopback_v4()), bind(loopback_v4()));
    let route = client.resolve(&server.local_addr()).unwrap();
    let start = Instant::now();
    let received = thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut received = Vec::new();
            while received.is_empty() && start.elapsed() < DEADLINE {
                server.wait(DEADLINE);
                received = burst(&mut server);
            }
            received
        });
        client.tx_burst(&[TxPacket { route, header: b"wake up", payload: &[] }]);
        client.tx_flush();
        waiting.join().unwrap()
    });
    assert_eq!(received[0].bytes, b"wake up");
    assert!(start.elapsed() < DEADLINE);
    assert!(server.counters().waits >= 1);
}

#[test]
fn a_waker_ends_this_wait_or_the_next() {
    let mut transport = bind(loopback_v4());
    let waker = transport.waker();
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| waker.wake());
        transport.wait(DEADLINE);
    });
    waker.wake();
    waker.wake();
    transport.wait(DEADLINE);
    assert!(start.elapsed() < DEADLINE);

    // The two wake-ups were merged: the next wait lasts until its timeout.
    let start = Instant::now();
    transport.wait(Duration::from_millis(5));
    assert!(start.elapsed() >= Duration::from_millis(5));
    drop(transport);
    waker.wake();
}

#[test]
fn sizes_follow_the_buffer_that_was_granted() {
    let transport = bind(loopback_v4());
    // What an ordinary user gets from a kernel with default settings is enough for a dozen sessions, with shorter
    // packets.
    assert!(transport.rx_queue_len() >= 180, "{}", transport.rx_queue_len());
    assert!(transport.mtu() >= 8192 + 32 || transport.mtu() == 1470, "{}", transport.mtu());
    let mut config = loopback_v4();
    config.queued_packet_bytes = Some(64);
    assert!(bind(config.clone()).rx_queue_len() > transport.rx_queue_len());
    config.rx_queue_len = Some(777);
    assert_eq!(bind(config).rx_queue_len(), 777);
}
