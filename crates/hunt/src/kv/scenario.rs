//! The meaning of a seed: the datacenter, the cores of the server and the clients, their work, and the faults.

use std::time::Duration;

use dunlin_rpc::EndpointConfig;
use dunlin_sim::fault::{Crashes, RandomFaults};
use dunlin_sim::{CostModel, FaultPlan, Topology};
use dunlin_trial::{Random, Roughness};

use crate::scenario::{draw_config, draw_cost, draw_topology, strain, work_ns};

/// The host of the server.
pub const SERVER: u32 = 0;
/// Minimum length of receive queues: it holds the credits of all sessions of a core, and as many of crashed clients.
const RX_DESCRIPTORS_MIN: usize = 2048;
/// Maximum number of cores of a server.
const CORES_MAX: u64 = 3;

/// One run. Everything in it follows from the seed.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its seed.
    pub seed: u64,
    /// Hosts and switches. The server is on the first host.
    pub topology: Topology,
    /// The CPU cost of packets at hosts.
    pub cost: CostModel,
    /// Settings of each core of the server, except for the seed.
    pub cores: Vec<EndpointConfig>,
    /// Settings of each client, except for the seed. Client i is on host i + 1.
    pub clients: Vec<EndpointConfig>,
    /// The faults. All of them end.
    pub plan: FaultPlan,
    /// Number of keys.
    pub keys: usize,
    /// How often each client starts something.
    pub steps: u32,
    /// Maximum time between two starts, in nanoseconds.
    pub gap_max_ns: u64,
    /// Maximum number of operations that a client starts at once.
    pub batch_max: u64,
    /// Maximum length of a value, in bytes.
    pub value_bytes_max: u64,
}

impl Scenario {
    /// The run of a seed.
    pub fn draw(seed: u64) -> Scenario {
        // Consecutive seeds would share most of SplitMix64's sequence.
        let mut random = Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x6b76);
        let r = &mut random;
        // Corruption after the checksums gives wrong values: nothing could be judged.
        let roughness = if r.chance(30) { Roughness::Steady } else { Roughness::Rough };
        let mut topology = draw_topology(r);
        // With less, sessions are refused, even in the end, when all must be served.
        topology.nic.rx_descriptors = topology.nic.rx_descriptors.max(RX_DESCRIPTORS_MIN);
        let clients = u64::from(topology.hosts() - 1).min(4);
        let cores = r.between(1, CORES_MAX);
        let gap_max_ns = *r.pick(&[2_000, 20_000, 100_000, 1_000_000, 4_000_000]).unwrap_or(&0);
        let steps = r.between(8, 30) as u32;
        let mut plan = draw_faults(r, roughness, work_ns(steps, gap_max_ns)).plan(&topology, r.next());
        if roughness != Roughness::Steady {
            strain(&topology, work_ns(steps, gap_max_ns)).add(&mut plan, seed);
        }
        // Short enough for peers to be given up in the middle of operations.
        let patience =
            (roughness == Roughness::Rough && r.chance(60)).then(|| Duration::from_millis(r.between(20, 50)));
        let draw_config = |r: &mut Random| {
            let config = draw_config(r, roughness);
            EndpointConfig { peer_timeout: patience.unwrap_or(config.peer_timeout), ..config }
        };
        Scenario {
            seed,
            cost: if r.chance(20) { CostModel::free() } else { draw_cost(r) },
            cores: (0..cores).map(|_| draw_config(r)).collect(),
            clients: (0..clients).map(|_| draw_config(r)).collect(),
            plan,
            keys: r.between(2, 5) as usize,
            steps,
            gap_max_ns,
            batch_max: r.between(1, 3),
            value_bytes_max: if r.chance(80) { 32 } else { 3 * topology.mtu as u64 },
            topology,
        }
    }

    /// When all faults have ended and clients are about to stop starting work: nanoseconds of virtual time.
    pub fn end_ns(&self) -> u64 {
        self.plan.end_ns().unwrap_or(0).max(work_ns(self.steps, self.gap_max_ns)) + 1
    }

    /// The bytes of a key.
    pub fn key(number: usize) -> Vec<u8> {
        format!("key-{number}").into_bytes()
    }
}

/// In steady runs no host crashes, and all faults together are too short for a peer to be given up.
fn draw_faults(r: &mut Random, roughness: Roughness, work_ns: u64) -> RandomFaults {
    const MILLISECOND: u64 = 1_000_000;
    let is_steady = roughness == Roughness::Steady;
    let longest_ns = *r.pick(&[1, 50, if is_steady { 50 } else { 300 }]).unwrap_or(&1) * MILLISECOND;
    RandomFaults {
        count: if r.chance(10) { 0 } else { r.between(1, 8) as u32 },
        from_ns: 0,
        until_ns: work_ns + r.between(0, longest_ns),
        longest_ns,
        packets_max: *r.pick(&[0.01, 0.1, 0.4]).unwrap_or(&0.1),
        corrupt_max: 0.0,
        crashes: if is_steady || r.chance(50) { Crashes::Never } else { Crashes::Restart },
    }
}
