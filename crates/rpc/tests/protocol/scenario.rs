//! What a seed determines: the network, the endpoints' settings, the faults, and how rough the run is.

use std::time::Duration;

use dunlin_net::fault::Faults;
use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::EndpointConfig;
use dunlin_trial::{Random, Roughness, settings};

/// One run.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub roughness: Roughness,
    pub network: LoopbackConfig,
    pub configs: Vec<EndpointConfig>,
    pub faults: Vec<Faults>,
    /// Number of steps of the workload.
    pub steps: u32,
    /// Longest time between two steps, in nanoseconds.
    pub gap_max: u64,
    pub message_bytes_max: usize,
    /// The workload's random numbers.
    pub random: Random,
}

impl Scenario {
    pub fn draw(seed: u64) -> Scenario {
        // Neighbouring seeds would otherwise share most of SplitMix64's sequence.
        let mut random = Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5eed);
        let r = &mut random;
        let roughness = match r.between(0, 9) {
            0..=3 => Roughness::Steady,
            4..=7 => Roughness::Rough,
            _ => Roughness::Corrupt,
        };
        let nodes = r.between(2, 4) as usize;
        let mtu = if r.chance(50) { 512 } else { r.between(256, 1500) as usize };
        let network = LoopbackConfig {
            mtu,
            queue_len: if r.chance(60) { 4096 } else { r.between(64, 400) as usize },
            delay: Duration::from_nanos(*r.pick(&[0, 1_000, 5_000, 50_000]).unwrap()),
        };
        let message_bytes_max = if r.chance(90) { mtu * 12 } else { 64 << 10 };
        let configs = (0..nodes).map(|_| settings::draw(r, message_bytes_max)).collect();
        let faults = (0..nodes).map(|_| draw_faults(r, roughness)).collect();
        Scenario {
            roughness,
            network,
            configs,
            faults,
            steps: r.between(20, 150) as u32,
            gap_max: *r.pick(&[1_000, 30_000, 200_000, 1_000_000]).unwrap(),
            message_bytes_max,
            random,
        }
    }
}

fn draw_faults(r: &mut Random, roughness: Roughness) -> Faults {
    if r.chance(15) && roughness != Roughness::Corrupt {
        return Faults::default();
    }
    Faults {
        drop: r.probability(0.3),
        duplicate: r.probability(0.4),
        reorder: r.probability(0.5),
        delay: r.probability(0.4),
        corrupt: if roughness == Roughness::Corrupt { r.probability(0.3) } else { 0.0 },
        delay_max: Duration::from_micros(*r.pick(&[20, 1_000, 10_000, 30_000]).unwrap()),
        ..Faults::default()
    }
}
