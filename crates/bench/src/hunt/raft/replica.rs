//! The program of a replica.

use std::cell::RefCell;
use std::rc::Rc;

use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::{Next, Program, SimTransport, ThreadClock};
use dunlin_smr::kv::KvMachine;
use dunlin_smr::{Beginning, Node, NodeConfig, NodeError};
use dunlin_trial::Random;

use super::disk::{Disk, DiskLog};
use super::run::Shared;
use crate::hunt::node::run_endpoint;

/// What items may count: more than a run writes.
const BYTES_MAX: u64 = 1 << 20;

/// A replica that runs.
pub struct Replica {
    id: u64,
    shared: Rc<Shared>,
    endpoint: Rc<Endpoint<SimTransport>>,
    node: Node<KvMachine, DiskLog>,
    disk: Rc<RefCell<Disk>>,
    clock: ThreadClock,
    idle_runs: u32,
}

impl Replica {
    /// Starts a replica, after `incarnation` crashes.
    pub fn start(shared: &Rc<Shared>, id: u64, incarnation: u32, transport: SimTransport) -> Replica {
        let scenario = &shared.scenario;
        let clock = transport.clock();
        let mut random = Random::new(scenario.seed ^ 0x4e70_11ca ^ id << 32 ^ u64::from(incarnation) << 40);
        let config = EndpointConfig { seed: Some(random.next()), ..scenario.endpoints[id as usize - 1].clone() };
        let endpoint = Rc::new(Endpoint::new(transport, config).expect("drawn settings are valid"));
        let disk = shared.disks[id as usize - 1].clone();
        let node_clock = clock.clone();
        let config = NodeConfig {
            id,
            seed: Some(random.next()),
            clock: Rc::new(move || node_clock.now()),
            ..scenario.node.clone()
        };
        let beginning =
            if id <= scenario.members { Beginning::First(scenario.first_members()) } else { Beginning::Join };
        let machine = KvMachine::new(BYTES_MAX).expect("some MiB of memory");
        let log = DiskLog::open(disk.clone(), clock.clone());
        let node = Node::start(&endpoint, config, log, machine, beginning).expect("drawn settings are valid");
        shared.observer.borrow_mut().restarted(id);
        Replica { id, shared: shared.clone(), endpoint, node, disk, clock, idle_runs: 0 }
    }

    fn look(&self) {
        match self.node.failure() {
            None => {}
            Some(NodeError::Log(_)) => return,
            Some(error) => panic!("replica {} stopped: {error}", self.id),
        }
        let status = self.node.status();
        self.node.with_log(|log| self.shared.observer.borrow_mut().look(&status, log));
    }
}

impl Program for Replica {
    fn run(&mut self) -> Next {
        self.disk.borrow_mut().poll(self.clock.now());
        let more = run_endpoint(&self.endpoint, &self.clock, &mut self.idle_runs);
        self.look();
        if more {
            return Next::Soon;
        }
        let flushed = self.disk.borrow().next_done();
        Next::OnPacket { or_at: self.endpoint.next_timer().into_iter().chain(flushed).min() }
    }
}
