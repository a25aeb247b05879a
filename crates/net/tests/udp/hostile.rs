//! Datagrams of strangers: whatever bytes come, nothing may break or grow.

use std::net::{Ipv4Addr, UdpSocket};

use dunlin_net::{Transport, TxPacket};

use super::{Random, bind, burst, loopback_v4, receive, socket_addr, until};

fn stranger() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

#[test]
fn random_datagrams_are_counted_and_harmless() {
    let mut server = bind(loopback_v4());
    let to = socket_addr(&server);
    let socket = stranger();
    for seed in 0..2_000 {
        let mut random = Random(seed);
        let len_max = [3, 64, 1472, 9_000][seed as usize % 4];
        let len = random.below(len_max);
        let mut datagram = random.bytes(len);
        if seed % 3 == 0 {
            // Make it likelier to begin like a frame.
            datagram.iter_mut().skip(1).step_by(9).for_each(|high| *high = 0);
        }
        socket.send_to(&datagram, to).unwrap();
        socket.send_to(&[4, 0, b'g', b'o', b'o', b'd'], to).unwrap();
        until("the good packet", || burst(&mut server).iter().any(|r| r.bytes == *b"good"));
    }
    assert!(server.counters().rx_dropped_malformed > 500);
}

#[test]
fn each_kind_of_malformed_datagram_is_counted_once() {
    let mut server = bind(loopback_v4());
    let to = socket_addr(&server);
    let socket = stranger();
    let mut too_long = vec![0; server.mtu() + 1 + 2];
    too_long[..2].copy_from_slice(&(server.mtu() as u16 + 1).to_le_bytes());
    let malformed: [&[u8]; 6] = [&[], &[1], &[0, 0, 1, 2], &[2, 0, 9], &[0xff, 0xff, 1], &too_long];
    for (i, bytes) in malformed.iter().enumerate() {
        socket.send_to(bytes, to).unwrap();
        until("the count", || {
            assert!(burst(&mut server).is_empty());
            server.counters().rx_dropped_malformed == i as u64 + 1
        });
    }
    // Frames before the wrong length are good.
    socket.send_to(&[1, 0, 7, 9, 0, 1], to).unwrap();
    assert_eq!(receive(&mut server, 1)[0].bytes, [7]);
    assert_eq!(server.counters().rx_dropped_malformed, 7);
    // Padding may stand anywhere, and the last odd byte may be missing.
    socket.send_to(&[0, 0, 1, 0, 7, 0xff, 0, 0, 0, 0, 0xff], to).unwrap();
    socket.send_to(&[1, 0, 7, 0xff], to).unwrap();
    socket.send_to(&[1, 0, 7], to).unwrap();
    assert!(receive(&mut server, 3).iter().all(|r| r.bytes == [7]));
    assert_eq!(server.counters().rx_dropped_malformed, 7);
}

#[test]
fn strangers_get_no_route() {
    let mut config = loopback_v4();
    config.routes_max = 2;
    let mut server = bind(config);
    let to = socket_addr(&server);
    let friend = bind(loopback_v4());
    let route = server.resolve(&friend.local_addr()).unwrap();
    for _ in 0..200 {
        stranger().send_to(&[1, 0, 7], to).unwrap();
        assert_eq!(receive(&mut server, 1)[0].route, None);
    }
    // One entry is still free, and no more.
    assert_eq!(server.resolve(&friend.local_addr()).unwrap(), route);
    assert!(server.resolve(&"udp://127.0.0.1:1".parse().unwrap()).is_ok());
    assert!(server.resolve(&"udp://127.0.0.1:2".parse().unwrap()).is_err());
}

#[test]
fn drops_by_the_kernel_are_counted() {
    let mut config = loopback_v4();
    config.recv_buffer_bytes = 4096;
    let mut server = bind(config);
    assert!(server.rx_queue_len() < 10, "{}", server.rx_queue_len());
    let mut client = bind(loopback_v4());
    let route = client.resolve(&server.local_addr()).unwrap();
    let payload = [3; 1000];
    let mut sent = 0;
    until("a drop", || {
        for _ in 0..20 {
            client.tx_burst(&[TxPacket { route, header: &[], payload: &payload }]);
            client.tx_flush();
            sent += 1;
        }
        while server.rx_burst() > 0 {}
        server.counters().rx_dropped_kernel > 0
    });
    // Once there is room, a packet arrives and reports the last drops.
    client.tx_burst(&[TxPacket { route, header: b"last", payload: &[] }]);
    client.tx_flush();
    until("the last packet", || burst(&mut server).iter().any(|r| r.bytes == *b"last"));
    let counters = server.counters();
    assert_eq!(counters.rx_packets + counters.rx_dropped_kernel, sent + 1);
}
