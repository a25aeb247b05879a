//! Loans and places of single sessions, which the statistics of an endpoint do not show.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::LoopbackConfig;

use crate::pair::{Lab, address, config};
use crate::raw::{Opened, Raw, connect, control, packet};
use crate::wire::control::{Accept, Body, Connect, Cookie, Credits, LoanRole, Presence};
use crate::wire::header::VERSION;
use crate::wire::packets::Arrivals;
use crate::wire::{Header, Kind};
use crate::{EndpointConfig, Session};

/// The receive queue of an ordinary user's socket.
const QUEUE: usize = 184;

/// What has arrived at `peer` after some turns of the server, while the clock stands still.
fn answers(lab: &Lab, peer: &mut Raw) -> Vec<(Header, Vec<u8>)> {
    for _ in 0..3 {
        lab.server().run_once();
    }
    let parse = |packet: Vec<u8>| {
        let header = Header::parse(&packet, packet.len()).unwrap();
        (header, packet[header.wire_len()..].to_vec())
    };
    peer.receive().into_iter().map(parse).collect()
}

#[test]
fn sessions_that_come_and_go_between_two_ticks_leave_one_entry_among_pending_loans() {
    const CYCLES: u64 = 1_000;
    let network = LoopbackConfig { delay: Duration::ZERO, ..LoopbackConfig::default() };
    let lab = Lab::over(network, &[config()]);
    let mut hostile = Raw::new(&lab, 66);
    let presence = Presence { incarnation: connect().incarnation, token: 0 };
    let recall = Credits { role: LoanRole::Lender, number: 0, held: 0, wanted: 0 };
    for nonce in 0..CYCLES {
        let mut asked = Connect { nonce, ..connect() };
        hostile.send_connect(&asked);
        asked.cookie = Cookie::parse(&answers(&lab, &mut hostile)[0].1).unwrap().cookie;
        hostile.send_connect(&asked);
        let opened = Opened { accept: Accept::parse(&answers(&lab, &mut hostile)[0].1).unwrap() };
        hostile.send(&control(&opened.header(Kind::Credits, 0, 0), &recall));
        let steps = answers(&lab, &mut hostile);
        assert!(steps.iter().any(|(header, _)| header.kind == Kind::Credits), "{steps:?}");
        if nonce + 1 < CYCLES {
            hostile.send(&control(&opened.header(Kind::Close, 0, 0), &presence));
            answers(&lab, &mut hostile);
        }
    }
    assert_eq!(lab.server().stats().counters.sessions_closed, CYCLES - 1);
    for _ in 0..2 {
        lab.run_for(Duration::from_millis(6));
        let core = lab.server().shared.core.borrow();
        assert!(core.loans_pending.len() <= core.sessions.len(), "{} entries", core.loans_pending.len());
    }
}

/// A session that calls every 20 ms keeps its place at the server, however often others ask for loans.
#[test]
fn each_session_that_calls_now_and_then_keeps_its_place_while_others_borrow() {
    const BORROWERS: usize = 10;
    const CALLERS: usize = 20;
    const SESSIONS: usize = 100;
    let client = |seed| EndpointConfig { seed: Some(seed), credits: 32, ..config() };
    let network = LoopbackConfig { queue_len: QUEUE, ..LoopbackConfig::default() };
    let lab = Lab::over(network, &[client(0), client(1), client(2)]);
    lab.server().register(1, |request| request.respond(b"ok")).unwrap();
    let open = |client: usize| (client, lab.drive(client, lab.endpoints[client].connect(&address(0))).unwrap());
    let sessions: Vec<_> = (0..SESSIONS).map(|i| open(1 + i % 2)).collect();
    let call = |(client, session): &(usize, Session), bytes: usize, times: usize| {
        let session = session.clone();
        lab.endpoints[*client].spawn(async move {
            for _ in 0..times {
                session.call(1, vec![9; bytes]).await.unwrap();
            }
        });
    };
    for borrower in &sessions[..BORROWERS] {
        (0..2).for_each(|_| call(borrower, 40_000, usize::MAX));
    }
    // The server created its sessions in the order in which they were opened.
    let placed = |i: usize| lab.server().shared.core.borrow().cold[i].places.inbound > 0;
    let callers = BORROWERS..BORROWERS + CALLERS;
    for round in 0..25 {
        callers.clone().for_each(|i| call(&sessions[i], 64, 1));
        for _ in 0..20 {
            // Each tick examines all sessions.
            lab.server().shared.core.borrow_mut().want_places();
            lab.run_for(Duration::from_millis(1));
        }
        // The first calls got them their places.
        let without: Vec<_> = callers.clone().filter(|&i| round >= 5 && !placed(i)).collect();
        assert!(without.is_empty(), "round {round}: {without:?} have none");
    }
    let counters = lab.server().stats().counters;
    assert!(counters.credits_recalled > 0 && counters.places_withdrawn > 0, "{counters:?}");
    assert!((BORROWERS + CALLERS..SESSIONS).any(|i| !placed(i)), "no idle session gave its place up");
}

/// Opens a session of the lab's client with a server written out by hand at `node`, which agrees to whatever it is asked
/// for. Gives what it was asked for, and the session.
fn accept(lab: &Lab, server: &mut Raw, node: u32) -> (Connect, Session) {
    let opening = lab.client().connect(&Addr::Node(node));
    let asked = |server: &mut Raw| Connect::parse(&server.answers(lab)[0].1).unwrap();
    let first = asked(server);
    server.send_cookie(&first);
    let connect = asked(server);
    let accept = Accept {
        nonce: connect.nonce,
        version: VERSION,
        slots: connect.slots,
        credits: connect.credits,
        reverse_credits: connect.reverse_credits,
        mtu: connect.mtu,
        message_bytes_max: connect.message_bytes_max,
        session: 6,
        tag: 88,
        incarnation: 5678,
        credits_start: connect.credits_start,
        reverse_start: connect.reverse_start,
    };
    server.send(&control(&Header::new(Kind::Accept, 0, connect.session, 0, connect.tag), &accept));
    (connect, lab.drive(1, opening).unwrap())
}

/// A recall leaves a session with one credit, and the last packet of a request, which has arrived, holds it.
#[test]
fn a_lost_packet_takes_the_credit_that_the_last_packet_keeps_until_the_response() {
    let lab = Lab::pair();
    let mut server = Raw::facing(&lab, 66, 1);
    let (connect, session) = accept(&lab, &mut server, 66);
    let call = session.call(1, vec![7; 8 * session.stats().unwrap().packet_data_bytes]);
    let request = server.answers(&lab);
    assert_eq!(request.len(), 8, "as many packets as credits");
    let number = request[0].0.request;
    let header = |kind, aux, request| Header::new(kind, aux, connect.session, request, connect.tag);
    // The recall crosses the request, of which packet 3 is lost.
    let recall = Credits { role: LoanRole::Lender, number: 0, held: 7, wanted: 0 };
    server.send(&control(&header(Kind::Credits, 0, 0), &recall));
    assert!(server.answers(&lab).is_empty(), "all that is to be given back is in use");
    let all_but_3 = Arrivals { first_missing: 3, mask: 0b1110_1111 };
    let end = lab.network.now() + 100_000_000;
    loop {
        // Whatever comes again is answered as before.
        server.send(&control(&header(Kind::CreditReturn, 7, number), &all_but_3));
        let again = server.answers(&lab);
        let is_3 =
            |header: &Header| header.kind == Kind::Request && header.multi.is_some_and(|multi| multi.packet == 3);
        if again.iter().any(|(header, _)| is_3(header)) {
            break;
        }
        assert!(lab.network.now() < end, "packet 3 does not come again: {:?}", session.stats());
        lab.network.advance(Duration::from_micros(100));
    }
    server.send(&packet(&header(Kind::Response, Header::data_aux(1, 2), number), b"ok"));
    assert_eq!(&lab.drive(1, call).unwrap().response[..], b"ok");
    let stats = session.stats().unwrap();
    assert_eq!((stats.credits, stats.credits_max), (1, 1));
}

/// A peer that is heard again runs, so what it did not answer was lost.
#[test]
fn a_step_of_a_loan_comes_again_soon_after_the_peer_is_heard_again() {
    let lab = Lab::pair();
    let mut server = Raw::facing(&lab, 66, 1);
    let (connect, _session) = accept(&lab, &mut server, 66);
    let header = |kind| Header::new(kind, 0, connect.session, 0, connect.tag);
    let recall = Credits { role: LoanRole::Lender, number: 0, held: 7, wanted: 0 };
    server.send(&control(&header(Kind::Credits), &recall));
    let steps = |server: &mut Raw, time: Duration| {
        let end = lab.network.now() + time.as_nanos() as u64;
        let mut steps = 0;
        while lab.network.now() < end {
            steps += server.answers(&lab).iter().filter(|(header, _)| header.kind == Kind::Credits).count();
            lab.network.advance(Duration::from_millis(1));
        }
        steps
    };
    let silent = steps(&mut server, Duration::from_millis(800));
    assert!((2..=20).contains(&silent), "{silent} steps to a silent server");
    server.send(&control(&header(Kind::Ping), &Presence { incarnation: 5678, token: 0 }));
    let heard = steps(&mut server, Duration::from_millis(20));
    assert!(heard > 0, "no step within 20 ms of a ping, after {silent}");
}
