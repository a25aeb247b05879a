//! More sessions than a receive queue has places: those that are used have one, and the others cost memory only.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use dunlin_rpc::Session;

use crate::pair::{Ep, Lab};
use crate::{DATA, ECHO, Load, Random, check_books, full_queues, lab, open, seeded};

/// What an ordinary user's socket holds.
const QUEUE: usize = 184;

/// A server, and clients that share so many sessions with it, of as many credits as are the default.
fn crowd(clients: usize, sessions: usize) -> (Lab, Vec<(usize, Session)>) {
    let lab = lab(QUEUE, &seeded(0..1 + clients as u64));
    let mut opened = Vec::new();
    for i in 0..sessions {
        let client = 1 + i % clients;
        opened.push((client, open(&lab, client, 0).unwrap()));
    }
    (lab, opened)
}

fn counted(lab: &Lab, of: impl Fn(&Ep) -> u64) -> u64 {
    lab.endpoints.iter().map(of).sum()
}

/// The sum of all places is within each queue, and whoever has none is counted.
fn check_places(lab: &Lab) {
    for endpoint in &lab.endpoints {
        let stats = endpoint.stats();
        assert!(stats.credits_reserved <= QUEUE, "{stats}");
        let directions = 2 * stats.sessions as usize;
        assert!(stats.credits_reserved + stats.credits_unplaced >= directions, "{stats}");
    }
}

#[test]
fn thousands_of_sessions_open_and_each_gets_an_answer() {
    let (lab, sessions) = crowd(20, 10_000);
    assert_eq!(lab.server().stats().sessions, 10_000);
    check_places(&lab);
    // All wake at once, which is the worst that can happen: most packets are lost, and come again.
    let answers = Rc::new(Cell::new(0));
    for (client, session) in &sessions {
        let (call, answers) = (session.call(ECHO, vec![7; 64]), answers.clone());
        lab.endpoints[*client].spawn(async move {
            assert_eq!(&call.await.unwrap().response[..], &[7; 64]);
            answers.set(answers.get() + 1);
        });
    }
    let start = lab.network.now();
    while answers.get() < sessions.len() {
        lab.turn();
        lab.network.advance(Duration::from_micros(200));
        assert!(lab.network.now() - start < 5_000_000_000, "{} calls have an answer", answers.get());
    }
    assert!(full_queues(&lab) > 0 && counted(&lab, |endpoint| endpoint.stats().counters.retransmissions) > 0);
    check_places(&lab);
}

/// A few of very many sessions have all that a few alone would have.
#[test]
fn places_follow_the_sessions_that_are_used() {
    let (lab, sessions) = crowd(4, 2_000);
    for (client, session) in [&sessions[1_999], &sessions[7], &sessions[1_000]] {
        lab.run_for(Duration::from_secs(3));
        let before = lab.endpoints[*client].stats().counters.retransmissions;
        for _ in 0..150 {
            lab.drive(*client, session.call(ECHO, vec![1; 20 * DATA])).unwrap();
            lab.run_for(Duration::from_millis(1));
        }
        assert_eq!(session.stats().unwrap().credits_max, 8, "{:?}", session.stats());
        assert_eq!(lab.endpoints[*client].stats().counters.retransmissions, before);
        check_places(&lab);
    }
    let only: Vec<_> = sessions.into_iter().map(|(_, session)| session).collect();
    lab.run_for(Duration::from_millis(200));
    check_books(&lab, &only);
}

/// Sessions that are all used, far more of them than there are places: each gets on, as fast as the others.
fn contend(seed: u64) {
    let mut random = Random(seed);
    let (lab, sessions) = crowd(10, 500);
    let mut loads: Vec<_> = sessions
        .into_iter()
        .map(|(client, session)| Load { client, session, calls: VecDeque::new(), completed: 0 })
        .collect();
    let end = lab.network.now() + 1_000_000_000;
    while lab.network.now() < end {
        for load in &mut loads {
            if load.calls.is_empty() {
                load.calls.push_back(Box::pin(load.session.call(ECHO, vec![9; 64])));
            }
            load.poll(&lab.endpoints[load.client]);
        }
        lab.turn();
        lab.network.advance(Duration::from_micros(20 + random.below(60)));
    }
    let (fewest, most) = (loads.iter().map(|load| load.completed).min(), loads.iter().map(|load| load.completed).max());
    let (fewest, most) = (fewest.unwrap(), most.unwrap());
    assert!(fewest >= 10 && fewest * 50 >= most, "seed {seed}: from {fewest} to {most} calls of a session");
    check_places(&lab);
}

#[test]
fn none_of_many_used_sessions_starves() {
    for seed in 0..2 {
        contend(seed);
    }
}

/// A session that gets no loan does not ask for one all the time.
#[test]
fn questions_that_bring_nothing_become_rare() {
    let (lab, sessions) = crowd(2, 400);
    let mut loads: Vec<_> = sessions
        .into_iter()
        .map(|(client, session)| Load { client, session, calls: VecDeque::new(), completed: 0 })
        .collect();
    let mut run = |time: u64| {
        let end = lab.network.now() + time;
        while lab.network.now() < end {
            for load in &mut loads {
                while load.calls.len() < 4 {
                    load.calls.push_back(Box::pin(load.session.call(ECHO, vec![9; 64])));
                }
                load.poll(&lab.endpoints[load.client]);
            }
            lab.turn();
            lab.network.advance(Duration::from_micros(50));
        }
    };
    run(250_000_000);
    let before = lab.server().stats().counters;
    run(250_000_000);
    let after = lab.server().stats().counters;
    let served = after.requests_handled - before.requests_handled;
    let sent = after.tx_packets - before.tx_packets;
    assert!(sent < served + served / 5, "{sent} packets for {served} answers");
}

#[test]
fn places_are_exact_where_nobody_needs_more() {
    let lab = lab(QUEUE, &seeded(0..2));
    let sessions: Vec<_> = (0..92).map(|_| lab.connect()).collect();
    assert_eq!(lab.server().stats().credits_unplaced, 0);
    lab.run_for(Duration::from_secs(3));
    assert_eq!(counted(&lab, |endpoint| endpoint.stats().counters.places_withdrawn), 0);
    check_books(&lab, &sessions);
    let last = lab.connect();
    let stats = lab.server().stats();
    assert_eq!((stats.sessions, stats.credits_reserved + stats.credits_unplaced), (93, 186));
    assert_eq!(&lab.drive(1, last.call(ECHO, vec![3])).unwrap().response[..], [3]);
}
