//! All replicas of a group in one thread.

use std::rc::Rc;

use dunlin_lab::measure::Scratch;
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Addr, AnyTransport, Clock, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::config::system_clock;
use dunlin_smr::wal::{Directory, WalConfig, open};
use dunlin_smr::{Batching, DurableLog, LogStore, MemoryLog, NodeConfig, Probe};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::rpc::roles::setup::Carrier;
use crate::smr::replication::{Group, Replica, StageTimes, Stages};

/// As in the paper.
const REPLICAS: u64 = 3;
/// Memory that a run of some seconds needs.
const TOUCHED_BYTES: usize = 1 << 30;
/// Iterations between two checks whether to stop.
const ITERATIONS_PER_LOOK: u32 = 1024;

/// The storage of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Storage {
    /// In memory, as in the paper.
    Memory,
    /// On the disk of the directory for temporary files.
    Disk,
    /// The same, but leaders do not gather commands for their disk.
    DiskUngathered,
}

impl Storage {
    /// Whether logs are on disk, where threads flush them.
    pub fn is_disk(self) -> bool {
        self != Storage::Memory
    }
}

/// Three replicas that take turns on one core, until they are stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplicaGroup {
    /// The transport between replicas, and for clients.
    pub carrier: Carrier,
    /// The storage of their logs.
    pub storage: Storage,
    /// Groups of each replica.
    pub groups: u16,
    /// Initial keys.
    pub keys: u64,
    /// Whether to measure the work of the replicas, which makes them slower.
    pub watch: Watch,
    /// Entries per snapshot of each replica; `None` for no snapshots.
    pub snapshot_entries: Option<u64>,
}

/// What is measured besides the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Watch {
    /// The stages of the replicas' work.
    Stages,
    /// Nothing.
    Nothing,
}

/// The work of replicas since the first write.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ReplicaFigures {
    /// Stages of the leader.
    pub leader: StageTimes,
    /// Stages of all followers together.
    pub followers: StageTimes,
    /// Nanoseconds of event loops with work, including all of the above.
    pub busy: f64,
    /// Nanoseconds of all event loops.
    pub all: f64,
    /// Entries executed by the leader.
    pub commits: u64,
    /// The longest time that a replica was occupied with a snapshot, in nanoseconds.
    pub snapshot_pause_max: f64,
}

impl Role for ReplicaGroup {
    const NAME: &'static str = "three replicas on one core";
    /// Addresses by id.
    type Ready = Vec<(u64, String)>;
    type Output = ReplicaFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<ReplicaFigures, BenchError> {
        match self.storage {
            Storage::Memory => self.serve(control, |_| Ok((0..self.groups).map(|_| MemoryLog::new()).collect())),
            Storage::Disk | Storage::DiskUngathered => {
                let place = Scratch::make("replica-group")?;
                self.serve(control, |id| {
                    let failed = |error: &dyn std::fmt::Display| BenchError::Replica(error.to_string());
                    let directory =
                        Directory::open(&place.path().join(id.to_string())).map_err(|error| failed(&error))?;
                    let (wal, _) = open(directory, WalConfig::new(id)).map_err(|error| failed(&error))?;
                    DurableLog::of_groups(&wal, self.groups).map_err(|error| failed(&error))
                })
            }
        }
    }
}

struct Member<L: LogStore> {
    endpoint: Rc<Endpoint<AnyTransport>>,
    replica: Replica<L>,
    stages: Option<Rc<Stages>>,
}

impl ReplicaGroup {
    fn endpoints(&self) -> Result<Vec<Rc<Endpoint<AnyTransport>>>, BenchError> {
        let endpoint = |id| {
            let addr: Addr = match self.carrier {
                // A name that no other process uses.
                Carrier::Shm => format!("shm:dunlin-replica-{}-{id}", std::process::id()).parse()?,
                Carrier::Udp => "udp://127.0.0.1:0".parse()?,
            };
            let config = EndpointConfig { poll: PollPolicy::Spin, ..EndpointConfig::default() };
            Ok(Rc::new(Endpoint::new(AnyTransport::bind(&addr)?, config)?))
        };
        (1..=REPLICAS).map(endpoint).collect()
    }

    fn batching(&self) -> Batching {
        if self.storage == Storage::DiskUngathered { Batching::Immediate } else { Batching::Gathered }
    }

    fn serve<L: LogStore + 'static>(
        &self,
        control: &Control<Self>,
        logs: impl Fn(u64) -> Result<Vec<L>, BenchError>,
    ) -> Result<ReplicaFigures, BenchError> {
        touch_memory();
        let endpoints = self.endpoints()?;
        let addresses: Vec<(u64, Addr)> = (1..).zip(endpoints.iter().map(|endpoint| endpoint.local_addr())).collect();
        let group = Group::new(addresses.clone(), self.keys).times(self.groups);
        let mut members = Vec::new();
        for (endpoint, (id, _)) in endpoints.into_iter().zip(&addresses) {
            let stages = (self.watch == Watch::Stages).then(Stages::new);
            let probe = stages.clone().map(|stages| stages as Rc<dyn Probe>);
            let config = group.config(*id, system_clock());
            let snapshot_entries = self.snapshot_entries.unwrap_or(config.snapshot_entries);
            let idle_ticks = (self.groups > 1).then_some(config.election_ticks);
            let config = NodeConfig { batching: self.batching(), snapshot_entries, idle_ticks, ..config };
            let replica = group.start(&endpoint, config, logs(*id)?, probe)?;
            members.push(Member { endpoint, replica, stages });
        }
        // With many groups, checking the leaders takes longer than a turn.
        let lead = || members.iter().map(|member| member.replica.led()).sum::<usize>();
        while (lead() < usize::from(self.groups) || !are_up_to_date(&members)) && !control.stopping() {
            for _ in 0..self.groups {
                members.iter().for_each(|member| _ = member.endpoint.run_once());
            }
        }
        control.ready(addresses.iter().map(|(id, addr)| (*id, addr.to_string())).collect());
        let figures = match self.watch {
            Watch::Stages => watched(&members, control),
            Watch::Nothing => unwatched(&members, self.storage, control),
        };
        members.iter().try_for_each(|member| member.replica.check())?;
        let pauses = members.iter().map(|member| member.replica.snapshot_pause_max() as f64);
        Ok(ReplicaFigures { snapshot_pause_max: pauses.fold(0.0, f64::max), ..figures })
    }
}

/// Whether all replicas have restored their initial state.
fn are_up_to_date<L: LogStore + 'static>(members: &[Member<L>]) -> bool {
    members.iter().all(|member| member.replica.is_up_to_date())
}

/// Makes the system give this process memory once. On a virtual machine the first touch of a page costs its host ten
/// microseconds, and a log in memory grows all the time.
fn touch_memory() {
    drop(std::hint::black_box(vec![1_u8; TOUCHED_BYTES]));
}

fn unwatched<L: LogStore + 'static>(
    members: &[Member<L>],
    storage: Storage,
    control: &Control<ReplicaGroup>,
) -> ReplicaFigures {
    while !control.stopping() {
        for _ in 0..ITERATIONS_PER_LOOK {
            let found: usize = members.iter().map(|member| member.endpoint.run_once()).sum();
            if found == 0 && storage.is_disk() {
                // The threads that flush share this core.
                std::thread::yield_now();
            }
        }
    }
    ReplicaFigures::default()
}

fn watched<L: LogStore + 'static>(members: &[Member<L>], control: &Control<ReplicaGroup>) -> ReplicaFigures {
    let clock = Clock::new();
    let leader = members.iter().position(|member| member.replica.leads()).unwrap_or(0);
    let times = |place: usize| members[place].stages.as_ref().map(|stages| stages.times()).unwrap_or_default();
    let before: Vec<StageTimes> = (0..members.len()).map(times).collect();
    let commits = members[leader].replica.commits();
    let (begin, mut busy) = (clock.now(), 0);
    while !control.stopping() {
        for _ in 0..ITERATIONS_PER_LOOK {
            for member in members {
                let start = clock.now();
                if member.endpoint.run_once() > 0 {
                    busy += clock.now() - start;
                }
            }
        }
    }
    let since = |place: usize| times(place).since(&before[place]);
    let mut followers = StageTimes::default();
    (0..members.len()).filter(|place| *place != leader).for_each(|place| followers.add(&since(place)));
    ReplicaFigures {
        leader: since(leader),
        followers,
        busy: busy as f64,
        all: (clock.now() - begin) as f64,
        commits: members[leader].replica.commits() - commits,
        ..ReplicaFigures::default()
    }
}
