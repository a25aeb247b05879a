//! The program of a replica.

use std::rc::Rc;

use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::{Next, Program, SimTransport, ThreadClock};
use dunlin_smr::log::OpenError;
use dunlin_smr::wal::sim::{Crash, SimDisk};
use dunlin_smr::wal::{Disk as _, Stepper, WalConfig, open_stepped};
use dunlin_smr::wire::response::Role;
use dunlin_smr::{Beginning, DurableLog, Host, LogStore, Node, NodeConfig, NodeError};
use dunlin_trial::Random;

use super::Service;
use super::run::Shared;
use super::scenario::Hang;
use crate::node::run_endpoint;

/// The log of a replica: the real one, on a disk in memory.
pub type Log = DurableLog<SimDisk>;

/// The state of a replica's host.
pub enum Life<S: Service> {
    /// The replica runs.
    Runs(Box<Replica<S>>),
    /// The replica refused to start: its log is damaged.
    Refused,
}

/// A running replica.
pub struct Replica<S: Service> {
    id: u64,
    shared: Rc<Shared<S>>,
    /// Dropped before the endpoint, which it may hold.
    _companion: S::Companion,
    endpoint: Rc<Endpoint<SimTransport>>,
    node: Node<S::Machine, Log>,
    /// Does the work of the log's thread.
    flusher: Stepper<SimDisk>,
    /// Errors of its disk by the time it started.
    faults: u64,
    random: Random,
    clock: ThreadClock,
    idle_runs: u32,
    /// Whether its disk hangs and a flush waits for that.
    waits_for_hung: bool,
    /// Since when it leads nevertheless, by its clock.
    leads_hung: Option<u64>,
}

impl<S: Service> Life<S> {
    /// Starts a replica, after `incarnation` crashes, unless its log is damaged.
    pub fn start(shared: &Rc<Shared<S>>, id: u64, incarnation: u32, transport: SimTransport) -> Life<S> {
        let disk = &shared.disks[id as usize - 1];
        if incarnation > 0 {
            // The disk was repaired.
            disk.borrow().fail_flush_after(u64::MAX);
        }
        let parts = Parts::new(shared, id, incarnation, transport);
        loop {
            let Some((logs, flusher)) = shared.rot.borrow_mut().judge(id, open(shared, id)) else {
                return Life::Refused;
            };
            let faults = disk.borrow().faults();
            if let Some(replica) = Replica::start(&parts, logs, flusher) {
                return Life::Runs(Box::new(replica));
            }
            // Its first write was not flushed, and the process ended: it is restarted after its disk was repaired.
            assert!(disk.borrow().faults() > faults, "replica {id} cannot write its log, and its disk is well");
            let after = disk.borrow().crash(Crash::Process);
            after.fail_flush_after(u64::MAX);
            *disk.borrow_mut() = after;
        }
    }
}

/// The logs of all groups of a replica.
fn open<S: Service>(shared: &Shared<S>, id: u64) -> Result<(Vec<Log>, Stepper<SimDisk>), OpenError> {
    let wal_config = WalConfig {
        segment_bytes: shared.scenario.segment_bytes,
        snapshot_piece_bytes: shared.scenario.snapshot_step_bytes,
        ..WalConfig::new(id)
    };
    let disk = shared.disks[id as usize - 1].borrow().clone();
    let (wal, _) = open_stepped(disk, wal_config)?;
    let flusher = wal.stepper().expect("it has no thread");
    Ok((DurableLog::of_groups(&wal, shared.scenario.groups)?, flusher))
}

/// The parts of a replica, besides its log.
struct Parts<S: Service> {
    shared: Rc<Shared<S>>,
    id: u64,
    endpoint: Rc<Endpoint<SimTransport>>,
    clock: ThreadClock,
    config: NodeConfig,
    random: Random,
}

impl<S: Service> Parts<S> {
    fn new(shared: &Rc<Shared<S>>, id: u64, incarnation: u32, transport: SimTransport) -> Parts<S> {
        let scenario = &shared.scenario;
        let clock = transport.clock();
        let mut random = Random::new(scenario.seed ^ 0x4e70_11ca ^ id << 32 ^ u64::from(incarnation) << 40);
        let config = EndpointConfig { seed: Some(random.next()), ..scenario.replica_endpoint(id).clone() };
        let endpoint = Rc::new(Endpoint::new(transport, config).expect("drawn settings are valid"));
        let timers = endpoint.timers();
        let config = NodeConfig {
            id,
            tick: scenario.tick(id),
            seed: Some(random.next()),
            snapshot_step_bytes: scenario.snapshot_step_bytes,
            clock: Rc::new(move || timers.boot_now()),
            ..scenario.node.clone()
        };
        Parts { shared: shared.clone(), id, endpoint, clock, config, random }
    }
}

impl<S: Service> Program for Life<S> {
    fn run(&mut self) -> Next {
        match self {
            Life::Runs(replica) => replica.run(),
            Life::Refused => Next::Done,
        }
    }
}

impl<S: Service> Replica<S> {
    /// `None` if its disk fails at once.
    fn start(parts: &Parts<S>, logs: Vec<Log>, flusher: Stepper<SimDisk>) -> Option<Replica<S>> {
        let (id, shared) = (parts.id, &parts.shared);
        let scenario = &shared.scenario;
        let beginning =
            if id <= scenario.members { Beginning::First(scenario.first_members()) } else { Beginning::Join };
        let faults = shared.disks[id as usize - 1].borrow().faults();
        let groups = logs.into_iter().map(|log| (log, shared.service.machine(scenario, id, &parts.clock))).collect();
        let node = match Host::start(&parts.endpoint, parts.config.clone(), groups, beginning) {
            Ok(host) => host.node(scenario.groups - 1).expect("it was given so many"),
            Err(NodeError::Log(_)) => return None,
            Err(error) => panic!("drawn settings are valid: {error}"),
        };
        shared.observer.borrow_mut().restarted(id);
        Some(Replica {
            id,
            shared: shared.clone(),
            _companion: S::accompany(shared, id, &parts.endpoint, &node),
            endpoint: parts.endpoint.clone(),
            node,
            flusher,
            faults,
            random: parts.random.clone(),
            clock: parts.clock.clone(),
            idle_runs: 0,
            waits_for_hung: false,
            leads_hung: None,
        })
    }

    /// Makes its disk hang if that is due.
    fn hang(&self) {
        let time = self.clock.virtual_now();
        let mut hangs = self.shared.hangs.borrow_mut();
        let is_mine = |hang: &Hang| hang.id.map_or_else(|| self.leads(), |id| id == self.id);
        for hang in hangs.extract_if(.., |hang| hang.from_ns <= time && is_mine(hang)) {
            self.shared.disks[self.id as usize - 1].borrow().hang_until(self.clock.now() + hang.length_ns);
        }
    }

    /// Counts a flush that does not end because its disk hangs.
    fn note_hung(&mut self, now: u64) {
        let hangs = self.shared.disks[self.id as usize - 1].borrow().hangs_until() > now;
        let waits = hangs && self.node.with_log(LogStore::under_way).is_some();
        let is_new = waits && !self.waits_for_hung;
        self.waits_for_hung = waits;
        self.shared.hung.set(self.shared.hung.get() + u64::from(is_new));
    }

    /// Checks that another replica gets the lead while this one's disk hangs: otherwise nobody is served.
    fn judge_lead(&mut self, now: u64) {
        // One that rests serves nobody; its time begins when it is woken. Of two voters, the other one is no majority.
        let may_give_way = || !self.node.is_resting() && self.node.status().voters.len() > 2;
        if !(self.waits_for_hung && self.leads() && may_give_way()) {
            self.leads_hung = None;
            return;
        }
        let since = *self.leads_hung.get_or_insert(now);
        if let Some(longest) = self.shared.scenario.leads_hung_max(self.id) {
            let id = self.id;
            assert!(now - since <= longest, "replica {id} leads for more than {longest} ns though its disk hangs");
        }
    }

    fn leads(&self) -> bool {
        self.node.status().role == Role::Leader
    }

    fn look(&self) {
        match self.node.failure() {
            None => {}
            Some(NodeError::Log(error)) => {
                let faults = self.shared.disks[self.id as usize - 1].borrow().faults();
                assert!(faults > self.faults, "replica {} stopped, and its disk is well: {error}", self.id);
                return;
            }
            Some(error) => panic!("replica {} stopped: {error}", self.id),
        }
        let status = self.node.status();
        self.node.with_log(|log| self.shared.observer.borrow_mut().look(&status, log));
    }
}

/// The host crashed, or only the process: in the second case all writes are kept, flushed or not.
impl<S: Service> Drop for Replica<S> {
    fn drop(&mut self) {
        let crash = if self.random.chance(75) { Crash::Power } else { Crash::Process };
        let disk = &self.shared.disks[self.id as usize - 1];
        let after = disk.borrow().crash(crash);
        self.shared.rot.borrow_mut().crashed(self.id, &after, &mut self.random);
        *disk.borrow_mut() = after;
    }
}

impl<S: Service> Replica<S> {
    fn run(&mut self) -> Next {
        let now = self.clock.now();
        self.hang();
        self.flusher.step(now);
        let more = run_endpoint(&self.endpoint, &self.clock, &mut self.idle_runs);
        // As of the previous time, so that no flush completes before the replica can hear of it.
        let flushed = self.flusher.step(now);
        self.note_hung(now);
        self.judge_lead(now);
        self.look();
        if more {
            return Next::Soon;
        }
        Next::OnPacket { or_at: self.endpoint.next_due().into_iter().chain(flushed).min() }
    }
}
