//! Faults at the worst time of an election. A leader is cut off, so that it hears nothing of the next one. Then
//!
//! - either, once the next leader is elected, all its voters crash before their disks have its entries, and restart
//!   soon; the new leader is cut off in turn, and the first one may be elected again by the same voters: so a forgotten
//!   vote would be given twice;
//! - or some clients stay with the old leader, and read from it, while others use the next one: so a lease that is too
//!   long would return stale data.

use dunlin_sim::fault::FaultId;
use dunlin_sim::{Datacenter, Fault};
use dunlin_trial::Random;

use super::scenario::{Scenario, host};

/// Maximum downtime of a voter.
const DOWN_MAX: u64 = 5_000_000;
/// Maximum time until a leader is cut off, and of the cut, in election timeouts.
const LEADS_MAX: u64 = 1;
const CUT_OFF_MAX: u64 = 4;

/// A leader that is to be cut off, or is cut off.
struct Deposed {
    id: u64,
    /// Number of clients with it.
    clients: usize,
    /// When the cut begins; or when it ends, if no other leader was elected meanwhile.
    at: u64,
    cut_off: Option<FaultId>,
}

/// Faults to begin and to end.
pub struct Spoiler {
    random: Random,
    deposed: Option<Deposed>,
    /// Faults in force, and when they end.
    going_on: Vec<(u64, FaultId)>,
}

impl Spoiler {
    pub fn new(scenario: &Scenario) -> Spoiler {
        Spoiler { random: Random::new(scenario.seed ^ 0xc4a5), deposed: None, going_on: Vec::new() }
    }

    /// Begins and ends the faults that are due. `elected` are the replicas elected since the last call.
    pub fn spoil(&mut self, datacenter: &mut Datacenter, scenario: &Scenario, elected: Vec<u64>) {
        let now = datacenter.now();
        for (_, fault) in self.going_on.extract_if(.., |(until, _)| *until <= now) {
            datacenter.lift(fault);
        }
        match &mut self.deposed {
            Some(Deposed { id, clients: 0, cut_off: Some(fault), .. }) if elected.iter().any(|leader| leader != id) => {
                datacenter.lift(*fault);
                let old = *id;
                self.deposed = None;
                elected.iter().find(|leader| **leader != old).into_iter().for_each(|new| {
                    self.crash_voters(datacenter, scenario, (old, *new));
                });
            }
            Some(Deposed { at, cut_off: Some(fault), .. }) if *at <= now => {
                datacenter.lift(*fault);
                self.deposed = None;
            }
            Some(Deposed { id, clients, at, cut_off: cut_off @ None }) if *at <= now => {
                let last = scenario.clients as usize;
                let clients = (last - *clients..last).map(|number| scenario.client_host(number));
                let hosts = clients.chain([host(*id)]).collect();
                let fault = datacenter.inject(Fault::Partition { hosts });
                *cut_off = Some(fault.expect("each replica has a host"));
                *at = now + CUT_OFF_MAX * scenario.election_ns();
            }
            Some(_) => {}
            None => {
                let leader = elected.into_iter().find(|_| self.going_on.is_empty());
                if let Some(id) = leader.filter(|_| self.random.chance(scenario.spoiled_elections)) {
                    let at = now + self.random.between(0, LEADS_MAX * scenario.election_ns());
                    let has_clients = self.random.chance(50);
                    let half = u64::from(scenario.clients.div_ceil(2));
                    let clients = if has_clients { self.random.between(1, half) as usize } else { 0 };
                    self.deposed = Some(Deposed { id, clients, at, cut_off: None });
                }
            }
        }
    }

    fn crash_voters(&mut self, datacenter: &mut Datacenter, scenario: &Scenario, (old, new): (u64, u64)) {
        let now = datacenter.now();
        let mut fail = |fault, longest| {
            let fault = datacenter.inject(fault).expect("each replica has a host");
            self.going_on.push((now + self.random.between(0, longest), fault));
        };
        let voters = (1..=scenario.members).filter(|id| ![old, new].contains(id));
        voters.for_each(|id| fail(Fault::Crash { host: host(id) }, DOWN_MAX));
        fail(Fault::Partition { hosts: vec![host(new)] }, CUT_OFF_MAX * scenario.election_ns());
    }

    /// Ends all faults.
    pub fn lift_all(self, datacenter: &mut Datacenter) {
        let cut_off = self.deposed.and_then(|deposed| deposed.cut_off);
        self.going_on.into_iter().map(|(_, fault)| fault).chain(cut_off).for_each(|fault| datacenter.lift(fault));
    }
}
