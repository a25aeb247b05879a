//! One run of a scenario, from its first packet to its verdict.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_smr::wal::sim::{SimDisk, SimDiskConfig};

use super::observer::Observer;
use super::operator::Operator;
use super::replica::Life;
use super::rot::Rot;
use super::scenario::{Hang, Scenario, host};
use super::spoiler::Spoiler;
use super::{Service, place};
use crate::clients::history::Entry;
use crate::clients::phases::{Clients, judge, story, tell};
use crate::node::spawn;
use crate::story::{Story, without_leaks};
use crate::strain::tell_of_narrow_paths;
use crate::trace::{Recorded, Trace};

const MILLISECOND: u64 = 1_000_000;
/// Interval of checks for elections.
const LOOK_EVERY: u64 = MILLISECOND / 20;
/// Time limit for replacing replicas after the network has healed.
const REPLACED_WITHIN: u64 = 60_000 * MILLISECOND;
/// The shortest flush.
const FLUSH_MIN: Duration = Duration::from_micros(1);
/// Flushes in an election timeout, at least, once everything has healed.
const FLUSHES_OF_ELECTION: u64 = 8;

/// State shared by all programs of a cluster, and the run itself.
pub struct Shared<S: Service> {
    pub scenario: Scenario,
    /// By replica.
    pub disks: Vec<RefCell<SimDisk>>,
    pub observer: RefCell<Observer>,
    pub clients: Rc<Clients<S::Object>>,
    pub rot: RefCell<Rot>,
    /// Disks that are still to hang.
    pub hangs: RefCell<Vec<Hang>>,
    /// Times a running replica waited for a disk that hung.
    pub hung: Cell<u64>,
    /// Changes of members and of leaders still to be requested, and those that were made.
    pub changes_left: Cell<u32>,
    pub changes_made: Cell<u64>,
    pub service: S,
}

struct Run<S: Service> {
    datacenter: Recorded,
    shared: Rc<Shared<S>>,
    /// Another cluster, whose list contains an address of this one.
    foreign: Option<Rc<Shared<S>>>,
}

/// Runs a scenario.
///
/// # Panics
/// If a promise is broken.
pub fn run<S: Service>(scenario: Scenario, trace: Option<&Trace>) -> Story {
    without_leaks(|| {
        let mut run = Run::<S>::new(scenario, trace);
        run.work();
        run.foreign.iter().chain([&run.shared]).for_each(|shared| shared.heal_disks());
        run.replace_all();
        let history = run.shared.history(&mut run.datacenter);
        let foreign = run.foreign.clone().map(|foreign| foreign.history(&mut run.datacenter));
        tell(&history, trace);
        let keys = run.shared.scenario.keys;
        let undecided = judge(keys, &history) + foreign.map_or(0, |history| judge(keys, &history));
        run.foreign.iter().chain([&run.shared]).for_each(|shared| S::end(shared, &mut run.datacenter));
        let replaced = run.shared.rot.borrow().count_replaced();
        let (changes, hung) = (run.shared.changes_made.get(), run.shared.hung.get());
        Story { undecided, replaced, changes, hung, ..story(&run.datacenter, &history) }
    })
}

impl<S: Service> Shared<S> {
    fn new(scenario: Scenario) -> Rc<Shared<S>> {
        let disk = |id: u64| {
            let disk = SimDisk::new(scenario.seed ^ 0xd15c ^ id << 32, flushing_within(scenario.flush_max_ns));
            if let Some((_, after)) = scenario.flush_fails.filter(|(failing, _)| *failing == id) {
                disk.fail_flush_after(after);
            }
            RefCell::new(disk)
        };
        Rc::new(Shared {
            disks: scenario.replicas().map(disk).collect(),
            observer: RefCell::default(),
            clients: Rc::new(Clients::new(scenario.clients as usize)),
            rot: RefCell::new(Rot::new(&scenario.rots)),
            hangs: RefCell::new(scenario.hangs.clone()),
            hung: Cell::default(),
            changes_left: Cell::new(scenario.changes),
            changes_made: Cell::new(0),
            service: S::new(&scenario),
            scenario,
        })
    }

    /// Makes slow disks fast enough: while flushes take an election timeout, no leader may stay for long enough to
    /// serve anybody.
    fn heal_disks(&self) {
        let flush_max_ns = self.scenario.flush_max_ns.min(self.scenario.election_ns() / FLUSHES_OF_ELECTION);
        self.disks.iter().for_each(|disk| disk.borrow().configure(flushing_within(flush_max_ns)));
    }

    /// Current members with healthy disks: others may have stopped for good.
    pub fn running_members(&self) -> Vec<u64> {
        let has_failed = |id: &u64| self.scenario.flush_fails.is_some_and(|(failing, _)| failing == *id);
        let (observer, rot) = (self.observer.borrow(), self.rot.borrow());
        let is_well = |id: &u64| !has_failed(id) && !rot.is_rotten(*id) && self.scenario.exists(*id);
        observer.members().iter().copied().filter(is_well).collect()
    }

    /// The history of all clients, after they have ended their work and read every key.
    fn history(&self, datacenter: &mut Recorded) -> Vec<Entry<S::Object>> {
        let mut history = self.clients.end_all(datacenter);
        place::<S>(&mut history, self.observer.borrow().commands());
        history
    }
}

/// A disk whose flushes take less than this and a little more.
fn flushing_within(max_ns: u64) -> SimDiskConfig {
    let flush_time = (FLUSH_MIN, FLUSH_MIN + Duration::from_nanos(max_ns));
    SimDiskConfig { flush_time, ..SimDiskConfig::default() }
}

impl<S: Service> Run<S> {
    fn new(scenario: Scenario, trace: Option<&Trace>) -> Run<S> {
        let Scenario { topology, cost, seed, .. } = &scenario;
        let mut datacenter = Recorded::new(topology, *cost, *seed, trace, scenario.end_ns());
        let foreign = scenario.foreign().map(Shared::new);
        let shared = Shared::new(scenario);
        let start_replica = |datacenter: &mut Recorded, shared: &Rc<Shared<S>>, id, host| {
            let shared = shared.clone();
            let start = move |incarnation, transport| Life::start(&shared, id, incarnation, transport);
            spawn(datacenter, (host, 0), start);
        };
        for id in shared.scenario.replicas() {
            start_replica(&mut datacenter, &shared, id, host(id));
        }
        if let Some(foreign) = &foreign {
            let hosts: Vec<(u64, u32)> = foreign.scenario.own_members().collect();
            hosts.iter().for_each(|(id, host)| start_replica(&mut datacenter, foreign, *id, *host));
            let shared = foreign.clone();
            let start = move |incarnation, transport| S::start(&shared, 0, incarnation, transport);
            spawn(&mut datacenter, (hosts[0].1, 1), start);
        }
        for number in 0..shared.scenario.clients as usize {
            let at = shared.scenario.client_host(number);
            let shared = shared.clone();
            let start = move |incarnation, transport| S::start(&shared, number, incarnation, transport);
            spawn(&mut datacenter, (at, 0), start);
        }
        let operated = shared.clone();
        let start = move |incarnation, transport| Operator::start(&operated, incarnation, transport);
        spawn(&mut datacenter, (shared.scenario.client_host(0), 1), start);
        tell_of_narrow_paths(&mut datacenter, &shared.scenario.plan);
        datacenter.schedule(&shared.scenario.plan).expect("a drawn plan fits its topology");
        Run { datacenter, shared, foreign }
    }

    /// Runs everything in the scenario, until all faults have ended.
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

    /// Waits until all replicas that refused to start are replaced.
    fn replace_all(&mut self) {
        let start = self.datacenter.now();
        while let Some(id) = { self.shared.rot.borrow().to_replace() } {
            let now = self.datacenter.now();
            assert!(now - start < REPLACED_WITHIN, "replica {id} could not be replaced though the network healed");
            self.datacenter.run_until(now + 10 * MILLISECOND);
        }
    }
}
