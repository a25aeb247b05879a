//! Names of links, for watching and for faults, and the counters of each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One direction of a cable, named by the output port that feeds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Port {
    /// From a host's NIC to its switch.
    HostUp {
        /// Number of the host.
        host: u32,
    },
    /// From a switch to one of its hosts.
    HostDown {
        /// Number of the host.
        host: u32,
    },
    /// From a ToR to a spine.
    Uplink {
        /// Number of the rack.
        tor: u32,
        /// Number of the uplink: `spine * links_per_spine + link`.
        uplink: u32,
    },
    /// From a spine to a ToR.
    Downlink {
        /// Number of the rack.
        tor: u32,
        /// Number of the uplink in the opposite direction.
        uplink: u32,
    },
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::HostUp { host } => write!(f, "host {host} up"),
            Port::HostDown { host } => write!(f, "host {host} down"),
            Port::Uplink { tor, uplink } => write!(f, "tor {tor} up {uplink}"),
            Port::Downlink { tor, uplink } => write!(f, "tor {tor} down {uplink}"),
        }
    }
}

/// Counters of one port since the run began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PortCounters {
    /// Packets that joined its queue.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Bytes in its queue now.
    pub queued_bytes: u64,
    /// Packets dropped because there was no room in the buffer.
    pub dropped: u64,
    /// Packets lost to faults of the link.
    pub lost: u64,
    /// Packets marked (ECN).
    pub marked: u64,
}
