//! The endpoints of a run, their clock, and the code that drives both.

use std::cell::RefCell;
use std::rc::Rc;

use dunlin_net::fault::{FaultInjector, Faults};
use dunlin_net::loopback::{LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, WorkerPool};
use dunlin_trial::calls::Cancel;
use dunlin_trial::{Ledger, Local, Random, handlers};

use crate::scenario::Scenario;
use crate::workload;

pub type Ep = Endpoint<FaultInjector<LoopbackTransport>>;

/// Iterations after which an endpoint has certainly read the clock.
const ITERATIONS_TO_CLOCK: usize = 17;
/// A run that takes more steps of the clock than this makes no progress.
const CLOCK_STEPS_MAX: u64 = 2_000_000;

/// One address, and the endpoint that lives there.
pub struct Node {
    pub endpoint: Option<Ep>,
    pub local: Rc<Local>,
    pub faults: Faults,
    /// Until when it does not run, as if its process were stopped.
    pub stopped_until: u64,
    /// Until when its packets do not arrive.
    pub silent_until: u64,
}

impl Node {
    pub fn endpoint(&self) -> &Ep {
        self.endpoint.as_ref().expect("an endpoint is missing only while it is replaced")
    }
}

pub struct World {
    pub scenario: Scenario,
    pub network: LoopbackNetwork,
    pub nodes: Vec<Node>,
    pub ledger: Rc<RefCell<Ledger>>,
    pub random: Random,
    pub cancels: Vec<Cancel>,
    clock_steps: u64,
}

pub fn address(node: usize) -> dunlin_net::Addr {
    dunlin_net::Addr::Node(node as u32 + 1)
}

impl World {
    pub fn new(scenario: Scenario) -> World {
        let network = LoopbackNetwork::new(scenario.network);
        let ledger = Rc::new(RefCell::new(Ledger::new(scenario.roughness)));
        let mut random = scenario.random.clone();
        // Away from zero, so that a forgotten time does not look like a real one.
        network.advance_to(random.between(0, 1 << 36));
        let mut world =
            World { scenario, network, nodes: Vec::new(), ledger, random, cancels: Vec::new(), clock_steps: 0 };
        for index in 0..world.scenario.configs.len() {
            let node = world.start(index, 0);
            world.nodes.push(node);
        }
        world
    }

    /// Starts an endpoint at a free address.
    pub fn start(&mut self, index: usize, incarnation: u32) -> Node {
        let faults = self.scenario.faults[index];
        let transport = self.network.endpoint(index as u32 + 1).unwrap();
        let transport = FaultInjector::new(transport, self.random.next(), faults).unwrap();
        let mut config = self.scenario.configs[index].clone();
        config.seed = Some(self.random.next());
        let endpoint = Ep::new(transport, config).unwrap();
        let workers = WorkerPool::by_hand(self.random.between(1, 20) as usize);
        let local = Local::new(index, incarnation, &self.ledger, workers, Random::new(self.random.next()));
        let local = Rc::new(local);
        handlers::register(&endpoint, &local);
        Node { endpoint: Some(endpoint), local, faults, stopped_until: 0, silent_until: 0 }
    }

    pub fn now(&self) -> u64 {
        self.network.now()
    }

    /// Runs every endpoint until none has anything to do now.
    fn settle(&mut self) {
        let now = self.now();
        let mut quiet = 0;
        while quiet < 2 {
            let mut work = 0;
            for node in self.nodes.iter().filter(|node| node.stopped_until <= now) {
                let endpoint = node.endpoint();
                work += endpoint.run_once();
                let is_due = || endpoint.next_due().is_some_and(|due| due <= now);
                for _ in 0..ITERATIONS_TO_CLOCK {
                    if !is_due() {
                        break;
                    }
                    work += endpoint.run_once();
                }
                assert!(
                    work > 0 || !is_due(),
                    "a timer is due at {:?}, it is {now}, and it was not run",
                    endpoint.next_due()
                );
            }
            quiet = if work == 0 { quiet + 1 } else { 0 };
        }
    }

    /// The next time, up to `end`, at which anything can happen.
    fn next_event(&self, end: u64) -> u64 {
        let now = self.now();
        let mut next = end;
        let mut consider = |time: Option<u64>| {
            if let Some(time) = time.filter(|time| *time > now) {
                next = next.min(time);
            }
        };
        let arrival = self.network.next_arrival();
        consider(arrival);
        if arrival.is_some_and(|time| time <= now) {
            // A packet waits for a stopped endpoint, and hides the later arrivals.
            consider(Some(now + 50_000));
        }
        for node in &self.nodes {
            consider(Some(node.stopped_until));
            consider(Some(node.silent_until));
            consider(node.endpoint().with_transport(|transport| transport.next_release()));
            if node.stopped_until <= now {
                // Changes made to it from outside since it last ran are processed next.
                consider(node.endpoint().next_due().map(|due| due.max(now + 1)));
            }
        }
        next
    }

    /// Runs until `end`, unless `done` holds before; returns whether it does.
    pub fn run_until(&mut self, end: u64, mut done: impl FnMut(&mut World) -> bool) -> bool {
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            if self.now() >= end {
                return false;
            }
            let next = self.next_event(end);
            self.network.advance_to(next);
            self.end_silences();
            self.clock_steps += 1;
            assert!(self.clock_steps < CLOCK_STEPS_MAX, "the run gets nowhere");
        }
    }

    fn end_silences(&mut self) {
        let now = self.now();
        for node in &mut self.nodes {
            if node.silent_until != 0 && node.silent_until <= now {
                node.silent_until = 0;
                let faults = node.faults;
                node.endpoint().with_transport(|transport| transport.set_faults(faults).unwrap());
            }
        }
    }

    /// Performs all steps of the scenario.
    pub fn work(&mut self) {
        for _ in 0..self.scenario.steps {
            workload::step(self);
            let gap = self.random.between(0, self.scenario.gap_max);
            let end = self.now() + gap;
            self.run_until(end, |_| false);
        }
    }

    /// Ends all faults; from now on every packet arrives.
    pub fn heal(&mut self) {
        for node in &mut self.nodes {
            (node.stopped_until, node.silent_until, node.faults) = (0, 0, Faults::default());
            node.endpoint().with_transport(|transport| transport.heal());
        }
    }
}
