//! Replicas with logs on disks, clients, and an operator, in a simulated datacenter: shared by the hunts of all
//! services on replicated state machines. Random commands, random changes of members, random faults.
//! Replicas crash and restart with the contents of their disks: all flushed writes, and some later ones. Hosts stop,
//! links fail, the network is partitioned. Meanwhile no two replicas lead in one term, logs that agree on an entry
//! agree on all earlier ones, and committed entries stay. In the end the network heals, and every client must get an
//! answer for every key. Then the history of each key must be linearizable, which excludes commands that were executed
//! twice, or lost.
//!
//! | File | What it holds |
//! |---|---|
//! | `scenario` | the meaning of a seed |
//! | `replica`, `operator` | the programs of replicas, and of the operator that changes members |
//! | `rot` | disks with bit rot |
//! | `spoiler` | faults at the worst time of an election |
//! | `observer` | invariants of all logs |
//! | `run` | one run, up to its verdict |

mod observer;
mod operator;
pub mod replica;
mod rot;
pub mod run;
mod scenario;
mod spoiler;

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use dunlin_rpc::Endpoint;
use dunlin_sim::{Datacenter, FaultPlan, Program, SimTransport, ThreadClock, Topology};
use dunlin_smr::{Node, StateMachine};

use self::replica::Log;
use self::run::Shared;
pub use self::scenario::{CLOCK_PPM_MAX, Clocks, Load, SNAPSHOT_PIECES_MAX, Scenario};
use super::Drawn;
use super::clients::history::Entry;
use super::clients::object::Object;
use super::story::Story;
use super::trace::Trace;

/// A replicated service, and the work on it: where the hunts differ.
pub trait Service: Sized + 'static {
    /// The work of its clients.
    const LOAD: Load;

    /// The replicated machine.
    type Machine: StateMachine + 'static;
    /// Runs beside a replica, on its endpoint.
    type Companion;
    /// The object under a key.
    type Object: Object;
    /// The program of a client.
    type Client: Program + 'static;

    /// Adapts a drawn scenario to the service.
    fn adapt(_: &mut Scenario) {}

    /// The service's own part of a cluster.
    fn new(scenario: &Scenario) -> Self;

    /// The machine of a replica, on a host with this clock.
    fn machine(&self, scenario: &Scenario, id: u64, clock: &ThreadClock) -> Self::Machine;

    /// Starts the companion of a replica.
    fn accompany(
        shared: &Rc<Shared<Self>>,
        id: u64,
        endpoint: &Rc<Endpoint<SimTransport>>,
        node: &Node<Self::Machine, Log>,
    ) -> Self::Companion;

    /// Starts a client, after `incarnation` crashes.
    fn start(shared: &Rc<Shared<Self>>, number: usize, incarnation: u32, transport: SimTransport) -> Self::Client;

    /// The command of an operation; `None` if it only reads.
    fn command(key: usize, input: &InputOf<Self>) -> Option<Vec<u8>>;

    /// Runs after all histories were judged, and judges everything outside histories.
    ///
    /// # Panics
    /// If a promise is broken.
    fn end(_shared: &Rc<Shared<Self>>, _datacenter: &mut Datacenter) {}
}

/// A run of a service. Everything in it follows from the seed.
pub struct Of<S> {
    scenario: Scenario,
    service: PhantomData<S>,
}

impl<S: Service> Of<S> {
    /// The run of a seed.
    pub fn draw(seed: u64) -> Of<S> {
        let mut scenario = Scenario::draw(seed, S::LOAD);
        S::adapt(&mut scenario);
        Of { scenario, service: PhantomData }
    }
}

impl<S: Service> fmt::Debug for Of<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scenario.fmt(f)
    }
}

impl<S: Service> Drawn for Of<S> {
    fn topology(&self) -> &Topology {
        &self.scenario.topology
    }

    fn plan(&mut self) -> &mut FaultPlan {
        &mut self.scenario.plan
    }

    fn run(self: Box<Self>, trace: Option<&Trace>) -> Story {
        run::run::<S>(self.scenario, trace)
    }
}

/// The operations of a service.
type InputOf<S> = <<S as Service>::Object as Object>::Input;

/// Gives writes their positions among the committed commands. Identical commands, such as all deletions of a key, get
/// none.
fn place<'a, S: Service>(history: &mut [Entry<S::Object>], committed: impl Iterator<Item = &'a [u8]>) {
    let command = |entry: &Entry<S::Object>| match S::Object::has_twins(&entry.input) {
        true => None,
        false => S::command(entry.key, &entry.input),
    };
    let numbers = history.iter().enumerate().filter_map(|(number, entry)| Some((command(entry)?, number)));
    let mut numbers: HashMap<Vec<u8>, usize> = numbers.collect();
    for (place, command) in (0..).zip(committed) {
        // A command that is committed again is not executed again.
        if let Some(number) = numbers.remove(command) {
            history[number].place = Some(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coord::Manager;
    use crate::raft::KeyValues;

    /// Disks that hang for longer than a leader waits by default, and addresses that another cluster has too.
    fn counts<S: Service>() -> [usize; 2] {
        let scenarios: Vec<Scenario> = (0..200).map(|seed| Of::<S>::draw(seed).scenario).collect();
        let hangs = |of: &Scenario| of.hangs.iter().filter(|hang| hang.length_ns > 3 * of.election_ns()).count();
        [scenarios.iter().map(hangs).sum(), scenarios.iter().filter(|of| of.foreign().is_some()).count()]
    }

    #[test]
    fn disks_hang_and_addresses_are_reused() {
        for counts in [counts::<KeyValues>(), counts::<Manager>()] {
            assert!(counts.iter().all(|count| *count >= 5), "{counts:?}");
        }
    }

    #[test]
    fn replicas_of_the_cluster_manager_flush_within_an_election() {
        let is_slow = |seed: &u64| {
            let scenario = Of::<Manager>::draw(*seed).scenario;
            scenario.flush_max_ns > scenario.election_ns()
        };
        // In the last one, no leader stayed for more than 132 ms in 20 s, and members fail after 153 ms or more.
        let slow = (0..1000).chain([154_037_471_603]).filter(is_slow).collect::<Vec<u64>>();
        assert!(slow.is_empty(), "{slow:?}");
    }
}
