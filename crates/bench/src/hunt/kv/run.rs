//! One run of a scenario, from its first packet to its verdict.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash};
use std::rc::Rc;

use dunlin_sim::{Datacenter, Fault};

use super::caller::{Driver, Phase, Shared};
use super::history::{End, Entry, Input, Output};
use super::item;
use super::scenario::{SERVER, Scenario};
use super::server::Core;
use crate::hunt::story::{Story, without_leaks};
use crate::hunt::trace::{Recorded, Trace};

const MILLISECOND: u64 = 1_000_000;
/// All operations end so soon after the network healed: those without a deadline try three times to reach a server, each core with several
/// sessions, and each session may take all of its time to be refused.
const OPERATIONS_END_WITHIN: u64 = 300_000 * MILLISECOND;
/// Least time between two looks at everything.
const LOOK_EVERY: u64 = MILLISECOND;

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
        let history = run.history();
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
        let clients = RefCell::new(scenario.clients.iter().map(|_| None).collect());
        let shared = Rc::new(Shared { scenario, history: RefCell::default(), phase: Cell::new(Phase::Working), clients });
        for core in 0..shared.scenario.cores.len() as u16 {
            let (shared, mut incarnations) = (shared.clone(), 0..);
            let program = move |transport| {
                let incarnation = incarnations.next().expect("an endless range");
                Core::start(&shared.scenario, core, incarnation, transport)
            };
            datacenter.spawn_from(SERVER, core, program).expect("each core has a thread of its own");
        }
        for number in 0..shared.scenario.clients.len() {
            let (shared, mut incarnations) = (shared.clone(), 0..);
            let program = move |transport| {
                let incarnation = incarnations.next().expect("an endless range");
                Driver::start(&shared, number, incarnation, transport)
            };
            datacenter.spawn_from(SERVER + 1 + number as u32, 0, program).expect("each client has a host of its own");
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

    /// What was done, and what the server lost.
    fn history(&self) -> Vec<Entry> {
        let mut entries = self.shared.history.borrow().entries.clone();
        for fault in &self.shared.scenario.plan.faults {
            if fault.fault != (Fault::Crash { host: SERVER }) {
                continue;
            }
            let up_again = fault.until_ns.unwrap_or(u64::MAX);
            entries.extend((0..self.shared.scenario.keys).map(|key| Entry {
                key,
                client: None,
                input: Input::Lost,
                begun: fault.from_ns,
                end: End::Answered(up_again, Output::Done),
            }));
        }
        entries
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
