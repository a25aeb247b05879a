//! What a figure counts: its name, its unit, and which way is better.

use serde::{Deserialize, Serialize};

/// A quantity that experiments report. Its unit is the base unit of the JSON file; see [`super::human`] for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Metric {
    /// Calls completed per second.
    #[serde(rename = "rate")]
    Rate,
    /// Median time from sending a request to holding its response, or to whatever else the case names.
    #[serde(rename = "latency p50")]
    LatencyP50,
    /// The same, 99th percentile.
    #[serde(rename = "latency p99")]
    LatencyP99,
    /// The same, 99.9th percentile.
    #[serde(rename = "latency p99.9")]
    LatencyP999,
    /// The same, 99.99th percentile.
    #[serde(rename = "latency p99.99")]
    LatencyP9999,
    /// The same, the longest.
    #[serde(rename = "latency max")]
    LatencyMax,
    /// Median time from sending a packet to its answer.
    #[serde(rename = "packet RTT p50")]
    RttP50,
    /// The same, 99th percentile.
    #[serde(rename = "packet RTT p99")]
    RttP99,
    /// Times per second that packets were taken for lost and sent again.
    #[serde(rename = "retransmissions")]
    Retransmissions,
    /// Payload bits moved per second.
    #[serde(rename = "bandwidth")]
    Bandwidth,
    /// Resident memory of one idle session.
    #[serde(rename = "memory per session")]
    SessionMemory,
    /// Memory by which a process grew at its most.
    #[serde(rename = "memory")]
    Memory,
    /// Number of sessions that were accepted.
    #[serde(rename = "sessions")]
    Sessions,
    /// Share of a core that an endpoint uses which has nothing to do.
    #[serde(rename = "idle share of a core")]
    IdleShare,
    /// Number of calls that came to something bad.
    #[serde(rename = "calls")]
    Calls,
    /// Number of events that a case needs to mean something.
    #[serde(rename = "events")]
    Events,
    /// How many times better than another system.
    #[serde(rename = "advantage")]
    Advantage,
    /// Operations on items completed per second.
    #[serde(rename = "operations")]
    Operations,
    /// Keys asked for and answered per second, several in one operation.
    #[serde(rename = "keys")]
    Keys,
    /// Share of reads that found their item.
    #[serde(rename = "hit ratio")]
    HitRatio,
    /// Share of reads whose item was stored and not found.
    #[serde(rename = "lost")]
    Lost,
    /// Memory that an item takes, its key and value included.
    #[serde(rename = "memory per item")]
    ItemMemory,
    /// Memory that an item takes beyond its key and value.
    #[serde(rename = "memory beyond key and value")]
    ItemOverhead,
    /// Share of a core that a process had while it was measured.
    #[serde(rename = "share of a core")]
    CoreShare,
    /// Time that an operation takes of a core.
    #[serde(rename = "CPU time")]
    CpuTime,
}

/// Which way a metric improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// More is better: rates.
    Higher,
    /// Less is better: times and sizes.
    Lower,
}

impl Metric {
    /// Name, as in the JSON file.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Rate => "rate",
            Metric::LatencyP50 => "latency p50",
            Metric::LatencyP99 => "latency p99",
            Metric::LatencyP999 => "latency p99.9",
            Metric::LatencyP9999 => "latency p99.99",
            Metric::LatencyMax => "latency max",
            Metric::RttP50 => "packet RTT p50",
            Metric::RttP99 => "packet RTT p99",
            Metric::Retransmissions => "retransmissions",
            Metric::Bandwidth => "bandwidth",
            Metric::SessionMemory => "memory per session",
            Metric::Memory => "memory",
            Metric::Sessions => "sessions",
            Metric::IdleShare => "idle share of a core",
            Metric::Calls => "calls",
            Metric::Events => "events",
            Metric::Advantage => "advantage",
            Metric::Operations => "operations",
            Metric::Keys => "keys",
            Metric::HitRatio => "hit ratio",
            Metric::Lost => "lost",
            Metric::ItemMemory => "memory per item",
            Metric::ItemOverhead => "memory beyond key and value",
            Metric::CoreShare => "share of a core",
            Metric::CpuTime => "CPU time",
        }
    }

    /// Unit of every figure of this metric, as in the JSON file.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Rate => "RPC/s",
            Metric::LatencyP50 | Metric::LatencyP99 | Metric::LatencyP999 | Metric::LatencyP9999 => "ns",
            Metric::LatencyMax | Metric::RttP50 | Metric::RttP99 | Metric::CpuTime => "ns",
            Metric::Retransmissions => "1/s",
            Metric::Bandwidth => "bit/s",
            Metric::SessionMemory | Metric::Memory | Metric::ItemMemory | Metric::ItemOverhead => "B",
            Metric::Sessions => "sessions",
            Metric::IdleShare | Metric::HitRatio | Metric::Lost | Metric::CoreShare => "%",
            Metric::Calls => "calls",
            Metric::Events => "events",
            Metric::Advantage => "x",
            Metric::Operations => "op/s",
            Metric::Keys => "key/s",
        }
    }

    /// Which way is better.
    pub fn better(self) -> Better {
        match self {
            Metric::Rate | Metric::Bandwidth | Metric::Advantage | Metric::Events => Better::Higher,
            Metric::Operations | Metric::Keys | Metric::HitRatio => Better::Higher,
            Metric::LatencyP50 | Metric::LatencyP99 | Metric::LatencyP999 | Metric::LatencyP9999 => Better::Lower,
            Metric::LatencyMax | Metric::RttP50 | Metric::RttP99 | Metric::Retransmissions => Better::Lower,
            Metric::SessionMemory | Metric::Memory | Metric::Sessions => Better::Lower,
            Metric::IdleShare | Metric::Calls => Better::Lower,
            Metric::Lost | Metric::ItemMemory | Metric::ItemOverhead | Metric::CoreShare | Metric::CpuTime => Better::Lower,
        }
    }
}

impl Better {
    /// Whether `value` is as good as `bar`.
    pub fn reaches(self, value: f64, bar: f64) -> bool {
        match self {
            Better::Higher => value >= bar,
            Better::Lower => value <= bar,
        }
    }

    /// The bar that is harder to reach.
    pub fn stricter(self, a: f64, b: f64) -> f64 {
        match self {
            Better::Higher => a.max(b),
            Better::Lower => a.min(b),
        }
    }

    /// The bar that is easier to reach.
    pub fn easier(self, a: f64, b: f64) -> f64 {
        match self {
            Better::Higher => a.min(b),
            Better::Lower => a.max(b),
        }
    }

    /// The sign between a value and a bar it has to reach.
    pub fn sign(self) -> &'static str {
        match self {
            Better::Higher => "≥",
            Better::Lower => "≤",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_names_of_the_file() {
        for metric in [
            Metric::Rate,
            Metric::LatencyP50,
            Metric::LatencyP99,
            Metric::LatencyP999,
            Metric::LatencyP9999,
            Metric::LatencyMax,
            Metric::RttP50,
            Metric::RttP99,
            Metric::Retransmissions,
            Metric::Bandwidth,
            Metric::SessionMemory,
            Metric::Memory,
            Metric::Sessions,
            Metric::IdleShare,
            Metric::Calls,
            Metric::Events,
            Metric::Advantage,
            Metric::Operations,
            Metric::Keys,
            Metric::HitRatio,
            Metric::Lost,
            Metric::ItemMemory,
            Metric::ItemOverhead,
            Metric::CoreShare,
            Metric::CpuTime,
        ] {
            assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
        }
    }

    #[test]
    fn better_follows_the_direction() {
        assert!(Better::Higher.reaches(2.0, 2.0) && !Better::Higher.reaches(1.9, 2.0));
        assert!(Better::Lower.reaches(2.0, 2.0) && !Better::Lower.reaches(2.1, 2.0));
        assert_eq!(Better::Higher.stricter(1.0, 2.0), 2.0);
        assert_eq!(Better::Lower.stricter(1.0, 2.0), 1.0);
        assert_eq!((Better::Higher.easier(1.0, 2.0), Better::Lower.easier(1.0, 2.0)), (1.0, 2.0));
    }
}
