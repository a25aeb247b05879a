//! Faults that some plans have besides those of [`dunlin_sim::fault::RandomFaults`]: paths that fail in one direction,
//! paths that lose long packets, clocks with deviating rates, and hosts that stop for longer than any timeout and any
//! lease: some of them as suspended guests, whose clocks stop too.
//!
//! They are drawn from a separate random sequence, so that other seeds keep their meaning.

use std::ops::Range;

use dunlin_sim::fault::{PacketFaults, Place};
use dunlin_sim::{Datacenter, Fault, FaultPlan};
use dunlin_trial::Random;

const MILLISECOND: u64 = 1_000_000;
/// Maximum time for which a host stops.
const PAUSE_MAX: u64 = 3_000 * MILLISECOND;
/// Maximum time for which one direction of a path fails.
const ONE_WAY_MAX: u64 = 400 * MILLISECOND;
/// Maximum packet length of a narrow path, in bytes: endpoints discover any length from the first on
/// (docs/wire-protocol.md).
const NARROW: Range<u64> = 1_200..1_472;
/// Maximum time for which a path is narrow.
const NARROW_MAX: u64 = 1_000 * MILLISECOND;
/// Percentage of plans that have some of these faults.
const STRAINED: u64 = 30;
/// The rate of a stopped clock, in parts per million.
const STANDS_STILL: i32 = -1_000_000;
/// Maximum number of them in a plan.
const COUNT_MAX: u64 = 3;

/// The targets and limits of these faults.
pub struct Strain {
    /// Number of hosts.
    pub hosts: u32,
    /// Hosts whose clocks may deviate.
    pub clocks: Range<u32>,
    /// Maximum deviation, in parts per million.
    pub clock_ppm_max: u32,
    /// Maximum packet that hosts send, in bytes.
    pub mtu: usize,
    /// Latest beginning of these faults, in nanoseconds.
    pub until_ns: u64,
}

impl Strain {
    /// Adds faults to the plan of some seeds. All of them end.
    pub fn add(&self, plan: &mut FaultPlan, seed: u64) {
        let mut random = Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x7374_7261_696e);
        let r = &mut random;
        if !r.chance(STRAINED) {
            return;
        }
        // Rates add up, so each clock has only one.
        let mut clocks: Vec<u32> = self.clocks.clone().collect();
        for _ in 0..r.between(1, COUNT_MAX) {
            let (fault, longest) = match r.between(0, 6) {
                0..=1 => (self.one_way(r), ONE_WAY_MAX),
                2..=3 if !clocks.is_empty() => {
                    let host = clocks.swap_remove(r.index(clocks.len()));
                    // In steps of 1 %, and most often the ends of the allowed range.
                    let percent = if r.chance(50) { 100 } else { r.between(1, 100) } as i32;
                    let ppm = self.clock_ppm_max as i32 / 100 * percent;
                    let fault = Fault::ClockRate { host, ppm: if r.chance(50) { ppm } else { -ppm } };
                    (fault, self.until_ns.max(MILLISECOND))
                }
                4 if NARROW.contains(&(self.mtu as u64 - 1)) => (self.narrow(r), NARROW_MAX),
                _ => (Fault::Pause { host: r.between(0, u64::from(self.hosts) - 1) as u32 }, PAUSE_MAX),
            };
            let from = r.between(0, self.until_ns);
            // Each magnitude is equally likely.
            let length = (longest >> r.between(0, 6)).max(1);
            let until = Some(from + r.between(length.div_ceil(2), length));
            if let Fault::Pause { host } = fault
                && let Some(at) = clocks.iter().position(|clock| *clock == host)
                && r.chance(50)
            {
                clocks.swap_remove(at);
                plan.add(from, until, Fault::ClockRate { host, ppm: STANDS_STILL });
            }
            plan.add(from, until, fault);
        }
    }

    /// Packets of full length are lost on the way to and from one host, or everywhere.
    fn narrow(&self, r: &mut Random) -> Fault {
        let host = r.between(0, u64::from(self.hosts) - 1) as u32;
        let place = if r.chance(50) { Place::Host(host) } else { Place::Everywhere };
        Fault::Packets { place, faults: PacketFaults::longest(r.between(NARROW.start, self.mtu as u64 - 1) as u16) }
    }

    /// One host cannot reach some of the others, or some cannot reach it.
    fn one_way(&self, r: &mut Random) -> Fault {
        let one = r.between(0, u64::from(self.hosts) - 1) as u32;
        let is_everybody = r.chance(50);
        let others = (0..self.hosts).filter(|host| *host != one && (is_everybody || r.chance(50))).collect();
        match r.chance(50) {
            true => Fault::OneWay { from: vec![one], to: others },
            false => Fault::OneWay { from: others, to: vec![one] },
        }
    }
}

/// Tells hosts that paths may be narrower than their packets, if a plan makes some so.
pub fn tell_of_narrow_paths(datacenter: &mut Datacenter, plan: &FaultPlan) {
    let is_narrow = |fault: &Fault| matches!(fault, Fault::Packets { faults, .. } if faults.longest.is_some());
    if plan.faults.iter().any(|timed| is_narrow(&timed.fault)) {
        datacenter.make_mtu_uncertain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    /// All hunts have all of these faults.
    #[test]
    fn each_hunt_draws_each_of_these_faults() {
        for kind in [Kind::Rpc, Kind::Kv, Kind::Raft, Kind::Coord] {
            let plans: Vec<FaultPlan> = (0..200).map(|seed| kind.draw(seed, None).unwrap().plan().clone()).collect();
            let count = |is_one: fn(&Fault) -> bool, longer: u64| {
                let long = |fault: &&dunlin_sim::fault::Scheduled| fault.until_ns.unwrap_or(0) - fault.from_ns > longer;
                let faults = plans.iter().flat_map(|plan| &plan.faults);
                faults.filter(long).filter(|fault| is_one(&fault.fault)).count()
            };
            let counts = [
                count(|fault| matches!(fault, Fault::OneWay { .. }), 0),
                count(|fault| matches!(fault, Fault::ClockRate { ppm: -999_999..0, .. }), 0),
                count(|fault| matches!(fault, Fault::ClockRate { ppm: 1.., .. }), 0),
                count(|fault| matches!(fault, Fault::Packets { faults, .. } if faults.longest.is_some()), 0),
                count(|fault| matches!(fault, Fault::Pause { .. }), 400 * MILLISECOND),
                count(|fault| matches!(fault, Fault::ClockRate { ppm: STANDS_STILL, .. }), 400 * MILLISECOND),
            ];
            assert!(counts.iter().all(|count| *count > 0), "{kind:?}: {counts:?}");
            assert!(plans.iter().all(|plan| plan.end_ns().is_some()), "all faults of {kind:?} end");
        }
    }
}
