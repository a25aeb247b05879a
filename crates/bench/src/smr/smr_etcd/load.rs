//! The load on both systems: the same requests, measured in the same way.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dunlin_lab::measure::{Latencies, Percentiles};
use dunlin_net::random::Random;
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// Bytes of a key, and of a value, as in the paper.
pub(super) const KEY_BYTES: usize = 16;
pub(super) const VALUE_BYTES: usize = 64;
/// Number of keys; all are stored before the measurement.
pub(super) const KEYS: u64 = 1000;
/// Keys stored at a time.
pub(super) const FILL_WINDOW: u64 = 50;
/// Length of the warm-up, which is not counted, as a share of the run.
const WARM_UP_SHARE: f64 = 0.2;

/// The requested operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Operation {
    /// Stores a value, durably at a majority.
    Put,
    /// Reads a value, linearizably.
    Get,
}

impl Operation {
    pub const ALL: [Operation; 2] = [Operation::Put, Operation::Get];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Put => "put",
            Operation::Get => "get",
        }
    }
}

/// Several clients, each of which sends one request after another.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Load {
    pub operation: Operation,
    pub clients: usize,
    pub run: Duration,
}

/// The result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Requests per second.
    pub rate: f64,
    /// From sending a request to receiving its answer.
    pub latency: Percentiles,
}

/// The next request of a client.
pub(super) struct Request {
    pub operation: Operation,
    pub key: [u8; KEY_BYTES],
    pub value: [u8; VALUE_BYTES],
}

impl Request {
    pub fn new(operation: Operation, key: u64) -> Request {
        let mut bytes = [b'k'; KEY_BYTES];
        bytes[..8].copy_from_slice(&key.to_be_bytes());
        Request { operation, key: bytes, value: [key as u8; VALUE_BYTES] }
    }
}

/// The measurements of all clients of a load.
#[derive(Clone)]
pub(super) struct Tally {
    load: Load,
    warm: Instant,
    /// Answers since the warm-up.
    answered: Rc<Cell<u64>>,
    latencies: Rc<RefCell<Latencies>>,
}

impl Tally {
    /// Starts the load's time.
    pub fn start(load: Load) -> Tally {
        let warm = Instant::now() + load.run.mul_f64(WARM_UP_SHARE);
        Tally { load, warm, answered: Rc::default(), latencies: Rc::new(RefCell::new(Latencies::new())) }
    }

    /// One client: sends requests until the time is over and any client has had an answer since the warm-up.
    ///
    /// # Errors
    /// The error of the first failed request.
    pub async fn client<F>(self, number: usize, mut ask: impl FnMut(Request) -> F) -> Result<(), BenchError>
    where
        F: Future<Output = Result<(), BenchError>>,
    {
        let mut random = Random::new(number as u64 + 1);
        loop {
            let request = Request::new(self.load.operation, random.below(KEYS));
            let begin = Instant::now();
            ask(request).await?;
            let end = Instant::now();
            if begin >= self.warm {
                self.latencies.borrow_mut().record((end - begin).as_nanos() as u64);
            }
            self.answered.set(self.answered.get() + u64::from(end >= self.warm));
            // On a busy machine one answer may take longer than the run: it counts then.
            let counted = self.latencies.borrow().count() > 0;
            if end >= self.warm + self.load.run && counted {
                return Ok(());
            }
        }
    }

    /// The figures, when all clients have ended.
    ///
    /// # Errors
    /// [`dunlin_lab::LabError::NoSamples`] if no client ran.
    pub fn figures(self) -> Result<Figures, BenchError> {
        let latencies = self.latencies.borrow();
        let rate = self.answered.get() as f64 / self.warm.elapsed().as_secs_f64();
        Ok(Figures { rate, latency: latencies.percentiles()? })
    }
}
