//! Faults as data: what, where, from when until when.

use serde::{Deserialize, Serialize};

use super::packet::PacketFaults;
use crate::error::SimError;
use crate::fabric::Port;
use crate::fabric::build::Shape;
use crate::host::clock::PPM;

/// Something that goes wrong for a time.
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
    /// A link carries nothing, and what is on it is lost. Its switch sends flows over other links if it has equal ones.
    LinkDown {
        /// One direction of a cable.
        port: Port,
    },
    /// These hosts and all others cannot send to each other. What is on its way still arrives. Of partitions in force at once, only the
    /// first 64 count.
    Partition {
        /// One side; all others are the other side.
        hosts: Vec<u32>,
    },
    /// What some hosts send does not reach others, while what those send arrives: one direction of a path is gone. What is on its way still arrives. Of those in
    /// force at once, only the first 64 count.
    OneWay {
        /// Those whose packets are lost.
        from: Vec<u32>,
        /// To whom.
        to: Vec<u32>,
    },
    /// The clock of a host runs faster than time, or slower. Its timers follow its clock. Rates of faults in force at
    /// once add up.
    ClockRate {
        /// Which.
        host: u32,
        /// By how many parts in a million, from -1,000,000 (it stands still, as the monotonic clock of a guest that is suspended) to 1,000,000 (twice as fast).
        ppm: i32,
    },
    /// A host's CPUs stand still, as those of a virtual machine that is moved. Its NIC goes on receiving.
    Pause {
        /// Which.
        host: u32,
    },
    /// A host loses its programs, transports and queues; what is sent to it is dropped. At the end it restarts with lost memory: what
    /// was started by [`Datacenter::spawn_from`](crate::Datacenter::spawn_from) is made anew.
    Crash {
        /// Which.
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
    /// What happens.
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
    /// Adds a fault from a time until another, in nanoseconds.
    pub fn add(&mut self, from_ns: u64, until_ns: Option<u64>, fault: Fault) {
        self.faults.push(Scheduled { from_ns, until_ns, fault });
    }

    /// Reads a plan from TOML. Whether it fits a topology is checked when it is [scheduled](crate::Datacenter::schedule).
    ///
    /// # Errors
    /// [`SimError::BadText`].
    pub fn from_toml(text: &str) -> Result<Self, SimError> {
        toml::from_str(text).map_err(|error| SimError::BadText { what: "fault plan", why: error.to_string() })
    }

    /// The plan as TOML.
    pub fn to_toml(&self) -> String {
        // Plain tables with string keys: there is nothing that TOML could not hold.
        toml::to_string(self).expect("a fault plan is a TOML table")
    }

    /// The time at which the last fault ends; `None` if one never does.
    pub fn end_ns(&self) -> Option<u64> {
        self.faults.iter().try_fold(0, |end, scheduled| Some(scheduled.until_ns?.max(end)))
    }

    /// Looks for a smaller plan with which `fails` still says true: without halves, quarters and so on of its faults, down to single
    /// ones (delta debugging: Zeller and Hildebrandt, 2002). Asks about at most `tries` plans.
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
    /// Whether there is what it speaks of.
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
    /// Whether a link is one of these.
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
