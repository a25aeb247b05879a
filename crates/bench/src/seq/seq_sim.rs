//! `seq-sim`: Figure 4.16 of Kalia's thesis with its clients. 70 client threads on five machines ask 1 to 10 cores of a
//! sequencer, which share a counter.
//!
//! First, the CPU time of a packet is measured on this machine over shared memory, of RPC by [`calibrate`] and of Spec-S0
//! in the same way: a server and a client take turns on one thread, and a quarter of the time of both counts for each
//! packet sent or received. Then the same code runs on simulated hosts, which are charged that time. The network is 100 Gbit/s. The simulator models neither contention for the counter's cache line nor limits
//! of PCIe and of a NIC's processors, which bound the paper's rates from six cores on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_lab::LabError;
use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::EndpointConfig;
use dunlin_seq::direct::{DirectClient, DirectConfig, DirectServer, DirectServerConfig};
use dunlin_seq::{Batching, Client, ClientConfig, Counter, SeqService};
use dunlin_serve::channel::Turning;
use dunlin_sim::host::BurstTime;
use dunlin_sim::{CostModel, Datacenter, Next, Topology};

use crate::datacenter::{Cluster, calibrate};
use crate::{BenchError, Lab, Trial};

/// As in the thesis.
const CLIENTS: u32 = 70;
const MACHINES: u32 = 5;
const CORES: [u16; 6] = [1, 2, 4, 6, 8, 10];
/// Calls in flight of each client.
const WINDOW: usize = 8;
/// Places for all of them at one core.
const RX_DESCRIPTORS: usize = 1 << 14;
/// Measured virtual time for each second of the run length, and its bounds.
const TIME: Duration = Duration::from_micros(200);
const TIME_MIN: u64 = 50_000;
const TIME_MAX: u64 = 1_000_000;
/// Time before it: sessions are opened, and servers introduce themselves. It is repeated until they have, which takes
/// longer with the costs of a program that is not optimized.
const SETTLING: u64 = 200_000;
const SETTLINGS_MAX: usize = 1_000;
/// Bursts whose times are measured, and measurements of each: the median counts.
const BURSTS: [u32; 4] = [1, 4, 16, CALLS_MAX as u32];
const CALLS_MAX: usize = 32;
const ROUNDS: usize = 2_001;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// RPC: one addition and one transmit burst for a receive burst.
    Rpc,
    /// Spec-S0: one addition and one transmit burst for each request.
    DirectEach,
    /// Spec-S0: one of each for a receive burst.
    Direct,
}

impl Step {
    const ALL: [Step; 3] = [Step::Rpc, Step::DirectEach, Step::Direct];

    fn name(self) -> &'static str {
        match self {
            Step::Rpc => "RPC, an addition for each burst",
            Step::DirectEach => "Spec-S0, an addition and a burst for each answer",
            Step::Direct => "Spec-S0",
        }
    }
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let name = format!("shm:seq-sim-{}", std::process::id());
    let (rpc, direct) = (calibrate(&name.parse()?)?, calibrate_direct(&name.parse()?)?);
    let time = lab.virtual_time(TIME).clamp(TIME_MIN, TIME_MAX);
    lab.expect_simulations(Step::ALL.len() * CORES.len());
    for step in Step::ALL {
        let cost = if step == Step::Rpc { rpc } else { direct };
        for cores in CORES {
            let case = format!("{}, {cores} {}", step.name(), if cores == 1 { "core" } else { "cores" });
            let rates = lab.simulate(&case, |trial| measure(trial, step, cores, cost, time))?;
            lab.push(RowBuilder::of_seeds(&case, Metric::Rate, &rates)?);
        }
    }
    let cost = |cost: &CostModel| {
        let CostModel { rx_burst_ns, rx_packet_ns, tx_burst_ns, tx_packet_ns, .. } = cost;
        format!("received {rx_burst_ns} + {rx_packet_ns} each, sent {tx_burst_ns} + {tx_packet_ns} each")
    };
    lab.note(format!(
        "CPU time of a burst on this machine over shared memory, in nanoseconds, client and server together, a quarter \
         counted for each packet that one of them sends or receives. RPC: {}. Spec-S0: {}. That of RPC includes a task \
         for each call, as its clients here have, and no counter. So the server is charged like a client: by RPC, where \
         a client's call costs more than its handler, one server core has less than it would, and the step to Spec-S0 \
         is too large. All was on one thread: nothing is charged for lines that go from one core to another.",
        cost(&rpc),
        cost(&direct)
    ));
    lab.note(
        "Open: atomics of a NIC (2.24 M/s in the thesis), which need the software NIC; the peaks of several cores (97.2 M/s, and 122 M/s by Spec-S0), which are bound by what the simulator does not have; the thesis' first \
         step (7.0 M/s, peak 26 M/s), since RPC hands over the answers to a receive burst together in any case; and several send queues of one core \
         (27.4 M/s), which the simulated NIC does not model.",
    );
    Ok(())
}

/// Numbers per second of all clients.
fn measure(trial: Trial<'_>, step: Step, cores: u16, cost: CostModel, time: u64) -> Result<f64, BenchError> {
    let mut topology = Topology::one_switch(1 + MACHINES, 100);
    topology.nic.rx_descriptors = RX_DESCRIPTORS;
    let mut cluster = Cluster::of_trial(trial, &topology, cost)?;
    let counter = Arc::new(Counter::starting_at(0)?);
    let tally = Rc::new(Tally::default());
    match step {
        Step::Rpc => start_rpc(&mut cluster, cores, &counter, &tally)?,
        Step::DirectEach => start_direct(&mut cluster, cores, Batching::Single, &counter, &tally)?,
        Step::Direct => start_direct(&mut cluster, cores, Batching::Bursts, &counter, &tally)?,
    }
    trial.run_for(&mut cluster, SETTLING)?;
    let has_begun = |tally: &Tally| tally.numbers.get() >= u64::from(CLIENTS) || tally.failure.borrow().is_some();
    for _ in 0..SETTLINGS_MAX {
        if has_begun(&tally) {
            break;
        }
        trial.run_for(&mut cluster, SETTLING)?;
    }
    let (before, mut measured) = (tally.numbers.get(), 0);
    // Once, unless the costs are those of a program that is not optimized: then the least time is too short for a number.
    while measured == 0 || (tally.numbers.get() == before && measured < SETTLINGS_MAX as u64 * time) {
        trial.run_for(&mut cluster, time)?;
        measured += time;
    }
    let numbers = tally.numbers.get() - before;
    // Tasks end, so that they do not keep their endpoints.
    tally.is_over.set(true);
    trial.run_for(&mut cluster, SETTLING)?;
    match tally.failure.take() {
        Some(error) => Err(error),
        None if numbers == 0 => Err(LabError::NoSamples { what: "a simulated sequencer" }.into()),
        None => Ok(numbers as f64 * 1e9 / measured as f64),
    }
}

#[derive(Default)]
struct Tally {
    numbers: Cell<u64>,
    is_over: Cell<bool>,
    failure: RefCell<Option<BenchError>>,
}

impl Tally {
    fn count<E: std::fmt::Display>(&self, number: Result<u64, E>) {
        match number {
            Ok(_) => self.numbers.set(self.numbers.get() + 1),
            Err(why) => drop(self.failure.borrow_mut().get_or_insert(BenchError::Sequencer(why.to_string()))),
        }
    }
}

/// The hosts and threads of the clients: the servers are on host 0.
fn clients() -> impl Iterator<Item = (u32, u16, u32)> {
    (0..CLIENTS).map(|client| (1 + client % MACHINES, (client / MACHINES) as u16, client))
}

fn start_direct(
    cluster: &mut Cluster,
    cores: u16,
    batching: Batching,
    counter: &Arc<Counter>,
    tally: &Rc<Tally>,
) -> Result<(), BenchError> {
    for core in 0..cores {
        let transport = cluster.datacenter().bind(0, core)?;
        let config =
            DirectServerConfig { incarnation: Some(1 + u32::from(core)), batching, ..DirectServerConfig::default() };
        let mut server = DirectServer::new(vec![transport], counter.clone(), config)?;
        cluster.datacenter().spawn(0, core, move || {
            while server.turn() > 0 {}
            Next::OnPacket { or_at: None }
        })?;
    }
    for (host, thread, client) in clients() {
        let transport = cluster.datacenter().bind(host, thread)?;
        let server = Datacenter::addr(0, (client % u32::from(cores)) as u16);
        let first_tag = Some(cluster.random().next());
        let config = DirectConfig { calls_max: WINDOW, first_tag, ..DirectConfig::default() };
        let mut client = DirectClient::new(transport, vec![server], config)?;
        let tally = tally.clone();
        cluster.datacenter().spawn(host, thread, move || {
            loop {
                while !tally.is_over.get() && client.ask(0).is_ok() {}
                if client.poll(|_, number| tally.count(number)) == 0 {
                    return Next::OnPacket { or_at: client.next_due() };
                }
            }
        })?;
    }
    Ok(())
}

fn start_rpc(cluster: &mut Cluster, cores: u16, counter: &Arc<Counter>, tally: &Rc<Tally>) -> Result<(), BenchError> {
    let config = EndpointConfig { credits: WINDOW as u16, reverse_credits: 0, ..EndpointConfig::default() };
    let mut servers = Vec::new();
    for core in 0..cores {
        let server = cluster.join(0, core, config.clone())?;
        SeqService::register(server.endpoint(), counter.clone(), Batching::Bursts)?;
        servers.push(server.addr().clone());
    }
    for (host, thread, client) in clients() {
        let member = cluster.join(host, thread, config.clone())?;
        let server = servers[client as usize % servers.len()].clone();
        let config = ClientConfig {
            batches_max: WINDOW,
            callers_per_batch: 1,
            turning: Turning::Always,
            ..ClientConfig::default()
        };
        let client = Client::new(&member.share_endpoint(), vec![server], config);
        for _ in 0..WINDOW {
            let (client, tally) = (client.clone(), tally.clone());
            member.spawn(async move {
                while !tally.is_over.get() {
                    tally.count(client.next().await);
                }
                Ok(())
            });
        }
    }
    Ok(())
}

/// The costs of Spec-S0 over shared memory, measured as [`calibrate`] does it for RPC: all work at both ends, from the
/// first call of a burst to the last number.
fn calibrate_direct(at: &Addr) -> Result<CostModel, BenchError> {
    let queues = vec![AnyTransport::bind(at)?];
    let mut server = DirectServer::new(queues, Arc::new(Counter::starting_at(0)?), DirectServerConfig::default())?;
    let config = DirectConfig { calls_max: CALLS_MAX, ..DirectConfig::default() };
    let mut client = DirectClient::new(AnyTransport::for_peer(at)?, vec![at.clone()], config)?;
    let poll = median(|| Ok(timed(|| Ok(server.turn()))?.0))?;
    let mut bursts = Vec::new();
    for packets in BURSTS {
        let round = median(|| {
            let (nanos, failed) = timed(|| {
                (0..packets).try_for_each(|token| client.ask(token.into()))?;
                let mut failed = None;
                while client.in_progress() > 0 {
                    client.poll(|_, number| failed = number.err().or(failed.take()));
                    server.turn();
                }
                Ok(failed)
            })?;
            failed.map_or(Ok(nanos), |error| Err(error.into()))
        })?;
        let bytes = dunlin_seq::direct::packet::SHORT_BYTES as u32;
        // Each packet is sent and received once in each direction.
        bursts.push(BurstTime { packets, bytes, nanos: round / 4.0 });
    }
    Ok(CostModel::fit(poll, &bursts, &bursts)?)
}

/// How long `work` took, in nanoseconds, and its result.
fn timed<R>(work: impl FnOnce() -> Result<R, BenchError>) -> Result<(f64, R), BenchError> {
    let start = Instant::now();
    let result = work()?;
    Ok((start.elapsed().as_nanos() as f64, result))
}

fn median(mut measure: impl FnMut() -> Result<f64, BenchError>) -> Result<f64, BenchError> {
    let mut times = (0..ROUNDS).map(|_| measure()).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_s0_has_costs() {
        let model = calibrate_direct(&format!("shm:test-seq-sim-{}", std::process::id()).parse().unwrap()).unwrap();
        assert!(model.rx_packet_ns + model.rx_burst_ns > 0, "{model:?}");
    }
}
