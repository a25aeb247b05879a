//! `index-sim`: section 7.2 of the eRPC paper with its threads and clients. 64 client threads on eight hosts, with two
//! requests in flight each, ask a host with 14 dispatch threads, which look items up, and two workers, which add up the
//! values of 128 items; or with 16 dispatch threads that do both.
//!
//! First, costs are measured on this machine: the CPU time of a packet by [`calibrate`], that of look-ups in bursts and
//! of sums in an index of a million items. Then the same RPC code runs on simulated hosts, with a real index, and is
//! charged that time. Not modelled: that threads share caches and memory, and the hand-over to a worker.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use dunlin_index::wire::{Code, LONG_SCAN, OPERATE, Operation};
use dunlin_index::{Index, Order, Range, pin};
use dunlin_lab::measure::{Latencies, Percentiles};
use dunlin_lab::report::Metric;
use dunlin_lab::{Cases, Figure, LabError};
use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_rpc::{ApplicationError, EndpointConfig, RequestBurst, Session};
use dunlin_sim::{CostModel, Next, Topology};

use super::roles::item_key;
use crate::datacenter::{Cluster, Member, calibrate};
use crate::{BenchError, Lab, Trial};

/// As in the paper.
const ITEMS: u64 = 1_000_000;
const SUMMED: usize = 128;
const CLIENTS: u32 = 64;
const CLIENT_HOSTS: u32 = 8;
const IN_FLIGHT: usize = 2;
/// One request in this many is a sum.
const SUM_EVERY: u64 = 100;
/// The server has 16 hyper-threads.
const DISPATCHERS: u16 = 14;
const WORKERS: u16 = 2;
/// Of each link, in Gbit/s: FDR InfiniBand.
const GBITS: u32 = 56;
const RX_DESCRIPTORS: usize = 1 << 14;
/// Measured virtual time for each second of the run length, and its bounds.
const TIME: Duration = Duration::from_millis(2);
const TIME_MIN: u64 = 100_000;
const TIME_MAX: u64 = 10_000_000;
/// Time before it: sessions are opened. It is repeated until all clients have had answers.
const SETTLING: u64 = 200_000;
const SETTLINGS_MAX: usize = 1_000;
/// Bursts whose times are measured, and measurements of each: the median counts.
const BURSTS: [usize; 5] = [1, 2, 4, 16, 32];
const ROUNDS: usize = 2_001;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    dispatchers: u16,
    workers: u16,
    clients: u32,
    in_flight: usize,
    has_sums: bool,
}

const SHAPES: [Shape; 4] = [
    Shape { name: "14 dispatch threads and 2 workers, 64 clients", ..PAPER },
    Shape {
        name: "16 dispatch threads, scans in them, 64 clients",
        dispatchers: DISPATCHERS + WORKERS,
        workers: 0,
        ..PAPER
    },
    Shape { name: "14 dispatch threads, without scans, 64 clients", has_sums: false, ..PAPER },
    Shape {
        name: "14 dispatch threads and 2 workers, one GET at a time",
        clients: 1,
        in_flight: 1,
        has_sums: false,
        ..PAPER
    },
];
const PAPER: Shape = Shape {
    name: "",
    dispatchers: DISPATCHERS,
    workers: WORKERS,
    clients: CLIENTS,
    in_flight: IN_FLIGHT,
    has_sums: true,
};

/// Look-ups per second, and their latencies.
type Seen = (f64, Percentiles);

const FIGURES: [Figure<Shape, Seen>; 3] = [
    Figure::new(Metric::Operations, |_, (rate, _)| *rate),
    Figure::new(Metric::LatencyP50, |_, (_, latency)| latency.p50),
    Figure::new(Metric::LatencyP99, |_, (_, latency)| latency.p99),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cost = calibrate(&format!("shm:index-sim-{}", std::process::id()).parse()?)?;
    let items = lab.items(ITEMS);
    let index = Rc::new(filled(items)?);
    let costs = Costs::measure(&index, items);
    let time = lab.virtual_time(TIME).clamp(TIME_MIN, TIME_MAX);
    let cases = Cases::along("threads", SHAPES, |shape| shape.name);
    lab.simulate_each(&cases, &FIGURES, |trial, shape| measure(trial, *shape, &index, items, &costs, cost, time))?;
    let CostModel { rx_burst_ns, rx_packet_ns, tx_burst_ns, tx_packet_ns, .. } = cost;
    let bursts = BURSTS.map(|len| format!("{} ns for {len}", costs.of_burst(len)));
    lab.note(format!(
        "Measured on this machine: CPU time of packets over shared memory, half of it counted as sent and half as \
         received: {rx_burst_ns} ns a burst and {rx_packet_ns} ns a packet received, {tx_burst_ns} and {tx_packet_ns} ns \
         sent. Look-ups of {items} items in bursts: {}. A sum of {SUMMED} values: {} ns.",
        bursts.join(", "),
        costs.sum
    ));
    lab.note(
        "The paper's server has 8 cores with two hyper-threads each, whose threads share caches and memory; these \
         threads share nothing. Its Masstree and its processor are others, too: compare the effect of workers on the \
         99th percentile. The paper does not say how many dispatch threads its 26 us without workers have: here all 16.",
    );
    Ok(())
}

fn filled(items: u64) -> Result<Index, BenchError> {
    let full = |why: dunlin_index::Refused| BenchError::OtherSystem { system: "ordered index", why: why.to_string() };
    let index = Index::new(usize::MAX).map_err(full)?;
    for number in 0..items {
        index.insert(&item_key(number), &number.to_le_bytes(), &pin()).map_err(full)?;
    }
    Ok(index)
}

/// The CPU time of operations on the index, in nanoseconds.
#[derive(Debug)]
struct Costs {
    /// By the length of a burst, as far as measured.
    bursts: Vec<(usize, u64)>,
    sum: u64,
}

impl Costs {
    fn measure(index: &Index, items: u64) -> Costs {
        let mut random = Random::new(7);
        let mut keys = [[0; 8]; 32];
        let mut timed = |len: usize, work: &mut dyn FnMut(&[[u8; 8]])| {
            let mut times: Vec<u64> = (0..ROUNDS)
                .map(|_| {
                    keys[..len].iter_mut().for_each(|key| *key = item_key(random.below(items)));
                    let start = Instant::now();
                    work(&keys[..len]);
                    start.elapsed().as_nanos() as u64
                })
                .collect();
            times.sort_unstable();
            times[ROUNDS / 2]
        };
        // A clock's own time would count as a tenth of a look-up.
        let idle = timed(1, &mut |keys| _ = black_box(keys));
        let mut look_up = |keys: &[[u8; 8]]| {
            let keys: ArrayVec<&[u8], 32> = keys.iter().map(|key| &key[..]).collect();
            let (guard, mut values) = (pin(), [None; 32]);
            index.get_burst(&keys, &guard, &mut values[..keys.len()]);
            black_box(&values);
        };
        let bursts = BURSTS.map(|len| (len, timed(len, &mut look_up).saturating_sub(idle).max(1))).to_vec();
        let mut add = |keys: &[[u8; 8]]| _ = black_box(sum_from(index, &keys[0]));
        Costs { bursts, sum: timed(1, &mut add).saturating_sub(idle).max(1) }
    }

    /// The time of a burst of look-ups. Between the measured ones it is linear.
    fn of_burst(&self, len: usize) -> u64 {
        let at = self.bursts.partition_point(|(measured, _)| *measured < len);
        let last = self.bursts.len() - 1;
        let ((low, from), (high, to)) = (self.bursts[at.clamp(1, last) - 1], self.bursts[at.clamp(1, last)]);
        let share = (len as f64 - low as f64) / (high - low) as f64;
        (from as f64 + share * (to as f64 - from as f64)).max(1.0) as u64
    }
}

/// The paper's scan: the sum of the values of 128 items from a key on.
fn sum_from(index: &Index, key: &[u8]) -> u64 {
    let mut sum = 0u64;
    index.scan(Range::from(key), Order::Ascending, SUMMED, &pin(), |_, value| {
        sum = sum.wrapping_add(value.try_into().map_or(0, u64::from_le_bytes));
    });
    sum
}

/// What clients have had.
#[derive(Default)]
struct Tally {
    gets: Cell<u64>,
    latencies: RefCell<Latencies>,
    /// Clients that have had an answer.
    begun: Cell<u32>,
    is_measuring: Cell<bool>,
    is_over: Cell<bool>,
}

fn measure(
    trial: Trial<'_>,
    shape: Shape,
    index: &Rc<Index>,
    items: u64,
    costs: &Costs,
    cost: CostModel,
    time: u64,
) -> Result<Seen, BenchError> {
    let mut topology = Topology::one_switch(1 + CLIENT_HOSTS, GBITS);
    topology.nic.rx_descriptors = RX_DESCRIPTORS;
    let mut cluster = Cluster::of_trial(trial, &topology, cost)?;
    let queue = Rc::new(Jobs::default());
    let config = EndpointConfig { reverse_credits: 0, ..EndpointConfig::default() };
    let costs = Rc::new(Costs { bursts: costs.bursts.clone(), sum: costs.sum });
    let mut servers = Vec::new();
    for thread in 0..shape.dispatchers {
        let server = cluster.join(0, thread, config.clone())?;
        serve(&server, index, &costs, (shape.workers > 0).then_some(&queue))?;
        servers.push(server);
    }
    for worker in 0..shape.workers {
        start_worker(&mut cluster, shape.dispatchers + worker, index, &queue, costs.sum)?;
    }
    let tally = Rc::new(Tally::default());
    let mut clients = Vec::new();
    for client in 0..shape.clients {
        let member = cluster.join(1 + client % CLIENT_HOSTS, (client / CLIENT_HOSTS) as u16, config.clone())?;
        let opened = Rc::new(RefCell::new(Vec::new()));
        member.open_each(servers.iter().map(|server| server.addr().clone()).collect(), opened.clone());
        clients.push((member, opened));
    }
    trial.run_until(&mut cluster, (SETTLING, SETTLING * SETTLINGS_MAX as u64), "opening sessions", || {
        clients.iter().all(|(_, opened)| opened.borrow().len() == servers.len())
    })?;
    for (member, opened) in &clients {
        for _ in 0..shape.in_flight {
            let (sessions, random) = (opened.borrow().clone(), cluster.random());
            ask(member, sessions, random, items, shape.has_sums, tally.clone());
        }
    }
    let tasks = shape.clients * shape.in_flight as u32;
    trial.run_until(&mut cluster, (SETTLING, SETTLING * SETTLINGS_MAX as u64), "first answers", || {
        tally.begun.get() == tasks
    })?;
    tally.is_measuring.set(true);
    trial.run_for(&mut cluster, time)?;
    tally.is_measuring.set(false);
    // Tasks end, so that they do not keep their endpoints.
    tally.is_over.set(true);
    trial.run_for(&mut cluster, SETTLING)?;
    if tally.gets.get() == 0 {
        return Err(LabError::NoSamples { what: "a simulated index" }.into());
    }
    let latency = tally.latencies.borrow().percentiles()?;
    Ok((tally.gets.get() as f64 * 1e9 / time as f64, latency))
}

/// Registers the handlers of a dispatch thread. Without workers it adds up values itself.
fn serve(server: &Member, index: &Rc<Index>, costs: &Rc<Costs>, workers: Option<&Rc<Jobs>>) -> Result<(), BenchError> {
    let (clock, index_of_gets, costs_of_gets) = (server.clock(), index.clone(), costs.clone());
    server.endpoint().register_burst(OPERATE, move |burst: &mut RequestBurst<'_>| {
        clock.charge(costs_of_gets.of_burst(burst.len()));
        let guard = pin();
        for i in 0..burst.len() {
            let value = Operation::parse(burst.payload(i)).ok();
            let value = value.and_then(|operation| index_of_gets.get(operation.key(), &guard));
            match value {
                Some(value) => burst.respond(i, &value),
                None => burst.fail(i, Code::Malformed as u32, Code::Malformed.message()),
            }
        }
    })?;
    let (clock, index, sum) = (server.clock(), index.clone(), costs.sum);
    match workers {
        None => server.endpoint().register(LONG_SCAN, move |request| {
            clock.charge(sum);
            let answer = Operation::parse(request.payload()).map_or(0, |from| sum_from(&index, from.key()));
            request.respond(&answer.to_le_bytes());
        })?,
        Some(jobs) => {
            let jobs = jobs.clone();
            server.endpoint().register_async(LONG_SCAN, move |request| {
                let answer = Operation::parse(request.payload()).map(|from| jobs.push(from.key()));
                async move {
                    match answer {
                        Ok(answer) => Ok(answer.await.to_le_bytes().to_vec()),
                        Err(code) => Err(ApplicationError::new(code as u32, code.message())),
                    }
                }
            })?;
        }
    }
    Ok(())
}

/// Sums that wait for a worker.
#[derive(Default)]
struct Jobs {
    waiting: RefCell<VecDeque<Job>>,
    /// Of all workers.
    wakers: RefCell<Vec<dunlin_net::Waker>>,
}

struct Job {
    key: Vec<u8>,
    answer: Answer,
}

/// The future of a sum.
#[derive(Clone, Default)]
struct Answer(Rc<RefCell<(Option<u64>, Option<Waker>)>>);

impl Future for Answer {
    type Output = u64;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u64> {
        let mut state = self.0.borrow_mut();
        state.1 = Some(context.waker().clone());
        state.0.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Jobs {
    fn push(&self, key: &[u8]) -> Answer {
        let answer = Answer::default();
        self.waiting.borrow_mut().push_back(Job { key: key.to_vec(), answer: answer.clone() });
        self.wakers.borrow().iter().for_each(dunlin_net::Waker::wake);
        answer
    }
}

/// Starts a thread that does one job after the other. It answers when the time of the job is over.
fn start_worker(
    cluster: &mut Cluster,
    thread: u16,
    index: &Rc<Index>,
    jobs: &Rc<Jobs>,
    cost: u64,
) -> Result<(), BenchError> {
    let transport = cluster.datacenter().bind(0, thread)?;
    let clock = transport.clock();
    jobs.wakers.borrow_mut().push(transport.waker());
    let (index, jobs, mut current) = (index.clone(), jobs.clone(), None::<Job>);
    cluster.datacenter().spawn(0, thread, move || {
        // Keeps the thread's place on its host.
        let _ = &transport;
        if let Some(Job { key, answer }) = current.take() {
            let mut state = answer.0.borrow_mut();
            state.0 = Some(sum_from(&index, &key));
            state.1.iter().for_each(Waker::wake_by_ref);
        }
        current = jobs.waiting.borrow_mut().pop_front();
        if current.is_none() {
            return Next::OnPacket { or_at: None };
        }
        clock.charge(cost);
        Next::Soon
    })?;
    Ok(())
}

/// Asks random dispatch threads, one request after the other.
fn ask(member: &Member, sessions: Vec<Session>, mut random: Random, items: u64, has_sums: bool, tally: Rc<Tally>) {
    let clock = member.clock();
    member.spawn(async move {
        let mut is_first = true;
        while !tally.is_over.get() {
            let session = &sessions[random.below(sessions.len() as u64) as usize];
            let number = random.below(items);
            let is_sum = has_sums && random.below(SUM_EVERY) == 0;
            let (begun, req_type) = (clock.now(), if is_sum { LONG_SCAN } else { OPERATE });
            let request = Operation::Get(&item_key(number)).encode();
            let reply = session.call(req_type, request).await.map_err(|failure| failure.error)?;
            if !is_sum && reply.response[..] != number.to_le_bytes() {
                return Err(BenchError::WrongAnswers { wrong: 1, missing: 0, refused: 0 });
            }
            if tally.is_measuring.get() && !is_sum {
                tally.gets.set(tally.gets.get() + 1);
                tally.latencies.borrow_mut().record(clock.now() - begun);
            }
            if is_first {
                tally.begun.set(tally.begun.get() + 1);
                is_first = false;
            }
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_burst_is_between_those_measured() {
        let costs = Costs { bursts: vec![(1, 100), (4, 160), (16, 400)], sum: 1 };
        assert_eq!([1, 2, 4, 10, 16, 28].map(|len| costs.of_burst(len)), [100, 120, 160, 280, 400, 640]);
    }

    #[test]
    fn look_ups_and_sums_cost_time() {
        let index = filled(1000).unwrap();
        let costs = Costs::measure(&index, 1000);
        assert!(costs.bursts.iter().all(|(_, nanos)| *nanos > 0) && costs.sum > 0, "{costs:?}");
    }
}
