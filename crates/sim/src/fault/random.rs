//! Plans of random faults.

use dunlin_net::random::Random;
use serde::{Deserialize, Serialize};

use super::packet::PacketFaults;
use super::plan::{Fault, FaultPlan, Place};
use crate::fabric::Port;
use crate::topology::{Layout, Topology};

/// Bounds of random faults. All have ended at [`RandomFaults::until_ns`], so that a test can require the network to be
/// healthy some time after that.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomFaults {
    /// Number of faults.
    pub count: u32,
    /// None begins before.
    pub from_ns: u64,
    /// None ends later.
    pub until_ns: u64,
    /// None takes longer.
    pub longest_ns: u64,
    /// Highest probability of each fault of packets.
    pub packets_max: f64,
    /// Highest probability of corruption; zero where nothing could detect it.
    pub corrupt_max: f64,
    /// Whether hosts crash and restart.
    pub crashes: Crashes,
}

/// Whether hosts crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Crashes {
    /// They crash, and restart.
    Restart,
    /// They never crash.
    Never,
}

impl Default for RandomFaults {
    /// Eight faults within 100 ms, none longer than 20 ms; packet faults have a probability of up to one in twenty; no
    /// corruption; hosts crash.
    fn default() -> Self {
        RandomFaults {
            count: 8,
            from_ns: 0,
            until_ns: 100_000_000,
            longest_ns: 20_000_000,
            packets_max: 0.05,
            corrupt_max: 0.0,
            crashes: Crashes::Restart,
        }
    }
}

impl RandomFaults {
    /// A plan for a topology, the same for the same seed.
    pub fn plan(&self, topology: &Topology, seed: u64) -> FaultPlan {
        let mut random = Random::new(seed);
        let mut plan = FaultPlan::default();
        for _ in 0..self.count {
            let from = random.between(self.from_ns, self.until_ns.max(self.from_ns));
            let until = (from + random.below(self.longest_ns.max(1))).min(self.until_ns.max(from));
            plan.add(from, Some(until), self.fault(topology, &mut random));
        }
        plan
    }

    fn fault(&self, topology: &Topology, random: &mut Random) -> Fault {
        let host = random.below(topology.hosts().into()) as u32;
        match random.below(10) {
            0..5 => Fault::Packets { place: place(topology, host, random), faults: self.packets(random) },
            5 => Fault::LinkDown { port: port(topology, host, random) },
            6 => Fault::Partition { hosts: (0..topology.hosts()).filter(|_| random.chance(0.5)).collect() },
            8 | 9 if self.crashes == Crashes::Restart => Fault::Crash { host },
            _ => Fault::Pause { host },
        }
    }

    /// Usually one kind of fault, sometimes several.
    fn packets(&self, random: &mut Random) -> PacketFaults {
        let mut faults = PacketFaults {
            reorder_max_ns: random.between(1, 50_000),
            delay_max_ns: random.between(1, 1_000_000),
            ..PacketFaults::default()
        };
        let [loss, duplicate, reorder, delay, corrupt] =
            [self.packets_max, self.packets_max, self.packets_max, self.packets_max, self.corrupt_max].map(|max| {
                // Rare faults are as interesting as frequent ones: each power of two is equally likely.
                let scale = f64::powi(0.5, random.below(10) as i32);
                if random.chance(0.4) { max * scale } else { 0.0 }
            });
        (faults.loss, faults.duplicate, faults.reorder, faults.delay, faults.corrupt) =
            (loss, duplicate, reorder, delay, corrupt);
        faults
    }
}

fn place(topology: &Topology, host: u32, random: &mut Random) -> Place {
    match random.below(3) {
        0 => Place::Everywhere,
        1 => Place::Host(host),
        _ => Place::Port(port(topology, host, random)),
    }
}

fn port(topology: &Topology, host: u32, random: &mut Random) -> Port {
    let choice = random.below(4) as u32;
    if let (Layout::TwoTier(layout), true) = (&topology.layout, choice < 2) {
        let tor = random.below(layout.tors.into()) as u32;
        let uplink = random.below(u64::from(layout.spines) * u64::from(layout.links_per_spine)) as u32;
        return if choice == 0 { Port::Uplink { tor, uplink } } else { Port::Downlink { tor, uplink } };
    }
    if choice.is_multiple_of(2) { Port::HostUp { host } } else { Port::HostDown { host } }
}
