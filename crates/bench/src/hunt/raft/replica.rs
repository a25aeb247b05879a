//! The program of a replica.

use std::rc::Rc;

use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::{Next, Program, SimTransport, ThreadClock};
use dunlin_smr::kv::KvMachine;
use dunlin_smr::log::OpenError;
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

/// What runs on the host of a replica.
pub enum Life {
    /// It.
    Runs(Box<Replica>),
    /// Nothing: its log is damaged.
    Refused,
}

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

impl Life {
    /// Starts a replica, after `incarnation` crashes, unless its log is damaged.
    pub fn start(shared: &Rc<Shared>, id: u64, incarnation: u32, transport: SimTransport) -> Life {
        let disk = shared.disks[id as usize - 1].borrow().clone();
        if incarnation > 0 {
            // It was looked after.
            disk.fail_flush_after(u64::MAX);
        }
        let wal_config = WalConfig {
            segment_bytes: shared.scenario.segment_bytes,
            snapshot_piece_bytes: shared.scenario.snapshot_step_bytes,
            ..WalConfig::new(id)
        };
        let opened = open_stepped(disk, wal_config).map_err(OpenError::from).and_then(|(wal, _)| {
            let flusher = wal.stepper().expect("it has no thread");
            Ok((DurableLog::new(wal)?, flusher))
        });
        match shared.rot.borrow_mut().judge(id, opened) {
            Some((log, flusher)) => Life::Runs(Box::new(Replica::start(shared, id, incarnation, transport, log, flusher))),
            None => Life::Refused,
        }
    }
}

impl Program for Life {
    fn run(&mut self) -> Next {
        match self {
            Life::Runs(replica) => replica.run(),
            Life::Refused => Next::Done,
        }
    }
}

impl Replica {
    fn start(
        shared: &Rc<Shared>,
        id: u64,
        incarnation: u32,
        transport: SimTransport,
        log: Log,
        flusher: Stepper<SimDisk>,
    ) -> Replica {
        let scenario = &shared.scenario;
        let clock = transport.clock();
        let mut random = Random::new(scenario.seed ^ 0x4e70_11ca ^ id << 32 ^ u64::from(incarnation) << 40);
        let config = EndpointConfig { seed: Some(random.next()), ..scenario.replica_endpoint(id).clone() };
        let endpoint = Rc::new(Endpoint::new(transport, config).expect("drawn settings are valid"));
        let node_clock = clock.clone();
        let config = NodeConfig {
            id,
            tick: scenario.tick(id),
            seed: Some(random.next()),
            snapshot_step_bytes: scenario.snapshot_step_bytes,
            clock: Rc::new(move || node_clock.now()),
            ..scenario.node.clone()
        };
        let beginning = if id <= scenario.members { Beginning::First(scenario.first_members()) } else { Beginning::Join };
        let machine = KvMachine::with_secret(BYTES_MAX, [scenario.seed, id]).expect("some MiB of memory");
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
        self.shared.rot.borrow_mut().crashed(self.id, &after, &mut self.random);
        *disk.borrow_mut() = after;
    }
}

impl Replica {
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
