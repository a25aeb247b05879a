//! One run of a scenario, from its first packet to its verdict.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash};
use std::rc::{Rc, Weak};

use dunlin_sim::{Fault, ThreadClock};
use dunlin_trial::judge::{self, View};
use dunlin_trial::{Event, Ledger, Random, Roughness};

use super::node::{Driver, Node, Shared, spawn};
use super::scenario::Scenario;
use super::story::{Story, without_leaks};
use super::strain::tell_of_narrow_paths;
use super::trace::{Recorded, RoundTrips, Trace};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;
/// Time limit for calls to end after the network has healed, besides the time that their packets take: several
/// consecutive retransmission timeouts of half a second, for calls that wait for calls that wait, or the time until a
/// silent peer is given up.
const CALLS_END_WITHIN: u64 = 10 * SECOND;
/// Maximum round trip of a drawn network without queues.
const ROUND_TRIP: u64 = MILLISECOND / 3;
/// Time limit for finding sessions that only one end knows.
const STRAYS_END_WITHIN: u64 = 120 * SECOND;
/// Time that an idle endpoint needs, besides twice its timeout, to detect that a peer is silent: it checks and pings
/// several times, up to 100 ms apart.
const SILENCE_NOTICED_WITHIN: u64 = 300 * MILLISECOND;
/// Samples of round trips until the network has healed.
const ROUND_TRIP_SAMPLES: u64 = 500;
/// Minimum interval between two checks of everything.
const LOOK_EVERY: u64 = MILLISECOND;

struct Run {
    datacenter: Recorded,
    shared: Rc<Shared>,
    digest: Rc<RefCell<DefaultHasher>>,
    /// Receives samples of round trips.
    round_trips: Option<RoundTrips>,
}

/// Runs a scenario.
///
/// # Panics
/// If a promise is broken.
pub fn run(scenario: Scenario, trace: Option<&Trace>) -> Story {
    without_leaks(|| {
        let mut run = Run::new(scenario, trace);
        run.work();
        run.all_calls_end();
        run.nothing_is_left_when_quiet();
        run.no_queue_was_overrun();
        run.the_silent_are_given_up();
        run.nothing_is_left_when_closed();
        run.story()
    })
}

impl Run {
    fn new(scenario: Scenario, trace: Option<&Trace>) -> Run {
        let Scenario { topology, cost, seed, .. } = &scenario;
        let mut datacenter = Recorded::new(topology, *cost, *seed, trace, scenario.end_ns());
        let round_trips = trace.and_then(Trace::round_trips);
        let ledger = Rc::new(RefCell::new(Ledger::new(scenario.roughness)));
        // The clock of an idle thread is that of the datacenter.
        let clock = datacenter.clock(0, dunlin_sim::THREADS_PER_HOST_MAX - 1).expect("host 0 has threads");
        let digest = watch(&ledger, clock, trace);
        let places = scenario.places.clone();
        let nodes = RefCell::new(places.iter().map(|_| Weak::new()).collect());
        let shared = Rc::new(Shared { scenario, ledger, is_quiet: Cell::new(false), nodes });
        for (number, (host, thread)) in places.into_iter().enumerate() {
            let shared = shared.clone();
            let start = move |incarnation, transport| Driver::start(&shared, number, incarnation, transport);
            spawn(&mut datacenter, (host, thread), start);
        }
        tell_of_narrow_paths(&mut datacenter, &shared.scenario.plan);
        datacenter.schedule(&shared.scenario.plan).expect("a drawn plan fits its topology");
        Run { datacenter, shared, digest, round_trips }
    }

    fn nodes(&self) -> Vec<Rc<Node>> {
        self.shared.nodes.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Lets time pass until `done` holds, which is checked periodically, but no longer than `limit`; returns whether it
    /// holds.
    fn wait(&mut self, limit: u64, done: impl Fn(&Run) -> bool) -> bool {
        let start = self.datacenter.now();
        loop {
            if done(self) {
                return true;
            }
            let passed = self.datacenter.now() - start;
            if passed >= limit {
                return false;
            }
            self.nodes().iter().for_each(|node| node.wake());
            let next = (passed + (passed / 4).max(LOOK_EVERY)).min(limit);
            self.datacenter.run_until(start + next);
        }
    }

    /// Runs everything in the scenario, until all faults have ended and no endpoint starts new work.
    fn work(&mut self) {
        let end = self.shared.scenario.end_ns();
        if let Some(mut round_trips) = self.round_trips.take() {
            for sample in 1..=ROUND_TRIP_SAMPLES {
                self.datacenter
                    .run_until((u128::from(end) * u128::from(sample) / u128::from(ROUND_TRIP_SAMPLES)) as u64);
                let nodes = self.nodes();
                let round_trips_of = |node: &Rc<Node>| (node.local.index, node.endpoint().stats().rtt);
                round_trips.sample(self.datacenter.now(), nodes.iter().map(round_trips_of));
            }
        }
        self.datacenter.run_until(end);
        self.shared.is_quiet.set(true);
    }

    fn all_calls_end(&mut self) {
        let is_over = |run: &Run| judge::nothing_pends(run.nodes().iter().map(|node| &node.local), &run.shared.ledger);
        let Scenario { topology, configs, .. } = &self.shared.scenario;
        // Headers take less than half of the smallest packets.
        let sending = judge::time_to_send(&self.shared.ledger.borrow(), configs, topology.mtu / 2, ROUND_TRIP);
        let limit = CALLS_END_WITHIN + sending;
        let mut ended = self.wait(limit, is_over);
        if !ended && self.shared.scenario.roughness == Roughness::Corrupt {
            // A corrupted packet may have made an answer impossible; closing the sessions ends these calls.
            self.close_sessions();
            ended = self.wait(limit, is_over);
        }
        assert!(ended, "{} ms after the network healed, {}", limit / MILLISECOND, self.describe());
    }

    fn nothing_is_left_when_quiet(&mut self) {
        self.wait(SECOND, |_| false);
        let settled = self.wait(STRAYS_END_WITHIN, |run| {
            let nodes = run.nodes();
            let views: Vec<View<'_>> = nodes.iter().map(|node| node.view()).collect();
            judge::is_settled(&views, run.shared.scenario.roughness)
        });
        assert!(settled, "sessions have no other end, keep responses, or count other credits: {}", self.describe());
        let Scenario { topology, roughness, .. } = &self.shared.scenario;
        self.nodes().iter().for_each(|node| judge::check_quiet(&node.view(), topology.nic.rx_descriptors, *roughness));
    }

    /// Credits keep receive queues from overflowing, unless packets are sent or delivered twice.
    fn no_queue_was_overrun(&self) {
        let Scenario { plan, roughness, .. } = &self.shared.scenario;
        let duplicates = |fault: &Fault| matches!(fault, Fault::Packets { faults, .. } if faults.duplicate > 0.0);
        let again: u64 = self.nodes().iter().map(|node| node.endpoint().stats().counters.retransmissions).sum();
        if *roughness == Roughness::Steady && again == 0 && !plan.faults.iter().any(|timed| duplicates(&timed.fault)) {
            let counters = self.datacenter.counters();
            assert_eq!(counters.dropped_descriptors, 0, "credits overran a receive queue: {}", self.describe());
        }
    }

    /// All other endpoints give up a host that vanishes for good.
    fn the_silent_are_given_up(&mut self) {
        let mut random = Random::new(self.shared.scenario.seed ^ 0x0de0d);
        let (host, _) = *random.pick(&self.shared.scenario.places).expect("a run has endpoints");
        self.datacenter.inject(Fault::Crash { host }).expect("the host exists");
        let timeout = self.shared.scenario.configs.iter().map(|config| config.peer_timeout).max().unwrap_or_default();
        self.wait(2 * timeout.as_nanos() as u64 + SILENCE_NOTICED_WITHIN, |_| false);
        let places = &self.shared.scenario.places;
        for (vanished, _) in places.iter().enumerate().filter(|(_, place)| place.0 == host) {
            self.nodes().iter().for_each(|node| judge::check_given_up(&node.local, vanished));
        }
    }

    fn close_sessions(&self) {
        self.nodes().iter().for_each(|node| judge::close_sessions(&node.local));
    }

    fn nothing_is_left_when_closed(&mut self) {
        self.close_sessions();
        self.wait(STRAYS_END_WITHIN, |run| run.nodes().iter().all(|node| node.endpoint().stats().sessions == 0));
        self.nodes().iter().for_each(|node| judge::check_closed(&node.view()));
    }

    fn describe(&self) -> String {
        let nodes = self.nodes();
        let views: Vec<View<'_>> = nodes.iter().map(|node| node.view()).collect();
        judge::describe(&views, &self.shared.ledger.borrow())
    }

    fn story(&self) -> Story {
        Story::of(&self.datacenter, self.digest.borrow().clone(), self.shared.ledger.borrow().records.len() as u64)
    }
}

/// Hashes, and records on request, all events of the ledger.
fn watch(ledger: &RefCell<Ledger>, clock: ThreadClock, trace: Option<&Trace>) -> Rc<RefCell<DefaultHasher>> {
    let digest: Rc<RefCell<DefaultHasher>> = Rc::default();
    let (hasher, log) = (digest.clone(), trace.map(Trace::log));
    ledger.borrow_mut().watch(move |event: Event| {
        let now = clock.virtual_now();
        if let Some(log) = &log {
            log.borrow_mut().write(now, &event);
        }
        (now, event).hash(&mut *hasher.borrow_mut());
    });
    digest
}
