//! Clients of a cluster whose values are in tiers: they send multigets at the times of a Poisson process, whatever is
//! answered.
//!
//! They use the protocol of `dunlin_kv::KvCluster` with each server, and the policies of `dunlin-schedule` as the
//! simulator does: partitions and replicas are the simulator's, and each operation chooses its replica.

mod items;
mod links;
mod read;
mod seen;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::peer::{Control, Role};
use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_rpc::Endpoint;
use dunlin_schedule::simulator::{Arrivals, Placement, Setting};
use serde::{Deserialize, Serialize};

pub use seen::{MultigetFigures, Quantiles};

use crate::BenchError;
use crate::rein::cluster::{Access, Cluster};
use crate::rein::contenders::Policies;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};
use crate::workload::item::{fill_value, is_value, key};
use items::Items;
use links::{Counters, Links};
use read::Clients;
use seen::{PARTS, Seen, Sent, Used};

/// Values of each server that are stored at a time.
const FILLERS: usize = 8;
/// Reads of each server at a time, for its highest rate.
const PEAK_READS: usize = 32;

/// Stores the values of a cluster, then runs loads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Multigets {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The servers' addresses, in the order of their numbers.
    pub servers: Vec<String>,
    /// The cluster.
    pub cluster: Cluster,
    /// How long to read from all servers as fast as they can; zero to leave that out.
    pub peak: Duration,
    /// The loads, one after the other.
    pub loads: Vec<Load>,
}

/// A load.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Load {
    /// How multigets are scheduled.
    pub policies: Policies,
    /// Share of the servers' highest rate.
    pub load: f64,
    /// Measured multigets, by the setting of the simulator.
    pub requests: u32,
    /// The first multigets, which are not measured.
    pub warm_up: u32,
    /// Determines arrivals and keys.
    pub seed: u64,
    /// Interval of samples of the outstanding keys.
    pub sample: Duration,
}

/// The highest rate.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Peak {
    /// Values per second.
    pub values: f64,
    /// Of these, from the devices.
    pub reads: f64,
    /// Busy time of all processors, in percent.
    pub processors: f64,
}

/// The results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AllMultigetFigures {
    /// The highest rate.
    pub peak: Option<Peak>,
    /// Of each load.
    pub loads: Vec<MultigetFigures>,
}

impl Role for Multigets {
    const NAME: &'static str = "clients of a cluster with tiers";
    type Ready = ();
    type Output = AllMultigetFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<AllMultigetFigures, BenchError> {
        self.setup.on_transport(Side::Client, Drive { role: &self, control })
    }
}

struct Drive<'a> {
    role: &'a Multigets,
    control: &'a Control<Multigets>,
}

impl OnTransport for Drive<'_> {
    type Output = AllMultigetFigures;

    fn run<T: Transport + 'static>(self, transport: T) -> Result<AllMultigetFigures, BenchError> {
        let endpoint = Rc::new(Endpoint::new(transport, self.role.setup.endpoint())?);
        let links = Rc::new(Links::open(&endpoint, &self.role.servers)?);
        let cluster = &self.role.cluster;
        let setting = cluster.setting(1.0, 1, 0);
        let placement = Placement::new(&setting);
        let items = Rc::new(Items::new(&placement, setting.partitions, (cluster.items, cluster.access)));
        let stored = items.of_servers(&placement, self.role.servers.len());
        self.fill(&endpoint, &links, &stored)?;
        let has_peak = !self.role.peak.is_zero();
        let peak = has_peak.then(|| self.peak(&endpoint, &links, &stored)).transpose()?;
        let run = |(number, load)| self.load(&endpoint, &links, (&items, number), load);
        Ok(AllMultigetFigures { peak, loads: self.role.loads.iter().enumerate().map(run).collect::<Result<_, _>>()? })
    }
}

impl Drive<'_> {
    fn fill<T: Transport + 'static>(
        &self,
        endpoint: &Rc<Endpoint<T>>,
        links: &Rc<Links<T>>,
        stored: &[Vec<u64>],
    ) -> Result<(), BenchError> {
        let left = Rc::new(Cell::new(0));
        let failed = Rc::new(RefCell::new(None));
        for (server, items) in stored.iter().enumerate() {
            let items = Rc::new(RefCell::new(items.clone()));
            for _ in 0..FILLERS {
                let (links, items, left, failed) = (links.clone(), items.clone(), left.clone(), failed.clone());
                let mut value = vec![0; self.role.cluster.value_bytes];
                left.set(left.get() + 1);
                endpoint.spawn(async move {
                    let next = || items.borrow_mut().pop();
                    while let Some(number) = next() {
                        fill_value(number, &mut value);
                        let taken = links.take(server as u32);
                        if let Err(error) = taken.client().set(&key(number), &value).await {
                            failed.replace(Some(error));
                            break;
                        }
                    }
                    left.set(left.get() - 1);
                });
            }
        }
        endpoint.run_until(|| left.get() == 0 || self.control.stopping());
        failed.take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Reads single values from all servers as fast as they can.
    fn peak<T: Transport + 'static>(
        &self,
        endpoint: &Rc<Endpoint<T>>,
        links: &Rc<Links<T>>,
        stored: &[Vec<u64>],
    ) -> Result<Peak, BenchError> {
        let (is_over, left, values) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)), Rc::new(Cell::new(0u64)));
        let failed = Rc::new(RefCell::new(None));
        for (server, items) in stored.iter().enumerate() {
            let (items, turn) = (Rc::new(items.clone()), Rc::new(Cell::new(0)));
            for reader in 0..PEAK_READS {
                let (links, items, turn, failed) = (links.clone(), items.clone(), turn.clone(), failed.clone());
                let access = self.role.cluster.access;
                let (is_over, left, values) = (is_over.clone(), left.clone(), values.clone());
                let mut random = Random::new((server * PEAK_READS + reader) as u64);
                left.set(left.get() + 1);
                endpoint.spawn(async move {
                    while !is_over.get() {
                        // What was stored last is in memory.
                        let place = match access {
                            Access::InTurn => items.len() - 1 - turn.replace(turn.get() + 1) % items.len(),
                            Access::AtRandom => random.below(items.len() as u64) as usize,
                        };
                        let number = items[place];
                        let read = links.take(server as u32).client().get(&key(number)).await;
                        match read {
                            Ok(value) if value.as_ref().is_none_or(|value| is_value(number, value)) => {}
                            Ok(_) => break,
                            Err(error) => {
                                failed.replace(Some(error));
                                break;
                            }
                        }
                        values.set(values.get() + 1);
                    }
                    left.set(left.get() - 1);
                });
            }
        }
        let readers = left.get();
        let run = self.role.peak.as_nanos() as u64;
        let is_disturbed = || left.get() < readers || self.control.stopping();
        let until = |at: u64| endpoint.run_until(|| endpoint.loop_time() >= at || is_disturbed());
        // A fifth as warm-up.
        until(endpoint.now() + run / 5);
        let reads = || if is_disturbed() { Ok(0) } else { links.counters(endpoint).map(|counted| counted.reads) };
        let (reads_before, before, used, begun) = (reads()?, values.get(), Used::now()?, endpoint.now());
        until(begun + run);
        let reads = reads()?.saturating_sub(reads_before);
        let seconds = (endpoint.now() - begun) as f64 / 1e9;
        let (count, processors) = (values.get() - before, used.until(&Used::now()?));
        let is_wrong = left.get() < readers;
        is_over.set(true);
        endpoint.run_until(|| left.get() == 0 || self.control.stopping());
        match failed.take() {
            Some(error) => Err(BenchError::Kv(error)),
            None if is_wrong => Err(BenchError::WrongAnswers { wrong: 1, missing: 0, refused: 0 }),
            None if count == 0 => Err(BenchError::no_samples("the highest rate")),
            None => Ok(Peak { values: count as f64 / seconds, reads: reads as f64 / seconds, processors }),
        }
    }

    fn load<T: Transport + 'static>(
        &self,
        endpoint: &Rc<Endpoint<T>>,
        links: &Rc<Links<T>>,
        items: (&Rc<Items>, usize),
        load: &Load,
    ) -> Result<MultigetFigures, BenchError> {
        let setting = self.role.cluster.setting(load.load, load.requests, load.seed);
        let clients = Clients::new(endpoint, links, items, load.policies, &setting);
        links.waited_share();
        let before = links.counters(endpoint)?;
        let end: Rc<Cell<Option<Result<(), BenchError>>>> = Rc::default();
        let ending = end.clone();
        let generating = generate(clients.clone(), setting, *load);
        endpoint.spawn(async move { ending.set(Some(generating.await)) });
        let mut ended = None;
        endpoint.run_until(|| {
            ended = ended.take().or_else(|| end.take());
            let is_over = ended.as_ref().is_some_and(|ended| ended.is_err() || clients.open.get() == 0);
            is_over || clients.failed.borrow().is_some() || self.control.stopping()
        });
        // Answers of copies that lost the race.
        endpoint.run_until(|| {
            clients.outstanding.get() == 0 || clients.failed.borrow().is_some() || self.control.stopping()
        });
        ended.unwrap_or(Ok(()))?;
        if let Some(error) = clients.failed.take() {
            return Err(error.into());
        }
        let seen: Seen = clients.seen.take();
        let waited = links.waited_share();
        let after = links.counters(endpoint)?;
        let counted = Counters { reads: after.reads - before.reads, refused: after.refused - before.refused };
        seen.figures(waited, counted)
    }
}

/// Sends the multigets of a setting when they are due, until the last one that is measured is answered, or as many as
/// the simulator sends.
async fn generate<T: Transport + 'static>(
    clients: Rc<Clients<T>>,
    setting: Setting,
    load: Load,
) -> Result<(), BenchError> {
    let timers = clients.endpoint.timers();
    let (last, warm_up) = (setting.measured().end as usize, load.warm_up as usize);
    let counted = last.saturating_sub(warm_up).max(1);
    let arrivals = Arrivals::new(&setting)?;
    let begun = clients.clock.now();
    let mut next_sample = 0;
    for (number, arrival) in arrivals.enumerate() {
        let due = begun + arrival.at;
        // The event loop's time is older than the clock's, so that it may wake this too early.
        while let Some(left @ 1..) = due.checked_sub(clients.clock.now()) {
            timers.sleep(Duration::from_nanos(left)).await;
        }
        let counts = number.checked_sub(warm_up).filter(|_| number < last);
        let part = counts.map(|number| number * PARTS / counted);
        let sent = Sent { due, part };
        let now = clients.clock.now();
        let mut seen = clients.seen.borrow_mut();
        if counts == Some(0) {
            seen.measured.0 = due;
            seen.begin()?;
        }
        if number <= last {
            seen.measured.1 = due;
        }
        if number == last {
            seen.end()?;
        }
        if number >= last && seen.unanswered == 0 {
            break;
        }
        seen.sent(&sent, now, arrival.keys.len() as u64);
        if counts.is_some() && now >= next_sample {
            next_sample = now + load.sample.as_nanos() as u64;
            seen.outstanding.push(((now - begun) as f64 / 1e6, clients.outstanding.get() as f64));
        }
        drop(seen);
        clients.start(&arrival, sent);
    }
    clients.seen.borrow_mut().end()
}
