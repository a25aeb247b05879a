//! The transport's contract, seen from outside: packets of every length, routes, sources, names and files.

mod regions;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::{Addr, NetError, PeerHealth, Route, Transport, TxPacket};
use regions::{Dir, addr};

fn files(dir: &Dir) -> usize {
    std::fs::read_dir(&dir.0).unwrap().count()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
}

fn send(from: &mut ShmTransport, route: Route, packet: &[u8]) {
    let (header, payload) = packet.split_at(packet.len().min(16));
    from.tx_burst(&[TxPacket { route, header, payload }]);
    from.tx_flush();
}

/// Polls until a burst comes.
fn receive(at: &mut ShmTransport) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let count = at.rx_burst();
        if count > 0 {
            return (0..count).map(|i| bytes(at, i)).collect();
        }
        assert!(Instant::now() < deadline, "no packet came");
    }
}

fn bytes(at: &ShmTransport, i: usize) -> Vec<u8> {
    let packet = at.rx_packet(i);
    let mut all = vec![0; packet.len()];
    packet.copy_to(0, &mut all);
    assert!(all.starts_with(packet.head()));
    all
}

/// Receives what is there and returns how much it was.
fn drain(at: &mut ShmTransport) -> usize {
    std::iter::repeat_with(|| at.rx_burst()).take_while(|count| *count > 0).sum()
}

#[test]
fn packets_of_every_length_arrive_intact() {
    let dir = Dir::new("lengths");
    let mut a = dir.endpoint("a");
    let mut b = dir.endpoint("b");
    let to_b = a.resolve(&addr("b")).unwrap();
    for len in (0..300).chain([1023, 4096, 8223, b.mtu()]) {
        let sent = pattern(len, len);
        send(&mut a, to_b, &sent);
        assert_eq!(receive(&mut b), [sent], "{len}");
    }
    send(&mut a, to_b, &pattern(b.mtu() + 1, 0));
    assert_eq!(b.rx_burst(), 0);
    assert_eq!(a.counters().tx_dropped_error, 1);
}

#[test]
fn a_burst_of_mixed_lengths_keeps_its_order() {
    let dir = Dir::new("mixed");
    let mut a = dir.endpoint("a");
    let mut b = dir.endpoint("b");
    let route = a.resolve(&addr("b")).unwrap();
    let packets: Vec<Vec<u8>> = (0..200).map(|i| pattern([48, 8000, 5, 113, 112][i % 5], i)).collect();
    let burst: Vec<_> = packets.iter().map(|p| TxPacket { route, header: &p[..5], payload: &p[5..] }).collect();
    a.tx_burst(&burst);
    let mut got = Vec::new();
    while got.len() < packets.len() {
        got.extend(receive(&mut b));
    }
    assert_eq!(got, packets);
    assert_eq!((a.counters().tx_packets, b.counters().rx_packets), (200, 200));
    assert_eq!(a.counters().tx_bytes, b.counters().rx_bytes);
}

#[test]
fn a_full_queue_drops_and_counts() {
    let dir = Dir::new("full");
    let mut a = dir.endpoint("a");
    let mut config = dir.config("b");
    (config.queue_len, config.bulk_buffers) = (64, 8);
    let mut b = ShmTransport::new(&config).unwrap();
    let route = a.resolve(&addr("b")).unwrap();
    let bulk = pattern(1000, 1);
    for _ in 0..2 {
        a.tx_burst(&[TxPacket { route, header: &bulk, payload: &[] }; 20]);
        assert_eq!(drain(&mut b), 8, "as many as there are bulk buffers");
    }
    assert_eq!(a.counters().tx_dropped_full, 24);
    for _ in 0..2 {
        a.tx_burst(&[TxPacket { route, header: b"short", payload: &[] }; 100]);
        assert_eq!(drain(&mut b), 64);
    }
    assert_eq!(a.counters().tx_dropped_full, 24 + 72);
}

#[test]
fn a_sender_is_known_by_name_at_once_and_by_route_once_resolved() {
    let dir = Dir::new("source");
    let mut a = dir.endpoint("a");
    let mut b = dir.endpoint("b");
    let to_b = a.resolve(&addr("b")).unwrap();
    send(&mut a, to_b, b"one");
    assert_eq!(b.rx_burst(), 1);
    assert_eq!((b.rx_packet(0).route(), b.rx_source(0)), (None, Some(addr("a"))));

    let to_a = b.resolve(&addr("a")).unwrap();
    assert_eq!(b.resolve(&addr("a")).unwrap(), to_a);
    send(&mut a, to_b, b"two");
    assert_eq!(b.rx_burst(), 1);
    assert_eq!(b.rx_packet(0).route(), Some(to_a));

    b.release(to_a);
    send(&mut a, to_b, b"three");
    assert_eq!(b.rx_burst(), 1);
    assert_eq!(b.rx_packet(0).route(), Some(to_a), "one user is left");
    b.release(to_a);
    send(&mut a, to_b, b"four");
    assert_eq!(b.rx_burst(), 1);
    assert_eq!(b.rx_packet(0).route(), None);
}

#[test]
fn an_endpoint_can_send_to_itself() {
    let dir = Dir::new("self");
    let mut a = dir.endpoint("a");
    let route = a.resolve(&addr("a")).unwrap();
    send(&mut a, route, b"hello");
    assert_eq!(a.rx_burst(), 1);
    assert_eq!((a.rx_packet(0).bytes(), a.rx_packet(0).route()), (Some(&b"hello"[..]), Some(route)));
    assert_eq!(a.peer_health(route), PeerHealth::Alive);
}

#[test]
fn strangers_can_be_answered_without_a_route() {
    let dir = Dir::new("stranger");
    let mut a = dir.endpoint("a");
    let mut b = dir.endpoint("b");
    b.tx_to(&addr("a"), &pattern(500, 1)).unwrap();
    b.tx_to(&addr("a"), b"short").unwrap();
    assert_eq!(receive(&mut a), [pattern(500, 1), b"short".to_vec()]);
    assert_eq!(a.rx_source(0), Some(addr("b")));
    assert!(matches!(b.tx_to(&addr("nobody"), b"x"), Err(NetError::NotFound { .. })));
    assert!(matches!(b.tx_to(&Addr::Node(1), b"x"), Err(NetError::WrongKind { .. })));
}

/// Endpoints answer handshakes without a route, and several answers may arrive together.
#[test]
fn packets_of_several_strangers_keep_the_names_of_their_senders() {
    let dir = Dir::new("strangers");
    let mut a = dir.endpoint("a");
    let names: Vec<String> = (0..8).map(|i| format!("b{i}")).collect();
    for name in &names {
        dir.endpoint(name).tx_to(&addr("a"), name.as_bytes()).unwrap();
    }
    let mut count = 0;
    while count < names.len() {
        let got = receive(&mut a);
        for (i, name) in got.iter().enumerate() {
            assert_eq!(a.rx_source(i), Some(addr(std::str::from_utf8(name).unwrap())));
        }
        count += got.len();
    }
}

#[test]
fn a_packet_of_a_released_route_gets_no_other_peers() {
    let dir = Dir::new("released");
    let [mut a, mut b, _c] = ["a", "b", "c"].map(|name| dir.endpoint(name));
    let (to_b, to_a) = (a.resolve(&addr("b")).unwrap(), b.resolve(&addr("a")).unwrap());
    send(&mut b, to_a, b"hi");
    assert_eq!((a.rx_burst(), a.rx_packet(0).route()), (1, Some(to_b)));
    a.release(to_b);
    assert_eq!(a.resolve(&addr("c")).unwrap(), to_b, "the number is used again");
    assert_eq!(a.rx_packet(0).route(), None);
}

/// Its owner made it as large as a region may be, and never touched it.
#[test]
fn the_region_of_a_peer_is_not_filled_by_those_that_resolve_it() {
    let dir = Dir::new("sparse");
    let mut a = dir.endpoint("a");
    let mut config = dir.config("b");
    config.queue_len = 1 << 20;
    let _b = ShmTransport::new(&config).unwrap();
    let mut paths = std::fs::read_dir(&dir.0).unwrap().map(|entry| entry.unwrap().path());
    let path = paths.find(|path| path.to_str().unwrap().ends_with("-b")).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // Give back what the owner has of the cells.
    let at = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, at, 1 << 20, 64 << 20).unwrap();
    let before = file.metadata().unwrap().blocks();
    a.resolve(&addr("b")).unwrap();
    let more = (file.metadata().unwrap().blocks() - before) * 512;
    assert!(more < 1 << 20, "{more} bytes were taken for the region of another");
}

#[test]
fn a_restarted_peer_is_another_peer() {
    let dir = Dir::new("restart");
    let mut a = dir.endpoint("a");
    let b = dir.endpoint("b");
    let old = a.resolve(&addr("b")).unwrap();
    assert_eq!(a.peer_health(old), PeerHealth::Alive);
    drop(b);
    assert_eq!(a.peer_health(old), PeerHealth::Dead);
    assert!(matches!(a.resolve(&addr("b")), Err(NetError::NotFound { .. })));
    send(&mut a, old, b"lost");
    assert_eq!(a.counters().tx_dropped_error, 1);

    let mut b = dir.endpoint("b");
    let new = a.resolve(&addr("b")).unwrap();
    assert_ne!(new, old);
    let to_a = b.resolve(&addr("a")).unwrap();
    send(&mut b, to_a, b"hi");
    assert_eq!(a.rx_burst(), 1);
    assert_eq!(a.rx_packet(0).route(), Some(new));
    a.release(old);
    send(&mut a, new, b"there");
    assert_eq!(receive(&mut b), [b"there"]);
    assert_eq!(a.peer_health(new), PeerHealth::Alive);
}

#[test]
fn a_slot_reused_by_another_sender_is_not_taken_for_the_first() {
    let dir = Dir::new("reuse");
    let mut server = dir.endpoint("server");
    let mut known = None;
    for round in 0..5 {
        let name = format!("client{round}");
        let mut client = dir.endpoint(&name);
        let to_server = client.resolve(&addr("server")).unwrap();
        send(&mut client, to_server, b"hello");
        assert_eq!(server.rx_burst(), 1);
        assert_eq!((server.rx_packet(0).route(), server.rx_source(0)), (None, Some(addr(&name))));
        known = Some(server.resolve(&addr(&name)).unwrap());
        send(&mut client, to_server, b"again");
        assert_eq!(server.rx_burst(), 1);
        assert_eq!(server.rx_packet(0).route(), known);
    }
    assert_eq!(server.peer_health(known.unwrap()), PeerHealth::Dead);
}

#[test]
fn the_region_does_not_grow_with_256_senders() {
    let dir = Dir::new("many");
    let mut server = dir.endpoint("server");
    let file = dir.0.join(format!("dunlin-{}-server", std::fs::metadata(&dir.0).unwrap().uid()));
    let before = std::fs::metadata(&file).unwrap();
    assert_eq!(before.permissions().mode() & 0o7777, 0o600);
    let mut senders: Vec<(ShmTransport, Route)> = (0..256)
        .map(|i| {
            let mut config = dir.config(&format!("sender{i}"));
            (config.queue_len, config.bulk_buffers) = (64, 1);
            let mut sender = ShmTransport::new(&config).unwrap();
            let route = sender.resolve(&addr("server")).unwrap();
            (sender, route)
        })
        .collect();
    let mut seen = std::collections::HashMap::new();
    for round in 0..3 {
        for (i, (sender, route)) in senders.iter_mut().enumerate() {
            send(sender, *route, &pattern(32, i));
            send(sender, *route, &pattern(300, i));
            if round > 0 {
                continue;
            }
            assert_eq!(server.rx_burst(), 2);
            seen.insert(server.rx_source(0), bytes(&server, 0));
            assert_eq!(server.rx_source(1), server.rx_source(0));
        }
    }
    assert_eq!(seen.len(), 256);
    for i in 0..256 {
        assert_eq!(seen[&Some(addr(&format!("sender{i}")))], pattern(32, i));
    }
    let mut got = 0;
    while got < 2 * 2 * 256 {
        got += receive(&mut server).len();
    }
    let after = std::fs::metadata(&file).unwrap();
    assert_eq!(before.len(), after.len());
}

#[test]
fn concurrent_senders_lose_nothing_that_was_accepted() {
    const SENDERS: usize = 4;
    const PACKETS: u64 = 20_000;
    let dir = Dir::new("concurrent");
    let mut config = dir.config("server");
    (config.queue_len, config.bulk_buffers) = (256, 16);
    let mut server = ShmTransport::new(&config).unwrap();
    let accepted: Vec<u64> = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let mut from = dir.endpoint(&format!("sender{sender}"));
                let route = from.resolve(&addr("server")).unwrap();
                scope.spawn(move || {
                    // Each number is offered until it is accepted, with a length and contents of its own.
                    while from.counters().tx_packets < PACKETS {
                        let number = from.counters().tx_packets;
                        let len = if number.is_multiple_of(16) { 200 } else { 20 + number as usize % 90 };
                        let filling = vec![(number + sender as u64) as u8; len];
                        let header = [number.to_le_bytes(), (sender as u64).to_le_bytes()].concat();
                        from.tx_burst(&[TxPacket { route, header: &header, payload: &filling }]);
                    }
                    from.counters().tx_packets
                })
            })
            .collect();
        let mut next = [0u64; SENDERS];
        let end = Instant::now() + Duration::from_secs(60);
        while next.iter().sum::<u64>() < PACKETS * SENDERS as u64 {
            assert!(Instant::now() < end, "packets are missing: {next:?}");
            for i in 0..server.rx_burst() {
                let packet = bytes(&server, i);
                let number = u64::from_le_bytes(packet[..8].try_into().unwrap());
                let sender = u64::from_le_bytes(packet[8..16].try_into().unwrap()) as usize;
                assert!(packet[16..].iter().all(|b| *b == (number + sender as u64) as u8), "garbled");
                assert_eq!(number, next[sender], "one sender's packets come in order");
                next[sender] += 1;
            }
        }
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    assert_eq!(accepted, [PACKETS; SENDERS]);
    assert_eq!((server.counters().rx_reclaimed, server.counters().rx_dropped_malformed), (0, 0));
}

#[test]
fn a_table_of_senders_or_routes_that_is_full_says_so() {
    let dir = Dir::new("limits");
    let mut config = dir.config("server");
    config.senders_max = 1;
    let _server = ShmTransport::new(&config).unwrap();
    let mut config = dir.config("a");
    config.routes_max = 1;
    let mut a = ShmTransport::new(&config).unwrap();
    let mut b = dir.endpoint("b");
    let route = a.resolve(&addr("server")).unwrap();
    assert!(matches!(b.resolve(&addr("server")), Err(NetError::Full { limit: 1, .. })));
    assert!(matches!(a.resolve(&addr("b")), Err(NetError::Full { limit: 1, .. })));
    a.release(route);
    b.resolve(&addr("server")).unwrap();
}

#[test]
fn names_are_exclusive_and_files_go_with_their_endpoints() {
    let dir = Dir::new("files");
    let a = dir.endpoint("a");
    assert!(matches!(ShmTransport::new(&dir.config("a")), Err(NetError::InUse { .. })));
    let mut anonymous = ShmConfig::anonymous();
    anonymous.directory = dir.0.clone();
    let b = ShmTransport::new(&anonymous).unwrap();
    let c = ShmTransport::new(&anonymous).unwrap();
    assert_ne!(b.local_addr(), c.local_addr());
    assert_eq!(files(&dir), 3);
    drop((a, b, c));
    assert_eq!(files(&dir), 0);
}

#[test]
fn files_that_are_no_regions_are_refused() {
    let dir = Dir::new("bad");
    let mut a = dir.endpoint("a");
    let uid = std::fs::metadata(&dir.0).unwrap().uid();
    std::os::unix::fs::symlink("/etc/passwd", dir.0.join(format!("dunlin-{uid}-link"))).unwrap();
    assert!(matches!(a.resolve(&addr("link")), Err(NetError::Io { .. })));
    std::fs::create_dir(dir.0.join(format!("dunlin-{uid}-dir"))).unwrap();
    assert!(a.resolve(&addr("dir")).is_err());
    std::fs::write(dir.0.join(format!("dunlin-{uid}-stale")), b"left by the dead").unwrap();
    assert!(matches!(a.resolve(&addr("stale")), Err(NetError::NotFound { .. })));
    let _stale = dir.endpoint("stale");
    assert!(a.resolve(&addr("stale")).is_ok());
    let mut bad = dir.config("x");
    bad.queue_len = 100;
    assert!(matches!(ShmTransport::new(&bad), Err(NetError::BadSetting { name: "queue_len", .. })));
}
