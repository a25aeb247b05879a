//! The program of a client: begins operations at random times, and runs its event loop in between.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use dunlin_net::{Transport, Waker};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::{Next, Program, SimTransport, ThreadClock};
use dunlin_trial::Random;

use super::object::Object;
use super::phases::{Clients, Doings, Phase};
use crate::node::run_endpoint;

/// How often a client tries to read a key in a healed network.
const LAST_READS_MAX: u32 = 200;

/// The unfinished work of a client's task.
type Task = Rc<RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>>;

/// The work of clients of one kind of store.
pub trait Work {
    /// State shared by its tasks.
    type Caller: Caller;

    fn caller(&self) -> &Rc<Self::Caller>;

    /// Starts work that lasts as long as the client. By default none.
    fn arrive(&mut self, _tasks: &mut Tasks) {}

    /// Starts a random operation.
    fn begin(&mut self, tasks: &mut Tasks);
}

/// State shared by the tasks of a client.
pub trait Caller: 'static {
    /// The object under a key.
    type Object: Object;

    /// Reads a key, for the history; returns whether there was an answer.
    fn read(&self, key: usize) -> impl Future<Output = bool>;
}

/// The pace of a client.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// How often it starts something.
    pub steps: u32,
    /// Maximum time between two starts, in nanoseconds.
    pub gap_max_ns: u64,
    /// Number of keys.
    pub keys: usize,
}

/// The tasks of a client.
pub struct Tasks {
    endpoint: Rc<Endpoint<SimTransport>>,
    doings: Rc<Doings>,
    /// A task holds its client, which holds the endpoint, which holds the task: drop the tasks before the endpoint.
    tasks: Vec<Task>,
}

/// Counts an operation in progress.
struct InProgress(Rc<Doings>);

impl InProgress {
    fn begin(doings: &Rc<Doings>) -> InProgress {
        doings.in_progress.set(doings.in_progress.get() + 1);
        InProgress(doings.clone())
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.set(self.0.in_progress.get() - 1);
    }
}

impl Tasks {
    pub fn new(endpoint: Rc<Endpoint<SimTransport>>, doings: Rc<Doings>) -> Tasks {
        Tasks { endpoint, doings, tasks: Vec::new() }
    }

    /// Number of operations in progress.
    pub fn in_progress(&self) -> u32 {
        self.doings.in_progress.get()
    }

    /// Starts work that ends by itself, without waiting for other work in any phase.
    pub fn spawn(&mut self, work: impl Future<Output = ()> + 'static) {
        let begun = InProgress::begin(&self.doings);
        self.keep(async move {
            work.await;
            drop(begun);
        });
    }

    /// Starts work that lasts as long as the client.
    pub fn keep(&mut self, work: impl Future<Output = ()> + 'static) {
        let task: Task = Rc::new(RefCell::new(Some(Box::pin(work))));
        self.tasks.retain(|task| task.borrow().is_some());
        self.tasks.push(task.clone());
        self.endpoint.spawn(poll_fn(move |context| {
            let mut work = task.borrow_mut();
            let poll = work.as_mut().map_or(Poll::Ready(()), |work| work.as_mut().poll(context));
            if poll.is_ready() {
                *work = None;
            }
            poll
        }));
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.tasks.drain(..).for_each(|task| drop(task.take()));
    }
}

/// The object of a kind of store.
type ObjectOf<W> = <<W as Work>::Caller as Caller>::Object;

/// The program of a client.
pub struct Driver<W: Work> {
    number: usize,
    clients: Rc<Clients<ObjectOf<W>>>,
    tasks: Tasks,
    work: W,
    clock: ThreadClock,
    random: Random,
    pace: Pace,
    steps_left: u32,
    next_step: u64,
    idle_runs: u32,
}

/// The endpoint and the clock of a client.
pub struct Place {
    number: usize,
    pub endpoint: Rc<Endpoint<SimTransport>>,
    pub clock: ThreadClock,
    waker: Waker,
}

impl Place {
    /// For the client with this number.
    ///
    /// # Panics
    /// If the settings are invalid.
    pub fn new(number: usize, transport: SimTransport, config: EndpointConfig) -> Place {
        let (clock, waker) = (transport.clock(), transport.waker());
        let endpoint = Rc::new(Endpoint::new(transport, config).expect("drawn settings are valid"));
        // A failed assertion in a task fails the run.
        endpoint.propagate_panics();
        Place { number, endpoint, clock, waker }
    }
}

impl<W: Work> Driver<W> {
    /// Starts a client, replacing the earlier one with its number.
    pub fn start(
        clients: &Rc<Clients<ObjectOf<W>>>,
        place: Place,
        pace: Pace,
        mut work: W,
        random: Random,
    ) -> Driver<W> {
        let Place { number, endpoint, clock, waker } = place;
        let doings = clients.arrived(number, waker);
        let mut tasks = Tasks::new(endpoint, doings);
        work.arrive(&mut tasks);
        let (next_step, steps_left) = (clock.now(), pace.steps);
        Driver {
            number,
            clients: clients.clone(),
            tasks,
            work,
            clock,
            random,
            pace,
            steps_left,
            next_step,
            idle_runs: 0,
        }
    }

    /// Reads all keys one after the other, each until it succeeds: concurrent reads might find a queue full.
    fn read_all(&mut self) {
        let doings = self.tasks.doings.clone();
        if doings.has_read.replace(true) {
            return;
        }
        let (caller, clients, number, keys) =
            (self.work.caller().clone(), self.clients.clone(), self.number, self.pace.keys);
        self.tasks.spawn(async move {
            for key in 0..keys {
                let mut tries = 0;
                while tries < LAST_READS_MAX && !caller.read(key).await {
                    tries += 1;
                }
                if tries == LAST_READS_MAX {
                    let why = format!(
                        "client {number} cannot read key {key} though the network healed; the last operation: {}",
                        clients.last()
                    );
                    doings.unread.borrow_mut().push(why);
                }
            }
        });
    }
}

impl<W: Work> Program for Driver<W> {
    fn run(&mut self) -> Next {
        match self.clients.phase() {
            Phase::Working => {}
            Phase::Ending => self.steps_left = 0,
            Phase::Reading => {
                self.steps_left = 0;
                self.read_all();
            }
        }
        while self.steps_left > 0 && self.clock.now() >= self.next_step {
            self.work.begin(&mut self.tasks);
            self.steps_left -= 1;
            self.next_step = self.clock.now() + self.random.between(0, self.pace.gap_max_ns);
        }
        if run_endpoint(&self.tasks.endpoint, &self.clock, &mut self.idle_runs) {
            return Next::Soon;
        }
        let next_step = (self.steps_left > 0).then_some(self.next_step);
        Next::OnPacket { or_at: self.tasks.endpoint.next_due().into_iter().chain(next_step).min() }
    }
}
