//! Scheduled faults, and those in force.

use super::packet::PacketFaults;
use super::plan::Fault;
use crate::fabric::build::Shape;
use crate::fabric::link::Link;
use crate::host::clock::PPM;

/// Maximum number of partitions in force at once.
pub(crate) const PARTITIONS_MAX: usize = 64;

/// A scheduled fault, which can be [lifted](crate::Datacenter::lift).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(pub(crate) u32);

#[derive(Debug, Default)]
pub(crate) struct ActiveFaults {
    announced: Vec<Fault>,
    /// Faults in force, in the order in which they began.
    active: Vec<u32>,
    /// By host, a bit for each partition whose named side it is on. Hosts reach each other if all their bits agree.
    /// Empty if there is no partition.
    sides: Vec<u64>,
    /// By host, two masks with a bit for each one-way partition: whether packets from the host are cut off, and whether
    /// packets to it are cut off from such senders. Empty if there is none.
    cut: Vec<(u64, u64)>,
}

impl ActiveFaults {
    /// Adds a fault, which is not in force yet.
    pub fn announce(&mut self, fault: Fault) -> FaultId {
        self.announced.push(fault);
        FaultId(self.announced.len() as u32 - 1)
    }

    pub fn get(&self, id: FaultId) -> Option<&Fault> {
        self.announced.get(id.0 as usize)
    }

    /// Puts a fault in force, or lifts it. Returns false if nothing changed.
    pub fn set(&mut self, id: FaultId, in_force: bool) -> bool {
        let place = self.active.iter().position(|active| *active == id.0);
        match (place, in_force) {
            (None, true) => self.active.push(id.0),
            (Some(place), false) => drop(self.active.remove(place)),
            _ => return false,
        }
        true
    }

    fn in_force(&self) -> impl Iterator<Item = &Fault> {
        self.active.iter().map(|id| &self.announced[*id as usize])
    }

    pub fn is_crashed(&self, host: u32) -> bool {
        self.in_force().any(|fault| matches!(fault, Fault::Crash { host: crashed } if *crashed == host))
    }

    pub fn is_paused(&self, host: u32) -> bool {
        self.in_force().any(|fault| matches!(fault, Fault::Pause { host: paused } if *paused == host))
    }

    /// Whether a partition blocks packets from one host to another.
    pub fn separates(&self, from: u16, to: u16) -> bool {
        let (from, to) = (from as usize, to as usize);
        !self.sides.is_empty() && self.sides[from] != self.sides[to]
            || !self.cut.is_empty() && self.cut[from].0 & self.cut[to].1 != 0
    }

    /// Whether a partition is in force.
    pub fn cuts(&self) -> bool {
        !self.sides.is_empty() || !self.cut.is_empty()
    }

    /// How fast a host's clock is, in parts per million.
    pub fn clock_ppm(&self, host: u32) -> i64 {
        let rate = |fault: &Fault| match fault {
            Fault::ClockRate { host: of, ppm } if *of == host => i64::from(*ppm),
            _ => 0,
        };
        self.in_force().map(rate).sum::<i64>().max(-PPM)
    }

    /// Updates links and partitions to the faults in force.
    pub fn apply(&mut self, links: &mut [Link], shape: &Shape) {
        let partitions = || {
            self.in_force().filter_map(|fault| if let Fault::Partition { hosts } = fault { Some(hosts) } else { None })
        };
        let mut sides = Vec::new();
        if partitions().next().is_some() {
            sides.resize(shape.hosts as usize, 0);
        }
        for (bit, hosts) in partitions().take(PARTITIONS_MAX).enumerate() {
            hosts.iter().for_each(|host| sides[*host as usize] |= 1 << bit);
        }
        let one_way = || {
            self.in_force().filter_map(|fault| match fault {
                Fault::OneWay { from, to } => Some((from, to)),
                _ => None,
            })
        };
        let mut cut = Vec::new();
        if one_way().next().is_some() {
            cut.resize(shape.hosts as usize, (0, 0));
        }
        for (bit, (from, to)) in one_way().take(PARTITIONS_MAX).enumerate() {
            from.iter().for_each(|host| cut[*host as usize].0 |= 1 << bit);
            to.iter().for_each(|host| cut[*host as usize].1 |= 1 << bit);
        }
        let cuts = !sides.is_empty() || !cut.is_empty();
        for (number, link) in links.iter_mut().enumerate() {
            let number = number as u16;
            let mut faults = PacketFaults { reorder_max_ns: 0, delay_max_ns: 0, ..PacketFaults::default() };
            link.is_down = false;
            for fault in self.in_force() {
                match fault {
                    Fault::Packets { place, faults: more } if place.covers(number, shape) => faults.add(more),
                    Fault::LinkDown { port } => link.is_down |= shape.link(*port) == Some(number),
                    _ => {}
                }
            }
            link.faults = (!faults.is_none()).then(|| Box::new(faults));
            let is_separated = cuts && u32::from(number) < shape.hosts;
            let has_late_packets = link.last_arrival > 0;
            link.is_faulty = link.is_down || link.faults.is_some() || is_separated || has_late_packets;
        }
        (self.sides, self.cut) = (sides, cut);
    }
}
