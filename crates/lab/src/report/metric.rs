//! The metric of a figure: its name, its unit, and which direction is better.

use serde::{Deserialize, Serialize};

/// A reported quantity. Its unit is the base unit of the JSON file; see [`super::human`] for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Metric {
    /// Calls completed per second.
    #[serde(rename = "rate")]
    Rate,
    /// Median time from sending a request to receiving its response, or as named by the case.
    #[serde(rename = "latency p50")]
    LatencyP50,
    /// The same, 95th percentile.
    #[serde(rename = "latency p95")]
    LatencyP95,
    /// The same, 99th percentile.
    #[serde(rename = "latency p99")]
    LatencyP99,
    /// The same, 99.9th percentile.
    #[serde(rename = "latency p99.9")]
    LatencyP999,
    /// The same, 99.99th percentile.
    #[serde(rename = "latency p99.99")]
    LatencyP9999,
    /// The same, maximum.
    #[serde(rename = "latency max")]
    LatencyMax,
    /// Median time from sending a packet to its answer.
    #[serde(rename = "packet RTT p50")]
    RttP50,
    /// The same, 99th percentile.
    #[serde(rename = "packet RTT p99")]
    RttP99,
    /// Retransmissions per second.
    #[serde(rename = "retransmissions")]
    Retransmissions,
    /// Payload bits moved per second.
    #[serde(rename = "bandwidth")]
    Bandwidth,
    /// Resident memory of one idle session.
    #[serde(rename = "memory per session")]
    SessionMemory,
    /// Peak growth of a process's memory.
    #[serde(rename = "memory")]
    Memory,
    /// Number of accepted sessions.
    #[serde(rename = "sessions")]
    Sessions,
    /// Share of a core that an idle endpoint uses.
    #[serde(rename = "idle share of a core")]
    IdleShare,
    /// Number of calls with a bad outcome.
    #[serde(rename = "calls")]
    Calls,
    /// Number of events that a case needs to be meaningful.
    #[serde(rename = "events")]
    Events,
    /// Factor by which it is better than another system.
    #[serde(rename = "advantage")]
    Advantage,
    /// Time by which an operation could end earlier.
    #[serde(rename = "saving")]
    Saving,
    /// Share of the quantity named by the case.
    #[serde(rename = "share")]
    Share,
    /// Number of the things named by the case.
    #[serde(rename = "count")]
    Count,
    /// Operations on items completed per second.
    #[serde(rename = "operations")]
    Operations,
    /// Keys requested and answered per second, several in one operation.
    #[serde(rename = "keys")]
    Keys,
    /// Share of reads that found their item.
    #[serde(rename = "hit ratio")]
    HitRatio,
    /// Share of reads that missed a stored item.
    #[serde(rename = "lost")]
    Lost,
    /// Memory that an item takes, its key and value included.
    #[serde(rename = "memory per item")]
    ItemMemory,
    /// Memory that an item takes beyond its key and value.
    #[serde(rename = "memory beyond key and value")]
    ItemOverhead,
    /// Share of a core that a process used during the measurement.
    #[serde(rename = "share of a core")]
    CoreShare,
    /// CPU time of an operation.
    #[serde(rename = "CPU time")]
    CpuTime,
    /// Share of the quantity named by the case, of which less is better.
    #[serde(rename = "portion")]
    Portion,
    /// Number of the things named by the case that wait.
    #[serde(rename = "backlog")]
    Backlog,
}

/// Which direction is better.
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
            Metric::LatencyP95 => "latency p95",
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
            Metric::Saving => "saving",
            Metric::Share => "share",
            Metric::Count => "count",
            Metric::Operations => "operations",
            Metric::Keys => "keys",
            Metric::HitRatio => "hit ratio",
            Metric::Lost => "lost",
            Metric::ItemMemory => "memory per item",
            Metric::ItemOverhead => "memory beyond key and value",
            Metric::CoreShare => "share of a core",
            Metric::CpuTime => "CPU time",
            Metric::Portion => "portion",
            Metric::Backlog => "backlog",
        }
    }

    /// Unit of every figure of this metric, as in the JSON file.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Rate => "RPC/s",
            Metric::LatencyP50 | Metric::LatencyP95 | Metric::LatencyP99 | Metric::LatencyP999 => "ns",
            Metric::LatencyP9999
            | Metric::LatencyMax
            | Metric::RttP50
            | Metric::RttP99
            | Metric::CpuTime
            | Metric::Saving => "ns",
            Metric::Retransmissions => "1/s",
            Metric::Bandwidth => "bit/s",
            Metric::SessionMemory | Metric::Memory | Metric::ItemMemory | Metric::ItemOverhead => "B",
            Metric::Sessions => "sessions",
            Metric::IdleShare | Metric::HitRatio | Metric::Lost | Metric::CoreShare | Metric::Share => "%",
            Metric::Portion => "%",
            Metric::Count | Metric::Backlog => "1",
            Metric::Calls => "calls",
            Metric::Events => "events",
            Metric::Advantage => "x",
            Metric::Operations => "op/s",
            Metric::Keys => "key/s",
        }
    }

    /// Which direction is better.
    pub fn better(self) -> Better {
        match self {
            Metric::Rate | Metric::Bandwidth | Metric::Advantage | Metric::Events => Better::Higher,
            Metric::Operations | Metric::Keys | Metric::HitRatio => Better::Higher,
            Metric::Saving | Metric::Share | Metric::Count => Better::Higher,
            Metric::LatencyP50 | Metric::LatencyP95 | Metric::LatencyP99 | Metric::LatencyP999 => Better::Lower,
            Metric::LatencyP9999 | Metric::LatencyMax | Metric::RttP50 | Metric::RttP99 | Metric::Retransmissions => {
                Better::Lower
            }
            Metric::SessionMemory | Metric::Memory | Metric::Sessions => Better::Lower,
            Metric::IdleShare | Metric::Calls | Metric::Portion | Metric::Backlog => Better::Lower,
            Metric::Lost | Metric::ItemMemory | Metric::ItemOverhead | Metric::CoreShare | Metric::CpuTime => {
                Better::Lower
            }
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

    /// The stricter bar.
    pub fn stricter(self, a: f64, b: f64) -> f64 {
        match self {
            Better::Higher => a.max(b),
            Better::Lower => a.min(b),
        }
    }

    /// The easier bar.
    pub fn easier(self, a: f64, b: f64) -> f64 {
        match self {
            Better::Higher => a.min(b),
            Better::Lower => a.max(b),
        }
    }

    /// The comparison sign between a value and its bar.
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
            Metric::LatencyP95,
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
            Metric::Saving,
            Metric::Share,
            Metric::Count,
            Metric::Operations,
            Metric::Keys,
            Metric::HitRatio,
            Metric::Lost,
            Metric::ItemMemory,
            Metric::ItemOverhead,
            Metric::CoreShare,
            Metric::CpuTime,
            Metric::Portion,
            Metric::Backlog,
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
