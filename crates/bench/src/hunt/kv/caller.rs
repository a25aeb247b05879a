//! The programs of clients: random operations at random times, all of them recorded.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use dunlin_kv::KvClient;
use dunlin_kv::client::{ClientConfig, KvError, Outcome, Value};
use dunlin_kv::wire::ItemFacts;
use dunlin_net::{Transport, Waker};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::{Datacenter, Next, Program, SimTransport, ThreadClock};
use dunlin_store::{Condition, Delta, Put, Refused, Side, UnixSeconds};
use dunlin_trial::Random;

use super::history::{End, Entry, Found, History, Input, Output};
use super::scenario::{SERVER, Scenario};
use super::server::NOW;
use crate::hunt::node::run_endpoint;

/// Times that a client tries to read a key in a network that has healed.
const LAST_READS_MAX: u32 = 200;
/// Operations that a client has in progress at most: what may be concurrent, the judge must try in every order.
const IN_PROGRESS_MAX: u32 = 6;
/// Longest deadline of an operation that has one.
const DEADLINE_MAX_NS: u64 = 100_000_000;

/// What all clients of a run, and the run itself, share.
pub struct Shared {
    pub scenario: Scenario,
    pub history: RefCell<History>,
    /// What clients do.
    pub phase: Cell<Phase>,
    /// By number: wakes the client that lives there now.
    pub clients: RefCell<Vec<Option<Rc<Doings>>>>,
}

/// What clients do, at first anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Random operations.
    Working,
    /// Nothing but to end them.
    Ending,
    /// Each reads each key.
    Reading,
}

/// What a client has begun.
pub struct Doings {
    waker: Waker,
    in_progress: Cell<u32>,
    /// Keys that it could not read in the end.
    pub unread: RefCell<Vec<String>>,
    has_read: Cell<bool>,
}

impl Doings {
    /// Lets its program run now.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Whether it has ended all that it began, in a phase.
    pub fn has_ended(&self, phase: Phase) -> bool {
        self.in_progress.get() == 0 && (phase != Phase::Reading || self.has_read.get())
    }
}

/// What the tasks of a client share.
struct Caller {
    shared: Rc<Shared>,
    number: usize,
    client: KvClient<SimTransport>,
    clock: ThreadClock,
    doings: Rc<Doings>,
    /// The token last seen of each key.
    tokens: RefCell<HashMap<usize, u64>>,
}

/// What a task of a client still has to do.
type Task = Rc<RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>>;

/// The program of a client.
pub struct Driver {
    endpoint: Rc<Endpoint<SimTransport>>,
    caller: Rc<Caller>,
    random: Random,
    steps_left: u32,
    next_step: u64,
    /// Values are told apart by a count.
    written: u64,
    idle_runs: u32,
    /// A task holds its client, which holds the endpoint, which holds the task: whoever drops the endpoint must drop the tasks first.
    tasks: Vec<Task>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.tasks.drain(..).for_each(|task| drop(task.take()));
    }
}

impl Driver {
    /// Starts a client, after `incarnation` crashes.
    pub fn start(shared: &Rc<Shared>, number: usize, incarnation: u32, transport: SimTransport) -> Driver {
        let scenario = &shared.scenario;
        let (clock, waker) = (transport.clock(), transport.waker());
        let mut random = Random::new(scenario.seed ^ 0xc11e_4700 ^ (number as u64) << 32 ^ u64::from(incarnation) << 40);
        let config = EndpointConfig { seed: Some(random.next()), ..scenario.clients[number].clone() };
        let endpoint = Rc::new(Endpoint::new(transport, config).expect("drawn settings are valid"));
        let core = random.index(scenario.cores.len()) as u16;
        let sessions_per_core = random.between(1, 2) as usize;
        let mut config = ClientConfig::default();
        config.sessions_per_core = sessions_per_core;
        let client = KvClient::new(&endpoint, &Datacenter::addr(SERVER, core), config);
        let doings = Doings { waker, in_progress: Cell::new(0), unread: RefCell::default(), has_read: Cell::new(false) };
        let doings = Rc::new(doings);
        shared.clients.borrow_mut()[number] = Some(doings.clone());
        let next_step = clock.now();
        let written = u64::from(incarnation) * 1_000_000;
        let caller = Caller { shared: shared.clone(), number, client, clock, doings, tokens: RefCell::default() };
        Driver {
            endpoint,
            caller: Rc::new(caller),
            random,
            steps_left: scenario.steps,
            next_step,
            written,
            idle_runs: 0,
            tasks: Vec::new(),
        }
    }

    fn spawn(&mut self, work: impl Future<Output = ()> + 'static) {
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

    fn begin(&mut self) {
        let batch = self.random.between(1, self.caller.shared.scenario.batch_max);
        for _ in 0..batch {
            if self.caller.doings.in_progress.get() >= IN_PROGRESS_MAX {
                return;
            }
            let keys = self.caller.shared.scenario.keys;
            let wanted = self.random.chance(12).then(|| self.draw_keys(keys));
            let key = self.random.index(keys);
            let input = self.draw(key);
            let deadline_ns = (!self.random.chance(30)).then(|| {
                // Each magnitude is as likely: from less than a round trip to longer than most faults.
                DEADLINE_MAX_NS >> self.random.between(0, 14)
            });
            let (caller, work) = (self.caller.clone(), self.caller.doings.begin());
            let deadline = deadline_ns.map(Duration::from_nanos);
            self.spawn(async move {
                match wanted {
                    Some(keys) => caller.get_many(&keys, deadline).await,
                    None => drop(caller.call(key, input, deadline).await),
                }
                drop(work);
            });
        }
    }

    /// Keys for a multi-get: each as likely as not, in random order, and perhaps one of them twice.
    fn draw_keys(&mut self, keys: usize) -> Vec<usize> {
        let mut wanted: Vec<usize> = (0..keys).filter(|_| self.random.chance(50)).collect();
        wanted.push(self.random.index(keys));
        let (from, to) = (self.random.index(wanted.len()), self.random.index(wanted.len()));
        wanted.swap(from, to);
        wanted
    }

    /// When an item is to expire: mostly never, else long after the run, and sometimes at once.
    fn draw_expiry(&mut self) -> Option<UnixSeconds> {
        match self.random.between(0, 9) {
            0..=5 => None,
            6..=8 => Some(NOW + self.random.between(1, 1_000_000) as UnixSeconds),
            _ => Some(NOW - self.random.between(0, 1) as UnixSeconds),
        }
    }

    /// A random operation.
    fn draw(&mut self, key: usize) -> Input {
        let expires = self.draw_expiry();
        let r = &mut self.random;
        self.written += 1;
        let token = self.caller.tokens.borrow().get(&key).copied();
        let text = format!("{}.{}", self.caller.number, self.written);
        // Half of the values are numbers, so that counting finds some.
        let value = if r.chance(50) {
            (self.written * 10_000 + self.caller.number as u64 * 1_000).to_string().into_bytes()
        } else {
            let mut value = text.clone().into_bytes();
            value.resize(value.len() + r.between(0, self.caller.shared.scenario.value_bytes_max) as usize, b'.');
            value
        };
        let flags = if r.chance(80) { 0 } else { r.next() as u32 };
        let put = |condition| Input::Put { value: value.clone(), flags, expires, condition };
        match r.between(0, 99) {
            0..=19 => Input::Get,
            20..=31 => Input::Read,
            32..=34 => Input::ReadAndTouch { expires },
            35..=39 => Input::Touch { expires },
            40..=54 => put(Condition::Always),
            55..=59 => put(Condition::Absent),
            60..=63 => put(Condition::Present),
            64..=76 => token.map_or(Input::Read, |token| put(Condition::Unchanged(token))),
            77..=79 => Input::Delete,
            80..=84 => Input::Extend { bytes: format!(";{text}").into(), side: Side::End },
            85..=86 => Input::Extend { bytes: format!("{text};").into(), side: Side::Start },
            87..=95 => Input::Count { delta: Delta::Up(r.between(1, 9)) },
            _ => Input::Count { delta: Delta::Down(r.between(1, 9)) },
        }
    }

    /// Reads one key after the other, each as often as it takes: together they might find a queue full.
    fn read_all(&mut self) {
        self.caller.doings.has_read.set(true);
        let (caller, work) = (self.caller.clone(), self.caller.doings.begin());
        self.spawn(async move {
            for key in 0..caller.shared.scenario.keys {
                let mut tries = 0;
                while tries < LAST_READS_MAX && !caller.call(key, Input::Read, None).await {
                    tries += 1;
                }
                if tries == LAST_READS_MAX {
                    let last = caller.shared.history.borrow().entries.last().map(Entry::to_string);
                    let why = format!("client {} cannot read key {key}: {}", caller.number, last.unwrap_or_default());
                    caller.doings.unread.borrow_mut().push(why);
                }
            }
            drop(work);
        });
    }
}

/// Counts something in progress.
struct InProgress(Rc<Doings>);

impl Doings {
    fn begin(self: &Rc<Doings>) -> InProgress {
        self.in_progress.set(self.in_progress.get() + 1);
        InProgress(self.clone())
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.set(self.0.in_progress.get() - 1);
    }
}

impl Caller {
    /// Does an operation and records it; says whether it got an answer.
    async fn call(&self, key: usize, input: Input, deadline: Option<Duration>) -> bool {
        let number = self.shared.history.borrow_mut().begin(key, self.number, input.clone(), self.clock.now());
        let result = self.execute(&Scenario::key(key), &input, deadline).await;
        let now = self.clock.now();
        let end = match result {
            Ok(output) => {
                if let Output::Stored(token) | Output::Number(_, token) | Output::Item(Some(Found { token, .. })) = &output {
                    self.tokens.borrow_mut().insert(key, *token);
                }
                End::Answered(now, output)
            }
            Err(KvError::Refused(refused)) => End::Answered(now, Output::Refused(refused)),
            Err(error) => failed(now, &error),
        };
        let is_answered = matches!(end, End::Answered(..));
        self.shared.history.borrow_mut().end(number, end);
        is_answered
    }

    /// Reads many keys at once, and records it as a read of each: nobody promises that all are read at one time.
    async fn get_many(&self, keys: &[usize], deadline: Option<Duration>) {
        let begin = |&key: &usize| self.shared.history.borrow_mut().begin(key, self.number, Input::Get, self.clock.now());
        let numbers: Vec<usize> = keys.iter().map(begin).collect();
        let names: Vec<Vec<u8>> = keys.iter().map(|&key| Scenario::key(key)).collect();
        let result = self.client.with_deadline(deadline).multi_get(&names).await;
        let now = self.clock.now();
        let ends: Vec<End> = match result {
            Ok(values) => values.into_iter().map(|value| End::Answered(now, Output::value(value.as_ref()))).collect(),
            Err(error) => numbers.iter().map(|_| failed(now, &error)).collect(),
        };
        assert_eq!(ends.len(), numbers.len(), "each key has its answer");
        let mut history = self.shared.history.borrow_mut();
        numbers.into_iter().zip(ends).for_each(|(number, end)| history.end(number, end));
    }

    async fn execute(&self, key: &[u8], input: &Input, deadline: Option<Duration>) -> Result<Output, KvError> {
        let client = self.client.with_deadline(deadline);
        Ok(match input {
            Input::Get => Output::value(client.get(key).await?.as_ref()),
            Input::Read => Output::item(client.read(key).await?),
            Input::ReadAndTouch { expires } => Output::item(client.read_and_touch(key, *expires).await?),
            Input::Touch { expires } => {
                if client.touch(key, *expires).await? {
                    Output::Done
                } else {
                    Output::Refused(Refused::NotFound)
                }
            }
            Input::Put { value, flags, expires, condition } => {
                let put = Put { flags: *flags, expires: *expires, condition: *condition, ..Put::default() };
                Output::Stored(client.put(key, value, put).await?.cas)
            }
            Input::Delete => client.delete_unchanged(key, None).await.map(|()| Output::Done)?,
            Input::Extend { bytes, side } => Output::Stored(client.extend(key, bytes, *side, None).await?.cas),
            Input::Count { delta } => {
                let answer = client.count(key, *delta, None).await?;
                Output::Number(answer.value, answer.cas)
            }
            Input::Lost => unreachable!("no client asks for it"),
        })
    }
}

/// How an operation ended that failed.
fn failed(now: u64, error: &KvError) -> End {
    match error.outcome() {
        Outcome::NotExecuted => End::NotExecuted(now, error.to_string()),
        Outcome::MaybeExecuted => End::Unknown(now, error.to_string()),
    }
}

impl Output {
    fn value(value: Option<&Value>) -> Output {
        Output::Value(value.map(|value| (value.to_vec(), value.flags())))
    }

    fn item(found: Option<(ItemFacts, Value)>) -> Output {
        let found = found.map(|(facts, value)| {
            let ItemFacts { flags, cas, expires, .. } = facts;
            Found { value: value.to_vec(), flags, token: cas, expires }
        });
        Output::Item(found)
    }
}

impl Program for Driver {
    fn run(&mut self) -> Next {
        match self.caller.shared.phase.get() {
            Phase::Working => {}
            Phase::Ending => self.steps_left = 0,
            Phase::Reading => {
                self.steps_left = 0;
                if !self.caller.doings.has_read.get() {
                    self.read_all();
                }
            }
        }
        while self.steps_left > 0 && self.caller.clock.now() >= self.next_step {
            self.begin();
            self.steps_left -= 1;
            self.next_step = self.caller.clock.now() + self.random.between(0, self.caller.shared.scenario.gap_max_ns);
        }
        if run_endpoint(&self.endpoint, &self.caller.clock, &mut self.idle_runs) {
            return Next::Soon;
        }
        let next_step = (self.steps_left > 0).then_some(self.next_step);
        Next::OnPacket { or_at: self.endpoint.next_due().into_iter().chain(next_step).min() }
    }
}
