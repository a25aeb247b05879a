//! Rejects invalid topologies, naming the setting.

use super::{Buffer, Ecn, Layout, Switch, Topology};
use crate::error::SimError;

/// Maximum number of hosts.
pub const HOSTS_MAX: u32 = 8192;
/// Maximum number of switches, and of links in one direction: numbers of both are kept in 16 bits.
const LINKS_MAX: u64 = u16::MAX as u64;
const MTU_MAX: usize = 16 << 10;
/// Maximum latency of any part, in nanoseconds.
const LATENCY_MAX_NS: u64 = 1_000_000_000;
const GBIT_PER_S_MAX: u32 = 8000;

impl Topology {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`SimError::BadSetting`] names the first invalid setting.
    pub fn check(&self) -> Result<(), SimError> {
        within("mtu", self.mtu as u64, 64, MTU_MAX as u64)?;
        within("wire_overhead", self.wire_overhead as u64, 0, 256)?;
        rate("nic.gbit_per_s", self.nic.gbit_per_s)?;
        within("nic.tx_queue", self.nic.tx_queue as u64, 1, 1 << 16)?;
        within("nic.rx_descriptors", self.nic.rx_descriptors as u64, 64, 1 << 24)?;
        latency("nic.tx_latency_ns", self.nic.tx_latency_ns)?;
        latency("nic.rx_latency_ns", self.nic.rx_latency_ns)?;
        latency("nic.propagation_ns", self.nic.propagation_ns)?;
        let hosts = match &self.layout {
            Layout::OneSwitch(l) => {
                switch("layout.one-switch.switch", &l.switch, self.mtu)?;
                u64::from(l.hosts)
            }
            Layout::TwoTier(l) => {
                for (name, value) in [
                    ("tors", l.tors),
                    ("hosts_per_tor", l.hosts_per_tor),
                    ("spines", l.spines),
                    ("links_per_spine", l.links_per_spine),
                ] {
                    within(&format!("layout.two-tier.{name}"), u64::from(value), 1, u64::from(HOSTS_MAX))?;
                }
                rate("layout.two-tier.uplink_gbit_per_s", l.uplink_gbit_per_s)?;
                latency("layout.two-tier.uplink_propagation_ns", l.uplink_propagation_ns)?;
                switch("layout.two-tier.tor", &l.tor, self.mtu)?;
                switch("layout.two-tier.spine", &l.spine, self.mtu)?;
                let hosts = u64::from(l.tors) * u64::from(l.hosts_per_tor);
                let uplinks = u64::from(l.tors) * u64::from(l.spines) * u64::from(l.links_per_spine);
                within("layout.two-tier: number of links", 2 * hosts + 2 * uplinks, 1, LINKS_MAX)?;
                hosts
            }
        };
        within("layout: number of hosts", hosts, 1, u64::from(HOSTS_MAX))
    }
}

fn within(name: &str, value: u64, min: u64, max: u64) -> Result<(), SimError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(SimError::setting(name, format!("it is {value}, but must be from {min} to {max}")))
}

fn rate(name: &str, gbit_per_s: u32) -> Result<(), SimError> {
    within(name, u64::from(gbit_per_s), 1, u64::from(GBIT_PER_S_MAX))
}

fn latency(name: &str, nanos: u64) -> Result<(), SimError> {
    within(name, nanos, 0, LATENCY_MAX_NS)
}

fn switch(name: &str, switch: &Switch, mtu: usize) -> Result<(), SimError> {
    latency(&format!("{name}.latency_ns"), switch.latency_ns)?;
    let (Buffer::Shared { bytes, .. } | Buffer::PerPort { bytes }) = switch.buffer;
    within(&format!("{name}.buffer bytes"), bytes, mtu as u64, 1 << 40)?;
    if let Buffer::Shared { alpha, .. } = switch.buffer
        && !(alpha > 0.0 && alpha <= 1e6)
    {
        return Err(SimError::setting(
            format!("{name}.buffer alpha"),
            format!("{alpha} is not a factor from above 0 to 1e6"),
        ));
    }
    if let Some(Ecn { kmin_bytes, kmax_bytes, pmax }) = switch.ecn {
        within(&format!("{name}.ecn.kmin_bytes"), kmin_bytes, 0, kmax_bytes)?;
        if !(0.0..=1.0).contains(&pmax) {
            return Err(SimError::setting(
                format!("{name}.ecn.pmax"),
                format!("{pmax} is not a probability from 0 to 1"),
            ));
        }
    }
    Ok(())
}
