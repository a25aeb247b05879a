//! The programs of clients: random operations at random times, all of them recorded.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use dunlin_kv::KvClient;
use dunlin_kv::client::{ClientConfig, KvError, Outcome, Value};
use dunlin_kv::wire::ItemFacts;
use dunlin_rpc::EndpointConfig;
use dunlin_sim::{Datacenter, SimTransport, ThreadClock};
use dunlin_store::{Condition, Delta, Put, Refused, Side, UnixSeconds};
use dunlin_trial::Random;

use super::scenario::{SERVER, Scenario};
use crate::clients::driver::{self, Driver, Pace, Place, Tasks};
use crate::clients::item::{End, Found, Input, Item, NOW, Output};
use crate::clients::phases::Clients;

/// Limit of concurrent operations of a client: the judge must try all orders of concurrent operations.
const IN_PROGRESS_MAX: u32 = 6;
/// Maximum deadline of an operation that has one.
const DEADLINE_MAX_NS: u64 = 100_000_000;

/// State shared by all clients of a run, and the run itself.
pub struct Shared {
    pub scenario: Scenario,
    pub clients: Rc<Clients<Option<Item>>>,
}

/// State shared by the tasks of a client.
pub struct Caller {
    shared: Rc<Shared>,
    number: usize,
    client: KvClient<SimTransport>,
    clock: ThreadClock,
    /// The token last seen of each key.
    tokens: RefCell<HashMap<usize, u64>>,
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
    let config = EndpointConfig { seed: Some(random.next()), ..scenario.clients[number].clone() };
    let place = Place::new(number, transport, config);
    let core = random.index(scenario.cores.len()) as u16;
    let sessions_per_core = random.between(1, 2) as usize;
    let mut config = ClientConfig::default();
    config.sessions_per_core = sessions_per_core;
    let client = KvClient::new(&place.endpoint, &Datacenter::addr(SERVER, core), config);
    let caller =
        Caller { shared: shared.clone(), number, client, clock: place.clock.clone(), tokens: RefCell::default() };
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
        let batch = self.random.between(1, self.caller.shared.scenario.batch_max);
        for _ in 0..batch {
            if tasks.in_progress() >= IN_PROGRESS_MAX {
                return;
            }
            let keys = self.caller.shared.scenario.keys;
            let wanted = self.random.chance(12).then(|| self.draw_keys(keys));
            let key = self.random.index(keys);
            let input = self.draw(key);
            let deadline_ns = (!self.random.chance(30)).then(|| {
                // Each magnitude is equally likely: from less than a round trip to longer than most faults.
                DEADLINE_MAX_NS >> self.random.between(0, 14)
            });
            let caller = self.caller.clone();
            let deadline = deadline_ns.map(Duration::from_nanos);
            tasks.spawn(async move {
                match wanted {
                    Some(keys) => caller.get_many(&keys, deadline).await,
                    None => drop(caller.call(key, input, deadline).await),
                }
            });
        }
    }
}

impl Work {
    /// Keys for a multi-get: each with probability one half, in random order, and perhaps one of them twice.
    fn draw_keys(&mut self, keys: usize) -> Vec<usize> {
        let mut wanted: Vec<usize> = (0..keys).filter(|_| self.random.chance(50)).collect();
        wanted.push(self.random.index(keys));
        let (from, to) = (self.random.index(wanted.len()), self.random.index(wanted.len()));
        wanted.swap(from, to);
        wanted
    }

    /// A random expiry: usually never, otherwise long after the run, and sometimes at once.
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
        // Half of the values are numbers, so that counting operations find some.
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
}

impl driver::Caller for Caller {
    type Object = Option<Item>;

    async fn read(&self, key: usize) -> bool {
        self.call(key, Input::Read, None).await
    }
}

impl Caller {
    /// Executes an operation and records it; returns whether there was an answer.
    async fn call(&self, key: usize, input: Input, deadline: Option<Duration>) -> bool {
        let number = self.shared.clients.begin(key, self.number, input.clone(), self.clock.virtual_now());
        let result = self.execute(&Scenario::key(key), &input, deadline).await;
        let now = self.clock.virtual_now();
        let end = match result {
            Ok(output) => {
                if let Output::Stored(token) | Output::Number(_, token) | Output::Item(Some(Found { token, .. })) =
                    &output
                {
                    self.tokens.borrow_mut().insert(key, *token);
                }
                End::Answered(now, output)
            }
            Err(KvError::Refused(refused)) => End::Answered(now, Output::Refused(refused)),
            Err(error) => failed(now, &error),
        };
        let is_answered = matches!(end, End::Answered(..));
        self.shared.clients.end(number, end);
        is_answered
    }

    /// Reads many keys at once, and records a read of each: a multi-get is not promised to be atomic.
    async fn get_many(&self, keys: &[usize], deadline: Option<Duration>) {
        let begin = |&key: &usize| self.shared.clients.begin(key, self.number, Input::Get, self.clock.virtual_now());
        let numbers: Vec<usize> = keys.iter().map(begin).collect();
        let names: Vec<Vec<u8>> = keys.iter().map(|&key| Scenario::key(key)).collect();
        let result = self.client.with_deadline(deadline).multi_get(&names).await;
        let now = self.clock.virtual_now();
        let ends: Vec<End> = match result {
            Ok(values) => values.into_iter().map(|value| End::Answered(now, Output::value(value.as_ref()))).collect(),
            Err(error) => numbers.iter().map(|_| failed(now, &error)).collect(),
        };
        assert_eq!(ends.len(), numbers.len(), "each key has its answer");
        numbers.into_iter().zip(ends).for_each(|(number, end)| self.shared.clients.end(number, end));
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

/// The end of a failed operation.
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
