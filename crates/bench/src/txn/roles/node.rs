//! One node on a thread, and its figures.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::rc::Rc;

use dunlin_lab::measure::Latencies;
use dunlin_net::Clock;
use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::{Addr, PollPolicy, ShmName};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_txn::{
    Client, ClientConfig, ClientStats, Configuration, Limits, Participant, PartitionId, Place, TableId, serve,
};
use foldhash::fast::FixedState;

use super::cluster::Shape;
use super::echo::Echo;
use super::stage::Step;
use crate::BenchError;
use crate::txn::Coalescing;
use crate::txn::tasks::{Tally, Tasks};
use crate::txn::workload::{Kept, Workload};

/// The number of every process of the cluster: none is ever replaced.
pub(in crate::txn) const INCARNATION: u64 = 1;

/// A moment of a node.
#[derive(Debug, Clone, Default)]
pub(super) struct Moment {
    pub echoes: u64,
    pub tally: Tally,
    pub client: ClientStats,
}

/// The contents of one copy of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Contents {
    items: u64,
    /// The sum of hashes of all items.
    hash: u64,
}

/// What is left of a node at the end.
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// The contents of its copies.
    pub copies: Vec<(PartitionId, Contents)>,
    /// The weight of the items of its primaries.
    pub weight: i64,
    /// Items for the check of the workload.
    pub kept: Kept,
    /// Locks that are held.
    pub locks: usize,
    pub client: ClientStats,
    pub tally: Tally,
}

/// One node: an endpoint, a participant unless it is a stranger, and its load.
pub(super) struct Node<W: Workload> {
    number: u32,
    shape: Shape,
    configuration: Rc<Configuration>,
    endpoint: Rc<Endpoint<ShmTransport>>,
    participant: Option<Rc<RefCell<Participant>>>,
    client: Client<ShmTransport>,
    echo: Rc<Echo>,
    workload: W,
    loading: Rc<Tasks<W>>,
    tasks: Rc<Tasks<W>>,
}

/// The name of a node's endpoint, which no other process uses.
pub(in crate::txn) fn name(number: u32) -> Result<ShmName, BenchError> {
    Ok(ShmName::new(&format!("dunlin-bench-{}-{number}", std::process::id()))?)
}

impl<W: Workload> Node<W> {
    pub fn start(
        number: u32,
        shape: Shape,
        configuration: &Rc<Configuration>,
        workload: &W,
    ) -> Result<Node<W>, BenchError> {
        let transport = ShmTransport::new(&ShmConfig::named(name(number)?))?;
        let config = EndpointConfig { poll: PollPolicy::Spin, ..EndpointConfig::default() };
        let endpoint = Rc::new(Endpoint::new(transport, config)?);
        endpoint.propagate_panics();
        let is_member = number <= shape.nodes;
        let place = Place { node: number, core: 0 };
        let participant = is_member.then(|| {
            Rc::new(RefCell::new(Participant::new(place, INCARNATION, configuration.clone(), Limits::default())))
        });
        let coalescing = match shape.coalescing {
            Coalescing::All => dunlin_txn::Coalescing::All,
            Coalescing::NotValidation => dunlin_txn::Coalescing::NotValidation,
            Coalescing::Nothing => dunlin_txn::Coalescing::Nothing,
        };
        let config = ClientConfig { seed: number.into(), coalescing, ..ClientConfig::default() };
        let client = match &participant {
            Some(participant) => {
                serve(&endpoint, participant)?;
                Client::beside(&endpoint, number.into(), configuration.clone(), config, participant)
            }
            None => Client::new(&endpoint, number.into(), configuration.clone(), config),
        };
        let echo = Echo::new(&endpoint)?;
        let (loading, tasks) = (Tasks::new(workload.clone()), Tasks::new(workload.clone()));
        let (configuration, workload) = (configuration.clone(), workload.clone());
        Ok(Node { number, shape, configuration, endpoint, participant, client, echo, workload, loading, tasks })
    }

    /// Runs its event loop once.
    #[inline]
    pub fn turn(&self) {
        self.endpoint.run_once();
    }

    fn is_loaded(&self) -> bool {
        self.shape.strangers == 0 || self.participant.is_none()
    }

    /// Opens the sessions of the floor.
    fn open(&self) -> Result<(), BenchError> {
        let others = (1..=self.shape.nodes).filter(|other| *other != self.number);
        let others = others.map(|other| name(other).map(Addr::Shm)).collect::<Result<_, _>>()?;
        self.echo.open(&self.endpoint, others);
        Ok(())
    }

    /// Begins a step.
    pub fn enter(&self, step: Step) -> Result<(), BenchError> {
        if step == Step::Load {
            self.open()?;
        }
        match step {
            Step::Load if self.participant.is_some() => {
                let (first, all) = (u64::from(self.number - 1), u64::from(self.shape.nodes));
                self.loading.load(&self.endpoint, &self.client, first, all);
            }
            Step::Floor if self.is_loaded() => self.echo.start(self.shape.calls)?,
            Step::FloorMeasured => self.echo.record(self.shape.is_timed),
            Step::FloorEnd => self.echo.end(),
            Step::Work if self.is_loaded() => {
                let home = self.participant.as_ref().map(|participant| participant.borrow().place());
                let seeds = (0..self.shape.tasks as u64).map(|task| u64::from(self.number) << 32 ^ task << 8 ^ 5);
                let clock = Clock::new();
                self.tasks.start(&self.endpoint, &self.client, (&self.configuration, home), seeds, move || clock.now());
            }
            Step::WorkMeasured => self.tasks.record(self.shape.is_timed),
            Step::WorkEnd => self.tasks.end(),
            _ => {}
        }
        Ok(())
    }

    /// Whether it is done with a step.
    pub fn is_done(&self, step: Step) -> bool {
        match step {
            Step::Load => self.echo.is_idle() && self.loading.running() == 0 && self.client.open() == 0,
            // A run continues until it has something to report: other work may have the processors.
            Step::FloorMeasured => !self.is_loaded() || self.echo.is_measured(self.shape.is_timed),
            Step::WorkMeasured => !self.is_loaded() || self.tasks.is_measured(self.shape.is_timed),
            Step::FloorEnd => self.echo.is_idle(),
            Step::WorkEnd => self.tasks.running() == 0 && self.client.open() == 0,
            Step::Settle => self.participant.as_ref().is_none_or(|it| it.borrow().log_records() == 0),
            _ => true,
        }
    }

    pub fn failure(&self) -> Option<BenchError> {
        self.echo.take_failure().or(self.loading.take_failure()).or(self.tasks.take_failure())
    }

    pub fn moment(&self) -> Moment {
        Moment { echoes: self.echo.done.get(), tally: self.tasks.tally(), client: self.client.stats() }
    }

    pub fn echo_latencies(&self) -> Option<Latencies> {
        self.echo.latencies.take()
    }

    pub fn latencies(&self) -> Vec<Latencies> {
        self.tasks.latencies()
    }

    /// Looks through its items.
    pub fn remains(&self) -> Remains {
        let mut remains = Remains { client: self.client.stats(), tally: self.tasks.tally(), ..Remains::default() };
        let Some(participant) = &self.participant else { return remains };
        let participant = participant.borrow();
        let place = participant.place();
        remains.locks = participant.partitions().map(|(_, _, stats)| stats.locks).sum();
        let held: Vec<PartitionId> = participant.partitions().map(|(partition, _, _)| partition).collect();
        for partition in held {
            let is_primary = self.configuration.copies(partition)[0] == place;
            let mut contents = Contents::default();
            for (table, key, version, value) in participant.items(partition) {
                contents.items += 1;
                contents.hash = contents.hash.wrapping_add(hash(table, key, version, value));
                if is_primary {
                    remains.weight += self.workload.weight(table, key, value);
                    if self.workload.keeps(table) {
                        remains.kept.insert((table, key.to_vec()), value.to_vec());
                    }
                }
            }
            remains.copies.push((partition, contents));
        }
        remains
    }
}

fn hash(table: TableId, key: &[u8], version: u64, value: &[u8]) -> u64 {
    let mut hasher = std::hash::BuildHasher::build_hasher(&FixedState::default());
    hasher.write_u16(table.0);
    hasher.write(key);
    hasher.write_u64(version);
    hasher.write(value);
    hasher.finish()
}

/// Checks what is left of all nodes.
pub(super) fn check<W: Workload>(workload: &W, loaded: i64, all: Vec<Remains>) -> Result<(), BenchError> {
    let wrong =
        |why: String| Err(BenchError::Transactions(format!("{why}: this is a bug, figures would mean nothing")));
    let (mut copies, mut kept) = (BTreeMap::<PartitionId, Contents>::new(), Kept::new());
    let (mut weight, mut expected) = (0, loaded);
    for remains in all {
        weight += remains.weight;
        expected += remains.tally.change;
        if remains.locks > 0 || remains.client.broken > 0 || remains.client.in_doubt > 0 {
            return wrong(format!("{} locks are left, {:?}", remains.locks, remains.client));
        }
        for (partition, contents) in remains.copies {
            if *copies.entry(partition).or_insert(contents) != contents {
                return wrong(format!("copies of partition {} differ", partition.0));
            }
        }
        kept.extend(remains.kept);
    }
    if weight != expected {
        return wrong(format!("the sum over all items is {weight} instead of {expected}"));
    }
    workload.check(&kept).or_else(wrong)
}
