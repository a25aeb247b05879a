//! Three replicas, each the library and a log, and a bag of messages between them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dunlin_net::random::Random;
use dunlin_smr::log::{Batch, DurableLog, LogStore, Ticket, Urgency};
use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{WalConfig, WalError, open_stepped};
use raft::eraftpb::{ConfState, Entry, HardState, Message, Snapshot};
use raft::{RawNode, StateRole, Storage};

const MEMBERS: u64 = 3;
/// A snapshot is taken when this many entries have been applied since the last one.
const SNAPSHOT_ENTRIES: u64 = 12;
/// Messages in flight, at most; more are lost.
const MESSAGES_MAX: usize = 200;

/// Without faults, a candidate gets this many rounds of messages and flushes to be elected.
const ROUNDS_PER_ELECTION: usize = 20;

/// What happened, so that a run that tests nothing is noticed.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    committed: u64,
    crashes: u64,
    torn: u64,
    failed: u64,
    elections: u64,
    snapshots: u64,
    restored: u64,
}

impl Seen {
    fn numbers(&self) -> [u64; 7] {
        [self.committed, self.crashes, self.torn, self.failed, self.elections, self.snapshots, self.restored]
    }

    pub fn add(&mut self, other: &Seen) {
        let [committed, crashes, torn, failed, elections, snapshots, restored] = other.numbers();
        self.committed += committed;
        self.crashes += crashes;
        self.torn += torn;
        self.failed += failed;
        self.elections += elections;
        self.snapshots += snapshots;
        self.restored += restored;
    }

    /// Whether everything happened.
    pub fn is_complete(&self) -> bool {
        self.numbers().iter().all(|number| *number > 0)
    }
}

struct Replica {
    raft: RawNode<DurableLog<SimDisk>>,
    disk: SimDisk,
    /// Faults of the disk before the replica was started.
    faults: u64,
    /// Number, ticket and messages of each `Ready` that is not durable yet.
    unpersisted: VecDeque<(u64, Ticket, Vec<Message>)>,
    applied: u64,
}

impl Replica {
    /// The library accepts only durable entries, and a snapshot becomes durable some time after it was restored.
    fn report_applied(&mut self) {
        let log = &self.raft.raft.raft_log;
        let applied = self.applied.min(log.persisted);
        if applied > log.applied {
            self.raft.advance_apply_to(applied);
        }
    }
}

/// Three replicas, and their promises.
pub struct Group {
    replicas: Vec<Option<Replica>>,
    disks: Vec<SimDisk>,
    messages: Vec<Message>,
    /// Term and bytes of every entry that any replica applied.
    committed: BTreeMap<u64, (u64, Vec<u8>)>,
    leaders: BTreeMap<u64, u64>,
    now: u64,
    proposals: u64,
    seen: Seen,
}

fn config() -> WalConfig {
    WalConfig { segment_bytes: 2 << 10, snapshot_piece_bytes: 200, ..WalConfig::new(1) }
}

fn disk_config(seed: u64) -> SimDiskConfig {
    let flush_failures = if seed.is_multiple_of(3) { 0.002 } else { 0.0 };
    SimDiskConfig {
        flush_time: (Duration::from_nanos(1), Duration::from_nanos(30)),
        flush_failures,
        ..SimDiskConfig::default()
    }
}

impl Group {
    pub fn new(seed: u64) -> Group {
        let disks = (0..MEMBERS).map(|id| SimDisk::new(seed * MEMBERS + id, disk_config(seed))).collect();
        let mut group = Group {
            replicas: (0..MEMBERS).map(|_| None).collect(),
            disks,
            messages: Vec::new(),
            committed: BTreeMap::new(),
            leaders: BTreeMap::new(),
            now: 0,
            proposals: 0,
            seen: Seen::default(),
        };
        (0..MEMBERS as usize).for_each(|at| group.start(at));
        group
    }

    pub fn seen(&self) -> Seen {
        Seen { committed: self.committed.len() as u64, elections: self.leaders.len() as u64, ..self.seen.clone() }
    }

    /// Starts a replica on its disk; if that fails now, it stays down.
    fn start(&mut self, at: usize) {
        let disk = self.disks[at].clone();
        let before = disk.faults();
        let (wal, opening) = match open_stepped(disk.clone(), config()) {
            Ok(opened) => opened,
            // A failing disk causes no other error.
            Err(WalError::Io { .. }) if disk.faults() > before => {
                self.disks[at] = disk.crash(Crash::Process);
                return;
            }
            Err(error) => panic!("{error}"),
        };
        self.seen.torn += u64::from(opening.torn.is_some());
        let mut log = DurableLog::new(wal).expect("what a replica wrote");
        if log.base().get_metadata().index == 0 {
            let mut snapshot = Snapshot::default();
            let metadata = snapshot.mut_metadata();
            (metadata.index, metadata.term) = (1, 1);
            metadata.set_conf_state(ConfState { voters: (1..=MEMBERS).collect(), ..ConfState::default() });
            let hard_state = HardState { term: 1, commit: 1, ..HardState::default() };
            let batch = Batch {
                snapshot: Some(snapshot),
                hard_state: Some(hard_state),
                urgency: Urgency::Urgent,
                ..Batch::default()
            };
            if let Err(error) = log.append(batch) {
                assert!(disk.faults() > before, "{error}");
                self.disks[at] = disk.crash(Crash::Power);
                return;
            }
        }
        let applied = log.base().get_metadata().index;
        // The library takes random election timeouts from the system, so ticks decide nothing here.
        let config = raft::Config {
            id: at as u64 + 1,
            election_tick: 10,
            heartbeat_tick: 1,
            applied,
            max_size_per_msg: 1000,
            max_inflight_msgs: 8,
            // A replica with a higher term than the leader makes the leader answer.
            pre_vote: true,
            ..raft::Config::default()
        };
        let raft = RawNode::new(&config, log, &slog::Logger::root(slog::Discard, slog::o!())).unwrap();
        self.replicas[at] = Some(Replica { raft, disk, faults: before, unpersisted: VecDeque::new(), applied });
    }

    fn crash(&mut self, at: usize, crash: Crash) {
        if let Some(replica) = self.replicas[at].take() {
            self.disks[at] = replica.disk.crash(crash);
            self.seen.crashes += 1;
        }
    }

    /// Does a random step.
    pub fn step(&mut self, random: &mut Random) {
        let at = random.below(MEMBERS) as usize;
        match random.below(100) {
            0 => self.crash(at, if random.below(3) == 0 { Crash::Process } else { Crash::Power }),
            1..=6 if self.replicas[at].is_none() => self.start(at),
            7 => {
                if let Some(replica) = &mut self.replicas[at] {
                    let _ = replica.raft.campaign();
                }
            }
            8..=20 => self.propose(at, random),
            21..=25 => {
                if let Some(replica) = &mut self.replicas[at] {
                    replica.raft.ping();
                }
            }
            26..=28 if !self.messages.is_empty() => {
                let lost = random.below(self.messages.len() as u64) as usize;
                self.lose(lost);
            }
            29..=60 if !self.messages.is_empty() => {
                let next = random.below(self.messages.len() as u64) as usize;
                self.deliver(next);
            }
            61..=75 => self.now += random.below(40),
            _ => {}
        }
        self.work(at);
    }

    fn propose(&mut self, at: usize, random: &mut Random) {
        let Some(replica) = &mut self.replicas[at] else { return };
        if replica.raft.raft.state == StateRole::Leader {
            self.proposals += 1;
            let mut data = vec![7; random.below(200) as usize];
            data.extend_from_slice(&self.proposals.to_le_bytes());
            let _ = replica.raft.propose(Vec::new(), data);
        }
    }

    fn lose(&mut self, at: usize) {
        let message = self.messages.swap_remove(at);
        if let (Some(replica), false) =
            (&mut self.replicas[message.from as usize - 1], message.get_snapshot().is_empty())
        {
            replica.raft.report_snapshot(message.to, raft::SnapshotStatus::Failure);
        }
    }

    fn deliver(&mut self, at: usize) {
        let message = self.messages.swap_remove(at);
        let (from, to, is_snapshot) = (message.from, message.to, !message.get_snapshot().is_empty());
        if let Some(replica) = &mut self.replicas[to as usize - 1] {
            let _ = replica.raft.step(message);
            self.work(to as usize - 1);
        }
        if let (true, Some(sender)) = (is_snapshot, &mut self.replicas[from as usize - 1]) {
            sender.raft.report_snapshot(to, raft::SnapshotStatus::Finish);
        }
    }

    /// A replica does what is due; if its disk fails, it is killed.
    fn work(&mut self, at: usize) {
        let Some(replica) = &mut self.replicas[at] else { return };
        if let Some(stepper) = replica.raft.store().wal().stepper() {
            stepper.step(self.now);
        }
        if self.try_work(at).is_none() {
            let replica = self.replicas[at].as_ref().expect("it has worked");
            assert!(
                replica.disk.faults() > replica.faults,
                "a log failed on a disk that did not: {:?}",
                replica.raft.store().wal().failure()
            );
            self.seen.failed += 1;
            self.crash(at, Crash::Power);
        }
        self.messages.truncate(MESSAGES_MAX);
    }

    /// `None` if the log failed.
    fn try_work(&mut self, at: usize) -> Option<()> {
        let replica = self.replicas[at].as_mut()?;
        loop {
            let durable = replica.raft.mut_store().durable().ok()?;
            while replica.unpersisted.front().is_some_and(|(_, ticket, _)| *ticket <= durable) {
                let (number, _, messages) = replica.unpersisted.pop_front()?;
                replica.raft.on_persist_ready(number);
                self.messages.extend(messages);
            }
            replica.report_applied();
            if !replica.raft.has_ready() {
                break;
            }
            let mut ready = replica.raft.ready();
            self.messages.extend(ready.take_messages());
            if !ready.snapshot().is_empty() {
                replica.applied = ready.snapshot().get_metadata().index;
                self.seen.restored += 1;
            }
            let batch = Batch {
                snapshot: (!ready.snapshot().is_empty()).then(|| ready.snapshot().clone()),
                entries: ready.take_entries(),
                hard_state: ready.hs().cloned(),
                urgency: if ready.must_sync() { Urgency::Urgent } else { Urgency::Lazy },
            };
            let before = replica.unpersisted.back().map_or(Ticket::default(), |(_, ticket, _)| *ticket);
            // A lazy write is as durable as the write before it.
            let (is_awaited, is_empty) = (batch.urgency == Urgency::Urgent, batch.is_empty());
            let written = if is_empty { before } else { replica.raft.mut_store().append(batch).ok()? };
            let ticket = if is_awaited && !is_empty { written } else { before };
            replica.unpersisted.push_back((ready.number(), ticket, ready.take_persisted_messages()));
            for entry in ready.take_committed_entries() {
                applied(&mut self.committed, &entry);
                replica.applied = entry.index;
            }
            replica.raft.advance_append_async(ready);
            replica.report_applied();
            let base = replica.raft.store().base().get_metadata().index;
            if replica.applied >= base + SNAPSHOT_ENTRIES && !replica.raft.store().is_compacting() {
                self.seen.snapshots += 1;
                compact(replica)?;
            }
        }
        let raft = &replica.raft.raft;
        if raft.state == StateRole::Leader {
            let leader = *self.leaders.entry(raft.term).or_insert(raft.id);
            assert_eq!(leader, raft.id, "two leaders in term {}", raft.term);
        }
        Some(())
    }

    /// All replicas are started, disks work, and messages arrive: in the end all have everything that any of them ever
    /// applied.
    pub fn settle(&mut self) {
        for disk in &self.disks {
            disk.configure(SimDiskConfig { flush_failures: 0.0, ..disk_config(1) });
        }
        for at in 0..MEMBERS as usize {
            self.crash(at, Crash::Power);
            self.start(at);
            assert!(self.replicas[at].is_some(), "a replica does not start on a disk that is well");
        }
        self.messages.clear();
        for round in 0..20 * ROUNDS_PER_ELECTION {
            let leads = self.replicas.iter().flatten().any(|replica| replica.raft.raft.state == StateRole::Leader);
            if let Some(replica) = &mut self.replicas[round / ROUNDS_PER_ELECTION % MEMBERS as usize]
                && !leads
                && round % ROUNDS_PER_ELECTION == 0
            {
                let _ = replica.raft.campaign();
            }
            self.replicas.iter_mut().flatten().for_each(|replica| replica.raft.ping());
            for at in 0..MEMBERS as usize {
                self.now += 100;
                self.work(at);
            }
            while !self.messages.is_empty() {
                self.deliver(0);
                self.now += 100;
            }
        }
        let last = self.committed.keys().last().copied().unwrap_or(1);
        for replica in self.replicas.iter().flatten() {
            assert!(replica.applied >= last, "replica {} applied {} of {last}", replica.raft.raft.id, replica.applied);
        }
    }
}

/// Checks that a committed entry never changes.
fn applied(committed: &mut BTreeMap<u64, (u64, Vec<u8>)>, entry: &Entry) {
    let found = (entry.term, entry.data.to_vec());
    let known = committed.entry(entry.index).or_insert_with(|| found.clone());
    assert!(*known == found, "entry {} was {known:?} and is {found:?}", entry.index);
}

fn compact(replica: &mut Replica) -> Option<()> {
    let term = replica.raft.store().term(replica.applied).ok()?;
    let mut snapshot = Snapshot { data: vec![replica.applied as u8; 900].into(), ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (replica.applied, term);
    metadata.set_conf_state(replica.raft.raft.prs().conf().to_conf_state());
    let first = replica.raft.store().first_index().ok()?;
    let keep_from = replica.applied.saturating_sub(3).max(first);
    replica.raft.mut_store().compact(snapshot, keep_from).ok()
}
