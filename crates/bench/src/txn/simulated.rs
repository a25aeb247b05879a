//! Nodes with transactions on simulated hosts: the same participants, clients and workloads as on real ones. The CPU
//! time of transactions beyond that of their packets is charged with each request that a participant handles.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_rpc::EndpointConfig;
use dunlin_sim::{CostModel, Datacenter, SimTransport, Topology};
use dunlin_txn::wire::Kind;
use dunlin_txn::{Client, ClientConfig, Configuration, Limits, Participant, Place};

use super::roles::{INCARNATION, configuration};
use super::tasks::Tasks;
use super::workload::Workload;
use crate::datacenter::{Cluster, Member};
use crate::{BenchError, Trial};

/// Virtual time between two looks, and the limit for loading.
const LOADING: (u64, u64) = (1_000_000, 20_000_000_000);
/// Links of Connect-IB, which has two ports of 56 Gbit/s.
const GBIT_PER_S: u32 = 100;

/// A node.
pub(super) struct Node<W: Workload> {
    pub place: Place,
    pub member: Member,
    pub participant: Rc<RefCell<Participant>>,
    pub client: Client<SimTransport>,
    pub tasks: Rc<Tasks<W>>,
}

/// A cluster, one core a node, with its items.
pub(super) struct Nodes<W: Workload> {
    pub cluster: Cluster,
    pub configuration: Rc<Configuration>,
    pub all: Vec<Node<W>>,
    /// CPU time of each request that a participant handles, in nanoseconds. It is charged from [`Nodes::charge`] on.
    charge: Rc<Cell<u64>>,
}

impl<W: Workload> Nodes<W> {
    /// Starts nodes, and loads the items.
    pub fn start(
        trial: Trial<'_>,
        nodes: u32,
        replicas: usize,
        cost: CostModel,
        workload: &W,
    ) -> Result<Nodes<W>, BenchError> {
        let topology = Topology::one_switch(nodes, GBIT_PER_S);
        let mut cluster = Cluster::of_trial(trial, &topology, cost)?;
        let configuration =
            Rc::new(configuration(|node| Ok(Datacenter::addr(node - 1, 0)), nodes, replicas, workload.tables())?);
        let (charge, mut all) = (Rc::<Cell<u64>>::default(), Vec::new());
        for number in 1..=nodes {
            let config = EndpointConfig {
                peer_timeout: Duration::from_millis(100),
                connect_timeout: Duration::from_millis(200),
                rto_initial: Duration::from_millis(1),
                ..EndpointConfig::default()
            };
            let member = cluster.join(number - 1, 0, config)?;
            let place = Place { node: number, core: 0 };
            let participant = Participant::new(place, INCARNATION, configuration.clone(), Limits::default());
            let participant = Rc::new(RefCell::new(participant));
            serve(&member, &participant, &charge)?;
            let config = ClientConfig { seed: number.into(), ..ClientConfig::default() };
            let client =
                Client::beside(&member.share_endpoint(), number.into(), configuration.clone(), config, &participant);
            all.push(Node { place, member, participant, client, tasks: Tasks::new(workload.clone()) });
        }
        let mut nodes = Nodes { cluster, configuration, all, charge };
        let count = nodes.all.len() as u64;
        for (first, node) in nodes.all.iter().enumerate() {
            node.tasks.load(node.member.endpoint(), &node.client, first as u64, count);
            // The endpoint may be idle.
            node.member.spawn(async { Ok(()) });
        }
        let all = &nodes.all;
        let is_loaded = || all.iter().all(|node| node.tasks.running() == 0 && node.client.open() == 0);
        trial.run_until(&mut nodes.cluster, LOADING, "items were not loaded", is_loaded)?;
        nodes.check()?;
        Ok(nodes)
    }

    /// Charges CPU time for each request from now on.
    pub fn charge(&self, nanos: u64) {
        self.charge.set(nanos);
    }

    /// Starts tasks on a node.
    pub fn work(&mut self, node: usize, tasks: usize) {
        let seeds: Vec<u64> = (0..tasks).map(|_| self.cluster.random().next()).collect();
        let Node { place, member, client, tasks, .. } = &self.all[node];
        let clock = member.clock();
        let home = (&*self.configuration, Some(*place));
        tasks.start(member.endpoint(), client, home, seeds, move || clock.now());
        member.spawn(async { Ok(()) });
    }

    /// Fails if a task has failed.
    pub fn check(&self) -> Result<(), BenchError> {
        self.all.iter().find_map(|node| node.tasks.take_failure()).map_or(Ok(()), Err)
    }

    /// Transactions so far.
    pub fn done(&self) -> u64 {
        self.all.iter().map(|node| node.tasks.tally().all()).sum()
    }
}

/// As [`dunlin_txn::serve`], with a cost.
fn serve(member: &Member, participant: &Rc<RefCell<Participant>>, charge: &Rc<Cell<u64>>) -> Result<(), BenchError> {
    for kind in Kind::ALL {
        let (participant, charge, clock, mut answer) =
            (participant.clone(), charge.clone(), member.clock(), Vec::new());
        member.endpoint().register(kind.req_type(), move |request| {
            clock.charge(charge.get());
            participant.borrow_mut().handle(kind, request.payload(), &mut answer);
            request.respond(&answer);
        })?;
    }
    Ok(())
}
