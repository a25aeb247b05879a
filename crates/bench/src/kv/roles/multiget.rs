//! Reads of many keys at once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_kv::client::{KvClient, KvError};
use dunlin_lab::measure::{Latencies, Percentiles};
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Clock, Transport};
use dunlin_rpc::Endpoint;
use serde::{Deserialize, Serialize};

use super::client::connect;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};
use crate::workload::item::{KEY_BYTES, is_value, key};
use crate::workload::{Numbers, Popularity};
use crate::{BenchError, WARM_UP_SHARE};

/// Keys in flight at a time, or one multi-get if it has more.
const KEYS_IN_FLIGHT: usize = 256;
/// Event-loop iterations between two readings of the clock.
const ITERATIONS_PER_LOOK: u32 = 16;

/// Requests uniform keys, several at a time, through the asynchronous client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MultiGetLoad {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Number of items.
    pub items: u64,
    /// Keys of each multi-get.
    pub keys: usize,
    /// Length of the measured run.
    pub run: Duration,
}

/// The result.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct MultiGetFigures {
    /// Keys answered per second.
    pub keys_per_second: f64,
    /// Latency of a whole multi-get.
    pub latency: Percentiles,
}

impl Role for MultiGetLoad {
    const NAME: &'static str = "load of multi-gets";
    type Ready = ();
    type Output = MultiGetFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<MultiGetFigures, BenchError> {
        self.setup.on_transport(Side::Client, Drive { load: &self, control })
    }
}

struct Drive<'a> {
    load: &'a MultiGetLoad,
    control: &'a Control<MultiGetLoad>,
}

/// Counters of the tasks.
struct Counts {
    keys: Cell<u64>,
    missing: Cell<u64>,
    wrong: Cell<u64>,
    latencies: RefCell<Latencies>,
    failed: RefCell<Option<KvError>>,
    clock: Clock,
}

impl OnTransport for Drive<'_> {
    type Output = MultiGetFigures;

    fn run<T: Transport + 'static>(self, transport: T) -> Result<MultiGetFigures, BenchError> {
        let endpoint = Rc::new(Endpoint::new(transport, self.load.setup.endpoint())?);
        let tasks = (KEYS_IN_FLIGHT / self.load.keys).max(1);
        let client = connect(&endpoint, &self.load.server, tasks)?;
        let counts = Rc::new(Counts {
            keys: Cell::new(0),
            missing: Cell::new(0),
            wrong: Cell::new(0),
            latencies: RefCell::new(Latencies::new()),
            failed: RefCell::new(None),
            clock: Clock::new(),
        });
        for task in 0..tasks {
            let numbers = Numbers::new(Popularity::Uniform, self.load.items, task as u64);
            endpoint.spawn(ask(client.clone(), numbers, self.load.keys, Rc::clone(&counts)));
        }
        let (warm, length) = (self.load.run.mul_f64(WARM_UP_SHARE).as_nanos() as u64, self.load.run.as_nanos() as u64);
        let (mut from, mut seconds, mut iterations) = (None, 0.0, 0u32);
        endpoint.run_until(|| {
            iterations = iterations.wrapping_add(1);
            if !iterations.is_multiple_of(ITERATIONS_PER_LOOK) {
                return false;
            }
            let now = counts.clock.now();
            match from {
                None if now >= warm && counts.keys.get() > 0 => {
                    from = Some(now);
                    counts.keys.set(0);
                    *counts.latencies.borrow_mut() = Latencies::new();
                }
                None => {}
                Some(start) => seconds = (now - start) as f64 / 1e9,
            }
            let over = from.is_some_and(|start| now >= start + length) && counts.keys.get() > 0;
            over || counts.failed.borrow().is_some() || self.control.stopping()
        });
        if let Some(error) = counts.failed.borrow_mut().take() {
            return Err(error.into());
        }
        let (wrong, missing) = (counts.wrong.get(), counts.missing.get());
        if wrong + missing > 0 {
            return Err(BenchError::WrongAnswers { wrong, missing, refused: 0 });
        }
        let latency = counts.latencies.borrow().percentiles()?;
        Ok(MultiGetFigures { keys_per_second: counts.keys.get() as f64 / seconds, latency })
    }
}

/// Multi-gets in sequence, until one fails.
async fn ask<T: Transport + 'static>(client: KvClient<T>, mut numbers: Numbers, keys: usize, counts: Rc<Counts>) {
    let mut drawn = vec![0; keys];
    let mut bytes = vec![[0; KEY_BYTES]; keys];
    let count = |counter: &Cell<u64>, more: u64| counter.set(counter.get() + more);
    loop {
        drawn.iter_mut().for_each(|number| *number = numbers.draw());
        bytes.iter_mut().zip(&drawn).for_each(|(bytes, number)| *bytes = key(*number));
        let before = counts.clock.now();
        match client.multi_get(&bytes).await {
            Ok(values) => {
                for (number, value) in drawn.iter().zip(values) {
                    match value {
                        Some(value) if is_value(*number, &value) => {}
                        Some(_) => count(&counts.wrong, 1),
                        None => count(&counts.missing, 1),
                    }
                }
            }
            Err(error) => return *counts.failed.borrow_mut() = Some(error),
        }
        counts.latencies.borrow_mut().record(counts.clock.now() - before);
        count(&counts.keys, keys as u64);
    }
}
