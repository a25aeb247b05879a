//! One run: requests arrive, their operations wait and run, and the last answer determines the latency.
//!
//! All operations cross the network in the same time, so servers see them in the order of sending. The run therefore
//! lets them arrive when they are sent, and adds both ways to every latency.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::cluster::{Chooser, Placement};
use super::load::Load;
use super::outcome::{Correlation, Latencies};
use super::{Contender, Costs, Outcome, Setting, SettingError};
use crate::{Opsets, Policy, RequestQueue, Tag, Told};

/// Cost of an operation of mean service time, for requesters that know service times.
const MEAN_COST: u64 = 64;

/// Simulates a cluster under its load.
///
/// # Errors
/// [`SettingError`].
pub fn simulate(setting: &Setting, contender: &Contender) -> Result<Outcome, SettingError> {
    observe(setting, contender, |_| {})
}

/// An operation that starts to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started {
    /// Its request, numbered in order of arrival.
    pub request: u32,
    /// When its request was sent.
    pub sent: u64,
    pub server: u32,
    pub at: u64,
    pub service: u32,
}

/// As [`simulate`], and reports every operation that starts to run, in order of time.
pub(super) fn observe(
    setting: &Setting,
    contender: &Contender,
    observer: impl FnMut(Started),
) -> Result<Outcome, SettingError> {
    setting.validate()?;
    let mut run = Run::new(setting, contender, observer);
    run.finish_all();
    Ok(run.outcome())
}

struct Run<'a, O> {
    setting: &'a Setting,
    load: Load,
    placement: Placement,
    chooser: Chooser,
    policy: Policy,
    costs: Costs,
    is_oracle: bool,
    observer: O,
    servers: Vec<Server>,
    /// Running operations: end, server, request, and duration.
    running: BinaryHeap<Reverse<(u64, u32, u32, u32)>>,
    requests: Requests,
    multiget: Opsets,
    /// Operations of the request being sent.
    ops: Vec<Sent>,
    /// For these, the server of each opset, if one is chosen for the whole opset.
    chosen: Vec<u32>,
    measured: Measured,
    /// When the last request came.
    end: Option<u64>,
}

struct Server {
    line: Line,
    free: u32,
    /// Busy time until the last request came.
    busy_time: u64,
}

enum Line {
    Queue(Box<RequestQueue<Op>>),
    /// Scanned for the request with the least service left.
    ShortestRemaining(Vec<Op>),
}

#[derive(Debug, Clone, Copy)]
struct Op {
    request: u32,
    service: u32,
}

struct Sent {
    opset: usize,
    server: u32,
    service: u32,
    cost: u32,
}

/// Incomplete requests, in reusable slots.
#[derive(Default)]
struct Requests {
    places: Vec<Request>,
    free: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Request {
    number: u32,
    client: u32,
    sent: u64,
    size: u32,
    /// Operations without an answer.
    left: u32,
    /// Service that has not begun.
    remaining: u64,
}

struct Measured {
    requests: Range<u32>,
    latencies: Vec<u64>,
    correlation: Correlation,
    operations: u64,
}

impl<'a, O: FnMut(Started)> Run<'a, O> {
    fn new(setting: &'a Setting, contender: &Contender, observer: O) -> Self {
        let queue = contender.queue();
        let line = || match contender {
            Contender::ShortestRemaining => Line::ShortestRemaining(Vec::new()),
            _ => Line::Queue(Box::new(RequestQueue::new(&queue).expect("queues of contenders are valid"))),
        };
        let server = || Server { line: line(), free: setting.slots, busy_time: 0 };
        let measured = setting.measured();
        Run {
            setting,
            load: Load::new(setting),
            placement: Placement::new(setting),
            chooser: Chooser::new(setting),
            policy: contender.policy(setting.slots),
            costs: contender.costs(),
            is_oracle: matches!(contender, Contender::Oracle(_)),
            observer,
            servers: std::iter::repeat_with(server).take(setting.servers as usize).collect(),
            running: BinaryHeap::new(),
            requests: Requests::default(),
            multiget: Opsets::new(setting.partitions),
            ops: Vec::new(),
            chosen: Vec::new(),
            measured: Measured {
                requests: measured,
                latencies: Vec::with_capacity(setting.requests as usize),
                correlation: Correlation::default(),
                operations: 0,
            },
            end: None,
        }
    }

    /// Runs until every request is answered.
    fn finish_all(&mut self) {
        loop {
            let finish = self.running.peek().map(|Reverse((at, ..))| *at);
            match (self.load.next_at(), finish) {
                (Some(arrival), None) => self.arrive(arrival),
                (Some(arrival), Some(finish)) if arrival <= finish => self.arrive(arrival),
                (_, Some(finish)) => self.finish(finish),
                (None, None) => return,
            }
        }
    }

    /// Sends the next request of a client.
    fn arrive(&mut self, now: u64) {
        let client = self.load.random.below(u64::from(self.setting.clients)) as u32;
        let size = self.load.size();
        let remaining = self.split(client, size, now);
        let number = self.load.advance();
        self.rank();
        let request = self.requests.add(Request { number, client, sent: now, size, left: size, remaining });
        for place in 0..self.ops.len() {
            let Sent { opset, server, service, cost } = self.ops[place];
            let tag = Tag { rank: self.multiget.as_slice()[opset].rank, cost, client: client.into() };
            self.deliver(now, server, tag, Op { request, service });
        }
        if self.load.next_at().is_none() {
            self.stop_counting(now);
        }
    }

    /// Ends the load: busy time from now on does not count.
    fn stop_counting(&mut self, now: u64) {
        self.end = Some(now);
        for Reverse((end, server, ..)) in &self.running {
            self.servers[*server as usize].busy_time -= end - now;
        }
    }

    /// Draws the operations of a request and their servers, and returns the sum of their service times.
    fn split(&mut self, client: u32, size: u32, now: u64) -> u64 {
        self.multiget.clear();
        self.ops.clear();
        self.chosen.clear();
        let mut total = 0;
        for place in 0..size {
            let partition = self.placement.partition(self.load.key(place));
            let mean = self.setting.service;
            let service = self.setting.law.draw(&mut self.load.random) * mean as f64;
            // At least a nanosecond, at most about four seconds.
            let service = service.clamp(1.0, f64::from(u32::MAX)) as u32;
            let cost = match self.costs {
                Costs::Count => 1,
                Costs::ServiceTime => u32::try_from(u64::from(service) * MEAN_COST / mean).unwrap_or(u32::MAX),
            };
            let opset = self.multiget.add(partition, cost);
            let server = match self.chosen.get(opset) {
                Some(server) => *server,
                None => {
                    let replicas = self.placement.of(partition);
                    let server = self.chooser.choose(client, partition, replicas, now);
                    if self.chooser.is_per_opset() {
                        self.chosen.push(server);
                    }
                    server
                }
            };
            self.ops.push(Sent { opset, server, service, cost });
            total += u64::from(service);
        }
        total
    }

    fn rank(&mut self) {
        if self.is_oracle {
            let mut backlogs = vec![0; self.multiget.as_slice().len()];
            for op in &self.ops {
                let backlog = self.servers[op.server as usize].backlog(self.setting.slots);
                backlogs[op.opset] = backlog.max(backlogs[op.opset]);
            }
            backlogs.into_iter().enumerate().for_each(|(opset, backlog)| self.multiget.add_cost(opset, backlog));
        }
        self.multiget.rank(&self.policy);
    }

    /// Delivers an operation to its server.
    fn deliver(&mut self, now: u64, server: u32, tag: Tag, op: Op) {
        let state = &mut self.servers[server as usize];
        // A server with a free slot has an empty queue.
        if state.free > 0 {
            self.start(now, server, op);
            return;
        }
        match &mut state.line {
            Line::Queue(queue) => _ = queue.push(tag, op).expect("the queue has no limit"),
            Line::ShortestRemaining(ops) => ops.push(op),
        }
    }

    fn start(&mut self, now: u64, server: u32, op: Op) {
        let state = &mut self.servers[server as usize];
        state.free -= 1;
        if self.end.is_none() {
            state.busy_time += u64::from(op.service);
        }
        let request = &mut self.requests.places[op.request as usize];
        request.remaining -= u64::from(op.service);
        let Request { number, sent, .. } = *request;
        (self.observer)(Started { request: number, sent, server, at: now, service: op.service });
        self.running.push(Reverse((now + u64::from(op.service), server, op.request, op.service)));
    }

    /// Ends the operation that is due, and lets its server take the next one.
    fn finish(&mut self, now: u64) {
        let Some(Reverse((_, server, place, service))) = self.running.pop() else { return };
        let request = &mut self.requests.places[place as usize];
        request.left -= 1;
        let request = *request;
        let known_at = now + 2 * self.setting.network;
        let told = Told {
            response: (known_at - request.sent) as f64,
            service: f64::from(service),
            backlog: self.servers[server as usize].backlog(self.setting.slots) as f64,
        };
        self.chooser.answered(request.client, server, known_at, told);
        self.measured.operations += 1;
        if request.left == 0 {
            self.requests.free.push(place);
            self.measured.complete(&request, now - request.sent + 2 * self.setting.network);
        }
        let state = &mut self.servers[server as usize];
        state.free += 1;
        if let Some(op) = state.line.pop(&self.requests) {
            self.start(now, server, op);
        }
    }

    fn outcome(self) -> Outcome {
        let capacity = f64::from(self.setting.slots) * self.end.unwrap_or(0).max(1) as f64;
        let busy: Vec<f64> = self.servers.iter().map(|server| server.busy_time as f64 / capacity).collect();
        Outcome {
            latencies: Latencies::new(self.measured.latencies),
            correlation: self.measured.correlation.coefficient(),
            utilization: busy.iter().sum::<f64>() / busy.len() as f64,
            hottest: busy.into_iter().fold(0.0, f64::max),
            operations: self.measured.operations,
        }
    }
}

impl Server {
    /// Operations that wait or run.
    fn backlog(&self, slots: u32) -> u64 {
        let waiting = match &self.line {
            Line::Queue(queue) => queue.len(),
            Line::ShortestRemaining(ops) => ops.len(),
        };
        waiting as u64 + u64::from(slots - self.free)
    }
}

impl Line {
    fn pop(&mut self, requests: &Requests) -> Option<Op> {
        match self {
            Line::Queue(queue) => queue.pop(),
            Line::ShortestRemaining(ops) => {
                let remaining = |op: &Op| {
                    let request = &requests.places[op.request as usize];
                    (request.remaining, request.number)
                };
                let (least, _) = ops.iter().enumerate().min_by_key(|(_, op)| remaining(op))?;
                Some(ops.swap_remove(least))
            }
        }
    }
}

impl Requests {
    fn add(&mut self, request: Request) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = request;
                place
            }
            None => {
                self.places.push(request);
                self.places.len() as u32 - 1
            }
        }
    }
}

impl Measured {
    fn complete(&mut self, request: &Request, latency: u64) {
        if self.requests.contains(&request.number) {
            self.latencies.push(latency);
            self.correlation.add(f64::from(request.size), latency as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{Arrivals, Law, ReplicaChoice};
    use super::*;

    /// For each request, when it was sent, and the service times of its operations on each server, in order of length.
    type Seen = BTreeMap<u32, (u64, Vec<(u32, u32)>)>;

    fn seen(setting: &Setting, contender: &Contender) -> Seen {
        let mut seen = Seen::new();
        observe(setting, contender, |op| {
            let (sent, services) = seen.entry(op.request).or_insert((op.sent, Vec::new()));
            assert_eq!(*sent, op.sent);
            services.push((op.service, op.server));
        })
        .unwrap();
        seen.values_mut().for_each(|(_, services)| services.sort_unstable());
        seen
    }

    #[test]
    fn arrivals_are_those_of_a_simulation() {
        let setting = Setting { requests: 2_000, law: Law::Constant, ..Setting::default() };
        let simulated = seen(&setting, &Contender::of(Policy::Fifo));
        let drawn = Arrivals::new(&setting).unwrap();
        let drawn: Vec<(u64, usize)> = drawn.map(|arrival| (arrival.at, arrival.keys.len())).collect();
        let simulated: Vec<(u64, usize)> = simulated.values().map(|(sent, services)| (*sent, services.len())).collect();
        assert_eq!(drawn, simulated);
    }

    #[test]
    fn a_seed_is_the_same_load_for_every_contender() {
        for choice in [ReplicaChoice::Drawn, ReplicaChoice::DrawnPerOpset, ReplicaChoice::RoundRobin] {
            let setting = Setting { requests: 5_000, load: 0.9, choice, ..Setting::default() };
            let fifo = seen(&setting, &Contender::of(Policy::Fifo));
            let levels = crate::Levels::default();
            for contender in [Contender::shipped(), Contender::ShortestRemaining, Contender::Oracle(levels)] {
                assert!(seen(&setting, &contender) == fifo, "{contender:?}: {setting:?}");
            }
            assert!(seen(&Setting { seed: 2, ..setting.clone() }, &Contender::shipped()) != fifo, "{setting:?}");
        }
    }
}
