//! Peers that take whatever they can get: one host may hold only so much, and the others still get what they need.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::wire::control::{Body, Connect, Credits, LoanRole, Refuse, RefuseReason};
use dunlin_rpc::wire::{Header, Kind, Multi, Status};
use dunlin_rpc::{CallError, DeferredRequest, EndpointConfig, PeerLimits, WorkerPool};

use crate::pair::{Lab, address, config};
use crate::raw::{Opened, Raw, connect, control, packet};

const KEEP: u8 = 3;
const MIB: u32 = 1 << 20;

/// A server with these limits for each host, and a well-behaved client.
fn lab(queue_len: usize, peer_limits: PeerLimits) -> Lab {
    let server = EndpointConfig { peer_limits, ..config() };
    let client = EndpointConfig { seed: Some(8), ..config() };
    Lab::over(LoopbackConfig { queue_len, ..LoopbackConfig::default() }, &[server, client])
}

/// Opens sessions until the server refuses one, and returns them and the reason.
fn hoard(lab: &Lab, hoarder: &mut Raw) -> (Vec<Opened>, RefuseReason) {
    let mut sessions = Vec::new();
    loop {
        let nonce = sessions.len() as u64;
        let mut asked = Connect { nonce, session: nonce as u32, ..connect() };
        asked.cookie = hoarder.cookie(lab, &asked).cookie;
        hoarder.send_connect(&asked);
        let (header, body) = hoarder.answers(lab).remove(0);
        match header.kind {
            Kind::Accept => sessions.push(Opened { accept: Body::parse(&body).unwrap() }),
            Kind::Refuse => return (sessions, Refuse::parse(&body).unwrap().reason),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn sessions_of_one_peer_have_a_limit_of_their_own() {
    let lab = lab(4096, PeerLimits { sessions_max: 10, ..PeerLimits::default() });
    let mut hoarder = Raw::new(&lab, 66);
    let (sessions, reason) = hoard(&lab, &mut hoarder);
    assert_eq!((sessions.len(), reason), (10, RefuseReason::PeerSessions));
    let _others = (lab.connect(), lab.connect());
    // For each session that it closes it may open another.
    let presence = dunlin_rpc::wire::control::Presence { incarnation: connect().incarnation, token: 0 };
    hoarder.send(&crate::raw::control(&sessions[0].header(Kind::Close, 0, 0), &presence));
    hoarder.answers(&lab);
    let (again, _) = hoard(&lab, &mut hoarder);
    assert!(!again.is_empty());
}

#[test]
fn places_of_one_peer_have_a_limit_of_their_own() {
    let lab = lab(64, PeerLimits { places_max: 32, ..PeerLimits::default() });
    let mut hoarder = Raw::new(&lab, 66);
    let (sessions, reason) = hoard(&lab, &mut hoarder);
    // Two with all their credits: it gives nothing back, so the third gets no first credit.
    assert_eq!((sessions.len(), reason), (2, RefuseReason::PeerCredits));
    assert_eq!(lab.server().stats().credits_reserved, 32);
    assert_eq!(lab.connect().stats().unwrap().credits_max, 8);
}

/// With the default limits one host may have all places. It lives, and gives nothing back.
#[test]
fn sessions_open_although_one_peer_borrows_all_places_and_ignores_recalls() {
    let lab = lab(184, PeerLimits::default());
    lab.server().register(1, |request| request.respond(b"ok")).unwrap();
    let mut hoarder = Raw::new(&lab, 66);
    let credits = Connect { credits: 182, credits_start: 182, reverse_credits: 0, reverse_start: 0, ..connect() };
    hoarder.open(&lab, credits);
    assert_eq!(lab.server().stats().credits_reserved, 182);
    let sessions: Vec<_> = (0..4).map(|_| lab.connect()).collect();
    let stats = lab.server().stats();
    assert_eq!((stats.sessions, stats.credits_reserved, stats.credits_unplaced), (5, 184, 6), "{stats}");
    for session in &sessions {
        assert_eq!(&lab.drive(1, session.call(1, vec![1; 10_000])).unwrap().response[..], b"ok");
    }
}

/// The same while it also uses them: the queue is nearly always full.
#[test]
fn sessions_get_on_although_one_peer_uses_all_places_and_ignores_recalls() {
    const USED: u64 = 182;
    let lab = lab(184, PeerLimits::default());
    lab.server().register(1, |request| request.respond(b"ok")).unwrap();
    let mut hoarder = Raw::new(&lab, 66);
    let credits = Connect { credits: 182, credits_start: 182, reverse_credits: 0, reverse_start: 0, ..connect() };
    let opened = hoarder.open(&lab, credits);
    let sessions: Vec<_> = (0..4).map(|_| lab.connect()).collect();
    let data = [7; 32];
    let mut sequence = 0;
    let mut fill = || {
        // As many requests as it has credits, whether or not it may have that many slots.
        for i in 0..USED {
            sequence += u64::from(i % 8 == 0);
            let header = opened.header(Kind::Request, Header::data_aux(1, data.len()), sequence * 8 + i % 8);
            hoarder.send(&packet(&header, &data));
        }
        hoarder.receive();
    };
    let mut answered = 0;
    for session in &sessions {
        for _ in 0..5 {
            let mut call = std::pin::pin!(session.call(1, vec![1; 10_000]));
            let start = lab.network.now();
            let outcome = loop {
                fill();
                lab.turn();
                lab.network.advance(Duration::from_micros(50));
                if let Some(outcome) = lab.client().poll_once(call.as_mut()) {
                    break outcome;
                }
                assert!(lab.network.now() - start < 2_000_000_000, "call {answered} has no answer");
            };
            assert_eq!(&outcome.unwrap().response[..], b"ok");
            answered += 1;
        }
    }
    let stats = lab.server().stats();
    assert!(stats.credits_reserved <= 184 && stats.counters.requests_handled > 20 * USED, "{stats}");
}

/// It is asked again and again, but returns nothing; then a part.
#[test]
fn credits_count_as_recalled_once_they_are_given_back() {
    let lab = lab(184, PeerLimits::default());
    lab.server().register(1, |request| request.respond(b"ok")).unwrap();
    let mut hoarder = Raw::new(&lab, 66);
    let credits = Connect { credits: 182, credits_start: 182, reverse_credits: 0, reverse_start: 0, ..connect() };
    let opened = hoarder.open(&lab, credits);
    let session = lab.connect();
    for _ in 0..10 {
        lab.drive(1, session.call(1, vec![1; 10_000])).unwrap();
        lab.run_for(Duration::from_millis(10));
    }
    let is_recall = |(header, _): &(Header, Vec<u8>)| header.kind == Kind::Credits;
    assert!(hoarder.answers(&lab).iter().any(is_recall), "{}", lab.server().stats());
    assert_eq!(lab.server().stats().counters.credits_recalled, 0);
    let gives_back = Credits { role: LoanRole::Borrower, number: 1, held: 100, wanted: 100 };
    for _ in 0..2 {
        hoarder.send(&control(&opened.header(Kind::Credits, 0, 0), &gives_back));
        hoarder.answers(&lab);
    }
    assert_eq!(lab.server().stats().counters.credits_recalled, 181 - 100);
}

/// What idle sessions lack is not asked of anybody: nothing wakes an endpoint of which nobody wants anything.
#[test]
fn an_idle_endpoint_sleeps_although_a_peer_holds_all_places() {
    let patient = |seed| EndpointConfig { seed: Some(seed), peer_timeout: Duration::from_secs(60), ..config() };
    let queue = LoopbackConfig { queue_len: 184, ..LoopbackConfig::default() };
    let lab = Lab::over(queue, &[patient(7), patient(8)]);
    let mut hoarder = Raw::new(&lab, 66);
    let credits = Connect { credits: 182, credits_start: 182, reverse_credits: 0, reverse_start: 0, ..connect() };
    hoarder.open(&lab, credits);
    let _sessions: Vec<_> = (0..4).map(|_| lab.connect()).collect();
    lab.run_for(Duration::from_millis(200));
    assert!(lab.server().stats().credits_unplaced > 0);
    hoarder.receive();
    let mut due = Vec::new();
    let end = lab.network.now() + 1_000_000_000;
    while lab.network.now() < end {
        lab.turn();
        lab.network.advance(Duration::from_micros(100));
        due.extend(lab.server().next_due());
        due.dedup();
    }
    assert!(due.len() <= 60, "woken {} times in a second", due.len());
    assert_eq!(hoarder.receive().len(), 0, "it was asked for nothing");
}

/// If a queue is full, sessions begin without places; they count all the same, as they get places once there are some.
#[test]
fn places_of_one_peer_have_a_limit_where_others_hold_all_of_them() {
    let peer_limits = PeerLimits { places_max: 32, sessions_max: 100, ..PeerLimits::default() };
    let server = EndpointConfig { peer_limits, ..config() };
    let honest = |seed| EndpointConfig { seed: Some(seed), credits: 1, reverse_credits: 1, ..config() };
    let queue = LoopbackConfig { queue_len: 64, ..LoopbackConfig::default() };
    let lab = Lab::over(queue, &[server, honest(8), honest(9)]);
    let crowd: Vec<_> = (0..32)
        .map(|i| (1 + i % 2, lab.drive(1 + i % 2, lab.endpoints[1 + i % 2].connect(&address(0))).unwrap()))
        .collect();
    assert_eq!(lab.server().stats().credits_reserved, 64);
    let mut hoarder = Raw::new(&lab, 66);
    let (sessions, reason) = hoard(&lab, &mut hoarder);
    // Sixteen with a credit in each direction.
    assert_eq!((sessions.len(), reason), (16, RefuseReason::PeerCredits));
    // The others leave, and it may now have what the limit allows.
    for (client, session) in crowd {
        lab.drive(client, session.close());
    }
    lab.run_for(Duration::from_millis(50));
    let stats = lab.server().stats();
    assert_eq!((stats.sessions, stats.credits_reserved, stats.credits_unplaced), (16, 32, 0), "{stats}");
    hoarder.answers(&lab);
    let asks = Credits { role: LoanRole::Borrower, number: 1, held: 0, wanted: 7 };
    hoarder.send(&control(&sessions[0].header(Kind::Credits, 0, 0), &asks));
    let (_, answer) = hoarder.answers(&lab).into_iter().find(|(header, _)| header.kind == Kind::Credits).unwrap();
    assert_eq!(Credits::parse(&answer).unwrap().held, 0);
    assert_eq!(lab.server().stats().credits_reserved, 32);
}

/// Servers that live, since they say COOKIE whenever they are asked, and never anything else.
#[test]
fn servers_that_only_say_cookie_keep_no_places_from_sessions_that_are_open() {
    const SILENT: u32 = 11;
    let lab = lab(184, PeerLimits::default());
    lab.server().register(1, |request| request.respond(b"ok")).unwrap();
    let mut silent: Vec<_> = (0..SILENT).map(|i| Raw::facing(&lab, 60 + i, 1)).collect();
    let _waiting: Vec<_> = (0..SILENT).map(|i| lab.client().connect(&Addr::Node(60 + i))).collect();
    let mut run_for = |millis: u64| {
        let end = lab.network.now() + millis * 1_000_000;
        while lab.network.now() < end {
            for server in &mut silent {
                for (_, body) in server.answers(&lab) {
                    let connect = Connect::parse(&body).unwrap();
                    if connect.cookie == [0; 16] {
                        server.send_cookie(&connect);
                    }
                }
            }
            lab.network.advance(Duration::from_micros(20));
        }
    };
    run_for(1);
    assert_eq!(lab.client().stats().credits_reserved, 11 * 16);
    let session = lab.connect();
    for _ in 0..16 {
        let session = session.clone();
        lab.client().spawn(async move {
            loop {
                session.call(1, vec![9; 10_000]).await.unwrap();
            }
        });
    }
    run_for(100);
    assert_eq!(session.stats().unwrap().credits_max, 8, "{}", lab.client().stats());
    assert_eq!(lab.client().stats().credits_reserved, 11 * 2 + 8 + 1);
}

#[test]
fn memory_of_requests_that_arrive_is_shared_out() {
    let lab = lab(4096, PeerLimits { held_bytes_max: 20 * MIB as u64, ..PeerLimits::default() });
    lab.server().register(1, |request| request.respond(b"ok")).unwrap();
    let mut hoarder = Raw::new(&lab, 66);
    let opened = hoarder.open(&lab, connect());
    let data = vec![0; (opened.accept.mtu as usize - 32) & !15];
    let announce = |slot: u64, sequence: u64| {
        let mut header = opened.header(Kind::Request, Header::data_aux(1, data.len()), sequence * 8 + slot);
        header.multi = Some(Multi { message_bytes: 8 * MIB, packet: 0 });
        packet(&header, &data)
    };
    let mut answers = Vec::new();
    for slot in 0..8 {
        hoarder.send(&announce(slot, 1));
        answers.extend(hoarder.answers(&lab));
    }
    // There is room for two; the other six get the answer that nothing ran.
    let busy = |(header, _): &&(Header, Vec<u8>)| header.kind == Kind::Response && header.status == Status::Busy;
    assert_eq!(answers.iter().filter(busy).count(), 6, "{answers:?}");
    assert_eq!(answers.iter().filter(|(header, _)| header.kind == Kind::CreditReturn).count(), 2);
    assert_eq!(lab.server().stats().counters.requests_over_memory_share, 6);
    // Another host's share is not affected.
    let session = lab.connect();
    lab.drive(1, session.call(1, vec![1; 8 << 20])).unwrap();
    // What is given up becomes room again: by the next request of a slot, or the end of the session.
    hoarder.send(&announce(0, 2));
    assert_eq!(hoarder.answers(&lab)[0].0.kind, Kind::CreditReturn);
    let presence = dunlin_rpc::wire::control::Presence { incarnation: connect().incarnation, token: 0 };
    hoarder.send(&crate::raw::control(&opened.header(Kind::Close, 0, 0), &presence));
    hoarder.answers(&lab);
    let opened = hoarder.open(&lab, Connect { nonce: 1, ..connect() });
    for slot in 0..2 {
        let mut header = opened.header(Kind::Request, Header::data_aux(1, data.len()), 8 + slot);
        header.multi = Some(Multi { message_bytes: 8 * MIB, packet: 0 });
        hoarder.send(&packet(&header, &data));
        assert_eq!(hoarder.answers(&lab)[0].0.kind, Kind::CreditReturn);
    }
}

#[test]
fn requests_in_the_hands_of_handlers_are_shared_out() {
    let lab = lab(4096, PeerLimits { deferred_requests_max: 5, ..PeerLimits::default() });
    let kept: Rc<RefCell<Vec<DeferredRequest>>> = Rc::default();
    let at = kept.clone();
    lab.server().register(KEEP, move |request| at.borrow_mut().extend(request.defer())).unwrap();
    let mut hoarder = Raw::new(&lab, 66);
    let opened = hoarder.open(&lab, connect());
    let mut sent = 0;
    let mut send = |hoarder: &mut Raw| {
        // The next request of the slot gives up the previous one; its handler still has it.
        sent += 1;
        hoarder.send(&packet(&opened.header(Kind::Request, Header::data_aux(KEEP, 4), sent * 8), &[0; 4]));
        hoarder.answers(&lab)
    };
    for _ in 0..5 {
        assert!(send(&mut hoarder).is_empty());
    }
    let answers = send(&mut hoarder);
    assert_eq!(answers[0].0.status, Status::Overloaded);
    assert_eq!(lab.server().stats().counters.requests_over_deferred_share, 1);
    // Another host has its own share.
    let session = lab.connect();
    let calls: Vec<_> = (0..6).map(|_| session.call(KEEP, vec![1])).collect();
    lab.run_until(|| kept.borrow().len() == 10);
    let mut calls = calls.into_iter();
    let last = calls.next_back().unwrap();
    assert_eq!(lab.drive(1, last).unwrap_err().error, CallError::Overloaded);
    // Handlers that end make room.
    drop(kept.borrow_mut().remove(0));
    assert!(send(&mut hoarder).is_empty());
    drop(calls);
    kept.borrow_mut().clear();
}

#[test]
fn requests_of_workers_count_too() {
    let lab = lab(4096, PeerLimits { deferred_requests_max: 1, ..PeerLimits::default() });
    let pool = WorkerPool::by_hand(10);
    lab.server().register_worker(KEEP, &pool, |request| request.into_payload()).unwrap();
    let session = lab.connect();
    let first = session.call(KEEP, vec![1]);
    let second = session.call(KEEP, vec![2]);
    assert_eq!(lab.drive(1, second).unwrap_err().error, CallError::Busy);
    assert_eq!(pool.run_queued(), 1);
    assert_eq!(&lab.drive(1, first).unwrap().response[..], [1]);
    let third = session.call(KEEP, vec![3]);
    let mut third = Box::pin(third);
    for _ in 0..20 {
        lab.turn();
        assert!(lab.client().poll_once(third.as_mut()).is_none());
    }
    assert_eq!(pool.run_queued(), 1);
    assert_eq!(&lab.drive(1, third).unwrap().response[..], [3]);
    assert!(lab.drive(1, lab.client().connect(&address(0))).is_ok());
}
