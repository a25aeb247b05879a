//! Hosts, NICs, links and switches: plain data, built in code or read from TOML.
//!
//! ```
//! use dunlin_sim::topology::{Layout, Topology};
//!
//! let text = r#"
//!     name = "a small rack"
//!     [nic]
//!     gbit_per_s = 100
//!     [layout.one-switch]
//!     hosts = 8
//!     [layout.one-switch.switch]
//!     latency_ns = 300
//!     ecn = { kmin_bytes = 50_000, kmax_bytes = 200_000, pmax = 0.1 }
//! "#;
//! let topology = Topology::from_toml(text)?;
//! assert_eq!((topology.hosts(), topology.nic.tx_queue), (8, 64));
//! assert_eq!(Topology::from_toml(&topology.to_toml())?, topology);
//! # Ok::<(), dunlin_sim::SimError>(())
//! ```

mod check;
mod presets;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::error::SimError;

/// The description of a datacenter. Settings that a file leaves out have the value of [`Topology::default`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Topology {
    /// Its name in reports.
    pub name: String,
    /// Maximum packet of a transport, in bytes: 1,472 is what UDP carries in an Ethernet frame.
    pub mtu: usize,
    /// Bytes on the wire that each packet has beyond those of the transport. 66: preamble 8, Ethernet 14, IPv4 20, UDP
    /// 8, checksum 4, gap 12. They take time on links and room in buffers.
    pub wire_overhead: usize,
    /// The NIC of every host.
    pub nic: Nic,
    /// The switches between them.
    pub layout: Layout,
}

/// A host's network card, and the cable to its switch. Each thread of the host has its own transmit and receive queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nic {
    /// Line rate, in Gbit/s, both ways.
    pub gbit_per_s: u32,
    /// Entries of a transmit queue. If it is full, the sending thread waits, as with a driver that spins.
    pub tx_queue: usize,
    /// Descriptors of a receive queue. Packets beyond them are dropped.
    pub rx_descriptors: usize,
    /// From the doorbell until the packet is ready for the wire: PCIe, DMA, the NIC's pipeline.
    pub tx_latency_ns: u64,
    /// From the last bit on the wire until the CPU can see the packet.
    pub rx_latency_ns: u64,
    /// Propagation on the cable to the switch, one way.
    pub propagation_ns: u64,
}

/// How hosts are connected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// All hosts on one switch.
    OneSwitch(OneSwitch),
    /// Racks, each with a switch (ToR), joined by spine switches.
    TwoTier(TwoTier),
}

/// See [`Layout::OneSwitch`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OneSwitch {
    /// Number of hosts.
    pub hosts: u32,
    /// The switch.
    pub switch: Switch,
}

/// See [`Layout::TwoTier`]. Host `h` is in rack `h / hosts_per_tor`. Between a ToR and a spine there are
/// `links_per_spine` equal links; a flow takes one of them, and one spine, by its hash (ECMP).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TwoTier {
    /// Number of racks.
    pub tors: u32,
    /// Hosts in each.
    pub hosts_per_tor: u32,
    /// Number of spine switches.
    pub spines: u32,
    /// Parallel links from each ToR to each spine.
    pub links_per_spine: u32,
    /// Rate of each of these links, in Gbit/s.
    pub uplink_gbit_per_s: u32,
    /// Propagation on each, one way.
    pub uplink_propagation_ns: u64,
    /// Each ToR.
    pub tor: Switch,
    /// Each spine.
    pub spine: Switch,
}

/// An output-queued switch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Switch {
    /// Port to port, when nothing is queued.
    pub latency_ns: u64,
    /// When a packet may begin to leave.
    pub forwarding: Forwarding,
    /// Where packets wait.
    pub buffer: Buffer,
    /// ECN marking, if any.
    pub ecn: Option<Ecn>,
}

/// When a switch may begin to send a packet on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// As soon as its header was read (but never so early that a faster port would underrun).
    CutThrough,
    /// When all of it was received.
    StoreAndForward,
}

/// The packet buffer of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Buffer {
    /// All ports share it. A port may queue at most `alpha` times the free space (dynamic threshold: Choudhury and
    /// Hahne, 1998), so one congested port can take `alpha / (1 + alpha)` of the buffer.
    Shared {
        /// Size.
        bytes: u64,
        /// Factor, more than zero.
        alpha: f64,
    },
    /// Each output port has its own.
    PerPort {
        /// Size of each.
        bytes: u64,
    },
}

/// When a switch marks a packet, by the length of the queue that it joins (RED on the instantaneous queue, as DCQCN
/// uses it): never up to `kmin_bytes`, with a probability that grows to `pmax` at `kmax_bytes`, and always beyond.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ecn {
    /// Queue length up to which nothing is marked.
    pub kmin_bytes: u64,
    /// Queue length beyond which everything is marked.
    pub kmax_bytes: u64,
    /// Probability at `kmax_bytes`.
    pub pmax: f64,
}

impl Topology {
    /// Number of hosts.
    pub fn hosts(&self) -> u32 {
        match &self.layout {
            Layout::OneSwitch(layout) => layout.hosts,
            Layout::TwoTier(layout) => layout.tors.saturating_mul(layout.hosts_per_tor),
        }
    }

    /// Ratio of the rate that the hosts of a rack can send to the rate of its uplinks; 1 for one switch.
    pub fn oversubscription(&self) -> f64 {
        match &self.layout {
            Layout::OneSwitch(_) => 1.0,
            Layout::TwoTier(l) => {
                let down = f64::from(l.hosts_per_tor) * f64::from(self.nic.gbit_per_s);
                down / (f64::from(l.spines) * f64::from(l.links_per_spine) * f64::from(l.uplink_gbit_per_s))
            }
        }
    }

    /// Reads a topology from TOML.
    ///
    /// # Errors
    /// [`SimError::BadText`] if the text is not a topology, [`SimError::BadSetting`] if a setting is invalid.
    pub fn from_toml(text: &str) -> Result<Self, SimError> {
        let topology: Topology =
            toml::from_str(text).map_err(|error| SimError::BadText { what: "topology", why: error.to_string() })?;
        topology.check()?;
        Ok(topology)
    }

    /// The topology as TOML, with every setting.
    pub fn to_toml(&self) -> String {
        // Plain tables with string keys: TOML can hold all of it.
        toml::to_string(self).expect("a topology is a TOML table")
    }
}
