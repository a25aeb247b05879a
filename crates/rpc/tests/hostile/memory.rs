//! Memory that peers can make a server hold: each host has a share of one budget, however the memory is held.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::wire::control::{Connect, Presence};
use dunlin_rpc::wire::{Header, Kind, Multi, Status};
use dunlin_rpc::{CallError, DeferredRequest, EndpointConfig, MsgBuf, PeerLimits};

use crate::pair::{Lab, config};
use crate::raw::{Opened, Raw, connect, control, packet};

const LARGE: u8 = 1;
const SMALL: u8 = 2;
const KEEP: u8 = 3;
const TINY: u8 = 4;
const MIB: u64 = 1 << 20;
const BUDGET: u64 = 64 * MIB;
const SESSIONS: u64 = 32;

/// A server with this budget, and a well-behaved client.
fn lab() -> Lab {
    let server = EndpointConfig { held_bytes_max: BUDGET, ..config() };
    let client = EndpointConfig { seed: Some(8), ..config() };
    let lab = Lab::over(LoopbackConfig::default(), &[server, client]);
    lab.server().register(SMALL, |request| request.respond(&[7; 1000])).unwrap();
    lab
}

/// Answers with 1 MiB, from the application's own memory. Returns a count of the handler's runs.
fn serve_large(lab: &Lab) -> Rc<Cell<u64>> {
    let runs = Rc::new(Cell::new(0));
    let count = runs.clone();
    let handler = move |request: dunlin_rpc::Request<'_>| {
        count.set(count.get() + 1);
        let _ = request.respond_from(Bytes::from(vec![5; MIB as usize]));
    };
    lab.server().register(LARGE, handler).unwrap();
    runs
}

fn open(lab: &Lab, raw: &mut Raw, count: u64) -> Vec<Opened> {
    (0..count).map(|nonce| raw.open(lab, Connect { nonce, session: nonce as u32, ..connect() })).collect()
}

/// One request in each slot of a session.
fn ask_all(lab: &Lab, raw: &mut Raw, opened: &Opened, req_type: u8, sequence: u64) -> Vec<(Header, Vec<u8>)> {
    for slot in 0..8 {
        raw.send(&packet(&opened.header(Kind::Request, Header::data_aux(req_type, 4), sequence * 8 + slot), &[0; 4]));
    }
    raw.answers(lab)
}

fn ping(lab: &Lab, raw: &mut Raw, opened: &Opened) {
    let presence = Presence { incarnation: connect().incarnation, token: 1 };
    raw.send(&control(&opened.header(Kind::Ping, 0, 0), &presence));
    raw.answers(lab);
}

#[test]
fn requests_that_are_rejected_for_memory_are_counted_as_requests() {
    const REJECTED: u8 = 9;
    let lab = lab();
    serve_large(&lab);
    let mut hoarder = Raw::new(&lab, 66);
    let opened = open(&lab, &mut hoarder, SESSIONS);
    let is_busy = |(header, _): &(Header, Vec<u8>)| header.status == Status::Busy;
    let [asking @ .., rejected, long] = &opened[..] else { unreachable!() };
    assert!(asking.iter().any(|session| ask_all(&lab, &mut hoarder, session, LARGE, 1).iter().all(is_busy)));
    assert!(ask_all(&lab, &mut hoarder, rejected, REJECTED, 1).iter().all(is_busy));
    // A request that announces more than allowed, and whose rest is never sent.
    let mut header = long.header(Kind::Request, Header::data_aux(SMALL, 1440), 8);
    header.multi = Some(Multi { message_bytes: 8 << 20, packet: 0 });
    hoarder.send(&packet(&header, &[0; 1440]));
    assert!(hoarder.answers(&lab).iter().any(is_busy));
    let handlers = lab.server().stats().handlers;
    let counted = |of: u8| handlers.iter().find(|handler| handler.req_type == of).map(|handler| handler.requests);
    assert_eq!((counted(REJECTED), counted(SMALL)), (Some(8), Some(1)), "{handlers:?}");
    for handler in &handlers {
        assert!(handler.answers.iter().sum::<u64>() <= handler.requests, "{handler:?}");
    }
}

#[test]
fn kept_responses_leave_room_for_others_and_do_not_last() {
    let lab = lab();
    let runs = serve_large(&lab);
    let mut hoarders = [Raw::new(&lab, 66), Raw::new(&lab, 67), Raw::new(&lab, 68)];
    let mut sessions = Vec::new();
    for (i, hoarder) in hoarders.iter_mut().enumerate() {
        let opened = open(&lab, hoarder, SESSIONS);
        let (mut given, mut refused) = (0, 0);
        for session in &opened {
            for (header, _) in ask_all(&lab, hoarder, session, LARGE, 1) {
                match header.status {
                    Status::Ok => given += 1,
                    Status::Busy => refused += 1,
                    other => panic!("{other:?}, of a request that ran for nothing"),
                }
            }
        }
        // Each host leaves free as much as it holds.
        let held = lab.server().stats().held_bytes;
        assert!(held <= BUDGET - (BUDGET >> (i + 1)), "hoarder {i} makes it {held} bytes");
        assert_eq!(given + refused, SESSIONS * 8);
        assert!(given > 4, "it has a share all the same");
        sessions.push(opened);
    }
    assert_eq!(runs.get() * MIB, lab.server().stats().held_bytes, "nothing ran whose response found no room");
    let honest = lab.connect();
    for _ in 0..20 {
        assert_eq!(lab.drive(1, honest.call(LARGE, vec![1; 4])).unwrap().response.len() as u64, MIB);
    }
    // They stay, send keep-alives, and ask for nothing. While a host has most of its share, its oldest responses are
    // dropped, and soon.
    let mut wait = |seconds| {
        for _ in 0..5 * seconds {
            for (hoarder, opened) in hoarders.iter_mut().zip(&sessions) {
                ping(&lab, hoarder, &opened[0]);
            }
            pass(&lab, Duration::from_millis(200));
        }
        lab.server().stats()
    };
    let stats = wait(6);
    assert!(stats.held_bytes < BUDGET / 4 * 3 && stats.counters.responses_expired > 0, "{stats}");
    let stats = wait(26);
    assert_eq!((u64::from(stats.sessions), stats.held_bytes), (3 * SESSIONS + 1, 0));
    assert!(stats.counters.responses_expired >= runs.get() - 20, "{stats}");
    // A client that asks after all is told that the response is gone, whichever packet it asks for.
    for kind in [Kind::RequestForResponse, Kind::Request] {
        let opened = sessions[0][0];
        let aux = if kind == Kind::Request { Header::data_aux(LARGE, 4) } else { 1 };
        let body: &[u8] = if kind == Kind::Request { &[0; 4] } else { &[] };
        hoarders[0].send(&packet(&opened.header(kind, aux, 8), body));
        let mut answers = hoarders[0].answers(&lab);
        answers.retain(|(header, _)| header.kind != Kind::Ping);
        assert_eq!((answers[0].0.kind, answers[0].0.status), (Kind::Response, Status::ResponseTooLarge), "{kind:?}");
    }
}

/// Lets time pass, in steps of a millisecond.
fn pass(lab: &Lab, time: Duration) {
    let end = lab.network.now() + time.as_nanos() as u64;
    while lab.network.now() < end {
        lab.turn();
        lab.network.advance(Duration::from_millis(1));
    }
}

/// A client may be stopped, wait for credits, or have a longer `rto_max` than the server.
#[test]
fn a_response_waits_for_a_client_that_asks_late() {
    let lab = lab();
    serve_large(&lab);
    let mut client = Raw::new(&lab, 66);
    let opened = client.open(&lab, connect());
    client.send(&packet(&opened.header(Kind::Request, Header::data_aux(LARGE, 4), 8), &[0; 4]));
    assert_eq!(client.answers(&lab)[0].0.status, Status::Ok);
    let wait = |client: &mut Raw, seconds| {
        for _ in 0..5 * seconds {
            ping(&lab, client, &opened);
            pass(&lab, Duration::from_millis(200));
        }
    };
    wait(&mut client, 28);
    client.send(&packet(&opened.header(Kind::RequestForResponse, 1, 8), &[]));
    assert_eq!(client.answers(&lab)[0].0.status, Status::Ok);
    assert_eq!(lab.server().stats().counters.responses_expired, 0);
    wait(&mut client, 32);
    assert_eq!(lab.server().stats().held_bytes, 0, "nor is it kept for ever");
}

#[test]
fn only_what_is_accepted_keeps_memory() {
    let lab = lab();
    serve_large(&lab);
    let mut hoarder = Raw::new(&lab, 66);
    let opened = hoarder.open(&lab, connect());
    let data = vec![0; (opened.accept.mtu as usize - 32) & !15];
    let part = |number: u32, message_bytes: u32| {
        let mut header = opened.header(Kind::Request, Header::data_aux(LARGE, data.len()), 8);
        header.multi = Some(Multi { message_bytes, packet: number });
        packet(&header, &data)
    };
    hoarder.send(&part(0, MIB as u32));
    hoarder.send(&packet(&opened.header(Kind::Request, Header::data_aux(LARGE, 4), 9), &[0; 4]));
    hoarder.answers(&lab);
    assert_eq!(lab.server().stats().held_bytes, 2 * MIB);
    for _ in 0..35 {
        // For another message, a repetition, far too early, and for a response that does not exist.
        for bytes in [
            part(1, 2 * MIB as u32),
            part(0, MIB as u32),
            part(1 << 20, MIB as u32),
            packet(&opened.header(Kind::RequestForResponse, 0, 9), &[]),
            packet(&opened.header(Kind::RequestForResponse, 1 << 20, 9), &[]),
        ] {
            hoarder.send(&bytes);
        }
        ping(&lab, &mut hoarder, &opened);
        pass(&lab, Duration::from_secs(1));
    }
    let stats = lab.server().stats();
    assert_eq!((stats.held_bytes, stats.counters.requests_abandoned, stats.counters.responses_expired), (0, 1, 1));
}

#[test]
fn a_short_response_in_a_long_buffer_counts_the_buffer() {
    let lab = lab();
    let long = |request: dunlin_rpc::Request<'_>| {
        let mut buf = MsgBuf::with_len(8 * MIB as usize).unwrap();
        buf.set_len(100);
        let _ = request.respond_from(buf);
    };
    lab.server().register(LARGE, long).unwrap();
    lab.server().register(TINY, |request| request.respond(&[7; 200])).unwrap();
    let mut hoarder = Raw::new(&lab, 66);
    let opened = hoarder.open(&lab, connect());
    for (sequence, req_type) in [(1, TINY), (2, LARGE), (3, LARGE), (4, TINY)] {
        let answers = ask_all(&lab, &mut hoarder, &opened, req_type, sequence);
        let given = answers.iter().filter(|(header, _)| header.status == Status::Ok).count() as u64;
        let held = lab.server().stats().held_bytes;
        match req_type {
            LARGE => {
                assert!(given > 0 && (given * 8 * MIB..=BUDGET / 2).contains(&held), "{given} given, {held} bytes")
            }
            _ => assert!((200 * 8..2048 * 8).contains(&held), "{held}"),
        }
    }
}

#[test]
fn a_short_response_in_a_long_vec_counts_the_vec() {
    let lab = lab();
    let long = |request: dunlin_rpc::Request<'_>| {
        let mut response = Vec::with_capacity(8 * MIB as usize);
        response.extend([7; 100]);
        let _ = request.respond_from(response);
    };
    lab.server().register(LARGE, long).unwrap();
    let mut hoarder = Raw::new(&lab, 66);
    let opened = hoarder.open(&lab, connect());
    let answers = ask_all(&lab, &mut hoarder, &opened, LARGE, 1);
    let given = answers.iter().filter(|(header, _)| header.status == Status::Ok).count() as u64;
    let held = lab.server().stats().held_bytes;
    assert!(given > 0 && (given * 8 * MIB..=BUDGET / 2).contains(&held), "{given} given, {held} bytes");
}

#[test]
fn many_slots_give_up_soon_while_memory_is_crowded() {
    const MANY: u64 = 2048;
    let limits = PeerLimits { sessions_max: 1 << 20, places_max: 1 << 20, ..PeerLimits::default() };
    let server = EndpointConfig { held_bytes_max: BUDGET, peer_limits: limits, ..config() };
    let network = LoopbackConfig { queue_len: 1 << 16, ..LoopbackConfig::default() };
    let lab = Lab::over(network, &[server, EndpointConfig { seed: Some(8), ..config() }]);
    let body = Bytes::from(vec![5; 2000]);
    let serve = move |request: dunlin_rpc::Request<'_>| {
        let _ = request.respond_from(body.clone());
    };
    lab.server().register(LARGE, serve).unwrap();
    // The first has most of its share; what the second gets makes that share smaller.
    let hold = |number| {
        let mut hoarder = Raw::new(&lab, number);
        let opened = open(&lab, &mut hoarder, MANY);
        for session in &opened {
            ask_all(&lab, &mut hoarder, session, LARGE, 1);
        }
        (hoarder, opened)
    };
    let mut hoarders = [hold(66), hold(67)];
    let before = lab.server().stats();
    assert!(before.held_bytes > BUDGET / 64 * 37, "{before}");
    for _ in 0..21 {
        for (hoarder, opened) in &mut hoarders {
            ping(&lab, hoarder, &opened[0]);
        }
        pass(&lab, Duration::from_millis(200));
    }
    let stats = lab.server().stats();
    assert!((BUDGET / 64 * 30..BUDGET / 64 * 35).contains(&stats.held_bytes), "{stats}");
}

#[test]
fn small_responses_are_counted_by_the_buffers_that_their_slots_keep() {
    let lab = lab();
    let mut hoarder = Raw::new(&lab, 66);
    let opened = open(&lab, &mut hoarder, SESSIONS);
    for session in &opened {
        assert!(ask_all(&lab, &mut hoarder, session, SMALL, 1).iter().all(|(header, _)| header.status == Status::Ok));
    }
    let held = lab.server().stats().held_bytes;
    assert!((1000..2048).contains(&(held / SESSIONS / 8)), "{held}");
    for sequence in 2..20 {
        ask_all(&lab, &mut hoarder, &opened[0], SMALL, sequence);
    }
    assert_eq!(lab.server().stats().held_bytes, held, "a slot has one buffer for all its responses");
    let presence = Presence { incarnation: connect().incarnation, token: 0 };
    for session in &opened {
        hoarder.send(&control(&session.header(Kind::Close, 0, 0), &presence));
    }
    hoarder.answers(&lab);
    assert_eq!(lab.server().stats().held_bytes, 0);
    let session = lab.connect();
    lab.drive(1, session.call(SMALL, vec![1; 4])).unwrap();
    assert!((1000..2048).contains(&lab.server().stats().held_bytes));
}

/// With the minimum settings of an endpoint, on a server that has nothing else to do.
#[test]
fn the_longest_message_finds_room() {
    const LONGEST: usize = MIB as usize + 1;
    let limited = |held_bytes_max, of_host| {
        let peer_limits = PeerLimits { held_bytes_max: of_host, ..PeerLimits::default() };
        EndpointConfig { message_bytes_max: LONGEST, held_bytes_max, peer_limits, ..config() }
    };
    // Buffers are powers of two.
    assert_eq!(limited(10 * MIB - 1, u64::MAX).check().unwrap_err().name, "held_bytes_max");
    assert_eq!(limited(BUDGET, 4 * MIB - 1).check().unwrap_err().name, "peer_limits.held_bytes_max");
    for server in [limited(10 * MIB, u64::MAX), limited(BUDGET, 4 * MIB)] {
        let client = EndpointConfig { seed: Some(8), message_bytes_max: LONGEST, ..config() };
        let lab = Lab::over(LoopbackConfig::default(), &[server, client]);
        let echo = |request: dunlin_rpc::OwnedRequest| async move { request.into_payload() };
        lab.server().register_async(KEEP, echo).unwrap();
        let session = lab.connect();
        let mut request = MsgBuf::with_len(LONGEST).unwrap();
        for _ in 0..5 {
            let reply = lab.drive(1, session.call(KEEP, request)).unwrap();
            assert_eq!(reply.response.len(), LONGEST);
            request = reply.request;
        }
    }
}

#[test]
fn slots_that_are_gone_keep_no_buffers() {
    let lab = lab();
    lab.server().register(TINY, |request| request.respond(&[7; 200])).unwrap();
    let before = dunlin_rpc::msgbuf::outstanding();
    let mut hoarder = Raw::new(&lab, 66);
    let opened = open(&lab, &mut hoarder, SESSIONS);
    for session in &opened {
        ask_all(&lab, &mut hoarder, session, TINY, 1);
    }
    assert_eq!(dunlin_rpc::msgbuf::outstanding(), before + 8 * SESSIONS as i64);
    let presence = Presence { incarnation: connect().incarnation, token: 0 };
    for session in &opened {
        hoarder.send(&control(&session.header(Kind::Close, 0, 0), &presence));
    }
    hoarder.answers(&lab);
    assert_eq!((lab.server().stats().held_bytes, dunlin_rpc::msgbuf::outstanding()), (0, before));
}

/// What a slot is charged for is one buffer, whether the handler's or its own.
#[test]
fn a_slot_keeps_one_buffer_for_its_responses() {
    let lab = lab();
    lab.server().register(TINY, |request| request.respond(&[7; 200])).unwrap();
    lab.server().register_async(KEEP, |_| async { MsgBuf::with_len(900).unwrap() }).unwrap();
    let before = dunlin_rpc::msgbuf::outstanding();
    let mut hoarder = Raw::new(&lab, 66);
    let opened = hoarder.open(&lab, connect());
    for (sequence, req_type) in (1..).zip([KEEP, KEEP, TINY, SMALL, KEEP, LARGE, TINY]) {
        assert_eq!(ask_all(&lab, &mut hoarder, &opened, req_type, sequence).len(), 8);
        let kept = dunlin_rpc::msgbuf::outstanding() - before;
        assert!(kept <= 8, "{kept} buffers in 8 slots after request {sequence}");
    }
}

#[test]
fn long_requests_of_a_host_that_holds_most_do_not_run() {
    let lab = lab();
    let runs = serve_large(&lab);
    let mut hoarder = Raw::new(&lab, 66);
    let opened = open(&lab, &mut hoarder, SESSIONS);
    let [begun, beside, begins, asking @ ..] = &opened[..] else { unreachable!() };
    let part = |opened: &Opened, number| {
        let mut header = opened.header(Kind::Request, Header::data_aux(LARGE, 1440), 8);
        header.multi = Some(Multi { message_bytes: 2880, packet: number });
        header.is_last = number == 1;
        packet(&header, &[0; 1440])
    };
    // A request does not count its own bytes, so there are two.
    for session in [begun, beside] {
        hoarder.send(&part(session, 0));
        assert_eq!(hoarder.answers(&lab)[0].0.kind, Kind::CreditReturn);
    }
    let is_busy = |(header, _): &(Header, Vec<u8>)| header.status == Status::Busy;
    assert!(asking.iter().any(|session| ask_all(&lab, &mut hoarder, session, LARGE, 1).iter().all(is_busy)));
    // Neither one that begins now, nor one that had begun before.
    let before = (runs.get(), lab.server().stats().held_bytes);
    for (session, number) in [(begins, 0), (begun, 1)] {
        hoarder.send(&part(session, number));
        let answers = hoarder.answers(&lab);
        assert!(answers.iter().any(is_busy), "{answers:?}");
    }
    assert_eq!(runs.get(), before.0);
    assert!(lab.server().stats().held_bytes < before.1, "what had arrived is freed");
}

/// With its own bytes, its host has most of its share; without them, it has not.
#[test]
fn a_long_request_is_not_refused_for_its_own_bytes() {
    const LONG: usize = 60_000;
    let peer_limits = PeerLimits { held_bytes_max: 256 << 10, ..PeerLimits::default() };
    let server = EndpointConfig { message_bytes_max: LONG, held_bytes_max: BUDGET, peer_limits, ..config() };
    let lab = Lab::over(LoopbackConfig::default(), &[server, config()]);
    lab.server().register(KEEP, |request| _ = request.respond_from(Bytes::from(vec![5; LONG]))).unwrap();
    let mut client = Raw::new(&lab, 66);
    let opened = client.open(&lab, connect());
    for slot in 0..3 {
        client.send(&packet(&opened.header(Kind::Request, Header::data_aux(KEEP, 4), 8 + slot), &[0; 4]));
        assert_eq!(client.answers(&lab)[0].0.status, Status::Ok);
    }
    let mut answers = Vec::new();
    for (number, data) in vec![7; LONG].chunks(1440).enumerate() {
        let mut header = opened.header(Kind::Request, Header::data_aux(KEEP, data.len()), 8 + 3);
        header.multi = Some(Multi { message_bytes: LONG as u32, packet: number as u32 });
        header.is_last = (number + 1) * 1440 >= LONG;
        if header.is_last {
            // What hosts hold is looked at now and then.
            lab.run_for(Duration::from_secs(1));
        }
        client.send(&packet(&header, data));
        answers = client.answers(&lab);
    }
    let response = answers.iter().find(|(header, _)| header.kind == Kind::Response);
    assert_eq!(response.map(|(header, _)| header.status), Some(Status::Ok), "{answers:?}");
}

#[test]
fn requests_in_the_hands_of_handlers_are_counted_by_their_bytes() {
    let lab = lab();
    let kept: Rc<RefCell<Vec<DeferredRequest>>> = Rc::default();
    let at = kept.clone();
    lab.server().register(KEEP, move |request| at.borrow_mut().extend(request.defer())).unwrap();
    let request = || MsgBuf::with_len(4 * MIB as usize).unwrap();
    let (first, second) = (lab.connect(), lab.connect());
    let calls: Vec<_> = (0..16).map(|i| [&first, &second][i % 2].call(KEEP, request())).collect();
    let decided = |lab: &Lab| {
        let counters = lab.server().stats().counters;
        kept.borrow().len() as u64 + counters.requests_pushed_back + counters.requests_over_memory_share
    };
    lab.run_until(|| decided(&lab) == 16);
    let held = lab.server().stats().held_bytes;
    assert!(
        kept.borrow().len() as u64 * 4 * MIB <= BUDGET / 2 && held <= BUDGET / 2,
        "{} are held",
        kept.borrow().len()
    );
    assert!(kept.borrow().len() >= 4);
    // They count as held as long as the handlers have them, not only as long as their session lives.
    drop(calls);
    lab.drive(1, first.close());
    lab.drive(1, second.close());
    assert!(lab.server().stats().held_bytes >= kept.borrow().len() as u64 * 4 * MIB);
    let session = lab.connect();
    let many: Vec<_> = (0..8).map(|_| session.call(KEEP, request())).collect();
    lab.run_until(|| decided(&lab) == 24);
    assert!(kept.borrow().len() as u64 * 4 * MIB <= BUDGET / 2, "a new session is no new share");
    drop(many);
    kept.borrow_mut().clear();
    lab.drive(1, session.close());
    assert_eq!(lab.server().stats().held_bytes, 0);
}

#[test]
fn a_session_that_ends_does_not_forget_what_handlers_keep() {
    let server =
        EndpointConfig { peer_limits: PeerLimits { deferred_requests_max: 5, ..PeerLimits::default() }, ..config() };
    let lab = Lab::new(&[server, EndpointConfig { seed: Some(8), ..config() }]);
    let kept: Rc<RefCell<Vec<DeferredRequest>>> = Rc::default();
    let at = kept.clone();
    lab.server().register(KEEP, move |request| at.borrow_mut().extend(request.defer())).unwrap();
    for _ in 0..10 {
        let session = lab.connect();
        let calls: Vec<_> = (0..8).map(|_| session.call(KEEP, vec![1])).collect();
        lab.run_for(Duration::from_millis(5));
        assert_eq!(kept.borrow().len(), 5);
        drop(calls);
        lab.drive(1, session.close());
    }
    kept.borrow_mut().clear();
    let session = lab.connect();
    let mut call = Box::pin(session.call(KEEP, vec![1]));
    for _ in 0..20 {
        lab.turn();
        assert!(lab.client().poll_once(call.as_mut()).is_none());
    }
    kept.borrow_mut().clear();
    assert_eq!(lab.drive(1, call).unwrap_err().error, CallError::HandlerFailed);
}
