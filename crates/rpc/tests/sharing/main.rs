//! Sessions beyond what a receive queue has credits for: each keeps one, the others are lent to those that use them.
//!
//! The loopback network counts every packet that finds a full queue, at its sender. None may, whatever the sessions do,
//! as long as each of them has a place; [`crowds`] is about more sessions than that.

mod crowds;
#[path = "../pair/mod.rs"]
mod pair;

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::wire::control::RefuseReason;
use dunlin_rpc::{CallFailure, ConnectError, Endpoint, EndpointConfig, Reply, Session, Switch};
use pair::{Ep, Lab, address, config};

const ECHO: u8 = 1;
const LONG_ANSWER: u8 = 2;
const DATA: usize = 1440;

type CallOutcome = Result<Reply<Vec<u8>>, CallFailure<Vec<u8>>>;

/// SplitMix64, so that a seed always names the same run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

fn serve(endpoint: &Ep) {
    let echo = |request: dunlin_rpc::Request<'_>| {
        let payload = request.payload();
        request.respond(payload);
    };
    endpoint.register(ECHO, echo).unwrap();
    endpoint.register(LONG_ANSWER, |request| request.respond(&[7; 20 * DATA])).unwrap();
}

fn lab(queue_len: usize, configs: &[EndpointConfig]) -> Lab {
    let lab = Lab::over(LoopbackConfig { queue_len, ..LoopbackConfig::default() }, configs);
    lab.endpoints.iter().for_each(serve);
    lab
}

fn seeded(seeds: std::ops::Range<u64>) -> Vec<EndpointConfig> {
    seeds.map(|seed| EndpointConfig { seed: Some(seed), ..config() }).collect()
}

fn open(lab: &Lab, client: usize, server: usize) -> Result<Session, ConnectError> {
    lab.drive(client, lab.endpoints[client].connect(&address(server)))
}

fn full_queues(lab: &Lab) -> u64 {
    lab.endpoints.iter().map(|endpoint| endpoint.stats().transport.tx_dropped_full).sum()
}

/// Checks that both ends of every session, and their endpoints, count the same credits.
fn check_books(lab: &Lab, sessions: &[Session]) {
    let known: usize = sessions
        .iter()
        .map(|session| session.stats().unwrap())
        .map(|s| s.credits_max as usize + s.credits_granted as usize)
        .sum();
    let places = |endpoint: &Ep| endpoint.stats().credits_reserved + endpoint.stats().credits_unplaced;
    let counted: usize = lab.endpoints.iter().map(places).sum();
    assert_eq!(counted, 2 * known, "{:?}", lab.endpoints.iter().map(Endpoint::stats).collect::<Vec<_>>());
    for session in sessions {
        let stats = session.stats().unwrap();
        assert_eq!(stats.credits, stats.credits_max, "{stats:?}");
        assert!((1..=stats.credits_agreed).contains(&stats.credits_max), "{stats:?}");
    }
}

#[test]
fn a_session_that_fits_has_all_its_credits_from_the_start() {
    let lab = lab(64, &seeded(0..2));
    for _ in 0..4 {
        let stats = lab.connect().stats().unwrap();
        assert_eq!((stats.credits_max, stats.credits_agreed, stats.credits_granted), (8, 8, 8));
    }
    assert_eq!((lab.server().stats().credits_reserved, lab.client().stats().credits_reserved), (64, 64));
}

#[test]
fn half_as_many_sessions_as_the_queue_has_places_all_have_some() {
    let lab = lab(64, &seeded(0..2));
    let sessions: Vec<_> = (0..32).map(|_| lab.connect()).collect();
    lab.run_for(Duration::from_millis(200));
    assert_eq!(lab.server().stats().credits_reserved, 64);
    assert_eq!(lab.server().stats().credits_unplaced, 0);
    for session in &sessions {
        let reply = lab.drive(1, session.call(ECHO, vec![5; 10 * DATA])).unwrap();
        assert_eq!(reply.response.len(), 10 * DATA);
    }
    check_books(&lab, &sessions);
    assert_eq!(full_queues(&lab), 0);
}

#[test]
fn a_server_that_does_not_share_refuses_sessions_without_places() {
    let unshared = |config| EndpointConfig { credit_sharing: Switch::Off, ..config };
    let lab = lab(32, &seeded(0..4).into_iter().map(unshared).collect::<Vec<_>>());
    // No client is short of credits itself.
    for client in [1, 2] {
        open(&lab, client, 0).unwrap();
    }
    let error = open(&lab, 3, 0).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { reason: RefuseReason::NoCredits, .. }), "{error}");
}

#[test]
fn credits_go_where_they_are_used_and_come_back_when_others_ask() {
    let lab = lab(64, &seeded(0..2));
    let sessions: Vec<_> = (0..20).map(|_| lab.connect()).collect();
    let (busy, later) = (&sessions[19], &sessions[0]);
    // It begins with one, and soon has all agreed credits.
    assert_eq!(busy.stats().unwrap().credits_max, 1);
    for session in [busy, later, busy] {
        for _ in 0..100 {
            lab.drive(1, session.call(ECHO, vec![1; 20 * DATA])).unwrap();
            lab.run_for(Duration::from_millis(1));
        }
        assert_eq!(session.stats().unwrap().credits_max, 8, "{:?}", session.stats());
    }
    lab.run_for(Duration::from_millis(200));
    check_books(&lab, &sessions);
    let borrowed = lab.client().stats().counters.credits_borrowed;
    assert!(borrowed >= 7, "{borrowed}");
    assert_eq!(full_queues(&lab), 0);
}

#[test]
fn those_who_do_not_share_get_on_with_those_who_do() {
    for (server, client) in [(Switch::On, Switch::Off), (Switch::Off, Switch::On)] {
        let mut configs = seeded(0..3);
        configs[0].credit_sharing = server;
        configs[1].credit_sharing = client;
        configs[2].credit_sharing = client;
        let lab = lab(32, &configs);
        let mut sessions = Vec::new();
        for i in 0..4 {
            sessions.extend(open(&lab, 1 + i % 2, 0).map(|session| (1 + i % 2, session)));
        }
        assert_eq!(sessions.len(), if server == Switch::On { 4 } else { 2 });
        for (client, session) in &sessions {
            for _ in 0..20 {
                lab.drive(*client, session.call(ECHO, vec![5; 10 * DATA])).unwrap();
            }
        }
        assert_eq!(full_queues(&lab), 0);
    }
}

struct Load {
    client: usize,
    session: Session,
    calls: VecDeque<Pin<Box<dyn Future<Output = CallOutcome>>>>,
    completed: u32,
}

impl Load {
    fn start(&mut self, random: &mut Random, calls: u64) {
        for _ in 0..calls {
            let max = [40, DATA, 12 * DATA][random.below(3) as usize];
            let len = random.below(max as u64) as usize;
            let req_type = if random.below(8) == 0 { LONG_ANSWER } else { ECHO };
            self.calls.push_back(Box::pin(self.session.call(req_type, vec![9; len])));
        }
    }

    fn poll(&mut self, endpoint: &Ep) {
        for _ in 0..self.calls.len() {
            let Some(mut call) = self.calls.pop_front() else { return };
            match endpoint.poll_once(call.as_mut()) {
                Some(outcome) => {
                    outcome.unwrap();
                    self.completed += 1;
                }
                None => self.calls.push_back(call),
            }
        }
    }
}

/// Several clients with far more sessions than a server's queue has credits for, all of them busy at times, in both
/// directions.
fn run(seed: u64) {
    let mut random = Random(seed);
    let queue_len = 48 + random.below(80) as usize;
    let mut configs = seeded(0..3);
    for config in &mut configs {
        config.credits = 2 + random.below(15) as u16;
        config.reverse_credits = 1 + random.below(8) as u16;
    }
    let lab = lab(queue_len, &configs);
    let mut loads = Vec::new();
    for i in 0..queue_len / 3 {
        let client = 1 + i % 2;
        let session = open(&lab, client, 0).unwrap();
        loads.push(Load { client, session, calls: VecDeque::new(), completed: 0 });
    }
    // A session that was opened while all places were lent gets its own once some are back.
    lab.run_until(|| lab.endpoints.iter().all(|endpoint| endpoint.stats().credits_unplaced == 0));
    for round in 0..60 {
        let (burst, quiet) = (random.below(4), random.below(3) > 0);
        for load in &mut loads {
            if load.calls.is_empty() && (round % 10 == 0 || random.below(4) < burst) {
                let calls = 1 + random.below(9);
                load.start(&mut random, calls);
            }
        }
        let end = lab.network.now() + if quiet { random.below(8_000_000) } else { random.below(100_000) };
        while lab.network.now() < end {
            lab.turn();
            lab.network.advance(Duration::from_micros(random.below(20)));
            for load in &mut loads {
                load.poll(&lab.endpoints[load.client]);
            }
        }
    }
    lab.run_until(|| {
        loads.iter_mut().for_each(|load| load.poll(&lab.endpoints[load.client]));
        loads.iter().all(|load| load.calls.is_empty())
    });
    lab.run_for(Duration::from_millis(500));
    let borrowed: u64 = lab.endpoints.iter().map(|endpoint| endpoint.stats().counters.credits_borrowed).sum();
    assert!(borrowed > queue_len as u64, "seed {seed}: {borrowed} credits were borrowed");
    assert_eq!(full_queues(&lab), 0, "seed {seed}: a queue of {queue_len} overflowed");
    let fewest = loads.iter().map(|load| load.completed).min().unwrap();
    assert!(fewest >= 6, "seed {seed}: a session completed {fewest} calls");
    let sessions: Vec<_> = loads.into_iter().map(|load| load.session).collect();
    check_books(&lab, &sessions);
    sessions.iter().for_each(|session| drop(session.close()));
    lab.run_until(|| lab.endpoints.iter().all(|endpoint| endpoint.stats().sessions == 0));
    assert!(lab.endpoints.iter().all(|endpoint| endpoint.stats().credits_reserved == 0), "seed {seed}");
}

#[test]
fn no_queue_overflows_and_every_session_gets_on() {
    for seed in 0..40 {
        run(seed);
    }
}
