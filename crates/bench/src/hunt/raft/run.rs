//! One run of a scenario, from its first packet to its verdict.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash};
use std::rc::Rc;
use std::time::Duration;

use dunlin_sim::Datacenter;
use dunlin_smr::wal::sim::{SimDisk, SimDiskConfig};

use super::caller::{Doings, Driver};
use super::observer::Observer;
use super::replica::Replica;
use super::scenario::{Scenario, host};
use crate::hunt::kv::history::{End, Entry, History};
use crate::hunt::kv::item;
use crate::hunt::story::{Story, without_leaks};
use crate::hunt::trace::{Recorded, Trace};

const MILLISECOND: u64 = 1_000_000;
/// All operations end so soon after the network healed: each gives up by itself, and those of the end are tried often.
const OPERATIONS_END_WITHIN: u64 = 300_000 * MILLISECOND;
/// The shortest flush.
const FLUSH_MIN: Duration = Duration::from_micros(1);
/// Least time between two looks at everything.
const LOOK_EVERY: u64 = MILLISECOND;

/// What all programs of a run, and the run itself, share.
pub struct Shared {
    pub scenario: Scenario,
    /// By replica.
    pub disks: Vec<RefCell<SimDisk>>,
    pub observer: RefCell<Observer>,
    pub history: RefCell<History>,
    /// What clients do.
    pub phase: Cell<Phase>,
    /// By number: wakes the client that lives there now.
    pub clients: RefCell<Vec<Option<Rc<Doings>>>>,
}

/// What clients do, at first anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Random operations.
    Working,
    /// Nothing but to end them.
    Ending,
    /// Each reads each key.
    Reading,
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
        run.datacenter.run_until(run.shared.scenario.end_ns());
        run.phase(Phase::Ending);
        run.phase(Phase::Reading);
        let history = run.shared.history.borrow().entries.clone();
        if let Some(trace) = trace {
            history.iter().for_each(|entry| trace.log().borrow_mut().write_line(&format!("key {} {entry}", entry.key)));
        }
        run.judge(&history)
    })
}

impl Run {
    fn new(scenario: Scenario, trace: Option<&Trace>) -> Run {
        let datacenter =
            Datacenter::new(&scenario.topology, scenario.cost, scenario.seed).expect("a drawn topology is valid");
        let mut datacenter = Recorded::new(datacenter, trace, scenario.end_ns());
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
        let clients = RefCell::new((0..scenario.clients).map(|_| None).collect());
        let shared = Rc::new(Shared {
            disks,
            observer: RefCell::default(),
            history: RefCell::default(),
            phase: Cell::new(Phase::Working),
            clients,
            scenario,
        });
        for id in shared.scenario.replicas() {
            let (shared, mut incarnations) = (shared.clone(), 0..);
            let program = move |transport| {
                let incarnation = incarnations.next().expect("an endless range");
                Replica::start(&shared, id, incarnation, transport)
            };
            datacenter.spawn_from(host(id), 0, program).expect("each replica has a host of its own");
        }
        for number in 0..shared.scenario.clients as usize {
            let at = shared.scenario.client_host(number);
            let (shared, mut incarnations) = (shared.clone(), 0..);
            let program = move |transport| {
                let incarnation = incarnations.next().expect("an endless range");
                Driver::start(&shared, number, incarnation, transport)
            };
            datacenter.spawn_from(at, 0, program).expect("each client has a host of its own");
        }
        datacenter.schedule(&shared.scenario.plan).expect("a drawn plan fits its topology");
        Run { datacenter, shared }
    }

    /// Lets clients do what belongs to a phase, to its end.
    fn phase(&mut self, phase: Phase) {
        self.shared.phase.set(phase);
        let start = self.datacenter.now();
        loop {
            let clients: Vec<_> = self.shared.clients.borrow().iter().flatten().cloned().collect();
            clients.iter().for_each(|client| assert!(client.unread.borrow().is_empty(), "{:?}", client.unread.borrow()));
            if clients.iter().all(|client| client.has_ended(phase)) {
                return;
            }
            let passed = self.datacenter.now() - start;
            assert!(
                passed < OPERATIONS_END_WITHIN,
                "{} s after the network healed, operations have not ended:\n{}",
                passed / 1000 / MILLISECOND,
                self.pending()
            );
            clients.iter().for_each(|client| client.wake());
            self.datacenter.run_until(start + passed + (passed / 4).max(LOOK_EVERY));
        }
    }

    fn pending(&self) -> String {
        let history = self.shared.history.borrow();
        let pending = history.entries.iter().filter(|entry| entry.end == End::Pending);
        pending.take(20).map(|entry| format!("  key {}: {entry}\n", entry.key)).collect()
    }

    /// # Panics
    /// If the history of a key is not linearizable.
    fn judge(&self, history: &[Entry]) -> Story {
        let mut undecided = 0;
        for key in 0..self.shared.scenario.keys {
            match item::judge(key, history) {
                Ok(true) => {}
                Ok(false) => undecided += 1,
                Err(why) => panic!("{why}"),
            }
        }
        let mut hasher = DefaultHasher::new();
        history.iter().for_each(|entry| format!("{entry:?}").hash(&mut hasher));
        Story { undecided, ..Story::of(&self.datacenter, hasher, history.len() as u64) }
    }
}
