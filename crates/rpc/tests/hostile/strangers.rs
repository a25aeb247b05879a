//! Packets from senders without a session here.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Addr, Transport, TxPacket};
use dunlin_rpc::wire::control::{Accept, Body, Connect, Cookie, Presence, Refuse, RefuseReason, Release};
use dunlin_rpc::wire::header::{HANDSHAKE_VERSION, VERSION};
use dunlin_rpc::wire::{HEADER_BYTES, Header, Kind, MASK_24};
use dunlin_rpc::{ConnectError, EndpointStats, MsgBuf, Session};

use crate::pair::{Lab, address, config};
use crate::raw::{Random, Raw, connect, control, packet};

const ECHO: u8 = 1;
const KINDS: [Kind; 15] = [
    Kind::Request,
    Kind::CreditReturn,
    Kind::RequestForResponse,
    Kind::Response,
    Kind::Connect,
    Kind::Cookie,
    Kind::Accept,
    Kind::Refuse,
    Kind::Close,
    Kind::CloseAck,
    Kind::Ping,
    Kind::Pong,
    Kind::Reset,
    Kind::Release,
    Kind::Credits,
];

fn echo(lab: &Lab) {
    let handler = |request: dunlin_rpc::Request<'_>| {
        let payload = request.payload();
        request.respond(payload);
    };
    lab.server().register(ECHO, handler).unwrap();
}

fn call(lab: &Lab, session: &Session, len: usize) {
    let request: Vec<u8> = (0..len).map(|i| i as u8).collect();
    let reply = lab.drive(1, session.call(ECHO, MsgBuf::copy_from(&request).unwrap())).unwrap();
    assert_eq!(&reply.response[..], &request);
}

/// What a stranger must not change.
fn state(stats: &EndpointStats) -> (u32, u32, u32, usize, usize, u64, u64) {
    let c = &stats.counters;
    (
        stats.sessions,
        stats.calls_pending,
        stats.requests_held,
        stats.credits_reserved,
        stats.tasks,
        c.requests_handled,
        c.sessions_accepted + c.sessions_opened + c.sessions_failed + c.sessions_closed,
    )
}

/// A packet that looks valid at first sight: random fields, most of them small, like sessions and request numbers.
fn plausible(random: &mut Random) -> Vec<u8> {
    let small = |random: &mut Random, max: u64| match random.below(4) {
        0 => random.next(),
        1 => u64::MAX,
        _ => random.below(max),
    };
    let kind = KINDS[random.below(15) as usize];
    let len = match random.below(4) {
        0 => random.below(80) as usize,
        1 => 16,
        2 => 64,
        _ => [16, 24, 40, 32][random.below(4) as usize],
    };
    let aux = if random.below(2) == 0 { Header::data_aux(ECHO, len) } else { small(random, 5) as u32 & MASK_24 };
    let mut header =
        Header::new(kind, aux, small(random, 4) as u32 & MASK_24, small(random, 32), random.next() as u32 & MASK_24);
    if random.below(8) == 0 {
        header.multi = Some(dunlin_rpc::wire::Multi {
            message_bytes: small(random, 5000) as u32,
            packet: small(random, 4) as u32,
        });
    }
    if random.below(8) == 0 {
        header.deadline_us = Some(small(random, 1000) as u32);
    }
    let body = if random.below(2) == 0 { vec![0; len] } else { random.bytes(len) };
    let mut bytes = packet(&header, &body);
    if random.below(3) == 0 {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
    }
    if random.below(10) == 0 {
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
    }
    bytes
}

#[test]
fn any_bytes_change_nothing_but_counters() {
    let lab = Lab::pair();
    echo(&lab);
    let session = lab.connect();
    call(&lab, &session, 5000);
    lab.run_for(Duration::from_millis(100));
    let mut stranger = Raw::new(&lab, 66);
    let to_client = stranger.transport.resolve(&address(1)).unwrap();
    let mut random = Random(1);
    let before = (state(&lab.server().stats()), state(&lab.client().stats()));
    let buffers = dunlin_rpc::msgbuf::outstanding();
    for round in 0..20_000 {
        let bytes = if round % 3 == 0 {
            let len = random.below(100) as usize;
            random.bytes(len)
        } else {
            plausible(&mut random)
        };
        stranger.send(&bytes);
        stranger.transport.tx_burst(&[TxPacket { route: to_client, header: &bytes, payload: &[] }]);
        lab.turn();
        lab.turn();
        assert_eq!((state(&lab.server().stats()), state(&lab.client().stats())), before, "after {bytes:02x?}");
    }
    assert_eq!(dunlin_rpc::msgbuf::outstanding(), buffers);
    let stats = session.stats().unwrap();
    assert_eq!(stats.credits, stats.credits_max);
    call(&lab, &session, 5000);
}

#[test]
fn calls_go_on_while_a_stranger_floods() {
    let lab = Lab::pair();
    echo(&lab);
    let session = lab.connect();
    let mut stranger = Raw::new(&lab, 66);
    let mut random = Random(2);
    for len in [0, 1, 32, 1400, 1500, 20_000] {
        for _ in 0..20 {
            for _ in 0..50 {
                stranger.send(&plausible(&mut random));
            }
            call(&lab, &session, len);
        }
    }
}

#[test]
fn a_packet_that_names_no_session_is_for_none() {
    let lab = Lab::pair();
    let mut stranger = Raw::new(&lab, 66);
    for kind in KINDS {
        for len in [0, 16, 24, 32, 40, 64] {
            for session in [MASK_24, MASK_24 - 1, 0] {
                let data = matches!(kind, Kind::Request | Kind::Response);
                let aux = if data { Header::data_aux(ECHO, len) } else { 0 };
                stranger.send(&packet(&Header::new(kind, aux, session, 8, 0), &vec![0; len]));
                lab.turn();
            }
        }
    }
    lab.turn();
    assert_eq!(lab.server().stats().sessions, 0);
}

#[test]
fn no_answer_is_longer_than_what_it_answers() {
    let lab = Lab::pair();
    let mut stranger = Raw::new(&lab, 66);
    let mut random = Random(3);
    let mut answered = 0;
    for round in 0..20_000 {
        let sent = match round % 4 {
            0 => control(&Header::new(Kind::Connect, 0, MASK_24, 0, 0), &Connect { nonce: random.next(), ..connect() }),
            _ => plausible(&mut random),
        };
        stranger.send(&sent);
        for _ in 0..4 {
            lab.turn();
        }
        // Time passes, so that rate limits are renewed.
        lab.run_for(Duration::from_millis(if round % 64 == 0 { 60 } else { 0 }));
        let received: usize = stranger.receive().iter().map(Vec::len).sum();
        assert!(received <= sent.len(), "{} bytes were answered by {received}: {sent:02x?}", sent.len());
        answered += usize::from(received > 0);
    }
    assert!(answered > 5_000, "{answered}");
}

#[test]
fn a_forged_source_does_not_get_past_the_cookie() {
    let lab = Lab::pair();
    let (mut honest, mut forger) = (Raw::new(&lab, 50), Raw::new(&lab, 66));
    // A real cookie, but for another address: what a forger has who saw it and cannot receive there.
    let cookie = honest.cookie(&lab, &connect()).cookie;
    forger.send_connect(&Connect { cookie, ..connect() });
    assert!(forger.answers(&lab).iter().all(|(header, _)| header.kind == Kind::Cookie));
    // For the right address, but another session, nonce or incarnation.
    for other in [
        Connect { session: 6, cookie, ..connect() },
        Connect { nonce: 1, cookie, ..connect() },
        Connect { incarnation: 1, cookie, ..connect() },
    ] {
        honest.send_connect(&other);
        assert!(honest.answers(&lab).iter().all(|(header, _)| header.kind == Kind::Cookie));
    }
    let mut random = Random(4);
    for _ in 0..5_000 {
        let cookie = random.bytes(16).try_into().unwrap();
        forger.send_connect(&Connect { cookie, ..connect() });
        lab.turn();
    }
    lab.turn();
    assert_eq!((lab.server().stats().sessions, lab.server().stats().counters.sessions_accepted), (0, 0));
    // A cookie expires.
    lab.run_for(Duration::from_secs(21));
    honest.receive();
    honest.send_connect(&Connect { cookie, ..connect() });
    assert!(honest.answers(&lab).iter().all(|(header, _)| header.kind == Kind::Cookie));
    assert_eq!(lab.server().stats().sessions, 0);
}

#[test]
fn strangers_cost_no_memory() {
    let lab = Lab::pair();
    let buffers = dunlin_rpc::msgbuf::outstanding();
    for number in 100..1100 {
        let mut stranger = Raw::new(&lab, number);
        for nonce in 0..10 {
            stranger.send_connect(&Connect { nonce, ..connect() });
            stranger.send(&packet(&Header::new(Kind::Request, Header::data_aux(ECHO, 32), 0, 8, 1), &[0; 32]));
        }
        lab.turn();
    }
    lab.turn();
    let stats = lab.server().stats();
    assert_eq!((stats.sessions, stats.credits_reserved, stats.requests_held, stats.tasks), (0, 0, 0, 0));
    assert_eq!(dunlin_rpc::msgbuf::outstanding(), buffers);
    assert!(stats.counters.tx_packets <= stats.counters.rx_packets);
}

#[test]
fn a_session_is_safe_from_those_who_do_not_know_its_tag() {
    let lab = Lab::pair();
    echo(&lab);
    let session = lab.connect();
    let mut stranger = Raw::new(&lab, 66);
    let to_client = stranger.transport.resolve(&address(1)).unwrap();
    let presence = Presence { incarnation: 1, token: 0 };
    let refuse = Refuse { nonce: 0, reason: RefuseReason::ShuttingDown };
    let accept = Accept {
        nonce: 0,
        version: VERSION,
        slots: 1,
        credits: 1,
        reverse_credits: 1,
        mtu: 512,
        message_bytes_max: 100,
        session: 0,
        tag: 1,
        incarnation: 9,
        credits_start: 1,
        reverse_start: 1,
    };
    let mut random = Random(5);
    for _ in 0..10_000 {
        let tag = random.next() as u32 & MASK_24;
        let header = |kind| Header::new(kind, 0, 0, 0, tag);
        for bytes in [
            control(&header(Kind::Close), &presence),
            control(
                &Header::new(Kind::Reset, 0, MASK_24, 0, 0),
                &Presence { incarnation: 1, token: (tag as u64) << 24 },
            ),
            control(&header(Kind::Release), &Release { sequences: [u32::MAX; 8] }),
            control(&header(Kind::Refuse), &refuse),
            control(&header(Kind::Accept), &accept),
        ] {
            stranger.send(&bytes);
            stranger.transport.tx_burst(&[TxPacket { route: to_client, header: &bytes, payload: &[] }]);
        }
        lab.turn();
    }
    lab.turn();
    assert!(session.is_open());
    call(&lab, &session, 100);
    assert_eq!(lab.server().stats().sessions, 1);
}

#[test]
fn packets_of_another_version_are_dropped_and_counted() {
    let lab = Lab::pair();
    let mut stranger = Raw::new(&lab, 66);
    for (kind, spoken) in [(Kind::Connect, HANDSHAKE_VERSION), (Kind::Request, VERSION)] {
        for version in (0..16).filter(|version| *version != spoken) {
            let mut bytes = control(&Header::new(kind, 0, MASK_24, 0, 0), &connect());
            bytes[0] = bytes[0] & 0xf | version << 4;
            stranger.send(&bytes);
        }
    }
    assert!(stranger.answers(&lab).is_empty());
    assert_eq!(lab.server().stats().counters.dropped_malformed, 30);
    assert_eq!(lab.server().stats().sessions, 0);
}

/// In the format that all versions share. A client is told once it has proven its address.
#[test]
fn clients_of_other_versions_are_told() {
    let lab = Lab::pair();
    let mut stranger = Raw::new(&lab, 66);
    for versions in [(1, 1), (VERSION + 1, 9)] {
        let mut other = Connect { versions, ..connect() };
        for expected in [Kind::Cookie, Kind::Refuse] {
            stranger.send_connect(&other);
            lab.turn();
            lab.turn();
            let answers = stranger.receive();
            assert_eq!(answers[0][0], 1 << 4 | expected as u8, "{versions:?}");
            match expected {
                Kind::Cookie => other.cookie = Cookie::parse(&answers[0][HEADER_BYTES..]).unwrap().cookie,
                _ => {
                    let reason = Refuse::parse(&answers[0][HEADER_BYTES..]).unwrap().reason;
                    assert_eq!(reason, RefuseReason::Version);
                }
            }
        }
    }
    assert_eq!(lab.server().stats().sessions, 0);
}

/// It accepts only headers of its own version, 1.
#[test]
fn a_server_of_the_first_version_can_say_so() {
    let lab = Lab::pair();
    let mut server = Raw::new(&lab, 66);
    let to_client = server.transport.resolve(&address(1)).unwrap();
    let mut opening = Box::pin(lab.client().connect(&Addr::Node(66)));
    for (kind, cookie) in [(Kind::Cookie, [0; 16]), (Kind::Refuse, [5; 16])] {
        assert!(lab.client().poll_once(opening.as_mut()).is_none());
        lab.turn();
        lab.turn();
        let asked = server.receive().remove(0);
        assert_eq!(asked[0], 1 << 4 | Kind::Connect as u8);
        let asked = Connect::parse(&asked[HEADER_BYTES..]).unwrap();
        assert_eq!((asked.versions, asked.cookie), ((VERSION, VERSION), cookie));
        let header = Header::new(kind, 0, asked.session, 0, asked.tag);
        let mut answer = match kind {
            Kind::Cookie => control(&header, &Cookie { nonce: asked.nonce, cookie: [5; 16] }),
            _ => control(&header, &Refuse { nonce: asked.nonce, reason: RefuseReason::Version }),
        };
        answer[0] = 1 << 4 | kind as u8;
        server.transport.tx_burst(&[TxPacket { route: to_client, header: &answer, payload: &[] }]);
        lab.turn();
        lab.turn();
    }
    let error = lab.drive(1, opening).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { reason: RefuseReason::Version, .. }), "{error}");
}

#[test]
fn a_restarted_server_drops_what_was_meant_for_its_predecessor() {
    let mut lab = Lab::new(&[config()]);
    let runs = Rc::new(Cell::new(0));
    let register = |lab: &Lab| {
        let runs = runs.clone();
        let count = move |request: dunlin_rpc::Request<'_>| {
            runs.set(runs.get() + 1);
            request.respond(&[]);
        };
        lab.endpoints[0].register(ECHO, count).unwrap();
    };
    register(&lab);
    let mut client = Raw::new(&lab, 66);
    let opened = client.open(&lab, connect());
    let request = packet(&opened.header(Kind::Request, Header::data_aux(ECHO, 32), 8), &[0; 32]);
    client.send(&request);
    assert_eq!(client.answers(&lab)[0].0.kind, Kind::Response);
    assert_eq!(runs.get(), 1);

    drop(lab.endpoints.pop());
    // The last packets of the session are dropped, as if the client had crashed too.
    lab.network.advance(Duration::from_micros(1));
    client.receive();
    let restarted = lab.start(0, &dunlin_rpc::EndpointConfig { seed: Some(99), ..config() });
    lab.endpoints.push(restarted);
    register(&lab);
    // Another client has the same session number at the new server.
    let mut other = Raw::new(&lab, 67);
    assert_eq!(other.open(&lab, connect()).accept.session, opened.accept.session);
    client.send(&request);
    let answers = client.answers(&lab);
    assert_eq!(runs.get(), 1, "the old request ran at the new server");
    assert_eq!(lab.server().stats().counters.dropped_unknown_session, 1);
    let (header, body) = &answers[0];
    assert_eq!(header.kind, Kind::Reset);
    let reset = Presence::parse(body).unwrap();
    assert_ne!(reset.incarnation, opened.accept.incarnation);
    assert_eq!(reset.token, opened.accept.session as u64 | (opened.accept.tag as u64) << 24);
}
