//! Ready-made topologies, and the two clusters of the eRPC paper that experiments compare with.

use super::{Buffer, Forwarding, Layout, Nic, OneSwitch, Switch, Topology, TwoTier};

impl Default for Topology {
    /// Two hosts with 25 GbE on one switch.
    fn default() -> Self {
        Topology {
            name: "one switch".into(),
            mtu: 1472,
            wire_overhead: 66,
            nic: Nic::default(),
            layout: Layout::OneSwitch(OneSwitch::default()),
        }
    }
}

impl Default for Nic {
    /// 25 GbE, queues of 64 (transmit, as in the paper) and 8,192 packets (receive), half a microsecond each way.
    fn default() -> Self {
        Nic {
            gbit_per_s: 25,
            tx_queue: 64,
            rx_descriptors: 8192,
            tx_latency_ns: 500,
            rx_latency_ns: 500,
            propagation_ns: 10,
        }
    }
}

impl Default for OneSwitch {
    fn default() -> Self {
        OneSwitch { hosts: 2, switch: Switch::default() }
    }
}

impl Default for TwoTier {
    /// Four racks of eight hosts under two spines.
    fn default() -> Self {
        TwoTier {
            tors: 4,
            hosts_per_tor: 8,
            spines: 2,
            links_per_spine: 1,
            uplink_gbit_per_s: 100,
            uplink_propagation_ns: 50,
            tor: Switch::default(),
            spine: Switch::default(),
        }
    }
}

impl Default for Switch {
    /// Cut-through in 500 ns, 12 MB shared, no ECN.
    fn default() -> Self {
        Switch {
            latency_ns: 500,
            forwarding: Forwarding::CutThrough,
            buffer: Buffer::Shared { bytes: 12_000_000, alpha: 8.0 },
            ecn: None,
        }
    }
}

impl Topology {
    /// `hosts` hosts on one switch.
    pub fn one_switch(hosts: u32, gbit_per_s: u32) -> Self {
        Topology {
            nic: Nic { gbit_per_s, ..Nic::default() },
            layout: Layout::OneSwitch(OneSwitch { hosts, ..OneSwitch::default() }),
            ..Topology::default()
        }
    }

    /// Racks under one spine. Each rack has the fewest 100 GbE links that keep within the given oversubscription (2.0
    /// for 2:1).
    pub fn two_tier(tors: u32, hosts_per_tor: u32, gbit_per_s: u32, oversubscription: f64) -> Self {
        let uplink_gbit_per_s = 100;
        let down = f64::from(hosts_per_tor) * f64::from(gbit_per_s);
        let links = (down / (oversubscription * f64::from(uplink_gbit_per_s))).ceil().max(1.0);
        Topology {
            name: "two tiers".into(),
            nic: Nic { gbit_per_s, ..Nic::default() },
            layout: Layout::TwoTier(TwoTier {
                tors,
                hosts_per_tor,
                spines: 1,
                links_per_spine: links as u32,
                uplink_gbit_per_s,
                ..TwoTier::default()
            }),
            ..Topology::default()
        }
    }

    /// The paper's CX4: five ToRs (SN2410) of 40 hosts with 25 GbE ConnectX-4 Lx, each with five 100 GbE links to one
    /// spine (SN2100), so oversubscribed 2:1; 12 MB of dynamic buffer in each switch, of which one port can use nearly
    /// all (section 5.2.3 assumes that). With [`CostModel::default`](crate::CostModel) the round trip of 32 B is 3.7 us
    /// inside a rack and 6 us across.
    pub fn cx4() -> Self {
        let switch = Switch { latency_ns: 430, ..Switch::default() };
        Topology {
            name: "CX4".into(),
            nic: Nic { tx_latency_ns: 613, rx_latency_ns: 613, propagation_ns: 20, ..Nic::default() },
            layout: Layout::TwoTier(TwoTier {
                tors: 5,
                hosts_per_tor: 40,
                spines: 1,
                links_per_spine: 5,
                uplink_gbit_per_s: 100,
                uplink_propagation_ns: 131,
                tor: switch.clone(),
                spine: switch,
            }),
            ..Topology::default()
        }
    }

    /// The paper's CX5: eight hosts with 40 GbE ConnectX-5 on one switch (SX1036) that adds 300 ns to a packet, where
    /// an RPC of 32 B takes 2.3 us, 850 ns of it in each host (section 6.1).
    pub fn cx5() -> Self {
        Topology {
            name: "CX5".into(),
            nic: Nic { gbit_per_s: 40, tx_latency_ns: 345, rx_latency_ns: 345, propagation_ns: 10, ..Nic::default() },
            layout: Layout::OneSwitch(OneSwitch { hosts: 8, switch: Switch { latency_ns: 300, ..Switch::default() } }),
            ..Topology::default()
        }
    }

    /// Two hosts of the paper's CX5 at 100 Gbit/s, as for its large transfers (section 6.4), with the 4 kB packets of
    /// InfiniBand.
    pub fn cx5_100g() -> Self {
        let mut topology = Topology { name: "CX5, 100 Gbit/s".into(), mtu: 4096 + 64, ..Topology::cx5() };
        topology.nic.gbit_per_s = 100;
        topology
    }
}
