//! One run of a scenario, from its first packet to its verdict.

use std::rc::Rc;

use dunlin_sim::{Datacenter, Fault};

use super::caller::{self, Shared};
use super::scenario::{SERVER, Scenario};
use super::server::Core;
use crate::hunt::clients::history::{End, Entry, Input, Output};
use crate::hunt::clients::phases::{Clients, judge};
use crate::hunt::story::{Story, without_leaks};
use crate::hunt::trace::{Recorded, Trace};

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
        let history = run.history();
        judge(&run.datacenter, run.shared.scenario.keys, &history, trace)
    })
}

/// Runs a seed; gives the number of its keys, and what was done to them.
#[cfg(test)]
pub fn history(seed: u64) -> (usize, Vec<Entry>) {
    let mut run = Run::new(Scenario::draw(seed), None);
    run.datacenter.run_until(run.shared.scenario.end_ns());
    (run.shared.scenario.keys, run.history())
}

impl Run {
    fn new(scenario: Scenario, trace: Option<&Trace>) -> Run {
        let datacenter =
            Datacenter::new(&scenario.topology, scenario.cost, scenario.seed).expect("a drawn topology is valid");
        let mut datacenter = Recorded::new(datacenter, trace, scenario.end_ns());
        let clients = Rc::new(Clients::new(scenario.clients.len()));
        let shared = Rc::new(Shared { scenario, clients });
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
                caller::start(&shared, number, incarnation, transport)
            };
            datacenter.spawn_from(SERVER + 1 + number as u32, 0, program).expect("each client has a host of its own");
        }
        datacenter.schedule(&shared.scenario.plan).expect("a drawn plan fits its topology");
        Run { datacenter, shared }
    }

    /// What was done, and what the server lost.
    fn history(&mut self) -> Vec<Entry> {
        let mut entries = self.shared.clients.end_all(&mut self.datacenter);
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
}
