//! Builds the links and switches of a topology.
//!
//! Links are numbered in runs: from hosts up, then down to hosts, then from ToRs up (rack by rack), then from spines
//! down (in the same order), so that names and numbers are converted by arithmetic.

use dunlin_net::random::Random;

use super::link::{Link, Node};
use super::port::Port;
use super::switch::{Routing, Switch};
use crate::engine::time::from_nanos;
use crate::topology::{Layout, Topology, TwoTier};

/// The shape of a built network: how its links are numbered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub hosts: u32,
    pub tors: u32,
    /// Of each ToR.
    pub uplinks: u32,
}

impl Shape {
    /// The number of a link, if there is such a port.
    pub fn link(&self, port: Port) -> Option<u16> {
        let Shape { hosts, tors, uplinks } = *self;
        let host_link = |host: u32, first: u32| (host < hosts).then_some(first + host);
        let tor_link = |tor: u32, uplink: u32, first: u32| {
            (tor < tors && uplink < uplinks).then_some(2 * hosts + first + tor * uplinks + uplink)
        };
        let number = match port {
            Port::HostUp { host } => host_link(host, 0),
            Port::HostDown { host } => host_link(host, hosts),
            Port::Uplink { tor, uplink } => tor_link(tor, uplink, 0),
            Port::Downlink { tor, uplink } => tor_link(tor, uplink, tors * uplinks),
        };
        number.map(|number| number as u16)
    }

    /// Every port, in the order of their numbers.
    pub fn ports(&self) -> impl Iterator<Item = Port> + use<> {
        let Shape { hosts, tors, uplinks } = *self;
        let between = move || (0..tors).flat_map(move |tor| (0..uplinks).map(move |uplink| (tor, uplink)));
        let up = (0..hosts).map(|host| Port::HostUp { host });
        let down = (0..hosts).map(|host| Port::HostDown { host });
        let uplinks = between().map(|(tor, uplink)| Port::Uplink { tor, uplink });
        let downlinks = between().map(|(tor, uplink)| Port::Downlink { tor, uplink });
        up.chain(down).chain(uplinks).chain(downlinks)
    }
}

/// Builds the network. `random` salts the switches' hashes.
pub(crate) fn build(topology: &Topology, random: &mut Random) -> (Shape, Vec<Link>, Vec<Switch>) {
    let hosts = topology.hosts();
    let tor_of = |host: u32| match &topology.layout {
        Layout::OneSwitch(_) => 0,
        Layout::TwoTier(l) => (host / l.hosts_per_tor) as u16,
    };
    let cable = |from, to| Link::new(from, to, topology.nic.gbit_per_s, from_nanos(topology.nic.propagation_ns));
    let mut links: Vec<Link> = Vec::new();
    links.extend((0..hosts).map(|host| cable(Node::Host(host as u16), Node::Switch(tor_of(host)))));
    links.extend((0..hosts).map(|host| cable(Node::Switch(tor_of(host)), Node::Host(host as u16))));
    let mut salt = || random.next() as u32;
    match &topology.layout {
        Layout::OneSwitch(l) => {
            let down: Vec<u16> = (hosts as u16..2 * hosts as u16).collect();
            set_lead(&mut links, &down, &l.switch);
            let switch = Switch::new(&l.switch, Routing::Single { first_down: hosts as u16 }, down, salt());
            (Shape { hosts, tors: 0, uplinks: 0 }, links, vec![switch])
        }
        Layout::TwoTier(l) => {
            let shape = Shape { hosts, tors: l.tors, uplinks: l.spines * l.links_per_spine };
            add_uplinks(&mut links, l, shape);
            let (first_up, first_down) = (2 * hosts as u16, 2 * hosts as u16 + (shape.tors * shape.uplinks) as u16);
            set_lead(&mut links, &(hosts as u16..first_down).collect::<Vec<_>>(), &l.tor);
            set_lead(&mut links, &(first_down..first_down + (first_down - first_up)).collect::<Vec<_>>(), &l.spine);
            let mut switches: Vec<Switch> = (0..l.tors).map(|tor| build_tor(l, shape, tor, salt())).collect();
            switches.extend((0..l.spines).map(|spine| build_spine(l, shape, spine, salt())));
            (shape, links, switches)
        }
    }
}

/// Sets the latency of a switch at its ports.
fn set_lead(links: &mut [Link], ports: &[u16], settings: &crate::topology::Switch) {
    for port in ports {
        links[*port as usize].lead = from_nanos(settings.latency_ns);
    }
}

fn add_uplinks(links: &mut Vec<Link>, l: &TwoTier, shape: Shape) {
    let cable = |from, to| Link::new(from, to, l.uplink_gbit_per_s, from_nanos(l.uplink_propagation_ns));
    let ends =
        |tor: u32, uplink: u32| (Node::Switch(tor as u16), Node::Switch((l.tors + uplink / l.links_per_spine) as u16));
    let each = || (0..shape.tors).flat_map(|tor| (0..shape.uplinks).map(move |uplink| ends(tor, uplink)));
    links.extend(each().map(|(tor, spine)| cable(tor, spine)));
    links.extend(each().map(|(tor, spine)| cable(spine, tor)));
}

fn build_tor(l: &TwoTier, shape: Shape, tor: u32, salt: u32) -> Switch {
    let (first_host, hosts) = (tor * l.hosts_per_tor, l.hosts_per_tor);
    let first_down = shape.hosts + first_host;
    let first_up = 2 * shape.hosts + tor * shape.uplinks;
    let ports = (first_down..first_down + hosts).chain(first_up..first_up + shape.uplinks).map(|port| port as u16);
    let routing = Routing::Tor {
        first_host: first_host as u16,
        hosts: hosts as u16,
        first_down: first_down as u16,
        first_up: first_up as u16,
        uplinks: shape.uplinks as u16,
    };
    Switch::new(&l.tor, routing, ports.collect(), salt)
}

fn build_spine(l: &TwoTier, shape: Shape, spine: u32, salt: u32) -> Switch {
    let first_down = 2 * shape.hosts + shape.tors * shape.uplinks + spine * l.links_per_spine;
    let to_tor = |tor: u32| first_down + tor * shape.uplinks;
    let ports = (0..shape.tors).flat_map(|tor| to_tor(tor)..to_tor(tor) + l.links_per_spine).map(|port| port as u16);
    let routing = Routing::Spine {
        hosts_per_tor: l.hosts_per_tor as u16,
        first_down: first_down as u16,
        stride: shape.uplinks as u16,
        parallel: l.links_per_spine as u16,
    };
    Switch::new(&l.spine, routing, ports.collect(), salt)
}
