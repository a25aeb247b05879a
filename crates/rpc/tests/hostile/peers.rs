//! Packets of peers that have a session, and lie: their own session may suffer, nothing else.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_rpc::wire::control::{Accept, Body, Connect, Cookie, Presence, Release};
use dunlin_rpc::wire::header::VERSION;
use dunlin_rpc::wire::packets::{Arrivals, Asked};
use dunlin_rpc::wire::{Header, Kind, MASK_24, Multi, Status};
use dunlin_rpc::{CallError, DeferredRequest, EndpointConfig, MsgBuf};

use crate::pair::{Lab, config};
use crate::raw::{Random, Raw, connect, control, packet};

const ECHO: u8 = 1;

fn echo(lab: &Lab) {
    let handler = |request: dunlin_rpc::Request<'_>| {
        let payload = request.payload();
        request.respond(payload);
    };
    lab.server().register(ECHO, handler).unwrap();
    let handler = |request: dunlin_rpc::OwnedRequest| async move { request.into_payload() };
    lab.server().register_async(2, handler).unwrap();
}

/// A packet on an existing session, with everything else random.
fn lie(random: &mut Random, session: u32, tag: u32) -> Vec<u8> {
    let kinds = [
        Kind::Request,
        Kind::Request,
        Kind::CreditReturn,
        Kind::RequestForResponse,
        Kind::Response,
        Kind::Response,
        Kind::Release,
    ];
    let kind = kinds[random.below(kinds.len() as u64) as usize];
    let len = [0, 1, 32, 1440, 1439, 500][random.below(6) as usize];
    let aux = match kind {
        Kind::Request | Kind::Response => Header::data_aux(random.below(4) as u8, len),
        _ => random.below(6) as u32,
    };
    let request = match random.below(8) {
        0 => random.next() & ((1 << 40) - 1),
        _ => random.below(40),
    };
    let mut header = Header::new(kind, aux, session, request, tag);
    let is_data = matches!(kind, Kind::Request | Kind::Response);
    if is_data && random.below(2) == 0 {
        let message_bytes = [0, 1, 1440, 1441, 5000, 8 << 20, u32::MAX][random.below(7) as usize];
        let packet = match random.below(8) {
            0 => random.next() as u32,
            1 => random.below(6000) as u32,
            _ => random.below(5) as u32,
        };
        header.multi = Some(Multi { message_bytes, packet });
    }
    if kind == Kind::Request && random.below(4) == 0 {
        header.deadline_us = Some(random.below(3) as u32 * 1000);
    }
    if kind == Kind::Response && random.below(10) == 0 {
        header.status = Status::ALL[random.below(8) as usize];
        // As long as bodies of some kinds may be, or not.
        let bytes = random.below(12) as usize;
        (header.multi, header.aux) = (None, Header::data_aux(header.req_type(), bytes));
        return packet(&header, &random.bytes(bytes));
    }
    match kind {
        Kind::Release => {
            let mut release = Release { sequences: [0; 8] };
            release.sequences.iter_mut().for_each(|s| *s = random.below(6) as u32);
            control(&header, &release)
        }
        // Holes and requests for response of all shapes.
        Kind::CreditReturn if random.below(2) == 0 => {
            let first_missing = if random.below(8) == 0 { random.next() as u32 } else { random.below(8) as u32 };
            control(&header, &Arrivals { first_missing, mask: random.next() | u64::from(random.below(8) > 0) })
        }
        Kind::RequestForResponse if random.below(2) == 0 => {
            control(&header, &Asked { packets: random.below(70) as u32 })
        }
        Kind::CreditReturn | Kind::RequestForResponse if random.below(8) == 0 => {
            let len = random.below(40) as usize;
            packet(&header, &random.bytes(len))
        }
        _ if is_data => packet(&header, &random.bytes(len)),
        _ => packet(&header, &[]),
    }
}

#[test]
fn a_lying_client_hurts_only_itself() {
    let lab = Lab::pair();
    echo(&lab);
    let session = lab.connect();
    let before = dunlin_rpc::msgbuf::outstanding();
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut liar = Raw::new(&lab, 66);
        let opened = liar.open(&lab, Connect { nonce: seed, incarnation: seed, ..connect() });
        for _ in 0..300 {
            liar.send(&lie(&mut random, opened.accept.session, opened.accept.tag));
            if random.below(3) == 0 {
                lab.turn();
                lab.turn();
            }
        }
        let stats = lab.server().stats();
        assert!(stats.requests_held <= 9, "{stats}");
        let reply = lab.drive(1, session.call(ECHO, MsgBuf::copy_from(&[9; 3000]).unwrap())).unwrap();
        assert_eq!(&reply.response[..], &[9; 3000]);
        let presence = Presence { incarnation: seed, token: 0 };
        liar.send(&control(&opened.header(Kind::Close, 0, 0), &presence));
        let answers = liar.answers(&lab);
        assert!(answers.iter().any(|(header, _)| header.kind == Kind::CloseAck), "seed {seed}: {answers:?}");
        assert_eq!(lab.server().stats().sessions, 1, "seed {seed}");
    }
    drop((session, lab));
    assert!(dunlin_rpc::msgbuf::outstanding() <= before, "buffers were leaked");
}

#[test]
fn a_lying_server_hurts_only_its_session() {
    for seed in 0..200 {
        let before = dunlin_rpc::msgbuf::outstanding();
        {
            let mut random = Random(seed);
            // Here the endpoint is the client; the test takes the server's place.
            let lab = Lab::new(&[config()]);
            let mut liar = Raw::new(&lab, 66);
            let client = lab.server();
            let mut connecting = Box::pin(client.connect(&dunlin_net::Addr::Node(66)));
            let (header, body) = liar.answers(&lab).remove(0);
            assert_eq!(header.kind, Kind::Connect);
            let asked = Connect::parse(&body).unwrap();
            assert!(client.poll_once(connecting.as_mut()).is_none());
            let answer = |kind| Header::new(kind, 0, asked.session, 0, asked.tag);
            liar.send(&control(&answer(Kind::Cookie), &Cookie { nonce: asked.nonce, cookie: [1; 16] }));
            // Only now does it have places for everything that may be used at the start.
            assert_eq!((asked.credits_start, asked.reverse_start), (1, 1));
            let asked = Connect::parse(&liar.answers(&lab)[0].1).unwrap();
            assert_eq!((asked.cookie, asked.credits_start, asked.reverse_start), ([1; 16], 8, 8));
            let accept = Accept {
                nonce: asked.nonce,
                version: VERSION,
                slots: asked.slots,
                credits: 4,
                reverse_credits: asked.reverse_credits,
                mtu: asked.mtu,
                message_bytes_max: 1 << 20,
                session: 3,
                tag: 4,
                incarnation: 5,
                credits_start: 4,
                reverse_start: asked.reverse_start,
            };
            // Answers that do not match the request: more credits than wanted, and so on.
            for wrong in [
                Accept { credits: asked.credits + 1, ..accept },
                Accept { credits: 0, ..accept },
                Accept { reverse_credits: asked.reverse_credits + 1, ..accept },
                Accept { credits_start: 0, ..accept },
                Accept { credits_start: 5, ..accept },
                Accept { reverse_start: asked.reverse_start + 1, ..accept },
                Accept { reverse_start: 0, ..accept },
                Accept { slots: 0, ..accept },
                Accept { slots: 9, ..accept },
                Accept { mtu: asked.mtu + 1, ..accept },
                Accept { mtu: 20, ..accept },
                Accept { version: VERSION + 1, ..accept },
                Accept { message_bytes_max: u32::MAX, ..accept },
                Accept { nonce: 0, ..accept },
            ] {
                liar.send(&control(&answer(Kind::Accept), &wrong));
                liar.answers(&lab);
                assert!(client.poll_once(connecting.as_mut()).is_none(), "{wrong:?} was accepted");
            }
            liar.send(&control(&answer(Kind::Accept), &accept));
            liar.answers(&lab);
            let session = client.poll_once(connecting.as_mut()).unwrap().unwrap();
            let mut calls: Vec<_> = (0..12).map(|i| Box::pin(session.call(ECHO, vec![1; i * 600]))).collect();
            for _ in 0..300 {
                liar.send(&lie(&mut random, asked.session, asked.tag));
                lab.turn();
                let stats = session.stats().unwrap();
                assert!(stats.credits <= stats.credits_max, "{stats:?}");
            }
            let stats = session.stats().unwrap();
            assert_eq!((stats.credits_max, stats.message_bytes_max), (4, 1 << 20));
            // The calls end, once each, with the session.
            liar.send(&control(
                &Header::new(Kind::Close, 0, asked.session, 0, asked.tag),
                &Presence { incarnation: 5, token: 0 },
            ));
            liar.answers(&lab);
            for (i, call) in calls.iter_mut().enumerate() {
                match client.poll_once(call.as_mut()).expect("the session has ended") {
                    Ok(_) => {}
                    Err(failure) => {
                        assert_eq!(failure.request.len(), i * 600);
                        let error = failure.error;
                        let is_of_here =
                            matches!(error, CallError::PeerDied | CallError::PeerSilent | CallError::QueueFull);
                        assert!(!is_of_here, "the server lives, and said something: {error}");
                    }
                }
            }
            let stats = client.stats();
            assert_eq!((stats.sessions, stats.calls_pending), (0, 0), "{stats}");
        }
        assert_eq!(dunlin_rpc::msgbuf::outstanding(), before, "seed {seed} leaked buffers");
    }
}

#[test]
fn a_client_cannot_have_more_slots_than_agreed() {
    let lab = Lab::new(&[dunlin_rpc::EndpointConfig { slots: 2, ..config() }]);
    echo(&lab);
    let mut liar = Raw::new(&lab, 66);
    let opened = liar.open(&lab, connect());
    assert_eq!(opened.accept.slots, 2);
    for slot in 0..8 {
        liar.send(&packet(&opened.header(Kind::Request, Header::data_aux(ECHO, 4), 8 + slot), &[0; 4]));
    }
    assert_eq!(liar.answers(&lab).len(), 2);
    assert_eq!(lab.server().stats().counters.dropped_malformed, 6);
}

#[test]
fn a_client_gets_no_more_packets_for_a_question_than_it_has_credits() {
    let lab = Lab::new(&[config()]);
    lab.server().register(ECHO, |request| _ = request.respond_from(vec![5; 100 * 1440])).unwrap();
    let mut liar = Raw::new(&lab, 66);
    for (credits, asked, expected) in [(1, 64, 0), (1, 2, 0), (1, 1, 1), (8, 64, 0), (8, 9, 0), (8, 8, 8)] {
        let opened = liar.open(&lab, Connect { nonce: u64::from(asked), credits, credits_start: credits, ..connect() });
        liar.send(&packet(&opened.header(Kind::Request, Header::data_aux(ECHO, 4), 8), &[0; 4]));
        assert_eq!(liar.answers(&lab)[0].0.multi, Some(Multi { message_bytes: 144_000, packet: 0 }));
        let header = opened.header(Kind::RequestForResponse, 1, 8);
        liar.send(&if asked == 1 { packet(&header, &[]) } else { control(&header, &Asked { packets: asked }) });
        let count = liar.answers(&lab).iter().filter(|(header, _)| header.kind == Kind::Response).count();
        assert_eq!(count, expected, "{asked} packets for {credits} credits");
        liar.send(&control(&opened.header(Kind::Close, 0, 0), &Presence { incarnation: 1234, token: 0 }));
        liar.answers(&lab);
    }
}

/// A session that the other end has lost, while every CLOSE and RESET about it was lost too.
#[test]
fn a_call_on_a_session_that_its_peer_has_lost_ends() {
    for (len, peer_lives) in [(4, true), (5_000, true), (4, false), (5_000, false)] {
        let lab = Lab::new(&[EndpointConfig { retransmissions_max: 5, ..config() }]);
        let held: Rc<RefCell<Vec<DeferredRequest>>> = Rc::default();
        let at = held.clone();
        lab.server().register(ECHO, move |request| at.borrow_mut().extend(request.defer())).unwrap();
        let mut peer = Raw::new(&lab, 66);
        let lost = peer.open(&lab, connect());
        let used = peer.open(&lab, Connect { nonce: 1, session: 6, ..connect() });
        peer.send(&packet(&lost.header(Kind::Request, Header::data_aux(ECHO, 4), 8), &[0; 4]));
        peer.answers(&lab);
        let session = held.borrow()[0].request().session().clone();
        let mut call = Box::pin(session.call(ECHO, vec![1; len]));
        let start = lab.network.now();
        let error = loop {
            if let Some(result) = lab.server().poll_once(call.as_mut()) {
                break result.unwrap_err().error;
            }
            if peer_lives {
                let presence = Presence { incarnation: connect().incarnation, token: 1 };
                peer.send(&control(&used.header(Kind::Ping, 0, 0), &presence));
            }
            lab.run_for(Duration::from_millis(20));
            peer.receive();
            assert!(lab.network.now() - start < 20_000_000_000, "the call hangs");
        };
        let expected = if peer_lives { CallError::Unanswered } else { CallError::PeerSilent };
        assert_eq!(error, expected, "{len} bytes");
    }
}

#[test]
fn a_peer_cannot_speak_for_another() {
    let lab = Lab::pair();
    echo(&lab);
    let session = lab.connect();
    let mut liar = Raw::new(&lab, 66);
    let opened = liar.open(&lab, connect());
    let mut random = Random(7);
    // Neither its own session's tag nor its own number with the other's tag gives access to the other session.
    for _ in 0..2_000 {
        let other = 1 - opened.accept.session;
        liar.send(&lie(&mut random, other, opened.accept.tag));
        let guessed = random.next() as u32 & MASK_24;
        liar.send(&lie(&mut random, opened.accept.session, guessed));
        lab.turn();
    }
    lab.turn();
    assert_eq!(lab.server().stats().counters.requests_handled, 0);
    assert!(lab.server().stats().counters.dropped_unknown_session >= 3_900);
    assert!(session.is_open());
    let reply = lab.drive(1, session.call(ECHO, MsgBuf::copy_from(b"still here").unwrap())).unwrap();
    assert_eq!(&reply.response[..], b"still here");
}

#[test]
fn a_request_that_stops_arriving_gives_its_memory_back() {
    let lab = Lab::new(&[config()]);
    let mut raw = Raw::new(&lab, 9);
    let open = raw.open(&lab, connect());
    let before = dunlin_rpc::msgbuf::outstanding();
    let data = vec![0; (open.accept.mtu as usize - 32) & !15];
    let mut header = open.header(Kind::Request, Header::data_aux(1, data.len()), 8);
    header.multi = Some(Multi { message_bytes: 1 << 20, packet: 0 });
    raw.send(&packet(&header, &data));
    raw.answers(&lab);
    assert_eq!(lab.endpoints[0].stats().requests_held, 1);
    // It stays, sends keep-alives, and sends no more of the request.
    for token in 0..40 {
        let ping = open.header(Kind::Ping, 0, 0);
        raw.send(&control(&ping, &Presence { incarnation: connect().incarnation, token }));
        lab.run_for(Duration::from_millis(200));
    }
    let stats = lab.endpoints[0].stats();
    assert_eq!((stats.sessions, stats.counters.requests_abandoned), (1, 1));
    assert_eq!(dunlin_rpc::msgbuf::outstanding(), before, "only the answer is kept, which has no data");
}

#[test]
fn a_request_that_begins_anywhere_takes_no_more_memory_than_one_that_begins_at_its_start() {
    let lab = Lab::new(&[config()]);
    let mut raw = Raw::new(&lab, 9);
    let open = raw.open(&lab, connect());
    let data = (open.accept.mtu as usize - 32) & !15;
    let piece = |request: u64, message_bytes: usize, packet: u32, len: usize| {
        let mut header = open.header(Kind::Request, Header::data_aux(ECHO, len), request);
        header.multi = Some(Multi { message_bytes: message_bytes as u32, packet });
        crate::raw::packet(&header, &vec![0; len])
    };
    let long = open.accept.message_bytes_max as usize;
    let last = long.div_ceil(data) as u32 - 1;
    assert!(last > 4096);
    let before = dunlin_rpc::msgbuf::outstanding();
    // Longer than agreed, past the end, with a wrong length, too early.
    for (message_bytes, packet, len) in [
        (long + 1, 1, data),
        (4 * data, 4, data),
        (4 * data, u32::MAX, data),
        (4 * data, 3, data - 1),
        (long, 4096, data),
    ] {
        raw.send(&piece(8, message_bytes, packet, len));
    }
    assert!(raw.answers(&lab).is_empty());
    assert_eq!(lab.server().stats().requests_held, 0);
    // One message in each slot, however many packets name it, and with whatever lengths.
    for round in 0..50 {
        for slot in 0..8 {
            raw.send(&piece(8 + slot, long, 4095 - round * 7, data));
            raw.send(&piece(8 + slot, long / 2, 1 + round, data));
        }
        raw.answers(&lab);
    }
    let stats = lab.server().stats();
    assert_eq!(stats.requests_held, 8, "{stats}");
    assert!(dunlin_rpc::msgbuf::outstanding() <= before + 8);
    assert!(stats.counters.dropped_malformed >= 400, "{stats}");
}

/// Requests whose deadline has passed when they arrive: a burst handler that reads its first request must find one.
#[test]
fn a_burst_handler_is_not_called_without_a_request() {
    let lab = Lab::pair();
    let calls = std::rc::Rc::new(std::cell::Cell::new(0));
    let seen = calls.clone();
    lab.server()
        .register_burst(3, move |burst| {
            seen.set(seen.get() + 1);
            let first = burst.payload(0).to_vec();
            (0..burst.len()).for_each(|i| burst.respond(i, &first));
        })
        .unwrap();
    let mut liar = Raw::new(&lab, 66);
    let opened = liar.open(&lab, connect());
    for slot in 0..4 {
        let mut header = opened.header(Kind::Request, Header::data_aux(3, 4), 8 + slot);
        header.deadline_us = Some(0);
        liar.send(&packet(&header, &[0; 4]));
    }
    let answers = liar.answers(&lab);
    assert_eq!(answers.len(), 4);
    assert!(answers.iter().all(|(header, _)| header.status == dunlin_rpc::wire::Status::Expired), "{answers:?}");
    assert_eq!(calls.get(), 0);
}
