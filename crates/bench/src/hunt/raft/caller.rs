//! The programs of clients: random operations at random times, all of them recorded, and changes of members.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use dunlin_net::{Transport, Waker};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::{Next, Program, SimTransport, ThreadClock};
use dunlin_smr::kv::{Answer, Command, Condition, Query};
use dunlin_smr::wire::request::Change;
use dunlin_smr::{Client, ClientError};
use dunlin_store::{Condition as Stored, Refused, Side};
use dunlin_trial::Random;

use super::run::{Phase, Shared};
use super::scenario::{Scenario, address};
use crate::hunt::kv::history::{End, Found, Input, Output};
use crate::hunt::node::run_endpoint;

/// Times that a client tries to read a key in a network that has healed.
const LAST_READS_MAX: u32 = 200;
/// Operations that a client has in progress at most: what may be concurrent, the judge must try in every order.
const IN_PROGRESS_MAX: u32 = 3;

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

    fn begin(self: &Rc<Doings>) -> InProgress {
        self.in_progress.set(self.in_progress.get() + 1);
        InProgress(self.clone())
    }
}

/// Counts something in progress.
struct InProgress(Rc<Doings>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.set(self.0.in_progress.get() - 1);
    }
}

/// What the tasks of a client share.
struct Caller {
    shared: Rc<Shared>,
    number: usize,
    client: Client<SimTransport>,
    clock: ThreadClock,
    doings: Rc<Doings>,
    /// The version last seen of each key.
    versions: RefCell<HashMap<usize, u64>>,
}

/// What a task of a client still has to do.
type Task = Rc<RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>>;

/// The program of a client.
pub struct Driver {
    endpoint: Rc<Endpoint<SimTransport>>,
    caller: Rc<Caller>,
    random: Random,
    steps_left: u32,
    changes_left: u32,
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
        let config = &scenario.endpoints[(scenario.members + scenario.spares) as usize + number];
        let config = EndpointConfig { seed: Some(random.next()), ..config.clone() };
        let endpoint = Rc::new(Endpoint::new(transport, config).expect("drawn settings are valid"));
        let client = Client::new(&endpoint, scenario.first_members(), scenario.client);
        let doings = Doings { waker, in_progress: Cell::new(0), unread: RefCell::default(), has_read: Cell::new(false) };
        let doings = Rc::new(doings);
        shared.clients.borrow_mut()[number] = Some(doings.clone());
        let next_step = clock.now();
        let caller = Caller { shared: shared.clone(), number, client, clock, doings, versions: RefCell::default() };
        Driver {
            endpoint,
            caller: Rc::new(caller),
            random,
            steps_left: scenario.steps,
            changes_left: if number == 0 { scenario.changes } else { 0 },
            next_step,
            written: u64::from(incarnation) * 1_000_000,
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
        if self.changes_left > 0 && self.random.chance(40) {
            self.changes_left -= 1;
            self.begin_change();
        }
        if self.caller.doings.in_progress.get() >= IN_PROGRESS_MAX {
            return;
        }
        let key = self.random.index(self.caller.shared.scenario.keys);
        let input = self.draw(key);
        let patience = self.random.chance(20).then(|| Duration::from_micros(self.random.between(10, 50_000)));
        let (caller, work) = (self.caller.clone(), self.caller.doings.begin());
        self.spawn(async move {
            caller.call(key, input, patience).await;
            drop(work);
        });
    }

    /// Asks for a change. Most are refused, since nobody looks first.
    fn begin_change(&mut self) {
        let Scenario { members, spares, .. } = self.caller.shared.scenario;
        let r = &mut self.random;
        let any = r.between(1, members + spares);
        let spare = members + r.between(1, spares.max(1));
        let change = match r.between(0, 9) {
            0..=2 if spares > 0 => Some(Change::AddLearner { id: spare, address: address(spare).to_string() }),
            3..=5 if spares > 0 => Some(Change::Promote { id: spare }),
            // The others keep a majority among themselves, whoever of the rest is away.
            6 => Some(Change::Remove { id: members.max(any) }),
            _ => None,
        };
        let (caller, work) = (self.caller.clone(), self.caller.doings.begin());
        self.spawn(async move {
            let _ = match change {
                Some(change) => caller.client.change(change).await,
                None => caller.client.transfer(any).await,
            };
            drop(work);
        });
    }

    /// A random operation.
    fn draw(&mut self, key: usize) -> Input {
        let r = &mut self.random;
        self.written += 1;
        let version = self.caller.versions.borrow().get(&key).copied();
        let text = format!("{}.{}", self.caller.number, self.written);
        let mut value = text.clone().into_bytes();
        value.resize(value.len() + r.between(0, self.caller.shared.scenario.value_bytes_max) as usize, b'.');
        let put = |condition| Input::Put { value: value.clone(), flags: 0, expires: None, condition };
        match r.between(0, 99) {
            0..=34 => Input::Read,
            35..=49 => put(Stored::Always),
            50..=54 => put(Stored::Absent),
            55..=57 => put(Stored::Present),
            58..=69 => version.map_or(Input::Read, |version| put(Stored::Unchanged(version))),
            70..=73 => Input::Delete,
            _ => Input::Extend { bytes: format!(";{text}").into(), side: Side::End },
        }
    }

    /// Reads one key after the other, each as often as it takes.
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
                    let why = format!("client {} cannot read key {key} though the network healed", caller.number);
                    caller.doings.unread.borrow_mut().push(why);
                }
            }
            drop(work);
        });
    }
}

impl Caller {
    /// Does an operation and records it; says whether it got an answer.
    async fn call(&self, key: usize, input: Input, patience: Option<Duration>) -> bool {
        let number = self.shared.history.borrow_mut().begin(key, self.number, input.clone(), self.clock.now());
        let name = Scenario::key(key);
        let mut work = Box::pin(self.execute(&name, &input));
        let mut patience = patience.map(|time| Box::pin(self.timers().sleep(time)));
        let result = poll_fn(|context| {
            if let Poll::Ready(result) = work.as_mut().poll(context) {
                return Poll::Ready(Some(result));
            }
            match &mut patience {
                Some(patience) => patience.as_mut().poll(context).map(|()| None),
                None => Poll::Pending,
            }
        });
        let result = result.await;
        drop(work);
        let now = self.clock.now();
        let end = match result {
            None => End::Unknown(now, "given up".into()),
            Some(Ok(output)) => {
                if let Output::Stored(token) | Output::Item(Some(Found { token, .. })) = &output {
                    self.versions.borrow_mut().insert(key, *token);
                }
                End::Answered(now, output)
            }
            Some(Err(error)) if error.may_have_run() => End::Unknown(now, error.to_string()),
            Some(Err(error)) => End::NotExecuted(now, error.to_string()),
        };
        let is_answered = matches!(end, End::Answered(..));
        self.shared.history.borrow_mut().end(number, end);
        is_answered
    }

    fn timers(&self) -> dunlin_rpc::Timers {
        self.client.timers()
    }

    async fn execute(&self, key: &[u8], input: &Input) -> Result<Output, ClientError> {
        let command = match input {
            Input::Put { value, condition, .. } => Command::Put { key, value, condition: conditioned(*condition) },
            Input::Extend { bytes, .. } => Command::Append { key, bytes },
            Input::Delete => Command::Delete { key },
            _ => {
                let reply = self.client.query(Query { key }.encode()).await?;
                return Ok(output(input, &reply));
            }
        };
        let reply = self.client.execute(&command.encode()).await?;
        Ok(output(input, &reply))
    }
}

fn conditioned(condition: Stored) -> Condition {
    match condition {
        Stored::Always => Condition::Always,
        Stored::Absent => Condition::Absent,
        Stored::Present => Condition::Present,
        Stored::Unchanged(version) => Condition::Version(version),
    }
}

/// An answer in the words of the judge.
fn output(input: &Input, reply: &[u8]) -> Output {
    match Answer::parse(reply).expect("a replica answers as it should") {
        Answer::Done { .. } if *input == Input::Delete => Output::Done,
        Answer::Done { version } => Output::Stored(version),
        Answer::Value { version, value } => {
            Output::Item(Some(Found { value: value.to_vec(), flags: 0, token: version, expires: None }))
        }
        Answer::NotFound if input.is_read() => Output::Item(None),
        Answer::NotFound => Output::Refused(Refused::NotFound),
        Answer::Exists => Output::Refused(Refused::Exists),
        Answer::Changed => Output::Refused(Refused::Changed),
        other => panic!("{input:?} gave {other:?}"),
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
