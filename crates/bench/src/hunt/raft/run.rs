//! One run of a scenario, from its first packet to its verdict.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_smr::wal::sim::{SimDisk, SimDiskConfig};

use super::caller;
use super::observer::Observer;
use super::operator::Operator;
use super::replica::Life;
use super::rot::Rot;
use super::scenario::{Scenario, host};
use super::spoiler::Spoiler;
use crate::hunt::clients::phases::{Clients, judge};
use crate::hunt::node::spawn;
use crate::hunt::story::{Story, without_leaks};
use crate::hunt::trace::{Recorded, Trace};

const MILLISECOND: u64 = 1_000_000;
/// Between two looks at whether somebody was elected.
const LOOK_EVERY: u64 = MILLISECOND / 20;
/// Replicas are replaced so soon after the network healed.
const REPLACED_WITHIN: u64 = 60_000 * MILLISECOND;
/// The shortest flush.
const FLUSH_MIN: Duration = Duration::from_micros(1);

/// What all programs of a run, and the run itself, share.
pub struct Shared {
    pub scenario: Scenario,
    /// By replica.
    pub disks: Vec<RefCell<SimDisk>>,
    pub observer: RefCell<Observer>,
    pub clients: Rc<Clients>,
    pub rot: RefCell<Rot>,
    /// Changes of members and of leaders that are still to be asked for, and those that were made.
    pub changes_left: Cell<u32>,
    pub changes_made: Cell<u64>,
}

struct Run {
    datacenter: Recorded,
    shared: Rc<Shared>,
}

/// Runs a scenario.
///
/// # Panics
/// If a promise is broken.
pub fn run(scenario: Scenario, trace: Option<&Trace>) -> Story {
    without_leaks(|| {
        let mut run = Run::new(scenario, trace);
        run.work();
        run.replace_all();
        let history = run.shared.clients.end_all(&mut run.datacenter);
        let story = judge(&run.datacenter, run.shared.scenario.keys, &history, trace);
        let replaced = run.shared.rot.borrow().count_replaced();
        Story { replaced, changes: run.shared.changes_made.get(), ..story }
    })
}

impl Run {
    fn new(scenario: Scenario, trace: Option<&Trace>) -> Run {
        let Scenario { topology, cost, seed, .. } = &scenario;
        let mut datacenter = Recorded::new(topology, *cost, *seed, trace, scenario.end_ns());
        let disk = |id: u64| {
            let flush_time = (FLUSH_MIN, FLUSH_MIN + Duration::from_nanos(scenario.flush_max_ns));
            let config = SimDiskConfig { flush_time, ..SimDiskConfig::default() };
            let disk = SimDisk::new(scenario.seed ^ 0xd15c ^ id << 32, config);
            if let Some((_, after)) = scenario.flush_fails.filter(|(failing, _)| *failing == id) {
                disk.fail_flush_after(after);
            }
            RefCell::new(disk)
        };
        let disks = scenario.replicas().map(disk).collect();
        let clients = Rc::new(Clients::new(scenario.clients as usize));
        let rot = RefCell::new(Rot::new(&scenario.rots));
        let (changes_left, changes_made) = (Cell::new(scenario.changes), Cell::new(0));
        let observer = RefCell::default();
        let shared = Rc::new(Shared { disks, observer, clients, rot, changes_left, changes_made, scenario });
        for id in shared.scenario.replicas() {
            let shared = shared.clone();
            let start = move |incarnation, transport| Life::start(&shared, id, incarnation, transport);
            spawn(&mut datacenter, (host(id), 0), start);
        }
        for number in 0..shared.scenario.clients as usize {
            let at = shared.scenario.client_host(number);
            let shared = shared.clone();
            let start = move |incarnation, transport| caller::start(&shared, number, incarnation, transport);
            spawn(&mut datacenter, (at, 0), start);
        }
        let operated = shared.clone();
        let start = move |incarnation, transport| Operator::start(&operated, incarnation, transport);
        spawn(&mut datacenter, (shared.scenario.client_host(0), 1), start);
        datacenter.schedule(&shared.scenario.plan).expect("a drawn plan fits its topology");
        Run { datacenter, shared }
    }

    /// Everything that the scenario has in store, until all faults have ended.
    fn work(&mut self) {
        let end = self.shared.scenario.end_ns();
        if self.shared.scenario.spoiled_elections > 0 {
            let mut spoiler = Spoiler::new(&self.shared.scenario);
            while self.datacenter.now() < end {
                let next = (self.datacenter.now() + LOOK_EVERY).min(end);
                self.datacenter.run_until(next);
                let elected = self.shared.observer.borrow_mut().take_elected();
                spoiler.spoil(&mut self.datacenter, &self.shared.scenario, elected);
            }
            spoiler.lift_all(&mut self.datacenter);
        }
        self.datacenter.run_until(end);
    }

    /// Waits until who refused to start is replaced.
    fn replace_all(&mut self) {
        let start = self.datacenter.now();
        while let Some(id) = { self.shared.rot.borrow().to_replace() } {
            let now = self.datacenter.now();
            assert!(now - start < REPLACED_WITHIN, "replica {id} could not be replaced though the network healed");
            self.datacenter.run_until(now + 10 * MILLISECOND);
        }
    }
}
