//! Writing clients.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::Latencies;
use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_rpc::Endpoint;
use dunlin_smr::kv::Answer;
use dunlin_smr::{COMMANDS_PER_SESSION_MAX, Client, ClientConfig, Probe, Stage};

use super::group::{Group, put};
use crate::BenchError;

/// The result of writes.
#[derive(Debug, Default)]
pub struct Tally {
    /// Answered writes.
    pub writes: u64,
    /// From issuing each write until its answer arrives, in nanoseconds.
    pub latencies: Latencies,
}

/// Concurrent writes to random keys, until it is stopped.
pub struct Puts {
    tally: RefCell<Tally>,
    is_stopped: Cell<bool>,
    running: Cell<usize>,
    failure: RefCell<Option<BenchError>>,
    now: Box<dyn Fn() -> u64>,
    probe: Option<Rc<dyn Probe>>,
    /// Number of keys of each group.
    keys: u64,
}

impl Puts {
    /// Starts `window` writers on an endpoint, with as many per session as its command limit allows. Times are read
    /// from `now`. `probe` observes the work of clients, as visits.
    pub fn start<T: Transport + 'static>(
        endpoint: &Rc<Endpoint<T>>,
        group: &Group,
        window: usize,
        mut random: Random,
        now: impl Fn() -> u64 + 'static,
        probe: Option<Rc<dyn Probe>>,
    ) -> Rc<Puts> {
        let puts = Rc::new(Puts {
            tally: RefCell::default(),
            is_stopped: Cell::new(false),
            running: Cell::new(window),
            failure: RefCell::default(),
            now: Box::new(now),
            probe,
            keys: group.keys_of_group(),
        });
        let config = ClientConfig { attempt_timeout: Duration::from_millis(500), ..ClientConfig::default() };
        // Fewer than a session's limit: a late answer blocks the numbers after it.
        let per_client = (COMMANDS_PER_SESSION_MAX / 2).min(window.max(1));
        for first in (0..window).step_by(per_client) {
            let first_group = Client::new(endpoint, group.members().clone(), config);
            let clients: Rc<[Client<T>]> = (0..group.groups()).map(|group| first_group.of_group(group)).collect();
            for _ in first..(first + per_client).min(window) {
                let (puts, clients, random) = (puts.clone(), clients.clone(), Random::new(random.next()));
                endpoint.spawn(async move { puts.write(&clients, random).await });
            }
        }
        puts
    }

    /// Writes in sequence, each to a random group.
    async fn write<T: Transport>(&self, clients: &[Client<T>], mut random: Random) {
        let mut value = random.next();
        while !self.is_stopped.get() {
            value = value.wrapping_add(1);
            // Made before the timing starts, as a program has it at hand.
            let command = put(random.below(self.keys), value);
            let client = match clients {
                [only] => only,
                many => &many[random.below(many.len() as u64) as usize],
            };
            let begin = (self.now)();
            let result = self.probed(client.execute(&command)).await;
            let nanos = (self.now)() - begin;
            match result.as_deref().map(Answer::parse) {
                Ok(Ok(Answer::Done { .. })) => {
                    let mut tally = self.tally.borrow_mut();
                    tally.writes += 1;
                    tally.latencies.record(nanos);
                }
                Ok(_) => return self.fail(BenchError::WrongEcho),
                Err(error) => {
                    return self.fail(BenchError::OtherSystem { system: "replicas", why: error.to_string() });
                }
            }
        }
        self.running.set(self.running.get() - 1);
    }

    /// Notifies the probe whenever a future is polled.
    async fn probed<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|context| {
            let Some(probe) = &self.probe else { return work.as_mut().poll(context) };
            probe.begin(Stage::Visit);
            let poll = work.as_mut().poll(context);
            probe.end(Stage::Visit);
            poll
        })
        .await
    }

    fn fail(&self, error: BenchError) {
        self.failure.borrow_mut().get_or_insert(error);
        self.is_stopped.set(true);
        self.running.set(self.running.get() - 1);
    }

    /// The result of the writes since the last call.
    pub fn take(&self) -> Tally {
        self.tally.take()
    }

    /// Writes answered since [`Puts::take`].
    pub fn writes(&self) -> u64 {
        self.tally.borrow().writes
    }

    /// Ends every writer after its current write.
    pub fn stop(&self) {
        self.is_stopped.set(true);
    }

    /// Whether all writers have ended.
    pub fn has_ended(&self) -> bool {
        self.running.get() == 0
    }

    /// Whether a write failed.
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Checks the writes so far.
    ///
    /// # Errors
    /// The error of the first failed write.
    pub fn check(&self) -> Result<(), BenchError> {
        self.failure.take().map_or(Ok(()), Err)
    }
}
