//! Very many sessions with one peer: what happens to one of them, or to all, is noticed as soon as with a few.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dunlin_net::PeerHealth;
use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::wire::control::{Body, Presence};
use dunlin_rpc::wire::{HEADER_BYTES_MAX, Header, Kind, MASK_24};
use dunlin_rpc::{EndpointConfig, Session};

use crate::pair::{Lab, address, config};

const SESSIONS: usize = 20_000;

/// A client with this many sessions with the server.
fn crowd(sessions: usize) -> (Lab, Vec<Session>) {
    let one_credit = EndpointConfig { credits: 1, reverse_credits: 1, ..config() };
    let lab = Lab::over(
        LoopbackConfig { queue_len: 2 * SESSIONS, ..LoopbackConfig::default() },
        &[one_credit.clone(), EndpointConfig { seed: Some(8), ..one_credit }],
    );
    let opened = Rc::new(RefCell::new(Vec::new()));
    for i in 1..=sessions {
        let (connecting, opened) = (lab.client().connect(&address(0)), opened.clone());
        lab.client().spawn(async move {
            let session = connecting.await.unwrap();
            opened.borrow_mut().push(session);
        });
        if i % 1_000 == 0 || i == sessions {
            lab.run_until(|| lab.client().stats().tasks == 0);
        }
    }
    let opened = opened.take();
    (lab, opened)
}

/// Time on the network's clock until `done`, in milliseconds, with both endpoints or only the client running.
fn millis_until(lab: &Lab, runs: &[usize], done: impl Fn() -> bool) -> u64 {
    let start = lab.network.now();
    while !done() {
        lab.network.advance(Duration::from_millis(1));
        while runs.iter().map(|i| lab.endpoints[*i].run_once()).sum::<usize>() > 0 {}
        assert!(lab.network.now() - start < 60_000_000_000, "it was not noticed");
    }
    (lab.network.now() - start) / 1_000_000
}

#[test]
fn a_lost_peer_is_noticed_as_soon_with_many_sessions_as_with_one() {
    for sessions in [1, SESSIONS] {
        let (lab, opened) = crowd(sessions);
        let silence = millis_until(&lab, &[1], || lab.client().stats().sessions == 0);
        assert!((950..1_400).contains(&silence), "{sessions} sessions: {silence} ms");
        assert!(opened.iter().all(|session| !session.is_open()));
        assert_eq!(lab.client().stats().counters.sessions_failed, sessions as u64);
        let (lab, _opened) = crowd(sessions);
        lab.network.set_health(1, PeerHealth::Dead);
        let death = millis_until(&lab, &[1], || lab.client().stats().sessions == 0);
        // Idle peers are checked every 100 ms.
        assert!(death <= 110, "{sessions} sessions: {death} ms");
    }
}

#[test]
fn a_lost_session_is_found_among_many() {
    let (lab, opened) = crowd(SESSIONS);
    // Every CLOSE is lost, and the peers keep talking on the other sessions.
    let mut closing = Box::pin(opened[SESSIONS / 2].close());
    while lab.client().poll_once(closing.as_mut()).is_none() {
        lab.network.advance(Duration::from_millis(1));
        lab.server().with_transport(|transport| {
            dunlin_net::Transport::rx_burst(transport);
        });
    }
    assert_eq!(lab.server().stats().sessions as usize, SESSIONS);
    let time = millis_until(&lab, &[0, 1], || lab.server().stats().sessions as usize == SESSIONS - 1);
    assert!(time < 22_000, "{time} ms");
    assert_eq!(lab.client().stats().sessions as usize, SESSIONS - 1);
}

#[test]
fn a_reset_costs_no_search() {
    let (lab, _opened) = crowd(SESSIONS);
    // From the server's own address, so that only the name of the session is wrong.
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = Header::new(Kind::Reset, 0, MASK_24, 0, 0).write(&mut bytes);
    let mut packet = bytes[..len].to_vec();
    Presence { incarnation: 1, token: 3 }.write(&mut packet);
    let flood = |resets: usize| {
        let start = Instant::now();
        for _ in 0..resets {
            lab.server().with_transport(|transport| {
                dunlin_net::Transport::tx_to(transport, &address(1), &packet).unwrap();
            });
        }
        lab.network.advance(Duration::from_micros(2));
        while lab.client().run_once() > 0 {}
        start.elapsed()
    };
    let before = lab.client().stats().counters.dropped_control;
    flood(1_000);
    let time = flood(10_000);
    assert_eq!(lab.client().stats().counters.dropped_control - before, 11_000);
    // A search of 20,000 sessions for each of them took 29 us in a release build, and far longer in a test.
    assert!(time < Duration::from_secs(2), "10,000 RESETs took {time:?}");
    assert_eq!(lab.client().stats().sessions as usize, SESSIONS);
}
