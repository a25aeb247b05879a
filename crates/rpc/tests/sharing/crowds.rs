//! More sessions than a receive queue has places: those in use have one, and the others cost only memory.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use dunlin_rpc::{CongestionControl, EndpointConfig, Session};

use crate::pair::{Ep, Lab, address};
use crate::{DATA, ECHO, Load, Random, check_books, full_queues, lab, open, seeded};

/// The receive queue of an ordinary user's socket.
const QUEUE: usize = 184;

/// A server, and clients that share this many sessions with it, with the default number of credits.
fn crowd(clients: usize, sessions: usize) -> (Lab, Vec<(usize, Session)>) {
    crowd_of(&seeded(0..1 + clients as u64), sessions)
}

/// The same for a server and clients with these settings.
fn crowd_of(configs: &[EndpointConfig], sessions: usize) -> (Lab, Vec<(usize, Session)>) {
    let (lab, clients) = (lab(QUEUE, configs), configs.len() - 1);
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

/// Checks that the sum of all places is within each queue, and that each direction without a place is counted.
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
    // All wake at the same time, which is the worst case: most packets are lost and retransmitted.
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

/// A few active ones among very many sessions have all that a few alone would have.
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

/// Sessions that are all in use, far more of them than there are places: all make progress, equally fast.
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
    lab.run_for(Duration::from_secs(3));
    assert_eq!(counted(&lab, |endpoint| endpoint.stats().credits_unplaced as u64), 0);
    assert_eq!(counted(&lab, |endpoint| endpoint.stats().counters.places_withdrawn), 0);
    check_books(&lab, &sessions);
    let last = lab.connect();
    let stats = lab.server().stats();
    assert_eq!((stats.sessions, stats.credits_reserved + stats.credits_unplaced), (93, 186));
    assert_eq!(&lab.drive(1, last.call(ECHO, vec![3])).unwrap().response[..], [3]);
}

/// Keeps this many multi-packet calls in progress on a session, and counts those that completed.
fn keep_busy(lab: &Lab, (client, session): &(usize, Session), calls: usize) -> Rc<Cell<u32>> {
    let completed = Rc::new(Cell::new(0));
    for _ in 0..calls {
        let (session, completed) = (session.clone(), completed.clone());
        lab.endpoints[*client].spawn(async move {
            loop {
                session.call(ECHO, vec![9; 5 * DATA]).await.unwrap();
                completed.set(completed.get() + 1);
            }
        });
    }
    completed
}

fn run_steps(lab: &Lab, millis: u64) {
    let end = lab.network.now() + millis * 1_000_000;
    while lab.network.now() < end {
        lab.turn();
        lab.network.advance(Duration::from_micros(50));
    }
}

/// Sessions that never run out of calls give back what they hold beyond their share, although all of it is in use.
#[test]
fn sessions_with_a_backlog_share_with_later_ones() {
    const FIRST: usize = 22;
    const LATER: usize = 30;
    // Round trips are as long as the steps of the clock, which congestion control would mistake for queues.
    let config = |config| EndpointConfig { reverse_credits: 0, congestion: CongestionControl::None, ..config };
    let configs: Vec<_> = seeded(0..5).into_iter().map(config).collect();
    let (lab, mut sessions) = crowd_of(&configs, FIRST);
    let mut completed: Vec<_> = sessions.iter().map(|session| keep_busy(&lab, session, 16)).collect();
    run_steps(&lab, 50);
    assert!(sessions.iter().all(|(_, session)| session.stats().unwrap().credits_max == 8));
    for i in FIRST..FIRST + LATER {
        let client = 1 + i % 4;
        let later = (client, open(&lab, client, 0).unwrap());
        completed.push(keep_busy(&lab, &later, 16));
        sessions.push(later);
    }
    run_steps(&lab, 200);
    completed.iter().for_each(|count| count.set(0));
    run_steps(&lab, 200);
    let credits: Vec<_> = sessions.iter().map(|(_, session)| session.stats().unwrap().credits_max).collect();
    let counts: Vec<_> = completed.iter().map(|count| count.get()).collect();
    let (fewest, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(fewest * 4 >= *most, "calls {counts:?} with credits {credits:?}");
    assert!(credits.iter().all(|credits| (2..=3).contains(credits)), "{credits:?}");
    check_places(&lab);
}

/// Servers that do not answer keep no places from sessions that are open.
#[test]
fn sessions_that_wait_for_silent_servers_hold_no_more_than_their_single_credits() {
    let lab = lab(QUEUE, &seeded(0..2));
    let waiting: Vec<_> = (0..11).map(|i| lab.client().connect(&address(50 + i))).collect();
    lab.run_for(Duration::from_millis(1));
    let session = (1, lab.connect());
    keep_busy(&lab, &session, 16);
    lab.run_for(Duration::from_millis(100));
    assert_eq!(session.1.stats().unwrap().credits_max, 8, "{}", lab.client().stats());
    assert_eq!(lab.client().stats().credits_reserved, 11 * 2 + 16);
    drop(waiting);
}

/// Runs all but one endpoint, which is stopped, and whose receive queue goes on filling.
fn run_without(lab: &Lab, stopped: usize, millis: u64) {
    let end = lab.network.now() + millis * 1_000_000;
    while lab.network.now() < end {
        let running = lab.endpoints.iter().enumerate().filter(|(i, _)| *i != stopped);
        running.for_each(|(_, endpoint)| _ = endpoint.run_once());
        lab.network.advance(Duration::from_micros(50));
    }
}

/// A client that is stopped while others want what it holds finds few packets about that in its queue, and no full one.
#[test]
fn a_stopped_client_that_holds_loans_is_seldom_asked_for_them() {
    // Round trips are as long as the steps of the clock, which congestion control would take for queues.
    let config = |config| EndpointConfig { congestion: CongestionControl::None, ..config };
    let lab = lab(QUEUE, &seeded(0..3).into_iter().map(config).collect::<Vec<_>>());
    let held: Vec<_> = (0..11).map(|_| open(&lab, 1, 0).unwrap()).collect();
    assert!(held.iter().all(|session| session.stats().unwrap().credits_max == 8));
    let busy: Vec<_> = (0..6).map(|_| (2, open(&lab, 2, 0).unwrap())).collect();
    busy.iter().for_each(|session| _ = keep_busy(&lab, session, 16));
    let received = || held.iter().map(|session| session.stats().unwrap().rx_packets).collect::<Vec<_>>();
    let before = received();
    run_without(&lab, 1, 500);
    assert_eq!(full_queues(&lab), 0);
    run_steps(&lab, 1);
    // Seven recalls, and as many steps by which the server gives its own loans back: timeouts of 5 ms and more.
    let packets: Vec<_> = received().iter().zip(&before).map(|(after, before)| after - before).collect();
    assert!(packets.iter().all(|packets| (2..=18).contains(packets)), "{packets:?}");
    // A session that was refused so often asks seldom.
    run_steps(&lab, 500);
    let credits: Vec<_> = busy.iter().map(|(_, session)| session.stats().unwrap().credits_max).collect();
    assert_eq!(credits, [8; 6]);
}

/// A server that is stopped between COOKIE and ACCEPT: its clients want the places, begin anew, and open all the same.
#[test]
fn sessions_open_with_single_credits_when_their_server_goes_on() {
    const OPENING: usize = 11;
    let lab = lab(QUEUE, &seeded(0..3));
    let mut opening: Vec<_> = (0..OPENING).map(|_| Box::pin(lab.client().connect(&address(0)))).collect();
    lab.run_until(|| lab.client().stats().credits_reserved == OPENING * 16);
    let busy = (1, open_without(&lab, 0, 1, 2));
    keep_busy(&lab, &busy, 16);
    run_without(&lab, 0, 100);
    assert_eq!(busy.1.stats().unwrap().credits_max, 8);
    assert_eq!(lab.client().stats().credits_reserved, OPENING * 2 + 8 + 1);
    let opened: Vec<_> = opening.iter_mut().map(|opening| lab.drive(1, opening.as_mut()).unwrap()).collect();
    // What the server had opened before, it gives up.
    run_steps(&lab, 20);
    assert_eq!(lab.server().stats().counters.sessions_accepted, 2 * OPENING as u64, "{}", lab.server().stats());
    assert_eq!(lab.server().stats().sessions, OPENING as u32);
    for session in &opened {
        lab.drive(1, session.call(ECHO, vec![5; 5 * DATA])).unwrap();
    }
}

/// Opens a session while an endpoint is stopped.
fn open_without(lab: &Lab, stopped: usize, client: usize, server: usize) -> Session {
    let mut opening = Box::pin(lab.endpoints[client].connect(&address(server)));
    loop {
        run_without(lab, stopped, 1);
        if let Some(session) = lab.endpoints[client].poll_once(opening.as_mut()) {
            return session.unwrap();
        }
    }
}
