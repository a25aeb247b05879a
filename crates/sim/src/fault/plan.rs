//! Faults as data: what, where, and when.

use serde::{Deserialize, Serialize};

use super::packet::PacketFaults;
use crate::error::SimError;
use crate::fabric::Port;
use crate::fabric::build::Shape;
use crate::host::clock::PPM;

/// A fault that lasts for a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Packets are lost, duplicated, reordered, delayed or corrupted.
    Packets {
        /// On which links.
        place: Place,
        /// How often.
        faults: PacketFaults,
    },
    /// A link carries nothing, and packets on it are lost. Its switch uses other equal-cost links if there are any.
    LinkDown {
        /// One direction of a cable.
        port: Port,
    },
    /// These hosts and all others cannot send to each other. Packets in flight still arrive. Of partitions in force at
    /// once, only the first 64 count.
    Partition {
        /// One side; all other hosts are the other side.
        hosts: Vec<u32>,
    },
    /// Packets from some hosts do not reach others, while the opposite direction works. Packets in flight still arrive.
    /// Of those in force at once, only the first 64 count.
    OneWay {
        /// The senders whose packets are lost.
        from: Vec<u32>,
        /// The receivers that miss them.
        to: Vec<u32>,
    },
    /// The clock of a host runs faster than time, or slower. Its timers follow its clock. Rates of concurrent faults
    /// add up.
    ClockRate {
        /// The host.
        host: u32,
        /// Its deviation in parts per million, from -1,000,000 (it stops, as the monotonic clock of a suspended guest)
        /// to 1,000,000 (twice as fast).
        ppm: i32,
    },
    /// A host's CPUs stop, as those of a virtual machine during migration. Its NIC continues to receive.
    Pause {
        /// The host.
        host: u32,
    },
    /// A host loses its programs, transports and queues; packets to it are dropped. At the end of the fault it restarts
    /// with lost memory: programs of [`Datacenter::spawn_from`](crate::Datacenter::spawn_from) are made anew.
    Crash {
        /// The host.
        host: u32,
    },
}

/// A set of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// All links.
    Everywhere,
    /// Both directions of a host's cable.
    Host(u32),
    /// One direction of one cable.
    Port(Port),
}

/// A fault and its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduled {
    /// When it begins, in nanoseconds.
    pub from_ns: u64,
    /// When it ends; never if absent.
    pub until_ns: Option<u64>,
    /// The fault.
    pub fault: Fault,
}

/// Faults with their times, in any order. See the [module](super).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultPlan {
    /// The faults.
    pub faults: Vec<Scheduled>,
}

impl FaultPlan {
    /// Adds a fault from one time until another, in nanoseconds.
    pub fn add(&mut self, from_ns: u64, until_ns: Option<u64>, fault: Fault) {
        self.faults.push(Scheduled { from_ns, until_ns, fault });
    }

    /// Reads a plan from TOML. It is checked against a topology when it is [scheduled](crate::Datacenter::schedule).
    ///
    /// # Errors
    /// [`SimError::BadText`].
    pub fn from_toml(text: &str) -> Result<Self, SimError> {
        toml::from_str(text).map_err(|error| SimError::BadText { what: "fault plan", why: error.to_string() })
    }

    /// The plan as TOML.
    pub fn to_toml(&self) -> String {
        // Plain tables with string keys: TOML can hold all of it.
        toml::to_string(self).expect("a fault plan is a TOML table")
    }

    /// The time at which the last fault ends; `None` if one never does.
    pub fn end_ns(&self) -> Option<u64> {
        self.faults.iter().try_fold(0, |end, scheduled| Some(scheduled.until_ns?.max(end)))
    }

    /// Searches for a smaller plan for which `fails` still returns true, by removing halves, quarters and so on of the
    /// faults, down to single ones (delta debugging: Zeller and Hildebrandt, 2002). Calls `fails` at most `tries`
    /// times.
    pub fn shrink(&self, mut tries: usize, mut fails: impl FnMut(&FaultPlan) -> bool) -> FaultPlan {
        let mut smallest = self.clone();
        let mut chunk = smallest.faults.len().div_ceil(2);
        while chunk > 0 {
            let mut start = 0;
            while start < smallest.faults.len() && tries > 0 {
                let mut candidate = smallest.clone();
                candidate.faults.drain(start..(start + chunk).min(smallest.faults.len()));
                tries -= 1;
                if fails(&candidate) { smallest = candidate } else { start += chunk }
            }
            chunk /= 2;
        }
        smallest
    }
}

impl Fault {
    /// Checks that the hosts and ports it names exist.
    pub(crate) fn check(&self, shape: &Shape) -> Result<(), SimError> {
        let host = |host: u32| match host < shape.hosts {
            true => Ok(()),
            false => Err(SimError::NoHost { host, hosts: shape.hosts }),
        };
        let link = |port: Port| match shape.link(port) {
            Some(_) => Ok(()),
            None => Err(SimError::setting("port", format!("the topology has no {port}"))),
        };
        match self {
            Fault::Packets { place, faults } => {
                faults.check()?;
                match *place {
                    Place::Everywhere => Ok(()),
                    Place::Host(number) => host(number),
                    Place::Port(port) => link(port),
                }
            }
            Fault::LinkDown { port } => link(*port),
            Fault::Partition { hosts } => hosts.iter().try_for_each(|number| host(*number)),
            Fault::OneWay { from, to } => from.iter().chain(to).try_for_each(|number| host(*number)),
            Fault::ClockRate { host: number, ppm } => {
                if i64::from(*ppm).abs() > PPM {
                    return Err(SimError::setting("ppm", format!("{ppm} is not from -1,000,000 to 1,000,000")));
                }
                host(*number)
            }
            Fault::Pause { host: number } | Fault::Crash { host: number } => host(*number),
        }
    }
}

impl Place {
    /// Whether a link is in this set.
    pub(crate) fn covers(&self, link: u16, shape: &Shape) -> bool {
        match *self {
            Place::Everywhere => true,
            Place::Host(host) => {
                [Port::HostUp { host }, Port::HostDown { host }].iter().any(|p| shape.link(*p) == Some(link))
            }
            Place::Port(port) => shape.link(port) == Some(link),
        }
    }
}
