//! Threads that push to and pop from queues, half and half.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_lab::peer::{Control, Role};
use dunlin_net::random::Random;
use dunlin_schedule::{ConfigError, RequestQueue};
use serde::{Deserialize, Serialize};

use super::shared::{Bare, PRIORITIES, QueueKind, Shared, Turn, push_own};
use crate::BenchError;

/// Operations between two looks at the flag that ends a run.
const OPERATIONS_PER_LOOK: u64 = 64;
/// Operations in the queues when a run begins, so that pops find some.
const WAITING: usize = 3200;

/// Runs each kind of queue for a while, on as many cores as there are, after the floors of both classes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Queues {
    /// Threads.
    pub threads: usize,
    /// Length of a run.
    pub run: Duration,
    /// Determines who pushes and pops, and the priorities.
    pub seed: u64,
}

/// Operations per second of all threads together.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct QueueRates {
    /// Additions to one word: the floor of shared queues, each of whose operations changes a word that all use.
    pub shared_floor: f64,
    /// Bare queues of bytes, one a thread: the floor of those.
    pub own_floor: f64,
    /// Of [`QueueKind::ALL`], in that order.
    pub rates: Vec<f64>,
}

impl Role for Queues {
    const NAME: &'static str = "queues";
    type Ready = ();
    type Output = QueueRates;
    type Error = BenchError;

    fn run(self, _: &Control<Self>) -> Result<QueueRates, BenchError> {
        let word = AtomicU64::new(0);
        let shared_floor = self.rate(|_| || _ = word.fetch_add(1, Ordering::Relaxed));
        let own_floor = self.rate(|number| {
            let (mut random, mut queue) = (self.random(number), Bare::from(vec![0; self.waiting()]));
            move || step_bare(&mut random, &mut queue)
        });
        let rates = QueueKind::ALL.iter().map(|kind| self.rate_of(*kind)).collect::<Result<Vec<_>, _>>();
        let rates = rates.map_err(|why| BenchError::OtherSystem { system: "queue", why: why.to_string() })?;
        Ok(QueueRates { shared_floor, own_floor, rates })
    }
}

impl Queues {
    fn random(&self, thread: usize) -> Random {
        Random::new(self.seed ^ (thread as u64) << 32)
    }

    /// Operations in the queue of one thread at the beginning.
    fn waiting(&self) -> usize {
        WAITING / self.threads.max(1)
    }

    fn rate_of(&self, kind: QueueKind) -> Result<f64, ConfigError> {
        if let Some(queue) = kind.shared()? {
            (0..WAITING).for_each(|number| queue.push(number % PRIORITIES, 0));
            let queue = &*queue;
            return Ok(self.rate(|number| {
                let (mut random, mut turn) = (self.random(number), Turn::default());
                move || step_shared(&mut random, queue, &mut turn)
            }));
        }
        let QueueKind::Own(order) = kind else { unreachable!("what is not shared is a thread's own") };
        // Once, so that an invalid order is an error here and not in a thread.
        order.queue()?;
        Ok(self.rate(|number| {
            let mut queue = order.queue().expect("the same order was valid above");
            (0..self.waiting()).for_each(|number| push_own(&mut queue, number % PRIORITIES, 0));
            let mut random = self.random(number);
            move || step_own(&mut random, &mut queue)
        }))
    }

    /// Operations per second of all threads, each of which repeats the step that it makes for its number.
    fn rate<S: FnMut()>(&self, make: impl Fn(usize) -> S + Sync) -> f64 {
        let (begin, over) = (Barrier::new(self.threads + 1), AtomicBool::new(false));
        let work = |number| {
            let mut step = make(number);
            begin.wait();
            // Each thread by its own time: a scheduler that starts or ends it late changes no rate.
            let (begun, mut operations) = (Instant::now(), 0);
            while !over.load(Ordering::Relaxed) {
                (0..OPERATIONS_PER_LOOK).for_each(|_| step());
                operations += OPERATIONS_PER_LOOK;
            }
            operations as f64 / begun.elapsed().as_secs_f64().max(f64::EPSILON)
        };
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|number| scope.spawn(move || work(number))).collect();
            begin.wait();
            thread::sleep(self.run);
            over.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().expect("queues do not panic")).sum()
        })
    }
}

/// The priority of an operation to push, or none to pop one. One number decides both.
#[inline]
fn drawn(random: &mut Random) -> Option<usize> {
    let number = random.below(2 * PRIORITIES as u64) as usize;
    (number < PRIORITIES).then_some(number)
}

#[inline]
fn step_bare(random: &mut Random, queue: &mut Bare) {
    match drawn(random) {
        Some(priority) => queue.push_back(priority as u64),
        None => _ = black_box(queue.pop_front()),
    }
}

#[inline]
fn step_own(random: &mut Random, queue: &mut RequestQueue<u64>) {
    match drawn(random) {
        Some(priority) => push_own(queue, priority, 0),
        None => _ = black_box(queue.pop()),
    }
}

#[inline]
fn step_shared(random: &mut Random, queue: &dyn Shared, turn: &mut Turn) {
    match drawn(random) {
        Some(priority) => queue.push(priority, 0),
        None => _ = black_box(queue.pop(turn)),
    }
}
