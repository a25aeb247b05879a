//! The program of a replica.

use std::rc::Rc;

use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::{Next, Program, SimTransport, ThreadClock};
use dunlin_smr::kv::KvMachine;
use dunlin_smr::wal::sim::{Crash, SimDisk};
use dunlin_smr::wal::{Stepper, WalConfig, open_stepped};
use dunlin_smr::{Beginning, DurableLog, Node, NodeConfig, NodeError};
use dunlin_trial::Random;

use super::run::Shared;
use crate::hunt::node::run_endpoint;

/// What items may count: more than a run writes.
const BYTES_MAX: u64 = 1 << 20;

/// The log of a replica: the real one, on a disk in memory.
pub type Log = DurableLog<SimDisk>;

/// A replica that runs.
pub struct Replica {
    id: u64,
    shared: Rc<Shared>,
    endpoint: Rc<Endpoint<SimTransport>>,
    node: Node<KvMachine, Log>,
    /// What the log's thread would do.
    flusher: Stepper<SimDisk>,
    random: Random,
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
        let disk = shared.disks[id as usize - 1].borrow().clone();
        if incarnation > 0 {
            // It was looked after.
            disk.fail_flush_after(u64::MAX);
        }
        let wal_config = WalConfig { segment_bytes: scenario.segment_bytes, ..WalConfig::new(id) };
        let (wal, _) = open_stepped(disk, wal_config).expect("a log can be opened after any crash");
        let flusher = wal.stepper().expect("it has no thread");
        let node_clock = clock.clone();
        let config =
            NodeConfig { id, seed: Some(random.next()), clock: Rc::new(move || node_clock.now()), ..scenario.node.clone() };
        let beginning = if id <= scenario.members { Beginning::First(scenario.first_members()) } else { Beginning::Join };
        let machine = KvMachine::new(BYTES_MAX).expect("some MiB of memory");
        let log = DurableLog::new(wal).expect("what was written can be read");
        let node = Node::start(&endpoint, config, log, machine, beginning).expect("drawn settings are valid");
        shared.observer.borrow_mut().restarted(id);
        Replica { id, shared: shared.clone(), endpoint, node, flusher, random, clock, idle_runs: 0 }
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

/// The host crashed, or only the process: whatever was written is there then, flushed or not.
impl Drop for Replica {
    fn drop(&mut self) {
        let crash = if self.random.chance(75) { Crash::Power } else { Crash::Process };
        let disk = &self.shared.disks[self.id as usize - 1];
        let after = disk.borrow().crash(crash);
        *disk.borrow_mut() = after;
    }
}

impl Program for Replica {
    fn run(&mut self) -> Next {
        let now = self.clock.now();
        self.flusher.step(now);
        let more = run_endpoint(&self.endpoint, &self.clock, &mut self.idle_runs);
        // As of the time before, so that nothing ends of which the replica has not heard yet.
        let flushed = self.flusher.step(now);
        self.look();
        if more {
            return Next::Soon;
        }
        Next::OnPacket { or_at: self.endpoint.next_due().into_iter().chain(flushed).min() }
    }
}
