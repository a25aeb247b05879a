//! The meaning of a seed: the datacenter, replicas and clients, their work, and the faults.

use std::ops::Range;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::{CongestionControl, EndpointConfig};
use dunlin_sim::fault::{Crashes, RandomFaults};
use dunlin_sim::topology::Layout;
use dunlin_sim::{CostModel, Datacenter, Fault, FaultPlan, Topology};
use dunlin_smr::{ClientConfig, NodeConfig, ReadFrom, Reads};
use dunlin_trial::{Random, Roughness};

use crate::scenario::{draw_config, draw_cost, draw_topology, work_ns};
use crate::strain::Strain;

/// Maximum number of clients: all of them work on few keys.
const CLIENTS_MAX: u64 = 8;
/// Minimum length of receive queues: it holds the credits of all sessions of a replica, and as many of crashed clients.
const RX_DESCRIPTORS_MIN: usize = 4096;
const MILLISECOND: u64 = 1_000_000;
/// Maximum number of groups of a replica.
const GROUPS_MAX: u64 = 4;
/// Congestion control may pace packets at several milliseconds each, even when the network has healed. A client with a
/// shorter attempt timeout than this, in nanoseconds, could never receive a long answer, so it runs without congestion
/// control.
const PACED_ATTEMPT_MIN: u64 = 100 * MILLISECOND;
/// Duration of client work in election timeouts, if elections are spoiled.
const ELECTIONS: u64 = 10;
/// How much slower one clock may be than another, in percent: leases hold as long as no clock runs a fifth faster than
/// another.
const SLOWER_MAX: u64 = 19;
/// Maximum deviation of a clock in parts per million, if rates change: one that is 8.7 % fast is 19 % faster than one
/// that is 8.7 % slow.
pub const CLOCK_PPM_MAX: u32 = 87_000;
/// Maximum duration of a disk hang in election timeouts: leaders step down after some
/// ([`NodeConfig::flush_elections_max`]).
const HANG_ELECTIONS_MAX: u64 = 12;
/// How long a leader whose disk hangs may lead if nothing else is wrong, in its election timeouts: until it knows that
/// the disk hangs, one more for the replica that it asks to lead, and some in reserve.
const LEADS_HUNG_MAX: u32 = 3;
/// Flushes of others meanwhile: of what the next leader lacks, of its vote, and of that of the third replica. If that
/// takes longer than an election timeout, the old leader asks another time.
const LEADS_HUNG_FLUSHES: u64 = 6;
/// Members of a cluster whose list contains an address of another one.
const FOREIGN_MEMBERS: u64 = 3;

/// A disk that hangs temporarily.
#[derive(Debug, Clone, Copy)]
pub struct Hang {
    /// The replica; `None` for the first that leads from then on.
    pub id: Option<u64>,
    /// When it begins, and how long it takes, in nanoseconds.
    pub from_ns: u64,
    pub length_ns: u64,
}

/// The work of a service's clients.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Distinguishes the seeds of different services.
    pub tag: u64,
    /// Maximum times between two starts of a client, in nanoseconds: one of them is drawn.
    pub gaps_ns: &'static [u64],
    /// Hosts whose clocks may deviate: replicas only, or clients too.
    pub clocks: Clocks,
}

/// The clocks that guarantees depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clocks {
    /// Those of replicas.
    OfReplicas,
    /// Those of clients too.
    OfAll,
}

/// Maximum number of pieces in which a snapshot is taken, written, sent or restored. A piece costs a turn of the event
/// loop, and some seeds take a snapshot every three commands.
pub const SNAPSHOT_PIECES_MAX: u64 = 10_000;

/// One run. Everything in it follows from the seed.
#[derive(Clone)]
pub struct Scenario {
    /// Its seed.
    pub seed: u64,
    /// Hosts and switches. Replica i is on host i - 1, clients are on the last hosts.
    pub topology: Topology,
    /// The CPU cost of packets at hosts.
    pub cost: CostModel,
    /// Number of first members. Their ids start at 1.
    pub members: u64,
    /// Number of replicas that may join; their ids follow.
    pub spares: u64,
    /// Clients.
    pub clients: u32,
    /// First members whose disks rot, fewer than half of them. For each there is a replacement, with an id after those
    /// of the spares.
    pub rots: Vec<u64>,
    /// Settings of the endpoints of replicas, then of clients, then of the operator, except for the seed.
    pub endpoints: Vec<EndpointConfig>,
    /// Settings of all replicas, except for id, tick, seed and clock.
    pub node: NodeConfig,
    /// Groups of each replica. Clients and the observer use the last one; the others share links, disks and snapshots
    /// with it.
    pub groups: u16,
    /// By replica: how much slower its clock is than the fastest possible one, in percent.
    slower: Vec<u64>,
    /// Percentage of leaders that are deposed.
    pub spoiled_elections: u64,
    /// Settings of clients.
    pub client: ClientConfig,
    /// Bytes of a segment of the log.
    pub segment_bytes: u32,
    /// Maximum duration of a flush, in nanoseconds.
    pub flush_max_ns: u64,
    /// The replica at which one flush fails, and after how many.
    pub flush_fails: Option<(u64, u64)>,
    /// Disks that hang.
    pub hangs: Vec<Hang>,
    /// The first members, and their hosts.
    first: Vec<(u64, u32)>,
    /// The replica whose address is in the list of another cluster, under the same id.
    reused: Option<u64>,
    /// The first member that does not exist, since its address belongs to a replica of another cluster.
    absent: Option<u64>,
    /// Number of changes of members and of leaders to request.
    pub changes: u32,
    /// The faults. All of them end.
    pub plan: FaultPlan,
    /// Number of keys.
    pub keys: usize,
    /// How often each client starts something.
    pub steps: u32,
    /// Maximum time between two starts, in nanoseconds.
    pub gap_max_ns: u64,
    /// Maximum length of a value, in bytes.
    pub value_bytes_max: u64,
    /// Bytes that go into a snapshot, and from there to disk, at a time.
    pub snapshot_step_bytes: usize,
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NodeConfig { tick, heartbeat_ticks, election_ticks, reads, snapshot_entries, keep_entries, .. } =
            &self.node;
        f.debug_struct("Scenario")
            .field("seed", &self.seed)
            .field("members, spares, clients", &(self.members, self.spares, self.clients))
            .field("rots", &self.rots)
            .field("tick, heartbeat, election", &(tick, heartbeat_ticks, election_ticks))
            .field("slower, spoiled_elections", &(&self.slower, self.spoiled_elections))
            .field("reads", reads)
            .field("groups, idle_ticks", &(self.groups, self.node.idle_ticks))
            .field("snapshot_entries, keep_entries", &(snapshot_entries, keep_entries))
            .field("client", &self.client)
            .field(
                "segment_bytes, flush_max_ns, flush_fails",
                &(self.segment_bytes, self.flush_max_ns, self.flush_fails),
            )
            .field("hangs, reused", &(&self.hangs, self.reused))
            .field("changes, keys, steps, gap_max_ns", &(self.changes, self.keys, self.steps, self.gap_max_ns))
            .field("snapshot_step_bytes", &self.snapshot_step_bytes)
            .field("cost", &self.cost)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

impl Scenario {
    /// The run of a seed.
    pub fn draw(seed: u64, load: Load) -> Scenario {
        // Consecutive seeds would share most of SplitMix64's sequence.
        let mut random = Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ load.tag);
        let r = &mut random;
        let mut topology = draw_topology(r);
        topology.nic.rx_descriptors = topology.nic.rx_descriptors.max(RX_DESCRIPTORS_MIN);
        let members = if r.chance(70) { 3 } else { 5 };
        let rots = draw_rots(r, members);
        let replacements = rots.len() as u64;
        let spares = r.between(0, 2).min((6 - members).saturating_sub(replacements));
        let clients = r.between(1, CLIENTS_MAX) as u32;
        let replicas = members + spares + replacements;
        let own_hosts = replicas as u32 + clients;
        let mut more = Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x6d6f_7265);
        // Not the one with the lowest id, which founds the other cluster.
        let reused = (members == FOREIGN_MEMBERS && more.chance(20)).then(|| more.between(2, FOREIGN_MEMBERS));
        let hosts = own_hosts + reused.map_or(0, |_| FOREIGN_MEMBERS as u32 - 1);
        match &mut topology.layout {
            Layout::OneSwitch(layout) => layout.hosts = hosts,
            Layout::TwoTier(layout) => layout.hosts_per_tor = hosts.div_ceil(layout.tors),
        }
        let is_steady = r.chance(15);
        let node = draw_node(r, topology.mtu);
        let mut several = Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x6772_6f75_7073);
        let groups = if several.chance(60) { 1 } else { several.between(2, GROUPS_MAX) as u16 };
        let idle = u64::from(node.heartbeat_ticks)..=u64::from(node.election_ticks);
        let idle_ticks = several.chance(50).then(|| several.between(*idle.start(), *idle.end()) as u32);
        let node = NodeConfig { idle_ticks, ..node };
        let election_ns = node.tick.as_nanos() as u64 * u64::from(node.election_ticks);
        let spoiled_elections = if is_steady || r.chance(60) { 0 } else { *r.pick(&[30, 100]).unwrap_or(&0) };
        let is_long = spoiled_elections > 0;
        let steps = if is_long { r.between(60, 100) } else { r.between(10, 40) } as u32;
        let gap_max_ns = match is_long {
            // Enough for several leaders.
            true => 2 * ELECTIONS * election_ns / u64::from(steps),
            false => *r.pick(load.gaps_ns).unwrap_or(&0),
        };
        // If leaders come and go, clients find the next one soon.
        let attempt_ns = if is_long { election_ns / 8 } else { r.between(5, 100) * MILLISECOND };
        let client_hosts = replicas as u32..own_hosts;
        let mut plan = draw_faults(r, is_steady, members, client_hosts, work_ns(steps, gap_max_ns), &topology);
        if !is_steady {
            let hosts = topology.hosts();
            let clocks = 0..if load.clocks == Clocks::OfAll { own_hosts } else { replicas as u32 };
            let until_ns = work_ns(steps, gap_max_ns);
            Strain { hosts, clocks, clock_ppm_max: CLOCK_PPM_MAX, mtu: topology.mtu, until_ns }.add(&mut plan, seed);
        }
        let has_rates = plan.faults.iter().any(|timed| matches!(timed.fault, Fault::ClockRate { .. }));
        let hangs = if is_steady {
            draw_hung_leader(seed, work_ns(steps, gap_max_ns), election_ns)
        } else {
            draw_hangs(&mut more, members, work_ns(steps, gap_max_ns), election_ns)
        };
        rots.iter().for_each(|id| add_crashes(r, &mut plan, *id, work_ns(steps, gap_max_ns)));
        // Not before the replica runs, and not the one that founds the cluster: the others might never begin.
        let flush_fails =
            (r.chance(8) && members == 5 && rots.is_empty()).then(|| (r.between(1, members).max(2), r.between(12, 50)));
        let endpoint = |r: &mut Random| EndpointConfig {
            // Only replicas face long silences.
            peer_timeout: Duration::from_millis(r.between(20, 100)),
            connect_timeout: Duration::from_millis(r.between(20, 200)),
            deferred_requests_max: 16_384,
            ..draw_config(r, if is_steady { Roughness::Steady } else { Roughness::Rough })
        };
        Scenario {
            seed,
            cost: if r.chance(20) { CostModel::free() } else { draw_cost(r) },
            members,
            spares,
            clients,
            endpoints: (0..=own_hosts)
                .map(|host| match endpoint(r) {
                    config if u64::from(host) >= replicas && attempt_ns < PACED_ATTEMPT_MIN => {
                        EndpointConfig { congestion: CongestionControl::None, ..config }
                    }
                    config => config,
                })
                .collect(),
            node,
            groups,
            slower: (0..replicas)
                .map(|_| if r.chance(50) { 0 } else { r.between(0, SLOWER_MAX) })
                // The whole difference between two clocks is drawn once.
                .map(|slower| if has_rates { 0 } else { slower })
                .collect(),
            spoiled_elections,
            client: ClientConfig {
                timeout: Duration::from_millis(r.between(20, 1500)),
                attempt_timeout: Duration::from_nanos(attempt_ns.max(2 * MILLISECOND)),
                pause: Duration::from_micros(r.between(100, 5000)),
                group: groups - 1,
                read_from: if several.chance(40) { ReadFrom::Any } else { ReadFrom::Leader },
                ..ClientConfig::default()
            },
            // Short segments, if old ones are wanted.
            segment_bytes: if rots.is_empty() { 1 << r.between(11, 16) } else { 2048 },
            rots,
            flush_max_ns: *r.pick(&[0, 20_000, MILLISECOND, 10 * MILLISECOND]).unwrap_or(&0),
            flush_fails,
            hangs,
            first: (1..=members).map(|id| (id, host(id))).collect(),
            reused,
            absent: None,
            // A member that fails for good must not be needed for a majority.
            changes: if flush_fails.is_some() || r.chance(40) { 0 } else { r.between(1, 12) as u32 },
            plan,
            keys: r.between(2, 4) as usize,
            steps,
            gap_max_ns,
            value_bytes_max: if r.chance(80) { 32 } else { 3 * topology.mtu as u64 },
            snapshot_step_bytes: if r.chance(60) { r.between(1, 100) as usize } else { 32 << 10 },
            topology,
        }
    }

    /// Sizes the pieces of snapshots such that a snapshot of `state_bytes` is written within this time, on average, in
    /// nanoseconds.
    pub fn bound_snapshots(&mut self, state_bytes: u64, within_ns: u64) {
        // The disk flushes each piece, and may flush the log before the next. On average, both together take as long as
        // the longest flush.
        let pieces_max = (within_ns / self.flush_max_ns.max(1)).min(SNAPSHOT_PIECES_MAX);
        self.snapshot_step_bytes = self.snapshot_step_bytes.max(state_bytes.div_ceil(pieces_max) as usize);
    }

    /// When all faults have ended and clients are about to stop starting work: nanoseconds of virtual time.
    pub fn end_ns(&self) -> u64 {
        let hangs_end = self.hangs.iter().map(|hang| hang.from_ns + hang.length_ns).max().unwrap_or(0);
        self.plan.end_ns().unwrap_or(0).max(hangs_end).max(work_ns(self.steps, self.gap_max_ns)) + 1
    }

    /// Another cluster, whose list contains the address of a replica of this one: with the same work, under the same
    /// faults, on hosts after those of this one. Its client has its own host, and knows its members without that
    /// replica.
    pub fn foreign(&self) -> Option<Scenario> {
        let reused = self.reused?;
        let mut hosts = self.client_host(self.clients as usize)..;
        let first =
            self.first.iter().map(|(id, host)| (*id, if *id == reused { *host } else { hosts.next().unwrap_or(0) }));
        let endpoints = self.endpoints[..self.members as usize].iter().chain([self.client_endpoint(0)]).cloned();
        Some(Scenario {
            // Otherwise it would have the same cluster number.
            seed: self.seed ^ 0x6f72_6569_676e,
            first: first.collect(),
            endpoints: endpoints.collect(),
            clients: 1,
            spares: 0,
            rots: Vec::new(),
            hangs: Vec::new(),
            flush_fails: None,
            changes: 0,
            reused: None,
            absent: Some(reused),
            ..self.clone()
        })
    }

    /// Whether a replica with this id exists.
    pub fn exists(&self, id: u64) -> bool {
        self.absent != Some(id)
    }

    /// The first members that exist, and their hosts.
    pub fn own_members(&self) -> impl Iterator<Item = (u64, u32)> {
        self.first.iter().copied().filter(|(id, _)| self.exists(*id))
    }

    /// The bytes of a key.
    pub fn key(number: usize) -> Vec<u8> {
        format!("key-{number}").into_bytes()
    }

    /// All replicas, including those that may never join.
    pub fn replicas(&self) -> std::ops::RangeInclusive<u64> {
        1..=self.replicas_max()
    }

    pub fn replicas_max(&self) -> u64 {
        self.members + self.spares + self.rots.len() as u64
    }

    /// The tick of a replica, measured by its own clock.
    pub fn tick(&self, id: u64) -> Duration {
        self.node.tick * (100 + self.slower[id as usize - 1] as u32) / 100
    }

    /// How long a replica may lead while its disk hangs, in nanoseconds of its own clock; `None` if something else goes
    /// wrong in this run, or a majority hangs, so that nobody else may be able to lead.
    pub fn leads_hung_max(&self, id: u64) -> Option<u64> {
        let few_hang = self.members > 2 * self.hangs.len() as u64;
        let all_well = self.plan.faults.is_empty() && self.rots.is_empty() && self.flush_fails.is_none() && few_hang;
        let elections = self.node.flush_elections_max + LEADS_HUNG_MAX;
        let election = self.tick(id) * self.node.election_ticks;
        let longest = (election * elections).as_nanos() as u64 + LEADS_HUNG_FLUSHES * self.flush_max_ns;
        (all_well && self.reused.is_none()).then_some(longest)
    }

    /// The election timeout, in nanoseconds.
    pub fn election_ns(&self) -> u64 {
        self.node.tick.as_nanos() as u64 * u64::from(self.node.election_ticks)
    }

    /// The replacement of a replica whose disk has rotted.
    ///
    /// # Panics
    /// If no rot is planned for its disk.
    pub fn replacement(&self, id: u64) -> u64 {
        let at = self.rots.iter().position(|rotten| *rotten == id).expect("its disk is one of those that rot");
        self.members + self.spares + 1 + at as u64
    }

    /// The members that clients are given.
    pub fn known_members(&self) -> Vec<(u64, Addr)> {
        self.first_members().into_iter().filter(|(id, _)| self.exists(*id)).collect()
    }

    /// The host of a client.
    pub fn client_host(&self, number: usize) -> u32 {
        self.replicas_max() as u32 + number as u32
    }

    /// Settings of the endpoint of a replica.
    pub fn replica_endpoint(&self, id: u64) -> &EndpointConfig {
        &self.endpoints[id as usize - 1]
    }

    /// Settings of the endpoint of a client.
    pub fn client_endpoint(&self, number: usize) -> &EndpointConfig {
        &self.endpoints[self.replicas_max() as usize + number]
    }

    /// Settings of the endpoint of the operator.
    pub fn operator_endpoint(&self) -> &EndpointConfig {
        self.client_endpoint(self.clients as usize)
    }

    /// The first members, with their addresses.
    pub fn first_members(&self) -> Vec<(u64, Addr)> {
        self.first.iter().map(|(id, host)| (*id, Datacenter::addr(*host, 0))).collect()
    }
}

/// The host of a replica.
pub fn host(id: u64) -> u32 {
    id as u32 - 1
}

/// The address of a replica.
pub fn address(id: u64) -> Addr {
    Datacenter::addr(host(id), 0)
}

fn draw_node(r: &mut Random, mtu: usize) -> NodeConfig {
    let heartbeat_ticks = r.between(1, 4) as u32;
    let is_short = r.chance(60);
    NodeConfig {
        tick: Duration::from_micros(r.between(1000, 3000)),
        heartbeat_ticks,
        election_ticks: heartbeat_ticks * r.between(4, 10) as u32,
        reads: if r.chance(50) { Reads::Lease } else { Reads::ReadIndex },
        proposals_max: if r.chance(70) { 4096 } else { r.between(1, 4) as usize },
        reads_max: if r.chance(70) { 4096 } else { r.between(1, 4) as usize },
        append_bytes_max: if r.chance(50) { 256 << 10 } else { r.between(0, 2000) },
        appends_in_flight_max: if r.chance(50) { 64 } else { r.between(1, 8) as usize },
        snapshot_entries: if is_short { r.between(3, 40) } else { 1_000_000 },
        keep_entries: if r.chance(50) { r.between(0, 20) } else { 10_000 },
        chunk_bytes: r.between(1, 4 * mtu as u64) as usize,
        sessions_max: if r.chance(85) { 65_536 } else { r.between(1, 4) as usize },
        session_idle_max: if r.chance(85) {
            Duration::from_secs(600)
        } else {
            Duration::from_millis(r.between(5, 200))
        },
        ..NodeConfig::new(1)
    }
}

/// Disks of some first members, or of all at once, hang for longer or shorter than a leader waits.
fn draw_hangs(r: &mut Random, members: u64, work_ns: u64, election_ns: u64) -> Vec<Hang> {
    if !r.chance(25) {
        return Vec::new();
    }
    let (from_ns, length_ns) = (r.between(0, work_ns), r.between(1, HANG_ELECTIONS_MAX * election_ns));
    if r.chance(15) {
        return (1..=members).map(|id| Hang { id: Some(id), from_ns, length_ns }).collect();
    }
    let first = r.between(1, members);
    let count = r.between(1, members / 2);
    (0..count).map(|next| Hang { id: Some((first - 1 + next) % members + 1), from_ns, length_ns }).collect()
}

/// In half of the steady runs the disk of the leader hangs, for much longer than it may lead then.
fn draw_hung_leader(seed: u64, work_ns: u64, election_ns: u64) -> Vec<Hang> {
    let mut random = Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x6875_6e67);
    if random.chance(50) {
        return Vec::new();
    }
    vec![Hang { id: None, from_ns: random.between(0, work_ns / 2), length_ns: HANG_ELECTIONS_MAX * election_ns }]
}

/// Some first members, fewer than half of them.
fn draw_rots(r: &mut Random, members: u64) -> Vec<u64> {
    if !r.chance(25) {
        return Vec::new();
    }
    let first = r.between(1, members);
    let count = r.between(1, (members - 1) / 2);
    (0..count).map(|next| (first - 1 + next) % members + 1).collect()
}

/// Crashes a replica twice in the middle of a run, since there may be nothing old on its disk the first time.
fn add_crashes(r: &mut Random, plan: &mut FaultPlan, id: u64, work_ns: u64) {
    for part in [0, 1] {
        let from = work_ns / 4 * (1 + part) + r.between(0, work_ns / 4);
        plan.add(from, Some(from + r.between(1, work_ns / 8 + MILLISECOND)), Fault::Crash { host: host(id) });
    }
}

/// Faults of all kinds anywhere, and more of those that replicas must survive.
fn draw_faults(
    r: &mut Random,
    is_steady: bool,
    members: u64,
    clients: Range<u32>,
    work_ns: u64,
    topology: &Topology,
) -> FaultPlan {
    if is_steady {
        return FaultPlan::default();
    }
    let longest_ns = *r.pick(&[5, 50, 200]).unwrap_or(&5) * MILLISECOND;
    let faults = RandomFaults {
        count: r.between(0, 5) as u32,
        from_ns: 0,
        until_ns: work_ns + r.between(0, longest_ns),
        longest_ns,
        packets_max: *r.pick(&[0.01, 0.1, 0.3]).unwrap_or(&0.1),
        corrupt_max: 0.0,
        crashes: Crashes::Restart,
    };
    let mut plan = faults.plan(topology, r.next());
    for _ in 0..r.between(0, 8) {
        let from = r.between(0, faults.until_ns);
        let until = (from + r.between(1, longest_ns)).min(faults.until_ns.max(from) + 1);
        let replica = host(r.between(1, members));
        let fault = match r.between(0, 9) {
            0..=3 => Fault::Crash { host: replica },
            4..=5 => Fault::Pause { host: replica },
            6 => Fault::Partition { hosts: vec![replica] },
            // Together with a client, which can tell whether it still believes to lead.
            7..=8 => Fault::Partition { hosts: vec![replica, clients.end - 1] },
            _ => Fault::Partition { hosts: vec![replica, host(r.between(1, members))] },
        };
        plan.add(from, Some(until), fault);
    }
    plan
}
