//! The tasks of one node: each runs transactions one after the other. The same for real nodes and simulated ones.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::Latencies;
use dunlin_net::Transport;
use dunlin_rpc::Endpoint;
use dunlin_txn::{Client, Configuration, Place, RetryPolicy};

use super::workload::{Done, Item, Workload};
use crate::BenchError;

/// Retries of a transaction. The experiments count each run that conflicts.
const RETRY: RetryPolicy =
    RetryPolicy { attempts_max: 10_000, pause: Duration::from_micros(5), pause_max: Duration::from_millis(1) };

/// What the tasks of a node have done so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    /// Transactions that found what they were to read or change, by kind.
    pub successful: Vec<u64>,
    /// Those that did not, by kind: they ended as they should, and wrote nothing.
    pub unsuccessful: Vec<u64>,
    /// What they added to the weight of all items.
    pub change: i64,
}

impl Tally {
    fn new(kinds: usize) -> Tally {
        Tally { successful: vec![0; kinds], unsuccessful: vec![0; kinds], change: 0 }
    }

    fn add(&mut self, done: Done) {
        let counts = if done.is_successful { &mut self.successful } else { &mut self.unsuccessful };
        counts[done.kind] += 1;
        self.change += done.change;
    }

    /// All transactions.
    pub fn all(&self) -> u64 {
        self.successful.iter().chain(&self.unsuccessful).sum()
    }
}

/// The tasks of one node.
pub(super) struct Tasks<W: Workload> {
    workload: W,
    tally: RefCell<Tally>,
    /// By kind; recorded while it is measured.
    latencies: RefCell<Vec<Latencies>>,
    is_recording: Cell<bool>,
    /// Transactions before the measured run.
    done_before: Cell<u64>,
    is_over: Cell<bool>,
    running: Cell<usize>,
    failure: RefCell<Option<BenchError>>,
}

impl<W: Workload> Tasks<W> {
    pub fn new(workload: W) -> Rc<Tasks<W>> {
        let kinds = workload.kinds().len();
        Rc::new(Tasks {
            workload,
            tally: RefCell::new(Tally::new(kinds)),
            latencies: RefCell::new(Vec::new()),
            is_recording: Cell::new(false),
            done_before: Cell::new(0),
            is_over: Cell::new(false),
            running: Cell::new(0),
            failure: RefCell::new(None),
        })
    }

    pub fn tally(&self) -> Tally {
        self.tally.borrow().clone()
    }

    /// Begins the measured run, and records latencies in it.
    pub fn record(&self, is_timed: bool) {
        self.done_before.set(self.tally.borrow().all());
        let kinds = if is_timed { self.workload.kinds() } else { Vec::new() };
        *self.latencies.borrow_mut() = kinds.iter().map(|_| Latencies::new()).collect();
        self.is_recording.set(is_timed);
    }

    /// Whether a transaction, and a latency, was measured.
    pub fn is_measured(&self, is_timed: bool) -> bool {
        let has_latency = self.latencies.borrow().iter().any(|latencies| latencies.count() > 0);
        self.tally.borrow().all() > self.done_before.get() && (has_latency || !is_timed)
    }

    /// Ends the recording.
    pub fn latencies(&self) -> Vec<Latencies> {
        self.is_recording.set(false);
        self.latencies.take()
    }

    /// Begins no more transactions.
    pub fn end(&self) {
        self.is_over.set(true);
    }

    /// Tasks that have not ended.
    pub fn running(&self) -> usize {
        self.running.get()
    }

    pub fn take_failure(&self) -> Option<BenchError> {
        self.failure.take()
    }

    fn begin(&self) {
        self.running.set(self.running.get() + 1);
    }

    fn finish(&self, result: Result<(), BenchError>) {
        self.running.set(self.running.get() - 1);
        if let Err(error) = result {
            self.failure.borrow_mut().get_or_insert(error);
        }
    }

    /// Loads the parts of the items that are this node's: the first is number `first`, and the next `step` further on.
    pub fn load<T: Transport + 'static>(
        self: &Rc<Self>,
        endpoint: &Endpoint<T>,
        client: &Client<T>,
        first: u64,
        step: u64,
    ) {
        let (tasks, client) = (self.clone(), client.clone());
        self.begin();
        endpoint.spawn(async move {
            let result = tasks.load_all(&client, first, step).await;
            tasks.finish(result);
        });
    }

    async fn load_all<T: Transport + 'static>(
        &self,
        client: &Client<T>,
        first: u64,
        step: u64,
    ) -> Result<(), BenchError> {
        let mut items: Vec<Item> = Vec::new();
        for part in (first..self.workload.parts()).step_by(step as usize) {
            items.clear();
            self.workload.load(part, &mut items);
            client
                .run(&RETRY, async |tx| {
                    for (table, key, value) in &items {
                        tx.put(*table, key, value.clone())?;
                    }
                    Ok(())
                })
                .await?;
        }
        Ok(())
    }

    /// Starts tasks. `clock` is read for latencies only.
    pub fn start<T: Transport + 'static>(
        self: &Rc<Self>,
        endpoint: &Endpoint<T>,
        client: &Client<T>,
        (configuration, home): (&Configuration, Option<Place>),
        seeds: impl IntoIterator<Item = u64>,
        clock: impl Fn() -> u64 + Clone + 'static,
    ) {
        for seed in seeds {
            let mut worker = self.workload.worker(configuration, home, seed);
            let (tasks, client, clock) = (self.clone(), client.clone(), clock.clone());
            self.begin();
            endpoint.spawn(async move {
                let result = tasks.work(&mut worker, &client, &clock).await;
                tasks.finish(result);
            });
        }
    }

    async fn work<T: Transport + 'static>(
        &self,
        worker: &mut W::Worker,
        client: &Client<T>,
        clock: &impl Fn() -> u64,
    ) -> Result<(), BenchError> {
        while !self.is_over.get() {
            let began = if self.is_recording.get() { clock() } else { 0 };
            let done = self.workload.run(worker, client, &RETRY).await?;
            self.tally.borrow_mut().add(done);
            if began > 0 && self.is_recording.get() {
                self.latencies.borrow_mut()[done.kind].record(clock() - began);
            }
        }
        Ok(())
    }
}
