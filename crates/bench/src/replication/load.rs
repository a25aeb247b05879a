//! Clients that write.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_rpc::Endpoint;
use dunlin_smr::kv::Answer;
use dunlin_smr::{COMMANDS_PER_SESSION_MAX, Client, ClientConfig, Probe, Stage};

use super::group::{Group, put};
use crate::BenchError;
use crate::measure::Latencies;

/// What the writes came to.
#[derive(Debug, Default)]
pub struct Tally {
    /// Writes that were answered.
    pub writes: u64,
    /// From issuing each until its answer was there, in nanoseconds.
    pub latencies: Latencies,
}

/// Writes to keys drawn at random, so many at a time, until it is told to stop.
pub struct Puts {
    tally: RefCell<Tally>,
    is_stopped: Cell<bool>,
    running: Cell<usize>,
    failure: RefCell<Option<BenchError>>,
    now: Box<dyn Fn() -> u64>,
    probe: Option<Rc<dyn Probe>>,
    /// Of each group.
    keys: u64,
}

impl Puts {
    /// Starts `window` writers on an endpoint, as many to a session of commands as one may have. Times are those of `now`. `probe` is told when a client works,
    /// as a visit.
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
        // Fewer than a session may have: an answer that is late holds up the numbers behind it.
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

    /// Writes to one group after the other, drawn at random.
    async fn write<T: Transport>(&self, clients: &[Client<T>], mut random: Random) {
        let mut value = random.next();
        while !self.is_stopped.get() {
            value = value.wrapping_add(1);
            // Made before it is timed, as a program has it at hand.
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

    /// Tells the probe whenever a future is polled.
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

    /// What the writes came to since this was asked last.
    pub fn take(&self) -> Tally {
        self.tally.take()
    }

    /// Writes that were answered since [`Puts::take`].
    pub fn writes(&self) -> u64 {
        self.tally.borrow().writes
    }

    /// Lets every writer end after the write that it waits for.
    pub fn stop(&self) {
        self.is_stopped.set(true);
    }

    /// Whether all have ended.
    pub fn has_ended(&self) -> bool {
        self.running.get() == 0
    }

    /// Whether a write failed.
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// How it went so far.
    ///
    /// # Errors
    /// That of the first write that failed.
    pub fn check(&self) -> Result<(), BenchError> {
        self.failure.take().map_or(Ok(()), Err)
    }
}
