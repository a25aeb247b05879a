//! The meaning of a seed: the datacenter, the endpoints and their settings, their work, and the faults.

use std::time::Duration;

use dunlin_net::PollPolicy;
use dunlin_rpc::EndpointConfig;
use dunlin_sim::fault::{Crashes, RandomFaults};
use dunlin_sim::topology::{Buffer, Ecn, Forwarding, Layout, OneSwitch, Switch, TwoTier};
use dunlin_sim::{CostModel, FaultPlan, Topology};
use dunlin_trial::{Random, Roughness, settings};

use super::strain::Strain;

const MILLISECOND: u64 = 1_000_000;
/// Maximum deviation of a host's clock, in parts per million.
const CLOCK_PPM_MAX: u32 = 500_000;
/// Maximum message length of any run.
const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Minimum buffer of a switch or its port, in packets: with less, a burst arrives only by luck.
const BUFFER_PACKETS_MIN: u64 = 64;

/// One run. Everything in it follows from the seed.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its seed.
    pub seed: u64,
    /// The kind of faults, and so which guarantees are checked.
    pub roughness: Roughness,
    /// Hosts and switches.
    pub topology: Topology,
    /// The CPU cost of packets at hosts.
    pub cost: CostModel,
    /// Host and thread of each endpoint.
    pub places: Vec<(u32, u16)>,
    /// Settings of each endpoint, except for the seed.
    pub configs: Vec<EndpointConfig>,
    /// The faults. All of them end.
    pub plan: FaultPlan,
    /// Number of actions of each endpoint.
    pub steps: u32,
    /// Maximum time between two actions, in nanoseconds.
    pub gap_max_ns: u64,
    /// Percentage of calls that may have the maximum size.
    pub large_percent: u64,
    /// Limit of the messages of other calls.
    pub message_bytes_max: usize,
}

impl Scenario {
    /// The run of a seed.
    pub fn draw(seed: u64) -> Scenario {
        // Consecutive seeds would share most of SplitMix64's sequence.
        let mut random = Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x4075);
        let r = &mut random;
        let roughness = match r.between(0, 19) {
            0..=7 => Roughness::Steady,
            8..=17 => Roughness::Rough,
            _ => Roughness::Corrupt,
        };
        let topology = draw_topology(r);
        let places = draw_places(r, topology.hosts());
        let configs = places.iter().map(|_| draw_config(r, roughness)).collect();
        let gap_max_ns = *r.pick(&[2_000, 30_000, 200_000, 1_000_000, 5_000_000]).unwrap_or(&0);
        let steps = r.between(5, 40) as u32;
        let work_ns = work_ns(steps, gap_max_ns);
        let mut plan = draw_faults(r, roughness, work_ns).plan(&topology, r.next());
        if roughness != Roughness::Steady {
            strain(&topology, work_ns).add(&mut plan, seed);
        }
        Scenario {
            seed,
            roughness,
            cost: if r.chance(20) { CostModel::free() } else { draw_cost(r) },
            places,
            configs,
            plan,
            steps,
            gap_max_ns,
            large_percent: *r.pick(&[0, 0, 0, 0, 2, 10]).unwrap_or(&0),
            message_bytes_max: topology.mtu * r.between(1, 40) as usize,
            topology,
        }
    }

    /// When all faults have ended and endpoints are about to stop starting work: nanoseconds of virtual time.
    pub fn end_ns(&self) -> u64 {
        self.plan.end_ns().unwrap_or(0).max(work_ns(self.steps, self.gap_max_ns)) + 1
    }

    /// The limit of one call's messages.
    pub fn draw_limit(&self, random: &mut Random) -> usize {
        if random.chance(self.large_percent) { MESSAGE_BYTES_MAX } else { self.message_bytes_max }
    }
}

/// Clocks of which one may be three times as fast as another: no timeout guarantees anything between two hosts.
pub(super) fn strain(topology: &Topology, until_ns: u64) -> Strain {
    Strain {
        hosts: topology.hosts(),
        clocks: 0..topology.hosts(),
        clock_ppm_max: CLOCK_PPM_MAX,
        mtu: topology.mtu,
        until_ns,
    }
}

/// Approximate duration of the endpoints' work.
pub(super) fn work_ns(steps: u32, gap_max_ns: u64) -> u64 {
    u64::from(steps) * gap_max_ns / 2
}

pub(super) fn draw_topology(r: &mut Random) -> Topology {
    let mtu = match r.between(0, 9) {
        0..=5 => 1472,
        6..=8 => r.between(256, 1472) as usize,
        _ => 4096 + 64,
    };
    let mut topology = Topology { mtu, ..Topology::default() };
    topology.nic.gbit_per_s = *r.pick(&[1, 10, 25, 100]).unwrap_or(&25);
    topology.nic.tx_queue = r.between(1, 64) as usize;
    topology.nic.rx_descriptors = *r.pick(&[64, 256, 1024, 8192, 8192]).unwrap_or(&8192);
    topology.nic.tx_latency_ns = r.between(0, 2000);
    topology.nic.rx_latency_ns = r.between(0, 2000);
    topology.layout = if r.chance(50) {
        let hosts = r.between(2, 5) as u32;
        Layout::OneSwitch(OneSwitch { hosts, switch: draw_switch(r, mtu) })
    } else {
        Layout::TwoTier(TwoTier {
            tors: 2,
            hosts_per_tor: r.between(1, 3) as u32,
            spines: r.between(1, 2) as u32,
            links_per_spine: r.between(1, 2) as u32,
            uplink_gbit_per_s: *r.pick(&[10, 40, 100]).unwrap_or(&100),
            uplink_propagation_ns: r.between(0, 20_000),
            tor: draw_switch(r, mtu),
            spine: draw_switch(r, mtu),
        })
    };
    topology
}

fn draw_switch(r: &mut Random, mtu: usize) -> Switch {
    let least = BUFFER_PACKETS_MIN * mtu as u64;
    let bytes = if r.chance(60) { 12_000_000 } else { r.between(least, 16 * least) };
    let shared = Buffer::Shared { bytes, alpha: *r.pick(&[0.5, 1.0, 8.0]).unwrap_or(&8.0) };
    Switch {
        latency_ns: r.between(0, 1000),
        forwarding: if r.chance(80) { Forwarding::CutThrough } else { Forwarding::StoreAndForward },
        buffer: if r.chance(70) { shared } else { Buffer::PerPort { bytes } },
        ecn: r.chance(50).then(|| {
            let kmin_bytes = r.between(1, 20) * mtu as u64;
            Ecn { kmin_bytes, kmax_bytes: kmin_bytes * r.between(1, 10), pmax: r.between(1, 100) as f64 / 100.0 }
        }),
    }
}

pub(super) fn draw_cost(r: &mut Random) -> CostModel {
    let default = CostModel::default();
    CostModel { rx_packet_ns: r.between(10, 400), tx_packet_ns: r.between(10, 400), ..default }
}

/// One endpoint on each host, and on some a second.
fn draw_places(r: &mut Random, hosts: u32) -> Vec<(u32, u16)> {
    let threads = |r: &mut Random| if r.chance(30) { 2 } else { 1 };
    (0..hosts).flat_map(|host| (0..threads(r)).map(move |thread| (host, thread))).collect()
}

pub(super) fn draw_config(r: &mut Random, roughness: Roughness) -> EndpointConfig {
    let mut config = settings::draw(r, MESSAGE_BYTES_MAX);
    config.poll = if r.chance(80) { PollPolicy::Sleep } else { PollPolicy::Spin };
    if roughness != Roughness::Steady && r.chance(30) {
        config.peer_timeout = Duration::from_millis(r.between(20, 400));
    }
    config
}

/// In steady runs all faults together are too short for a peer to be given up.
fn draw_faults(r: &mut Random, roughness: Roughness, work_ns: u64) -> RandomFaults {
    let is_steady = roughness == Roughness::Steady;
    let longest_ns = match r.between(0, 9) {
        0..=3 => MILLISECOND,
        4..=8 => 50 * MILLISECOND,
        _ if is_steady => 50 * MILLISECOND,
        _ => 2500 * MILLISECOND,
    };
    RandomFaults {
        count: if r.chance(10) { 0 } else { r.between(1, 8) as u32 },
        from_ns: 0,
        until_ns: work_ns + r.between(0, longest_ns),
        longest_ns,
        packets_max: *r.pick(&[0.01, 0.1, 0.4]).unwrap_or(&0.1),
        corrupt_max: if roughness == Roughness::Corrupt { 0.1 } else { 0.0 },
        crashes: if is_steady { Crashes::Never } else { Crashes::Restart },
    }
}
