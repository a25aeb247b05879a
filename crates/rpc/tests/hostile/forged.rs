//! What an attacker can do who forges another's address: it ends nothing, and repeated guesses are limited.

use std::time::Duration;

use dunlin_net::loopback::LoopbackConfig;
use dunlin_net::{Addr, PeerHealth};
use dunlin_rpc::wire::control::{Body, Connect, Presence};
use dunlin_rpc::wire::{Header, Kind, MASK_24};
use dunlin_rpc::{CallError, ConnectError, EndpointConfig, Session};

use crate::pair::{Lab, address, config};
use crate::raw::{Opened, Raw, connect, control, packet};

const ECHO: u8 = 1;
const NEVER: u8 = 2;

fn lab() -> Lab {
    let lab = Lab::pair();
    let echo = |request: dunlin_rpc::Request<'_>| {
        let payload = request.payload();
        request.respond(payload);
    };
    lab.server().register(ECHO, echo).unwrap();
    let held = std::cell::RefCell::new(Vec::new());
    lab.server().register(NEVER, move |request| held.borrow_mut().push(request.defer().unwrap())).unwrap();
    lab
}

fn call(lab: &Lab, session: &Session) {
    assert_eq!(&lab.drive(1, session.call(ECHO, b"there?".to_vec())).unwrap().response[..], b"there?");
}

#[test]
fn a_refused_port_is_a_hint() {
    let lab = lab();
    let (session, other) = (lab.connect(), lab.connect());
    let mut waiting = Box::pin(session.call(NEVER, vec![1]));
    // An attacker reports this all the time, about both ends.
    lab.network.set_health(1, PeerHealth::Refused);
    lab.network.set_health(2, PeerHealth::Refused);
    for _ in 0..50 {
        lab.run_for(Duration::from_millis(100));
        assert!(lab.client().poll_once(waiting.as_mut()).is_none());
        call(&lab, &other);
    }
    assert!(session.is_open() && other.is_open());
    let pings = lab.client().stats().counters.pings_sent;
    assert!(pings < 5 * 250, "{pings} in 5 s");
    // A session opens all the same.
    call(&lab, &lab.connect());
}

#[test]
fn a_peer_that_is_gone_is_noticed_after_a_few_questions() {
    for has_call in [true, false] {
        let lab = lab();
        let session = lab.connect();
        let call = has_call.then(|| Box::pin(session.call(NEVER, vec![1])));
        lab.run_for(Duration::from_millis(20));
        let before = lab.client().stats().counters.pings_sent;
        lab.network.set_health(1, PeerHealth::Refused);
        let start = lab.network.now();
        // The server no longer runs.
        while session.is_open() {
            lab.client().run_once();
            lab.network.advance(Duration::from_micros(20));
        }
        let time = Duration::from_nanos(lab.network.now() - start);
        // Half of the peer timeout. Without calls, the next check may be a tenth of a second away.
        let most = Duration::from_millis(if has_call { 530 } else { 900 });
        assert!((Duration::from_millis(480)..most).contains(&time), "{time:?}");
        let pings = lab.client().stats().counters.pings_sent - before;
        // A call that times out sends pings too.
        assert!((3..=8).contains(&pings), "{pings}");
        if let Some(mut call) = call {
            let error = lab.client().poll_once(call.as_mut()).unwrap().unwrap_err().error;
            assert_eq!(error, CallError::PeerDied);
        }
    }
}

#[test]
fn nobody_listens_where_several_handshakes_find_nobody() {
    let lab = Lab::new(&[config(), EndpointConfig { seed: Some(8), ..config() }]);
    lab.network.set_health(50, PeerHealth::Refused);
    let start = lab.network.now();
    let error = lab.drive(1, lab.client().connect(&Addr::Node(50))).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let time = Duration::from_nanos(lab.network.now() - start);
    assert!((Duration::from_millis(250)..Duration::from_millis(400)).contains(&time), "{time:?}");
    assert!(lab.drive(1, lab.client().connect(&address(0))).is_ok());
}

/// No answer to any of the first CONNECTs can have come before the fourth is sent.
#[test]
fn a_hint_on_a_long_path_is_asked_about() {
    let network = LoopbackConfig { delay: Duration::from_millis(50), ..LoopbackConfig::default() };
    let lab = Lab::over(network, &[config(), EndpointConfig { seed: Some(8), ..config() }]);
    lab.network.set_health(1, PeerHealth::Refused);
    let mut opening = Box::pin(lab.client().connect(&address(0)));
    let opened = loop {
        lab.turn();
        lab.network.advance(Duration::from_micros(100));
        if let Some(opened) = lab.client().poll_once(opening.as_mut()) {
            break opened;
        }
    };
    assert!(opened.is_ok(), "{:?}", opened.err());
}

/// A packet from the peer's address that ends the session if the tag is right.
fn close(opened: &Opened, tag: u32) -> Vec<u8> {
    let presence = Presence { incarnation: connect().incarnation, token: 0 };
    control(&Header { tag, ..opened.header(Kind::Close, 0, 0) }, &presence)
}

#[test]
fn tags_cannot_be_tried_one_after_the_other() {
    let lab = lab();
    let mut raw = Raw::new(&lab, 66);
    let opened = raw.open(&lab, connect());
    let other = raw.open(&lab, Connect { nonce: 1, session: 6, ..connect() });
    // An attacker who tries all tags does not reach the right one: the session becomes deaf before.
    let right = opened.accept.tag;
    for tag in (1..=200).map(|i| (right - i) & MASK_24) {
        raw.send(&close(&opened, tag));
        lab.turn();
        lab.turn();
    }
    raw.send(&close(&opened, right));
    raw.answers(&lab);
    let stats = lab.server().stats();
    assert_eq!((stats.sessions, stats.counters.sessions_guessed_at), (2, 1));
    // The peer is not told that its session is unknown, and another session still receives.
    let request = |opened: &Opened| packet(&opened.header(Kind::Request, Header::data_aux(ECHO, 32), 8), &[0; 32]);
    raw.send(&request(&opened));
    assert!(raw.answers(&lab).is_empty());
    raw.send(&request(&other));
    assert_eq!(raw.answers(&lab)[0].0.kind, Kind::Response);
    // It works again after a while.
    lab.run_for(Duration::from_millis(250));
    raw.receive();
    raw.send(&request(&opened));
    assert_eq!(raw.answers(&lab)[0].0.kind, Kind::Response);
    // A few late packets of an earlier session do no harm.
    for tag in 1..20 {
        raw.send(&close(&opened, tag));
    }
    raw.send(&close(&opened, right));
    raw.answers(&lab);
    assert_eq!(lab.server().stats().sessions, 1);
}

/// An attacker who spreads guesses over many sessions of a peer gets no more of them for that.
#[test]
fn many_sessions_of_a_peer_do_not_allow_many_guesses() {
    const SESSIONS: u32 = 64;
    let lab = lab();
    let mut raw = Raw::new(&lab, 66);
    let open = |i: u32| Connect { nonce: u64::from(i), session: i, ..connect() };
    let opened: Vec<_> = (0..SESSIONS).map(|i| raw.open(&lab, open(i))).collect();
    // Each session is named by a few wrong tags and then by the right one, which ends it if it is heard.
    for victim in &opened {
        for guess in (0..8).rev() {
            raw.send(&close(victim, (victim.accept.tag + guess) & MASK_24));
        }
        lab.turn();
    }
    lab.turn();
    let stats = lab.server().stats();
    assert!(stats.sessions >= SESSIONS - 64 / 7, "{stats}");
    assert_eq!(stats.counters.sessions_guessed_at, u64::from(stats.sessions), "all others are deaf");
    // The others are not lost.
    lab.run_for(Duration::from_millis(250));
    raw.receive();
    let last = &opened[SESSIONS as usize - 1];
    raw.send(&packet(&last.header(Kind::Request, Header::data_aux(ECHO, 32), 8), &[0; 32]));
    assert!(raw.answers(&lab).iter().any(|(header, _)| header.kind == Kind::Response));
}

/// A client that answers pings, and an attacker with its address who guesses the tag of one of its sessions, all the
/// time.
#[test]
fn guesses_hold_up_a_session_and_not_its_peer() {
    for guessed_at in 0..3 {
        let lab = lab();
        let mut raw = Raw::new(&lab, 66);
        let opened: Vec<_> =
            (0..3).map(|i| raw.open(&lab, Connect { nonce: i, session: i as u32, ..connect() })).collect();
        let victim = &opened[guessed_at];
        let end = lab.network.now() + 5_000_000_000;
        let mut pongs: Vec<Vec<u8>> = Vec::new();
        while lab.network.now() < end {
            for guess in 1..=70 {
                raw.send(&close(victim, (victim.accept.tag + guess) & MASK_24));
            }
            // A round trip takes a millisecond.
            pongs.drain(..).for_each(|pong| raw.send(&pong));
            for (header, body) in raw.answers(&lab) {
                if header.kind == Kind::Ping {
                    let token = Presence::parse(&body).unwrap().token;
                    let pong = Presence { incarnation: connect().incarnation, token };
                    pongs.push(control(&opened[header.session as usize].header(Kind::Pong, 0, 0), &pong));
                }
            }
            lab.network.advance(Duration::from_millis(1));
        }
        let stats = lab.server().stats();
        assert!(stats.counters.sessions_guessed_at > 20, "{stats}");
        assert_eq!(stats.sessions, 3, "{guessed_at} was guessed at");
    }
}

/// A peer whose session is being guessed at need not be alive.
#[test]
fn guesses_do_not_keep_a_dead_peer_for_ever() {
    let lab = lab();
    let mut raw = Raw::new(&lab, 66);
    let opened = raw.open(&lab, connect());
    let end = lab.network.now() + 12_000_000_000;
    while lab.network.now() < end {
        for guess in 1..=70 {
            raw.send(&close(&opened, (opened.accept.tag + guess) & MASK_24));
        }
        raw.answers(&lab);
        lab.network.advance(Duration::from_millis(1));
    }
    assert_eq!(lab.server().stats().sessions, 0);
}

/// The peer is stopped for a moment while an attacker reports that nobody listens there.
#[test]
fn a_hint_and_a_pause_end_nothing() {
    let lab = lab();
    let session = lab.connect();
    let mut waiting = Box::pin(session.call(NEVER, vec![1]));
    lab.run_for(Duration::from_millis(20));
    lab.network.set_health(1, PeerHealth::Refused);
    let end = lab.network.now() + 400_000_000;
    while lab.network.now() < end {
        lab.client().run_once();
        lab.network.advance(Duration::from_micros(100));
    }
    lab.run_for(Duration::from_millis(50));
    assert!(session.is_open() && lab.client().poll_once(waiting.as_mut()).is_none());
}

#[test]
fn a_hint_late_in_a_handshake_is_asked_about() {
    let lab = Lab::new(&[config(), EndpointConfig { seed: Some(8), ..config() }]);
    let mut opening = Box::pin(lab.client().connect(&Addr::Node(50)));
    let mut wait = |millis: u64| {
        let end = lab.network.now() + millis * 1_000_000;
        while lab.network.now() < end {
            lab.turn();
            lab.network.advance(Duration::from_micros(100));
            if lab.client().poll_once(opening.as_mut()).is_some() {
                return true;
            }
        }
        false
    };
    assert!(!wait(1000));
    lab.network.set_health(50, PeerHealth::Refused);
    assert!(!wait(500), "the handshake ended by the hint alone");
    assert!(wait(500));
}

#[test]
fn strangers_cannot_stop_a_session_from_hearing() {
    let lab = lab();
    let mut raw = Raw::new(&lab, 66);
    let opened = raw.open(&lab, connect());
    let mut stranger = Raw::new(&lab, 67);
    for tag in 1..=1000 {
        stranger.send(&close(&opened, tag));
        lab.turn();
    }
    assert_eq!(lab.server().stats().counters.sessions_guessed_at, 0);
}

/// The RESET that the peer at `raw` would send after a restart, for the session that [`connect`] asked for.
fn reset(tag: u32) -> Vec<u8> {
    let asked = connect();
    let presence = Presence { incarnation: asked.incarnation, token: asked.session as u64 | u64::from(tag) << 24 };
    control(&Header::new(Kind::Reset, 0, MASK_24, 0, 0), &presence)
}

#[test]
fn others_cannot_keep_a_reset_from_being_heard() {
    let lab = lab();
    let mut raw = Raw::new(&lab, 66);
    raw.open(&lab, connect());
    // A stranger, and another peer.
    let mut others = [Raw::new(&lab, 67), Raw::new(&lab, 68)];
    others[1].open(&lab, connect());
    for other in &mut others {
        for tag in 1000..1100 {
            other.send(&reset(tag));
            lab.turn();
        }
    }
    raw.send(&reset(connect().tag));
    raw.answers(&lab);
    assert_eq!(lab.server().stats().sessions, 1);
}

/// With very many peers ticks are further apart.
#[test]
fn a_session_that_was_guessed_at_hears_again_soon_beside_many_peers() {
    const PEERS: u32 = 50_000;
    let network = LoopbackConfig { queue_len: 1 << 20, ..LoopbackConfig::default() };
    let lab = Lab::over(network, &[config()]);
    let echo = |request: dunlin_rpc::Request<'_>| {
        let payload = request.payload();
        request.respond(payload);
    };
    lab.server().register(ECHO, echo).unwrap();
    let mut peers: Vec<_> = (0..PEERS).map(|i| Raw::new(&lab, 1000 + i)).collect();
    let opened: Vec<_> = peers.iter_mut().map(|peer| peer.open(&lab, connect())).collect();
    let (raw, victim) = (&mut peers[7], &opened[7]);
    for round in 1..=5 {
        for guess in 1..=64 {
            raw.send(&close(victim, (victim.accept.tag + guess) & MASK_24));
        }
        raw.answers(&lab);
        assert_eq!(lab.server().stats().counters.sessions_guessed_at, round);
        lab.run_for(Duration::from_millis(110));
        raw.receive();
        raw.send(&packet(&victim.header(Kind::Request, Header::data_aux(ECHO, 32), round * 8), &[0; 32]));
        assert!(raw.answers(&lab).iter().any(|(header, _)| header.kind == Kind::Response), "in round {round}");
    }
}

#[test]
fn resets_cannot_be_tried_one_after_the_other() {
    let lab = lab();
    let mut raw = Raw::new(&lab, 66);
    raw.open(&lab, connect());
    for tag in 1000..1200 {
        raw.send(&reset(tag));
        lab.turn();
    }
    raw.send(&reset(connect().tag));
    raw.answers(&lab);
    assert_eq!(lab.server().stats().sessions, 1);
    lab.run_for(Duration::from_millis(250));
    raw.send(&reset(connect().tag));
    raw.answers(&lab);
    assert_eq!(lab.server().stats().sessions, 0);
}
