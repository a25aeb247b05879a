//! The programs of clients: random operations at random times, all of them recorded.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use dunlin_rpc::EndpointConfig;
use dunlin_sim::{SimTransport, ThreadClock};
use dunlin_smr::kv::{Answer, Command, Condition, Query};
use dunlin_smr::{Client, ClientError};
use dunlin_store::{Condition as Stored, Refused, Side};
use dunlin_trial::Random;

use super::KeyValues;
use crate::clients::driver::{self, Driver, Pace, Place, Tasks};
use crate::clients::item::{End, Found, Input, Item, Output};
use crate::clients::object::Object;
use crate::clients::patience::within;
use crate::cluster::{Scenario, run};

/// Limit of concurrent operations of a client: the judge must try all orders of concurrent operations.
const IN_PROGRESS_MAX: u32 = 3;

type Shared = run::Shared<KeyValues>;

/// State shared by the tasks of a client.
pub struct Caller {
    shared: Rc<Shared>,
    number: usize,
    client: Client<SimTransport>,
    clock: ThreadClock,
    /// The version last seen of each key.
    versions: RefCell<HashMap<usize, u64>>,
}

/// The random choices of a client.
pub struct Work {
    caller: Rc<Caller>,
    random: Random,
    /// Counts values, to make them distinct.
    written: u64,
}

/// Starts a client, after `incarnation` crashes.
pub fn start(shared: &Rc<Shared>, number: usize, incarnation: u32, transport: SimTransport) -> Driver<Work> {
    let scenario = &shared.scenario;
    let mut random = Random::new(scenario.seed ^ 0xc11e_4700 ^ (number as u64) << 32 ^ u64::from(incarnation) << 40);
    let config = EndpointConfig { seed: Some(random.next()), ..scenario.client_endpoint(number).clone() };
    let place = Place::new(number, transport, config);
    let client = Client::new(&place.endpoint, scenario.known_members(), scenario.client);
    let caller =
        Caller { shared: shared.clone(), number, client, clock: place.clock.clone(), versions: RefCell::default() };
    let pace = Pace { steps: scenario.steps, gap_max_ns: scenario.gap_max_ns, keys: scenario.keys };
    let times = Random::new(random.next());
    let work = Work { caller: Rc::new(caller), random, written: u64::from(incarnation) * 1_000_000 };
    Driver::start(&shared.clients, place, pace, work, times)
}

impl driver::Work for Work {
    type Caller = Caller;

    fn caller(&self) -> &Rc<Caller> {
        &self.caller
    }

    fn begin(&mut self, tasks: &mut Tasks) {
        if tasks.in_progress() >= IN_PROGRESS_MAX {
            return;
        }
        let key = self.random.index(self.caller.shared.scenario.keys);
        let input = self.draw(key);
        let patience = self.random.chance(20).then(|| Duration::from_micros(self.random.between(10, 50_000)));
        let caller = self.caller.clone();
        tasks.spawn(async move {
            let _is_answered = caller.call(key, input, patience).await;
        });
    }
}

impl Work {
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
}

impl driver::Caller for Caller {
    type Object = Option<Item>;

    async fn read(&self, key: usize) -> bool {
        self.call(key, Input::Read, None).await
    }
}

impl Caller {
    /// Executes an operation and records it; returns whether there was an answer.
    async fn call(&self, key: usize, input: Input, patience: Option<Duration>) -> bool {
        let number = self.shared.clients.begin(key, self.number, input.clone(), self.clock.virtual_now());
        let name = Scenario::key(key);
        let result = within(&self.client.timers(), patience, self.execute(&name, &input)).await;
        let now = self.clock.virtual_now();
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
        self.shared.clients.end(number, end);
        is_answered
    }

    async fn execute(&self, key: &[u8], input: &Input) -> Result<Output, ClientError> {
        let reply = match command(key, input) {
            Some(command) => self.client.execute(&command).await?,
            None => self.client.query(Query { key }.encode()).await?,
        };
        Ok(output(input, &reply))
    }
}

/// The command of an operation; `None` if it only reads.
pub fn command(key: &[u8], input: &Input) -> Option<Vec<u8>> {
    let command = match input {
        Input::Put { value, condition, .. } => Command::Put { key, value, condition: conditioned(*condition) },
        Input::Extend { bytes, .. } => Command::Append { key, bytes },
        Input::Delete => Command::Delete { key },
        _ => return None,
    };
    Some(command.encode())
}

fn conditioned(condition: Stored) -> Condition {
    match condition {
        Stored::Always => Condition::Always,
        Stored::Absent => Condition::Absent,
        Stored::Present => Condition::Present,
        Stored::Unchanged(version) => Condition::Version(version),
    }
}

/// An answer in the judge's form.
fn output(input: &Input, reply: &[u8]) -> Output {
    match Answer::parse(reply).expect("a replica answers as it should") {
        Answer::Done { .. } if *input == Input::Delete => Output::Done,
        Answer::Done { version } => Output::Stored(version),
        Answer::Value { version, value } => {
            Output::Item(Some(Found { value: value.to_vec(), flags: 0, token: version, expires: None }))
        }
        Answer::NotFound if Option::<Item>::is_silent(input) => Output::Item(None),
        Answer::NotFound => Output::Refused(Refused::NotFound),
        Answer::Exists => Output::Refused(Refused::Exists),
        Answer::Changed => Output::Refused(Refused::Changed),
        other => panic!("{input:?} gave {other:?}"),
    }
}
