//! One run of a scenario, from its first packet to its verdict.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_sim::Datacenter;
use dunlin_smr::wal::sim::{SimDisk, SimDiskConfig};

use super::caller;
use super::observer::Observer;
use super::replica::Replica;
use super::scenario::{Scenario, host};
use crate::hunt::clients::phases::{Clients, judge};
use crate::hunt::story::{Story, without_leaks};
use crate::hunt::trace::{Recorded, Trace};

/// The shortest flush.
const FLUSH_MIN: Duration = Duration::from_micros(1);

/// What all programs of a run, and the run itself, share.
pub struct Shared {
    pub scenario: Scenario,
    /// By replica.
    pub disks: Vec<RefCell<SimDisk>>,
    pub observer: RefCell<Observer>,
    pub clients: Rc<Clients>,
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
        let history = run.shared.clients.end_all(&mut run.datacenter);
        judge(&run.datacenter, run.shared.scenario.keys, &history, trace)
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
        let clients = Rc::new(Clients::new(scenario.clients as usize));
        let shared = Rc::new(Shared { disks, observer: RefCell::default(), clients, scenario });
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
                caller::start(&shared, number, incarnation, transport)
            };
            datacenter.spawn_from(at, 0, program).expect("each client has a host of its own");
        }
        datacenter.schedule(&shared.scenario.plan).expect("a drawn plan fits its topology");
        Run { datacenter, shared }
    }
}
