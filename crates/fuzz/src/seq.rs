//! The messages and datagrams of a sequencer.
//!
//! The first byte says what the rest is: a message for one parser, or, for 0 and 1, a list of datagrams that a live
//! server and a live client get. Each datagram is a byte for its length, a byte of flags, and its bytes.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_net::{Addr, Transport, TxPacket};
use dunlin_seq::direct::packet::{Bytes, Kind, LONG_BYTES, Packet};
use dunlin_seq::direct::{DirectClient, DirectConfig, DirectServer, DirectServerConfig};
use dunlin_seq::reserve::{CoordinatedOffice, Reservations};
use dunlin_seq::wire::{Code, INFO_BYTES, Info, NEXT_BYTES, Next, check_info, encode_info};
use dunlin_seq::{Counter, NUMBERS_END};
use dunlin_smr::StateMachine;

/// The incarnation of the live server, and the first tag of the live client.
const INCARNATION: u32 = 7;
const FIRST_TAG: u64 = 40;
/// Flag of a datagram: its header is made right, so that fuzzing reaches what it protects.
const PUT_RIGHT: u8 = 1;
/// Flag: it goes to the client, as if from its server.
const TO_CLIENT: u8 = 2;
/// Calls of the client, and the nodes of both and of the attacker.
const CALLS: u64 = 8;
const SERVER: u32 = 1;
const CLIENT: u32 = 2;
const ATTACKER: u32 = 3;

/// Checks one input.
///
/// # Panics
/// If something does not hold.
pub fn check(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    match what % 8 {
        0 => to_server(bytes),
        1 => to_client(bytes),
        2 => check_next(bytes),
        3 => assert_eq!(check_info(bytes).is_ok(), bytes == encode_info()),
        4 => {
            if let Some(info) = Info::parse(bytes) {
                assert_eq!(info.encode()[..], *bytes);
            }
        }
        5 => check_packet(bytes),
        6 => check_machine(bytes),
        _ => {
            if let Some(office) = CoordinatedOffice::parse(bytes) {
                assert_eq!(office.encode().as_bytes(), bytes);
                assert!(office.reserved <= NUMBERS_END);
            }
        }
    }
}

fn check_next(bytes: &[u8]) {
    match Next::parse(bytes) {
        Ok(next) => assert_eq!(next.encode()[..], *bytes),
        Err(Code::Malformed) => assert_ne!(bytes.len(), NEXT_BYTES),
        Err(_) => assert_eq!(bytes.len(), NEXT_BYTES),
    }
    assert_eq!(check_info(bytes) == Err(Code::Malformed), bytes.len() != INFO_BYTES);
}

fn check_packet(bytes: &[u8]) {
    if let Some(packet) = Packet::parse(bytes) {
        let mut again: Bytes = [0; LONG_BYTES];
        let len = packet.write(&mut again);
        assert_eq!(again[..len], *bytes);
    }
}

/// Commands of 40 bytes each, in a row: the end of the reserved numbers never falls, and the state is read back.
fn check_machine(bytes: &[u8]) {
    let mut machine = Reservations::new();
    for command in bytes.chunks(40) {
        let (before, mut reply) = (machine.office(), Vec::new());
        machine.apply(1, command, &mut reply);
        let after = machine.office();
        assert!(after.reserved >= before.reserved && after.epoch >= before.epoch && after.stamp >= before.stamp);
        assert!(after.reserved <= NUMBERS_END && !reply.is_empty());
    }
    let mut snapshot = Vec::new();
    machine.snapshot(&mut snapshot);
    let mut again = Reservations::new();
    again.restore(&snapshot).expect("a snapshot of its own");
    assert_eq!(again.office(), machine.office());
    if again.restore(bytes).is_ok() {
        let mut written = Vec::new();
        again.snapshot(&mut written);
        assert_eq!(written, bytes);
    }
}

/// The next datagram, with its flags.
fn take(bytes: &mut &[u8]) -> Option<(u8, Vec<u8>)> {
    let (&[len, flags], rest) = bytes.split_first_chunk()?;
    let (datagram, rest) = rest.split_at(usize::from(len % 32).min(rest.len()));
    *bytes = rest;
    let mut datagram = datagram.to_vec();
    if flags & PUT_RIGHT != 0 && datagram.len() >= 16 {
        datagram[..3].copy_from_slice(&[0x5e, 0xd0, 1]);
        datagram[4..8].copy_from_slice(&INCARNATION.to_le_bytes());
        // The tags of the calls.
        let tag = FIRST_TAG + u64::from(datagram[8]) % (2 * CALLS);
        datagram[8..16].copy_from_slice(&tag.to_le_bytes());
    }
    Some((flags, datagram))
}

fn network() -> LoopbackNetwork {
    LoopbackNetwork::new(LoopbackConfig { delay: Duration::ZERO, ..LoopbackConfig::default() })
}

fn send(from: &mut LoopbackTransport, to: u32, datagram: &[u8]) {
    // An empty or a long datagram may be refused by the transport.
    let Ok(route) = from.resolve(&Addr::Node(to)) else { return };
    if !datagram.is_empty() {
        from.tx_burst(&[TxPacket { route, header: datagram, payload: &[] }]);
        from.tx_flush();
    }
}

fn drain(transport: &mut LoopbackTransport) {
    while transport.rx_burst() > 0 {}
}

/// A server draws one number for each valid request, and none for anything else.
fn to_server(mut bytes: &[u8]) {
    let net = network();
    let counter = Arc::new(Counter::starting_at(5).expect("numbers from 5"));
    let config = DirectServerConfig { incarnation: Some(INCARNATION), peers_max: 2, ..DirectServerConfig::default() };
    let queues = vec![net.endpoint(SERVER).expect("a node")];
    let mut server = DirectServer::new(queues, counter.clone(), config).expect("a server");
    let mut attackers = [ATTACKER, ATTACKER + 1, ATTACKER + 2].map(|node| net.endpoint(node).expect("a node"));
    let mut valid = 0;
    while let Some((flags, datagram)) = take(&mut bytes) {
        let is_request = |packet: Packet| packet.kind == Kind::Ask && packet.incarnation == INCARNATION;
        valid += u64::from(Packet::parse(&datagram).is_some_and(is_request));
        let attacker = &mut attackers[usize::from(flags >> 2) % 3];
        send(attacker, SERVER, &datagram);
        while server.turn() > 0 {}
        drain(attacker);
    }
    assert_eq!((server.stats().numbers, counter.next()), (valid, 5 + valid));
}

/// A client that a server and an attacker in its place answer: no number comes twice, and all calls end.
fn to_client(mut bytes: &[u8]) {
    let net = network();
    let counter = Arc::new(Counter::starting_at((1 << 32) - 4).expect("numbers before a wrap"));
    let config = DirectServerConfig { incarnation: Some(INCARNATION), ..DirectServerConfig::default() };
    let queues = vec![net.endpoint(SERVER).expect("a node")];
    let mut server = DirectServer::new(queues, counter, config).expect("a server");
    let config = DirectConfig { first_tag: Some(FIRST_TAG), calls_max: CALLS as usize, ..DirectConfig::default() };
    let transport = net.endpoint(CLIENT).expect("a node");
    let mut client = DirectClient::new(transport, vec![Addr::Node(SERVER)], config).expect("a client");
    let mut attacker = net.endpoint(ATTACKER).expect("a node");
    let (begun, mut ended, mut tokens) = (Cell::new(0), 0, HashSet::new());
    let mut step = |client: &mut DirectClient<LoopbackTransport>| {
        while client.ask(begun.get()).is_ok() {
            begun.set(begun.get() + 1);
        }
        client.poll(|token, _| {
            assert!(token < begun.get() && tokens.insert(token), "call {token} ended twice");
            ended += 1;
        });
    };
    step(&mut client);
    while let Some((flags, datagram)) = take(&mut bytes) {
        if flags & TO_CLIENT != 0 {
            send(&mut attacker, CLIENT, &datagram);
        } else {
            while server.turn() > 0 {}
        }
        net.advance(Duration::from_micros(u64::from(flags >> 2) * 100));
        step(&mut client);
        drain(&mut attacker);
    }
    // No call outlives its deadline.
    net.advance(Duration::from_secs(3));
    let left = client.in_progress();
    let mut last = 0;
    client.poll(|_, _| last += 1);
    assert!(last <= left && client.in_progress() + last == left);
    assert_eq!(client.in_progress(), 0, "{left} calls were in progress");
}

/// The first corpus: a message of each kind, and datagrams in a row.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let named = |what: u8, bytes: &[u8]| [&[what], bytes].concat();
    let info = Info { start: 1, next: 2, end: 3, numbers: 4, requests: 5, is_serving: true, epoch: 6 };
    let packet = |kind, data| {
        let mut bytes: Bytes = [0; LONG_BYTES];
        let len = Packet { kind, incarnation: INCARNATION, tag: FIRST_TAG, data }.write(&mut bytes);
        bytes[..len].to_vec()
    };
    let kinds = [Kind::Ask, Kind::Low, Kind::Full, Kind::Hello, Kind::Refused, Kind::Epoch];
    let framed = |flags: u8| {
        let one = |kind| {
            let datagram = packet(kind, 1);
            [&[datagram.len() as u8, flags][..], &datagram].concat()
        };
        kinds.into_iter().flat_map(one).collect::<Vec<u8>>()
    };
    // A command takes the office, one reserves more, and one gives it up: version, kind, six zeros, four numbers.
    let command = |kind: u8, words: [u64; 4]| {
        let mut bytes = vec![1, kind, 0, 0, 0, 0, 0, 0];
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    };
    let commands = [command(1, [9, 0, 1000, 0]), command(2, [9, 1, 1000, 0]), command(3, [9, 1, 0, 0])].concat();
    vec![
        ("to_server", named(0, &framed(PUT_RIGHT))),
        ("to_client", named(1, &framed(PUT_RIGHT | TO_CLIENT | 4))),
        ("next", named(2, &Next { epoch: 3, length: 100 }.encode())),
        ("info_request", named(3, &encode_info())),
        ("info", named(4, &info.encode())),
        ("packet_short", named(5, &packet(Kind::Low, 7))),
        ("packet_long", named(5, &packet(Kind::Full, 7 << 32))),
        ("packet_epoch", named(5, &packet(Kind::Epoch, 7))),
        ("machine", named(6, &commands)),
        ("office", named(7, b"3 2000000")),
    ]
}
