//! Packets that come to live endpoints, from a peer that has a session with each and from a stranger.
//!
//! The input is a sequence of packets, each as a length, a byte that says who sends it and what is put right in it, and
//! its bytes.

use std::pin::Pin;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_net::{Addr, PollPolicy, Route, Transport, TxPacket};
use dunlin_rpc::wire::control::{Accept, Body, Connect, Cookie};
use dunlin_rpc::wire::header::VERSION;
use dunlin_rpc::wire::{HEADER_BYTES_MAX, Header, Kind, MASK_24};
use dunlin_rpc::{Call, Endpoint, EndpointConfig};

/// Packets of one input, at most: each may cost an allocation of the largest message.
const PACKETS_MAX: usize = 64;
const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// The packet comes from somebody without a session.
pub const FROM_STRANGER: u8 = 1;
/// Session and tag are put right.
pub const ON_SESSION: u8 = 2;
/// The endpoints run before the next packet.
pub const THEN_RUN: u8 = 4;

type Ep = Endpoint<LoopbackTransport>;
type Calls = Vec<Pin<Box<Call<Vec<u8>>>>>;

/// One endpoint under attack, and the attacker's end of the session with it.
struct Victim {
    endpoint: Ep,
    network: LoopbackNetwork,
    peer: LoopbackTransport,
    stranger: LoopbackTransport,
    route: Route,
    stranger_route: Route,
    /// Session and tag of packets to it.
    session: (u32, u32),
}

fn packet(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = header.write(&mut bytes);
    [&bytes[..len], body].concat()
}

fn body_of<B: Body>(body: &B) -> Vec<u8> {
    let mut bytes = Vec::new();
    body.write(&mut bytes);
    bytes
}

/// What an attacker asks for and is given in a handshake.
fn connect() -> Connect {
    Connect {
        versions: (VERSION, VERSION),
        slots: 8,
        credits: 8,
        reverse_credits: 8,
        mtu: 512,
        message_bytes_max: MESSAGE_BYTES_MAX as u32,
        session: 5,
        tag: 77,
        incarnation: 1,
        nonce: 2,
        cookie: [0; 16],
        credits_start: 8,
        reverse_start: 8,
    }
}

impl Victim {
    fn new() -> Victim {
        let network = LoopbackNetwork::new(LoopbackConfig { mtu: 512, ..LoopbackConfig::default() });
        network.advance_to(1_000_000_000);
        let config = EndpointConfig {
            poll: PollPolicy::Sleep,
            message_bytes_max: MESSAGE_BYTES_MAX,
            seed: Some(3),
            ..EndpointConfig::default()
        };
        let endpoint =
            Ep::new(network.endpoint(1).expect("the network is new"), config).expect("the settings are in range");
        endpoint.register(1, |request| request.respond_with(700, |out| out.fill(1))).expect("the type is free");
        let answer_some = |burst: &mut dunlin_rpc::RequestBurst<'_>| {
            for i in (0..burst.len()).step_by(2) {
                burst.respond(i, burst.payload(i));
            }
        };
        endpoint.register_burst(2, answer_some).expect("the type is free");
        endpoint.register_async(3, |request| async move { request.into_payload() }).expect("the type is free");
        let mut peer = network.endpoint(2).expect("the network is new");
        let mut stranger = network.endpoint(3).expect("the network is new");
        let route = peer.resolve(&Addr::Node(1)).expect("the node exists");
        let stranger_route = stranger.resolve(&Addr::Node(1)).expect("the node exists");
        Victim { endpoint, network, peer, stranger, route, stranger_route, session: (0, 0) }
    }

    fn run(&self) {
        for _ in 0..4 {
            self.endpoint.run_once();
            self.network.advance(Duration::from_micros(1));
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.peer.tx_burst(&[TxPacket { route: self.route, header: bytes, payload: &[] }]);
    }

    /// The body of the next packet to the peer.
    fn received(&mut self) -> Vec<u8> {
        self.run();
        let count = self.peer.rx_burst();
        assert!(count > 0, "an honest handshake is answered");
        self.peer.rx_packet(0).bytes().expect("loopback memory is private")[16..].to_vec()
    }

    /// The attacker opens a session, as any client may.
    fn as_server() -> Victim {
        let mut victim = Victim::new();
        let header = Header::new(Kind::Connect, 0, MASK_24, 0, 0);
        victim.send(&packet(&header, &body_of(&connect())));
        let cookie = Cookie::parse(&victim.received()).expect("the first answer is a cookie").cookie;
        victim.send(&packet(&header, &body_of(&Connect { cookie, ..connect() })));
        let accept = Accept::parse(&victim.received()).expect("the second answer accepts");
        victim.session = (accept.session, accept.tag);
        victim
    }

    /// The attacker accepts a session, and calls wait for its answers.
    fn as_client() -> (Victim, Calls) {
        let mut victim = Victim::new();
        let mut connecting = Box::pin(victim.endpoint.connect(&Addr::Node(2)));
        let first = Connect::parse(&victim.received()).expect("a client connects");
        let cookie = Cookie { nonce: first.nonce, cookie: [9; 16] };
        victim.send(&packet(&Header::new(Kind::Cookie, 0, first.session, 0, first.tag), &body_of(&cookie)));
        let asked = Connect::parse(&victim.received()).expect("a client connects again with its cookie");
        victim.session = (asked.session, asked.tag);
        let accept = Accept {
            nonce: asked.nonce,
            version: VERSION,
            slots: asked.slots,
            credits: asked.credits,
            reverse_credits: asked.reverse_credits,
            mtu: asked.mtu,
            message_bytes_max: asked.message_bytes_max,
            session: 5,
            tag: 77,
            incarnation: 1,
            credits_start: asked.credits_start,
            reverse_start: asked.reverse_start,
        };
        victim.send(&packet(&Header::new(Kind::Accept, 0, asked.session, 0, asked.tag), &body_of(&accept)));
        victim.run();
        let session =
            victim.endpoint.poll_once(connecting.as_mut()).expect("it was accepted").expect("it was accepted");
        let calls = (0..10).map(|i| Box::pin(session.call(1, vec![0; i * 300]))).collect();
        victim.run();
        (victim, calls)
    }

    fn attack(&mut self, flags: u8, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        bytes.truncate(512);
        if flags & ON_SESSION != 0 && bytes.len() >= 16 {
            bytes[5..8].copy_from_slice(&self.session.0.to_le_bytes()[..3]);
            bytes[13..16].copy_from_slice(&self.session.1.to_le_bytes()[..3]);
        }
        if flags & FROM_STRANGER != 0 {
            self.stranger.tx_burst(&[TxPacket { route: self.stranger_route, header: &bytes, payload: &[] }]);
        } else {
            self.send(&bytes);
        }
        if flags & THEN_RUN != 0 {
            self.run();
        }
    }

    fn check(&self) {
        self.run();
        let stats = self.endpoint.stats();
        // The attacker's session, and those that it opened with cookies that it saw.
        assert!(stats.sessions <= 2 && stats.requests_held <= 16, "{stats}");
        assert!(stats.credits_reserved <= 4096, "{stats}");
    }
}

/// Splits an input into flags and packets.
fn packets(mut input: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [len, flags, rest @ ..] = input else { return None };
        let (bytes, after) = rest.split_at((*len as usize * 2).min(rest.len()));
        input = after;
        Some((*flags, bytes))
    })
    .take(PACKETS_MAX)
}

/// Attacks a server and a client with the same packets.
///
/// # Panics
/// If an endpoint does, holds more than it may, or leaks a buffer.
pub fn check(input: &[u8]) {
    let buffers = dunlin_rpc::msgbuf::outstanding();
    {
        let mut server = Victim::as_server();
        let (mut client, calls) = Victim::as_client();
        for (flags, bytes) in packets(input) {
            server.attack(flags, bytes);
            client.attack(flags, bytes);
        }
        server.check();
        client.check();
        drop(calls);
        assert_eq!(client.endpoint.stats().calls_pending, 0);
    }
    assert_eq!(dunlin_rpc::msgbuf::outstanding(), buffers, "message buffers were leaked");
}
