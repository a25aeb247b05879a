//! What is sent arrives complete, in order and with the right sender, whatever is batched on the way.

use std::net::{Ipv6Addr, SocketAddr};

use dunlin_net::transport::RX_BURST;
use dunlin_net::udp::{Coalesce, Offload, UdpConfig, UdpTransport};
use dunlin_net::{Route, Transport, TxPacket};

use super::{Random, bind, burst, loopback_v4, receive, until};

/// All ways to batch, and both small and large datagrams.
fn variants() -> Vec<UdpConfig> {
    let mut all = Vec::new();
    for gso in [Offload::Auto, Offload::Off] {
        for gro in [Offload::Auto, Offload::Off] {
            for coalesce in [Coalesce::Fill, Coalesce::Off] {
                for mtu in [None, Some(1470), Some(64)] {
                    let mut config = loopback_v4();
                    (config.gso, config.gro, config.coalesce, config.mtu) = (gso, gro, coalesce, mtu);
                    all.push(config);
                }
            }
        }
    }
    all
}

/// Sends `messages`, each split into header and payload at a place that depends on its number.
fn send(transport: &mut UdpTransport, route: Route, messages: &[Vec<u8>]) {
    let packets: Vec<_> = messages
        .iter()
        .enumerate()
        .map(|(i, message)| {
            let (header, payload) = message.split_at((i * 7) % (message.len() + 1).min(64));
            TxPacket { route, header, payload }
        })
        .collect();
    transport.tx_burst(&packets);
    transport.tx_flush();
}

#[test]
fn every_way_to_batch_delivers_the_same_packets() {
    for config in variants() {
        let (mut server, mut client) = (bind(config.clone()), bind(config.clone()));
        let route = client.resolve(&server.local_addr()).unwrap();
        let back = server.resolve(&client.local_addr()).unwrap();
        let mut random = Random(7);
        let mtu = client.mtu();
        for round in 0..20 {
            let count = 1 + random.below(100);
            let len_max = [mtu, 64, mtu, 1000.min(mtu)][round % 4];
            let messages: Vec<_> = (0..count)
                .map(|_| {
                    let len = 1 + random.below(len_max);
                    random.bytes(len)
                })
                .collect();
            send(&mut client, route, &messages);
            let received = receive(&mut server, count);
            assert!(received.iter().map(|r| &r.bytes).eq(&messages), "{config:?}");
            assert!(received.iter().all(|r| r.route == Some(back) && r.from == Some(client.local_addr())));
        }
        let (sent, got) = (client.counters(), server.counters());
        assert_eq!((sent.tx_packets, sent.tx_bytes), (got.rx_packets, got.rx_bytes), "{config:?}");
        assert_eq!((sent.tx_dropped_error, sent.tx_dropped_full), (0, 0));
        assert_eq!((got.rx_dropped_malformed, got.rx_dropped_kernel), (0, 0));
    }
}

#[test]
fn every_length_up_to_the_mtu() {
    for mtu in [None, Some(1470)] {
        let mut config = loopback_v4();
        config.mtu = mtu;
        let (mut server, mut client) = (bind(config.clone()), bind(config));
        let route = client.resolve(&server.local_addr()).unwrap();
        let largest = client.mtu();
        let lengths = (1..=130).chain(500..530).chain(largest - 70..=largest);
        for len in lengths {
            let message = Random(len as u64).bytes(len);
            send(&mut client, route, std::slice::from_ref(&message));
            assert_eq!(receive(&mut server, 1)[0].bytes, message);
        }
        // The same lengths, each in a burst of its own: full datagrams, and full trains of them.
        for len in [largest, largest - 1, largest / 2, largest / 2 - 2, largest / 3, 1] {
            let messages: Vec<_> = (0..130).map(|i| Random(i).bytes(len)).collect();
            send(&mut client, route, &messages);
            assert!(receive(&mut server, 130).iter().map(|r| &r.bytes).eq(&messages), "{len}");
        }
    }
}

#[test]
fn what_cannot_be_a_packet_is_counted() {
    let (mut server, mut client) = (bind(loopback_v4()), bind(loopback_v4()));
    let route = client.resolve(&server.local_addr()).unwrap();
    let too_long = vec![1; client.mtu() + 1];
    let packet = |payload| TxPacket { route, header: &[], payload };
    client.tx_burst(&[packet(&[]), packet(&too_long), packet(&[1]), TxPacket { route: Route(77), ..packet(&[2]) }]);
    client.tx_flush();
    assert_eq!(receive(&mut server, 1)[0].bytes, [1]);
    assert_eq!(client.counters().tx_dropped_error, 3);
    client.tx_to(&server.local_addr(), &too_long).unwrap();
    assert_eq!(client.counters().tx_dropped_error, 4);
}

#[test]
fn headers_may_stand_alone() {
    let (mut server, mut client) = (bind(loopback_v4()), bind(loopback_v4()));
    let route = client.resolve(&server.local_addr()).unwrap();
    client.tx_burst(&[TxPacket { route, header: &[1, 2], payload: &[] }]);
    client.tx_flush();
    assert_eq!(receive(&mut server, 1)[0].bytes, [1, 2]);
}

#[test]
fn small_packets_wait_for_the_flush_and_share_a_send() {
    let (mut server, mut client) = (bind(loopback_v4()), bind(loopback_v4()));
    let route = client.resolve(&server.local_addr()).unwrap();
    for byte in 0..50 {
        client.tx_burst(&[TxPacket { route, header: &[byte], payload: &[byte; 47] }]);
    }
    assert_eq!(client.counters().tx_batches, 0);
    client.tx_flush();
    assert_eq!((client.counters().tx_batches, client.counters().tx_packets), (1, 50));
    assert_eq!(receive(&mut server, 50)[49].bytes, [49; 48]);
    assert_eq!(server.counters().rx_batches, 1);
}

#[test]
fn large_packets_leave_within_the_burst() {
    let (mut server, mut client) = (bind(loopback_v4()), bind(loopback_v4()));
    let route = client.resolve(&server.local_addr()).unwrap();
    let payload = vec![5; 8192];
    client.tx_burst(&vec![TxPacket { route, header: &[4; 32], payload: &payload }; 7]);
    assert_eq!((client.counters().tx_batches, client.counters().tx_packets), (1, 7));
    assert!(receive(&mut server, 7).iter().all(|r| r.bytes.len() == 8224));
}

#[test]
fn destinations_are_kept_apart_and_ordered() {
    for config in variants() {
        let mut client = bind(config.clone());
        let mut servers: Vec<_> = (0..4).map(|_| bind(config.clone())).collect();
        let routes: Vec<_> = servers.iter().map(|s| client.resolve(&s.local_addr()).unwrap()).collect();
        let mut random = Random(3);
        let messages: Vec<(usize, Vec<u8>)> = (0..300)
            .map(|_| {
                let len = 1 + random.below(client.mtu().min(1400));
                (random.below(4), random.bytes(len))
            })
            .collect();
        for chunk in messages.chunks(33) {
            let packets: Vec<_> =
                chunk.iter().map(|(to, m)| TxPacket { route: routes[*to], header: &[], payload: m }).collect();
            client.tx_burst(&packets);
        }
        client.tx_flush();
        for (number, server) in servers.iter_mut().enumerate() {
            let expected: Vec<_> = messages.iter().filter(|(to, _)| *to == number).map(|(_, m)| m).collect();
            let received = receive(server, expected.len());
            assert!(received.iter().map(|r| &r.bytes).eq(expected));
        }
    }
}

#[test]
fn one_receive_may_feed_several_bursts() {
    let (mut server, mut client) = (bind(loopback_v4()), bind(loopback_v4()));
    let route = client.resolve(&server.local_addr()).unwrap();
    let messages: Vec<_> = (0..300u16).map(|i| i.to_le_bytes().repeat(10)).collect();
    send(&mut client, route, &messages);
    assert_eq!(client.counters().tx_batches, 1);

    let mut received = Vec::new();
    until("all bursts", || {
        let started = !received.is_empty();
        if started {
            // Nothing more comes, so this would sleep long if it did not know about leftover packets.
            server.wait(super::DEADLINE);
        }
        let packets = burst(&mut server);
        assert!(packets.len() <= RX_BURST);
        assert!(!started || !packets.is_empty(), "what is left is handed out before the socket is asked again");
        received.extend(packets);
        received.len() == 300
    });
    assert!(received.iter().map(|r| &r.bytes).eq(&messages));
}

#[test]
fn ipv6_works_the_same() {
    let config = UdpConfig::new(SocketAddr::from((Ipv6Addr::LOCALHOST, 0)));
    let Ok(mut server) = UdpTransport::bind(config.clone()) else {
        eprintln!("no IPv6 here: not tested");
        return;
    };
    let mut client = bind(config);
    let route = client.resolve(&server.local_addr()).unwrap();
    let back = server.resolve(&client.local_addr()).unwrap();
    for len in [1, 48, 1400, client.mtu()] {
        let messages: Vec<_> = (0..150).map(|i| Random(i).bytes(len)).collect();
        send(&mut client, route, &messages);
        let received = receive(&mut server, 150);
        assert!(received.iter().map(|r| &r.bytes).eq(&messages));
        assert!(received.iter().all(|r| r.route == Some(back) && r.from == Some(client.local_addr())));
    }
    assert!(client.resolve(&"udp://127.0.0.1:1".parse().unwrap()).is_err());
}

#[test]
fn a_socket_at_every_address_reaches_loopback() {
    let mut server = bind(UdpConfig::new("0.0.0.0:0".parse().unwrap()));
    let mut client = bind(loopback_v4());
    assert_eq!(server.mtu(), 1470);
    let port = super::socket_addr(&server).port();
    let route = client.resolve(&format!("udp://127.0.0.1:{port}").parse().unwrap()).unwrap();
    let messages: Vec<_> = (0..64).map(|i| Random(i).bytes(1470)).collect();
    send(&mut client, route, &messages);
    assert!(receive(&mut server, 64).iter().map(|r| &r.bytes).eq(&messages));
    let back = server.resolve(&client.local_addr()).unwrap();
    send(&mut server, back, &messages);
    assert!(receive(&mut client, 64).iter().map(|r| &r.bytes).eq(&messages));
}

#[test]
fn strangers_can_be_answered() {
    let (mut server, mut client) = (bind(loopback_v4()), bind(loopback_v4()));
    let route = client.resolve(&server.local_addr()).unwrap();
    send(&mut client, route, &[b"who are you?".to_vec()]);
    let asked = receive(&mut server, 1).remove(0);
    assert_eq!(asked.route, None);
    server.tx_to(&asked.from.unwrap(), b"nobody").unwrap();
    let answer = receive(&mut client, 1).remove(0);
    assert_eq!((answer.route, answer.bytes), (Some(route), b"nobody".to_vec()));
}
