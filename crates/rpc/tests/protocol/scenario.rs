//! What a seed means: the network, the endpoints' settings, the faults, and how rough the run is.

use std::time::Duration;

use dunlin_net::PollPolicy;
use dunlin_net::fault::Faults;
use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::congestion::{CongestionControl, DcqcnConfig, Gradient, SwiftConfig, TimelyConfig};
use dunlin_rpc::{EndpointConfig, Optimizations, Recovery, Switch};

use crate::random::Random;

/// How much may go wrong besides single packets, and so what may be promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roughness {
    /// Sessions stay open and every endpoint lives: calls fail only for reasons of their own.
    Steady,
    /// Sessions are closed and opened, endpoints restart, crash and fall silent: calls may also fail with their session.
    Rough,
    /// As rough, and packets are corrupted. What arrives may differ from what was sent, a corrupted packet may occupy a slot or end
    /// a session, and one request may look like another. So payloads and executions are not checked, and calls that a corrupted
    /// packet left without an answer may be ended by closing their session.
    Corrupt,
}

/// One run.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub roughness: Roughness,
    pub network: LoopbackConfig,
    pub configs: Vec<EndpointConfig>,
    pub faults: Vec<Faults>,
    /// Things that the workload does.
    pub steps: u32,
    /// Longest time between two of them, in nanoseconds.
    pub gap_max: u64,
    pub message_bytes_max: usize,
    /// What the workload draws from.
    pub random: Random,
}

impl Scenario {
    pub fn draw(seed: u64) -> Scenario {
        // Neighbouring seeds would share most of SplitMix64's sequence.
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
        let configs = (0..nodes).map(|_| draw_config(r, message_bytes_max)).collect();
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

fn draw_config(r: &mut Random, message_bytes_max: usize) -> EndpointConfig {
    let mut switch = |percent| if r.chance(percent) { Switch::Off } else { Switch::On };
    let optimizations = Optimizations {
        batched_timestamps: switch(20),
        preallocated_responses: switch(20),
        zero_copy_requests: switch(30),
        transmit_batching: switch(20),
        prefetch: switch(20),
        adjacent_header: switch(20),
        cumulative_credit_returns: switch(20),
        cumulative_requests: switch(20),
        rate_update_bypass: switch(20),
        rate_limiter_bypass: switch(20),
    };
    let congestion = draw_congestion(r);
    EndpointConfig {
        poll: PollPolicy::Spin,
        credits: r.between(1, 32) as u16,
        reverse_credits: if r.chance(20) { 0 } else { r.between(1, 32) as u16 },
        slots: r.between(1, 8) as u8,
        queued_calls_max: if r.chance(70) { 1024 } else { r.between(0, 3) as u16 },
        message_bytes_max,
        deferred_requests_max: if r.chance(80) { 16_384 } else { r.between(1, 4) as u32 },
        congestion,
        credit_sharing: if r.chance(80) { Switch::On } else { Switch::Off },
        recovery: if r.chance(65) { Recovery::Selective } else { Recovery::GoBackN },
        optimizations,
        seed: Some(r.next()),
        ..EndpointConfig::default()
    }
}

/// Every algorithm, some with parameters that make it limit sessions in a network as small and slow as these.
fn draw_congestion(r: &mut Random) -> CongestionControl {
    let slow = r.chance(50);
    let micros = |r: &mut Random, max| Duration::from_micros(r.between(1, max));
    match r.between(0, 4) {
        0 => CongestionControl::None,
        1 => {
            let t_low = if slow { micros(r, 20) } else { Duration::from_micros(50) };
            let gradient = if r.chance(50) { Gradient::Original } else { Gradient::Patched };
            let rtt_min = Duration::from_micros(1);
            CongestionControl::Timely(TimelyConfig {
                t_low,
                gradient,
                rtt_min,
                rate_min: 2_000_000,
                ..TimelyConfig::default()
            })
        }
        2 => {
            let link_rate = if slow { 50_000_000 } else { 25_000_000_000 };
            CongestionControl::Dcqcn(DcqcnConfig { link_rate, rate_min: 2_000_000, ..DcqcnConfig::default() })
        }
        _ => {
            let target = if slow { micros(r, 10) } else { Duration::from_micros(40) };
            CongestionControl::Swift(SwiftConfig { target, ..SwiftConfig::default() })
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
