//! Random settings of endpoints.

use std::time::Duration;

use dunlin_net::PollPolicy;
use dunlin_rpc::congestion::{CongestionControl, DcqcnConfig, Gradient, SwiftConfig, TimelyConfig};
use dunlin_rpc::{EndpointConfig, Optimizations, Recovery, Switch};

use crate::random::Random;

/// Random settings of an endpoint. Limits are small often enough to be reached.
pub fn draw(r: &mut Random, message_bytes_max: usize) -> EndpointConfig {
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
    let congestion = congestion(r);
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

/// Every algorithm, some with parameters that make it limit sessions in a network this small and slow.
fn congestion(r: &mut Random) -> CongestionControl {
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
