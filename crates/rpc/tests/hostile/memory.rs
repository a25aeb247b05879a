//! Memory that other ends can make a server hold: a share of one budget for each host, however it is held.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::wire::control::{Connect, Presence};
use dunlin_rpc::wire::{Header, Kind, Status};
use dunlin_rpc::{CallError, DeferredRequest, EndpointConfig, MsgBuf, PeerLimits};

use crate::pair::{Lab, config};
use crate::raw::{Opened, Raw, connect, control, packet};

const LARGE: u8 = 1;
const SMALL: u8 = 2;
const KEEP: u8 = 3;
const MIB: u64 = 1 << 20;
const BUDGET: u64 = 64 * MIB;
const SESSIONS: u64 = 32;

/// A server with this budget, and an honest client.
fn lab() -> Lab {
    let server = EndpointConfig { held_bytes_max: BUDGET, ..config() };
    let client = EndpointConfig { seed: Some(8), ..config() };
    let lab = Lab::over(LoopbackConfig::default(), &[server, client]);
    lab.server().register(SMALL, |request| request.respond(&[7; 1000])).unwrap();
    lab
}

/// Answers of 1 MiB, from memory of the application's own. Gives how often the handler ran.
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
        // Each leaves free as much as it holds.
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
    // They stay, and say so, and ask for nothing.
    for _ in 0..60 {
        for (hoarder, opened) in hoarders.iter_mut().zip(&sessions) {
            ping(&lab, hoarder, &opened[0]);
        }
        lab.run_for(Duration::from_millis(200));
    }
    let stats = lab.server().stats();
    assert_eq!((u64::from(stats.sessions), stats.held_bytes), (3 * SESSIONS + 1, 0));
    assert!(stats.counters.responses_expired >= runs.get() - 20, "{stats}");
    // Who asks after all is told that it is gone, whatever it asks for.
    for kind in [Kind::RequestForResponse, Kind::Request] {
        let opened = sessions[0][0];
        let aux = if kind == Kind::Request { Header::data_aux(LARGE, 4) } else { 1 };
        let body: &[u8] = if kind == Kind::Request { &[0; 4] } else { &[] };
        hoarders[0].send(&packet(&opened.header(kind, aux, 8), body));
        let answers = hoarders[0].answers(&lab);
        assert_eq!((answers[0].0.kind, answers[0].0.status), (Kind::Response, Status::ResponseTooLarge), "{kind:?}");
    }
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
    // What the next session finds of these buffers is its own.
    let session = lab.connect();
    lab.drive(1, session.call(SMALL, vec![1; 4])).unwrap();
    assert!((1000..2048).contains(&lab.server().stats().held_bytes));
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
    assert!(kept.borrow().len() as u64 * 4 * MIB <= BUDGET / 2 && held <= BUDGET / 2, "{} are held", kept.borrow().len());
    assert!(kept.borrow().len() >= 4);
    // They are held as long as the handlers have them, and not only as long as their session lives.
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
