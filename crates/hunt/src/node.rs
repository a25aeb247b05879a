//! An endpoint of a run, and the program that drives it on a thread of its host.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use dunlin_net::{Transport, Waker};
use dunlin_rpc::{Endpoint, EndpointConfig, WorkerPool};
use dunlin_sim::{Datacenter, Next, Program, SimTransport, ThreadClock};
use dunlin_trial::calls::{self, Cancel};
use dunlin_trial::judge::{self, View};
use dunlin_trial::{Ledger, Local, Random, Roughness, handlers};

use super::scenario::Scenario;

/// Iterations after which an endpoint must have read the clock.
const ITERATIONS_TO_CLOCK: u32 = 17;
/// Maximum number of iterations in one run of a program: time must advance.
const ITERATIONS_MAX: u32 = 256;
/// Maximum number of consecutive runs of a program without work although a timer is due.
const IDLE_RUNS_MAX: u32 = 1000;

/// State shared by all endpoints of a run, and the run itself.
pub struct Shared {
    pub scenario: Scenario,
    pub ledger: Rc<RefCell<Ledger>>,
    /// Whether endpoints do nothing but answer deferred requests.
    pub is_quiet: Cell<bool>,
    /// By number: the current endpoint, if its host is up.
    pub nodes: RefCell<Vec<Weak<Node>>>,
}

/// A live endpoint.
pub struct Node {
    /// `None` once dropped.
    endpoint: Option<Endpoint<SimTransport>>,
    pub local: Rc<Local>,
    pub config: EndpointConfig,
    waker: Waker,
}

impl Node {
    fn start(shared: &Shared, number: usize, incarnation: u32, transport: SimTransport) -> Node {
        let scenario = &shared.scenario;
        let mut random = Random::new(scenario.seed ^ (number as u64) << 32 ^ u64::from(incarnation) << 48);
        let waker = transport.waker();
        let config = EndpointConfig { seed: Some(random.next()), ..scenario.configs[number].clone() };
        let endpoint = Endpoint::new(transport, config.clone()).expect("drawn settings are valid");
        // A failed assertion in a handler or a task fails the run.
        endpoint.propagate_panics();
        let workers = WorkerPool::by_hand(random.between(1, 20) as usize);
        let local = Rc::new(Local::new(number, incarnation, &shared.ledger, workers, random));
        handlers::register(&endpoint, &local);
        Node { endpoint: Some(endpoint), local, config, waker }
    }

    pub fn endpoint(&self) -> &Endpoint<SimTransport> {
        self.endpoint.as_ref().expect("an endpoint lives as long as its node")
    }

    /// Runs its program now, after a change from outside.
    pub fn wake(&self) {
        self.waker.wake();
    }

    pub fn view(&self) -> View<'_> {
        View { local: self.local.clone(), config: &self.config, stats: self.endpoint().stats() }
    }
}

impl Drop for Node {
    /// The endpoint goes, and with it the calls of tasks; workers are unaware of that, and continue.
    fn drop(&mut self) {
        let endpoint = self.endpoint.take();
        if std::thread::panicking() {
            // A broken promise may break another while the endpoint is dropped. A second panic would abort the process
            // before the seed is printed.
            return std::mem::forget(endpoint);
        }
        drop(endpoint);
        self.local.run_workers();
        let open = self.local.outbound.borrow().iter().filter(|session| session.is_open()).count();
        assert_eq!(open, 0, "a session outlives its endpoint");
        self.local.ledger.borrow_mut().abandon((self.local.index, self.local.incarnation));
    }
}

/// The program of an endpoint: acts at random times, and runs the event loop in between.
pub struct Driver {
    node: Rc<Node>,
    shared: Rc<Shared>,
    clock: ThreadClock,
    random: Random,
    cancels: Vec<Cancel>,
    steps_left: u32,
    next_step: u64,
    idle_runs: u32,
}

impl Driver {
    /// Starts the endpoint with a number, after `incarnation` earlier ones.
    pub fn start(shared: &Rc<Shared>, number: usize, incarnation: u32, transport: SimTransport) -> Driver {
        let clock = transport.clock();
        let node = Rc::new(Node::start(shared, number, incarnation, transport));
        shared.nodes.borrow_mut()[number] = Rc::downgrade(&node);
        let random = Random::new(node.local.random.borrow_mut().next());
        let next_step = clock.now();
        let steps_left = shared.scenario.steps;
        Driver { node, shared: shared.clone(), clock, random, cancels: Vec::new(), steps_left, next_step, idle_runs: 0 }
    }
}

impl Program for Driver {
    fn run(&mut self) -> Next {
        if self.shared.is_quiet.get() {
            self.steps_left = 0;
            judge::settle(&self.node.local);
        }
        while self.steps_left > 0 && self.clock.now() >= self.next_step {
            self.step();
            self.steps_left -= 1;
            self.next_step = self.clock.now() + self.random.between(0, self.shared.scenario.gap_max_ns);
            judge::check_limits(&self.node.view(), self.shared.scenario.topology.nic.rx_descriptors);
        }
        if run_endpoint(self.node.endpoint(), &self.clock, &mut self.idle_runs) {
            return Next::Soon;
        }
        let next_step = (self.steps_left > 0).then_some(self.next_step);
        Next::OnPacket { or_at: self.node.endpoint().next_due().into_iter().chain(next_step).min() }
    }
}

impl Driver {
    fn step(&mut self) {
        let Driver { node, shared, random, cancels, .. } = self;
        let (endpoint, local) = (node.endpoint(), &node.local);
        let is_rough = shared.scenario.roughness != Roughness::Steady;
        let is_first = self.steps_left == shared.scenario.steps;
        match random.between(0, 99) {
            0..=14 => connect(shared, node, random),
            _ if is_first => connect(shared, node, random),
            15..=79 => {
                // Several at once fill slots, queues and bursts.
                for _ in 0..random.between(1, 12) {
                    let limit = shared.scenario.draw_limit(random);
                    cancels.extend(calls::call(endpoint, local, random, limit));
                }
            }
            80..=87 => calls::cancel(local, random, cancels),
            88..=91 => _ = local.settle_deferred(),
            92..=95 => _ = local.run_workers(),
            _ if is_rough => calls::close(endpoint, local, random),
            _ => {}
        }
    }
}

/// Runs a program on a thread. `start` makes it of a transport and the number of programs that ran there before a crash
/// of the host.
///
/// # Panics
/// If there is no such thread, or it already runs a program.
pub(super) fn spawn<P: Program + 'static>(
    datacenter: &mut Datacenter,
    (host, thread): (u32, u16),
    start: impl Fn(u32, SimTransport) -> P + 'static,
) {
    let mut incarnations = 0..;
    let program = move |transport| start(incarnations.next().expect("an endless range"), transport);
    datacenter.spawn_from(host, thread, program).expect("each program has a thread of its own");
}

/// Runs the event loop until it has nothing to do, or for long enough; returns whether there is more to do now.
/// `idle_runs` counts consecutive runs without work although a timer was due.
pub(super) fn run_endpoint<T: Transport>(endpoint: &Endpoint<T>, clock: &ThreadClock, idle_runs: &mut u32) -> bool {
    let is_due = || endpoint.next_due().is_some_and(|due| due <= clock.now());
    let (mut work, mut idle) = (0, 0);
    for _ in 0..ITERATIONS_MAX {
        match endpoint.run_once() {
            0 if idle >= ITERATIONS_TO_CLOCK || !is_due() => break,
            0 => idle += 1,
            found => (work, idle) = (work + found, 0),
        }
    }
    let more = idle == 0 && work > 0 || is_due();
    *idle_runs = if work == 0 && is_due() { *idle_runs + 1 } else { 0 };
    let (due, now) = (endpoint.next_due(), clock.now());
    assert!(*idle_runs < IDLE_RUNS_MAX, "a timer is due at {due:?}, it is {now}, and it is not run");
    more
}

fn connect(shared: &Shared, node: &Node, random: &mut Random) {
    let to = random.index(shared.scenario.places.len());
    let (host, thread) = shared.scenario.places[to];
    let addr = Datacenter::addr(host, thread);
    if random.chance(90) {
        calls::connect(node.endpoint(), &node.local, to, &addr);
    } else {
        calls::connect_in_doubt(node.endpoint(), &node.local, to, &addr).cancel();
    }
}
