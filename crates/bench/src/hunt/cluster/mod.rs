//! Replicas with their logs on disks, clients, and whoever operates them, in a simulated datacenter: what the hunts of all services on replicated state
//! machines share. Random commands, random changes of members, random faults.
//!
//! Replicas crash and restart with what their disks have: what was flushed, and of what was written since, some. Hosts stand still, links fail, the network
//! is cut in two. While all that goes on, no two replicas lead in one term, logs that agree on an entry agree on all before, and what is committed stays.
//! In the end the network heals, and every client must get an answer for every key; then the history of each must be linearizable, in which a command that was
//! executed twice, or was lost, has no place.
//!
//! | File | What it holds |
//! |---|---|
//! | `scenario` | what a seed means |
//! | `replica`, `operator` | the programs of replicas, and of whoever changes the members |
//! | `rot` | disks whose bits rot |
//! | `spoiler` | faults at the worst time of an election |
//! | `observer` | what must be true of all logs at any time |
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
pub use self::scenario::{CLOCK_PPM_MAX, Clocks, Load, Scenario};
use super::Drawn;
use super::clients::history::Entry;
use super::clients::object::Object;
use super::story::Story;
use super::trace::Trace;

/// What is replicated, and what is done with it: where the hunts differ.
pub trait Service: Sized + 'static {
    /// What its clients do.
    const LOAD: Load;

    /// What is replicated.
    type Machine: StateMachine + 'static;
    /// What runs beside a replica, on its endpoint.
    type Companion;
    /// What is kept under a key.
    type Object: Object;
    /// The program of a client.
    type Client: Program + 'static;

    /// Makes a drawn scenario one of its own.
    fn adapt(_: &mut Scenario) {}

    /// The part of a cluster that is its own.
    fn new(scenario: &Scenario) -> Self;

    /// The machine of a replica, on a host with this clock.
    fn machine(&self, scenario: &Scenario, id: u64, clock: &ThreadClock) -> Self::Machine;

    /// Starts what runs beside a replica.
    fn accompany(
        shared: &Rc<Shared<Self>>,
        id: u64,
        endpoint: &Rc<Endpoint<SimTransport>>,
        node: &Node<Self::Machine, Log>,
    ) -> Self::Companion;

    /// Starts a client, after `incarnation` crashes.
    fn start(shared: &Rc<Shared<Self>>, number: usize, incarnation: u32, transport: SimTransport) -> Self::Client;

    /// What replicas are asked to execute; `None` if an operation only reads.
    fn command(key: usize, input: &InputOf<Self>) -> Option<Vec<u8>>;

    /// Goes on when all histories were judged, and judges what stands in none.
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

/// What is asked of a service.
type InputOf<S> = <<S as Service>::Object as Object>::Input;

/// Gives writes the places that they have among commands that were committed. What two have in common, as all deletions of a key, has none.
fn place<'a, S: Service>(history: &mut [Entry<S::Object>], committed: impl Iterator<Item = &'a [u8]>) {
    let command = |entry: &Entry<S::Object>| match S::Object::has_twins(&entry.input) {
        true => None,
        false => S::command(entry.key, &entry.input),
    };
    let numbers = history.iter().enumerate().filter_map(|(number, entry)| Some((command(entry)?, number)));
    let mut numbers: HashMap<Vec<u8>, usize> = numbers.collect();
    for (place, command) in (0..).zip(committed) {
        // One that is committed again is not executed again.
        if let Some(number) = numbers.remove(command) {
            history[number].place = Some(place);
        }
    }
}
