//! One run of a scenario, from its first packet to its verdict.

use std::rc::Rc;

use dunlin_sim::Fault;

use super::caller::{self, Shared};
use super::scenario::{SERVER, Scenario};
use super::server::Core;
use crate::clients::item::{End, Entry, Input, Output};
use crate::clients::phases::{Clients, judge, story, tell};
use crate::node::spawn;
use crate::story::{Story, without_leaks};
use crate::strain::tell_of_narrow_paths;
use crate::trace::{Recorded, Trace};

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
        tell(&history, trace);
        Story { undecided: judge(run.shared.scenario.keys, &history), ..story(&run.datacenter, &history) }
    })
}

impl Run {
    fn new(scenario: Scenario, trace: Option<&Trace>) -> Run {
        let Scenario { topology, cost, seed, .. } = &scenario;
        let mut datacenter = Recorded::new(topology, *cost, *seed, trace, scenario.end_ns());
        let clients = Rc::new(Clients::new(scenario.clients.len()));
        let shared = Rc::new(Shared { scenario, clients });
        for core in 0..shared.scenario.cores.len() as u16 {
            let shared = shared.clone();
            let start = move |incarnation, transport| Core::start(&shared.scenario, core, incarnation, transport);
            spawn(&mut datacenter, (SERVER, core), start);
        }
        for number in 0..shared.scenario.clients.len() {
            let shared = shared.clone();
            let start = move |incarnation, transport| caller::start(&shared, number, incarnation, transport);
            spawn(&mut datacenter, (SERVER + 1 + number as u32, 0), start);
        }
        tell_of_narrow_paths(&mut datacenter, &shared.scenario.plan);
        datacenter.schedule(&shared.scenario.plan).expect("a drawn plan fits its topology");
        Run { datacenter, shared }
    }

    /// The operations, and the server's losses of data.
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
                place: None,
            }));
        }
        entries
    }
}
