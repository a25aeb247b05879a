//! The programs of clients: random operations on paths and leases at random times, all of them recorded; also the
//! client's life as a member, and its watches.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use dunlin_coord::embedded::Embedded;
use dunlin_coord::wire::{Command, Wire};
use dunlin_coord::{
    Condition, CoordError, Coordinator, Health, LEASE_TTL_MIN, Lease, Membership, Revision, Standing, Transaction,
};
use dunlin_rpc::{EndpointConfig, Timers};
use dunlin_sim::{SimTransport, ThreadClock};
use dunlin_smr::Client;
use dunlin_trial::Random;

use super::settings::name;
use super::subject::{End, Input, Output, Part, Subject, Value};
use super::testimony::ToldEpochs;
use super::{Shared, attendance, watcher};
use crate::clients::driver::{self, Driver, Pace, Place, Tasks};
use crate::clients::patience::within;

/// Limit of concurrent operations of a client: the judge must try all orders of concurrent operations.
const IN_PROGRESS_MAX: u32 = 3;
/// Maximum number of dots in a value that a transaction sets.
const TRANSACTION_VALUE_DOTS_MAX: usize = 32;
/// Maximum number of watchers of a client.
const WATCHERS_MAX: u64 = 2;

/// The clock that a client measures its leases and its membership with, as the client reads it.
#[derive(Clone)]
pub struct OwnClock(Weak<Caller>);

impl OwnClock {
    /// Nanoseconds; when the client has ended, all its time is over.
    pub fn now(&self) -> u64 {
        self.0.upgrade().map_or(u64::MAX, |caller| caller.coordinator.now())
    }
}

/// State shared by the tasks of a client.
pub struct Caller {
    pub shared: Rc<Shared>,
    pub number: usize,
    pub coordinator: Embedded<SimTransport>,
    /// The clock of its thread, for the judge.
    clock: ThreadClock,
    own_clock: OwnClock,
    pub membership: Cell<Option<Membership>>,
    /// By key: the version last seen.
    versions: RefCell<HashMap<usize, Revision>>,
    /// By key: the lease as last granted or renewed, and the turn in which it was granted.
    leases: RefCell<HashMap<usize, (u64, Lease)>>,
    /// By key: how often the client has given up a lease, or might have.
    turns: RefCell<HashMap<usize, u64>>,
}

/// The actions of a client.
enum Action {
    /// An operation that is recorded in a history.
    On(usize, Input),
    /// Reads the members.
    Members,
    /// Lists a part of the tree.
    List,
    /// Reads members, leases and a part of the tree at one moment.
    View,
    /// Reads the epochs after one, or discards those up to it.
    Epochs(u64),
    CutEpochs(u64),
    /// Changes several paths if all conditions hold, or none.
    Transact(Vec<(usize, Input)>, Transaction),
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
    let caller = Rc::new_cyclic(|caller| Caller {
        shared: shared.clone(),
        number,
        coordinator: Embedded::new(client).watch_every(shared.service.settings.watch_every),
        clock: place.clock.clone(),
        own_clock: OwnClock(caller.clone()),
        membership: Cell::new(None),
        versions: RefCell::default(),
        leases: RefCell::default(),
        turns: RefCell::default(),
    });
    let pace = Pace { steps: scenario.steps, gap_max_ns: scenario.gap_max_ns, keys: scenario.keys };
    let times = Random::new(random.next());
    let written = u64::from(incarnation) * 1_000_000;
    let work = Work { caller, random, written };
    Driver::start(&shared.clients, place, pace, work, times)
}

impl driver::Work for Work {
    type Caller = Caller;

    fn caller(&self) -> &Rc<Caller> {
        &self.caller
    }

    /// Its life as a member, and its watches.
    fn arrive(&mut self, tasks: &mut Tasks) {
        tasks.keep(attendance::live(self.caller.clone(), Random::new(self.random.next())));
        tasks.keep(attendance::stir(self.caller.clone()));
        for _ in 0..self.random.between(0, WATCHERS_MAX) {
            tasks.keep(watcher::watch(self.caller.clone(), Random::new(self.random.next())));
        }
    }

    fn begin(&mut self, tasks: &mut Tasks) {
        if tasks.in_progress() >= IN_PROGRESS_MAX {
            return;
        }
        let Some(action) = self.draw() else { return };
        let patience = self.random.chance(20).then(|| Duration::from_micros(self.random.between(10, 50_000)));
        let (caller, forgets) = (self.caller.clone(), self.random.chance(30));
        tasks.spawn(async move {
            match action {
                Action::On(key, input) => _ = caller.call(key, input, patience).await,
                Action::Members => caller.look_at_members(forgets).await,
                Action::List => _ = caller.list("/t").await,
                Action::View => caller.view().await,
                Action::Epochs(after) => caller.epochs(after).await,
                Action::CutEpochs(up_to) => _ = caller.coordinator.cut_epochs(up_to).await,
                Action::Transact(parts, transaction) => caller.transact(parts, transaction, patience).await,
            }
        });
    }
}

impl Work {
    /// A random action; `None` if the drawn one is impossible.
    fn draw(&mut self) -> Option<Action> {
        let settings = &self.caller.shared.service.settings;
        let r = &mut self.random;
        let key = r.index(settings.keys());
        match r.between(0, 99) {
            0..=4 => Some(Action::Members),
            5..=7 => Some(Action::List),
            8..=10 => Some(Action::View),
            11..=25 => Some(self.draw_transaction()),
            26..=28 => Some(self.draw_epochs()),
            _ if settings.is_lease(key) => self.draw_for_lease(key).map(|input| Action::On(key, input)),
            _ => Some(Action::On(key, self.draw_for_path(key))),
        }
    }

    fn draw_for_path(&mut self, key: usize) -> Input {
        self.written += 1;
        let r = &mut self.random;
        let text = format!("{}.{}", self.caller.number, self.written);
        let value = Value::new(text, r.between(0, self.caller.shared.service.settings.value_bytes_max) as usize);
        let version = self.caller.versions.borrow().get(&key).copied();
        let unchanged = version.map_or(Condition::Always, |version| Condition::Version { version });
        match r.between(0, 99) {
            0..=34 => Input::Get,
            35..=54 => Input::Set { value, condition: Condition::Always },
            55..=64 => Input::Set { value, condition: Condition::Absent },
            65..=84 => Input::Set { value, condition: unchanged },
            85..=92 => Input::Delete { condition: Condition::Always },
            _ => Input::Delete { condition: unchanged },
        }
    }

    fn draw_epochs(&mut self) -> Action {
        let known = self.caller.shared.service.testimony.epoch();
        let epoch = known.saturating_sub(self.random.between(0, 8));
        if self.random.chance(15) { Action::CutEpochs(epoch) } else { Action::Epochs(epoch) }
    }

    /// Compares and writes some paths, at times also with an epoch and a lease that it knows, which may be over.
    fn draw_transaction(&mut self) -> Action {
        let caller = self.caller.clone();
        let (settings, testimony) = (&caller.shared.service.settings, &caller.shared.service.testimony);
        let (mut parts, mut transaction) = (Vec::new(), Transaction::new());
        if let Some(membership) = caller.membership.get().filter(|_| self.random.chance(20)) {
            let known = testimony.epoch();
            transaction = transaction.if_epoch(if self.random.chance(50) { known } else { membership.epoch });
        }
        for key in settings.paths..settings.keys() {
            let lease = caller.leases.borrow().get(&key).map(|(_, lease)| lease.clone());
            if let Some(lease) = lease.filter(|_| self.random.chance(40)) {
                transaction = transaction.if_lease(&lease);
                parts.push((key, Input::Under { token: lease.token }));
            }
        }
        for key in 0..settings.paths {
            let (path, input) = (name(key), self.draw_for_path(key));
            let (condition, write) = match input {
                _ if self.random.chance(30) => continue,
                Input::Set { value, condition } => {
                    // Long values of several paths at once would make the state larger than estimated.
                    let value = value.shortened(TRANSACTION_VALUE_DOTS_MAX);
                    transaction = transaction.set(&path, value.bytes());
                    (condition, Part::Set(value))
                }
                Input::Delete { condition } => {
                    transaction = transaction.delete(&path);
                    (condition, Part::Delete)
                }
                _ => (Condition::Always, Part::Nothing),
            };
            transaction = transaction.if_entry(&path, condition);
            parts.push((key, Input::Part { write, condition }));
        }
        Action::Transact(parts, transaction)
    }

    fn draw_for_lease(&mut self, key: usize) -> Option<Input> {
        let r = &mut self.random;
        let ttl =
            r.between(LEASE_TTL_MIN.as_millis() as u64, self.caller.shared.service.settings.ttl_max.as_millis() as u64);
        let token = self.caller.leases.borrow().get(&key).map(|(_, lease)| lease.token);
        match (r.between(0, 99), token) {
            (0..=14, _) => Some(Input::Holder),
            // The lease may belong to another by now.
            (15..=54, Some(token)) => Some(Input::Renew { token }),
            (55..=69, Some(token)) => Some(Input::Release { token }),
            _ => {
                let Membership { member, incarnation, .. } = self.caller.membership.get()?;
                Some(Input::Acquire { member, incarnation, ttl_ms: ttl })
            }
        }
    }
}

impl driver::Caller for Caller {
    type Object = Subject;

    async fn read(&self, key: usize) -> bool {
        let is_lease = self.shared.service.settings.is_lease(key);
        self.call(key, if is_lease { Input::Holder } else { Input::Get }, None).await
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.shared.service.reliance.give_up(self.number, None);
        self.end_standing();
    }
}

impl Caller {
    pub fn timers(&self) -> Timers {
        self.coordinator.client().timers()
    }

    /// Executes an operation and records it; returns whether there was an answer.
    async fn call(&self, key: usize, input: Input, patience: Option<Duration>) -> bool {
        let number = self.shared.clients.begin(key, self.number, input.clone(), self.clock.virtual_now());
        let result = within(&self.timers(), patience, self.execute(key, &input)).await;
        let now = self.clock.virtual_now();
        let end = match result {
            None => End::Unknown(now, "given up".into()),
            Some(Ok(output)) => End::Answered(now, output),
            Some(Err(error @ (CoordError::TimedOut { .. } | CoordError::Backend { .. }))) => {
                let why = error.to_string();
                if error.may_have_run() { End::Unknown(now, why) } else { End::NotExecuted(now, why) }
            }
            Some(Err(error)) => End::Answered(now, Output::Refused(error)),
        };
        let is_answered = matches!(end, End::Answered(..));
        self.shared.clients.end(number, end);
        is_answered
    }

    async fn execute(&self, key: usize, input: &Input) -> Result<Output, CoordError> {
        let (coordinator, testimony, name) = (&self.coordinator, &self.shared.service.testimony, name(key));
        let floor = testimony.floor();
        Ok(match input {
            Input::Get => {
                let found = coordinator.get(&name).await?;
                found.iter().for_each(|entry| self.saw_version(key, entry.version));
                Output::Found(found.map(|entry| (Value::of(&entry.value), entry.version)))
            }
            Input::Set { value, condition } => {
                let version = coordinator.set(&name, &value.bytes(), *condition).await?;
                testimony.told_revision(floor, version);
                self.saw_version(key, version);
                Output::Changed(version)
            }
            Input::Delete { condition } => {
                let revision = coordinator.delete(&name, *condition).await?;
                testimony.told_revision(floor, revision);
                Output::Changed(revision)
            }
            Input::Holder => Output::Holder(coordinator.holder(&name).await?),
            Input::Acquire { member, incarnation, ttl_ms } => {
                let turn = self.give_up(key);
                let (member, incarnation) = (*member, *incarnation);
                let membership = Membership { member, incarnation, epoch: 0, failure_timeout_ms: 0, safe_until: 0 };
                let lease = coordinator.acquire(&membership, &name, Duration::from_millis(*ttl_ms)).await?;
                testimony.told_revision(floor, lease.token);
                self.rely(key, turn, &lease);
                Output::Granted(lease.token)
            }
            Input::Renew { token } => {
                let lease = self.leases.borrow().get(&key).filter(|(_, lease)| lease.token == *token).cloned();
                // A lease of an earlier turn may be renewed, but not relied on: its time may be that of a later grant.
                let (turn, mut lease) = lease.expect("a client renews the lease that it has seen last");
                let sent_at = self.clock.virtual_now();
                coordinator.renew(&mut lease).await?;
                testimony.was_heard(*token, sent_at);
                self.rely(key, turn, &lease);
                Output::Done
            }
            Input::Part { .. } | Input::Under { .. } => unreachable!("parts of transactions are done together"),
            Input::Release { token } => {
                self.give_up(key);
                let lease = self.leases.borrow().get(&key).filter(|(_, lease)| lease.token == *token).cloned();
                let (_, lease) = lease.expect("a client releases the lease that it has seen last");
                coordinator.release(&lease).await?;
                Output::Done
            }
        })
    }

    /// Executes a transaction, and records it in the history of each path and lease.
    async fn transact(&self, parts: Vec<(usize, Input)>, transaction: Transaction, patience: Option<Duration>) {
        let testimony = &self.shared.service.testimony;
        let (floor, begun) = (testimony.floor(), self.clock.virtual_now());
        let begin = |(key, input): &(usize, Input)| self.shared.clients.begin(*key, self.number, input.clone(), begun);
        let numbers: Vec<usize> = parts.iter().map(begin).collect();
        let result = within(&self.timers(), patience, self.coordinator.transact(&transaction)).await;
        let now = self.clock.virtual_now();
        if let Some(Ok(revision)) = &result {
            testimony.told_revision(floor, *revision);
        }
        for ((key, input), number) in parts.into_iter().zip(numbers) {
            let end = match &result {
                None => End::Unknown(now, "given up".into()),
                Some(Err(error @ (CoordError::TimedOut { .. } | CoordError::Backend { .. })))
                    if error.may_have_run() =>
                {
                    End::Unknown(now, error.to_string())
                }
                Some(Err(error @ (CoordError::TimedOut { .. } | CoordError::Backend { .. }))) => {
                    End::NotExecuted(now, error.to_string())
                }
                Some(Err(error)) if is_of(error, &name(key)) => End::Answered(now, Output::Refused(error.clone())),
                // The cause of the refusal says nothing about this one.
                Some(Err(error)) => End::NotExecuted(now, error.to_string()),
                Some(Ok(_)) if !input.changes() => End::Answered(now, Output::Done),
                Some(Ok(revision)) => {
                    self.saw_version(key, *revision);
                    End::Answered(now, Output::Changed(*revision))
                }
            };
            self.shared.clients.end(number, end);
        }
    }

    /// Reads members, leases and a part of the tree.
    async fn view(&self) {
        let testimony = &self.shared.service.testimony;
        let floor = testimony.floor();
        if let Ok(view) = self.coordinator.view("/t/1").await {
            testimony.told_view(floor, "/t/1", view);
        }
    }

    async fn epochs(&self, after: u64) {
        let testimony = &self.shared.service.testimony;
        let (floor, begun) = (testimony.floor(), self.clock.virtual_now());
        let answer = match self.coordinator.epochs(after).await {
            Ok(epochs) => Ok(epochs),
            Err(CoordError::EpochsCut { epoch }) => Err(epoch),
            Err(_) => return,
        };
        testimony.told_epochs(floor, ToldEpochs { after, begun, ended: self.clock.virtual_now(), answer });
    }

    fn saw_version(&self, key: usize, version: Revision) {
        self.versions.borrow_mut().insert(key, version);
    }

    fn turn(&self, key: usize) -> u64 {
        self.turns.borrow().get(&key).copied().unwrap_or(0)
    }

    /// Before a client acquires a lease anew, or releases it, it stops relying on all earlier grants: it cannot tell
    /// when they end.
    fn give_up(&self, key: usize) -> u64 {
        self.shared.service.reliance.give_up(self.number, Some(&name(key)));
        *self.turns.borrow_mut().entry(key).and_modify(|turn| *turn += 1).or_insert(1)
    }

    /// Virtual time, for the judge.
    pub fn virtual_now(&self) -> u64 {
        self.clock.virtual_now()
    }

    /// Works as a member for as long as its standing says.
    ///
    /// # Panics
    /// If that goes on, and the incarnation has gone.
    pub fn stand(&self, standing: &Standing) {
        let incarnation = standing.membership().incarnation;
        let left = standing.safe_until().saturating_sub(self.own_clock.now());
        let gone = self.shared.service.gone(incarnation);
        assert!(
            left == 0 || gone.is_none(),
            "client {} may work as incarnation {incarnation} for {left} ns more by its clock, which has gone at {gone:?}",
            self.number
        );
        self.shared.service.witness.stand(self.number, standing, &self.own_clock);
    }

    /// Stops working as a member.
    pub fn end_standing(&self) {
        self.shared.service.witness.end_standing(self.number);
    }

    /// Gives up all leases, before the client leaves.
    pub fn give_up_all(&self) {
        (0..self.shared.scenario.keys).for_each(|key| _ = self.give_up(key));
    }

    /// Relies on a lease that was requested in a turn, unless it was given up since.
    fn rely(&self, key: usize, turn: u64, lease: &Lease) {
        if self.turn(key) == turn {
            self.leases.borrow_mut().insert(key, (turn, lease.clone()));
            self.shared.service.reliance.rely(self.number, lease, &self.own_clock);
        }
    }

    /// Reads the members; returns the revision.
    pub async fn members(&self) -> Option<Revision> {
        self.ask_members().await.map(|members| members.revision)
    }

    async fn ask_members(&self) -> Option<dunlin_coord::Members> {
        let testimony = &self.shared.service.testimony;
        let floor = testimony.floor();
        let members = self.coordinator.members().await.ok()?;
        testimony.told_members(floor, members.clone());
        Some(members)
    }

    /// Reads the members, and forgets a failed one if `forgets`.
    async fn look_at_members(&self, forgets: bool) {
        let Some(members) = self.ask_members().await else { return };
        let failed = members.members.iter().find(|member| member.health == Health::Failed);
        if let Some(failed) = failed.filter(|_| forgets) {
            // It may have joined again, or been forgotten by now.
            let _ = self.coordinator.forget(failed.id).await;
        }
    }

    /// Lists the first page of a part of the tree; returns the revision.
    pub async fn list(&self, root: &str) -> Option<Revision> {
        let testimony = &self.shared.service.testimony;
        let floor = testimony.floor();
        let listing = self.coordinator.list(root, None).await.ok()?;
        let revision = listing.revision;
        testimony.told_listing(floor, root, listing);
        Some(revision)
    }
}

/// Whether a transaction was refused because of this path or lease.
fn is_of(error: &CoordError, name: &str) -> bool {
    match error {
        CoordError::Exists { path, .. } | CoordError::Changed { path, .. } => path == name,
        CoordError::NotFound { what } => what == name,
        CoordError::LeaseLost { name: lost, .. } => lost == name,
        _ => false,
    }
}

/// The command of an operation that changes a path; no two are equal.
pub fn command(key: usize, input: &Input) -> Option<Vec<u8>> {
    match input {
        Input::Set { value, condition } => {
            let path = name(key);
            let transaction = Transaction::new().if_entry(&path, *condition).set(&path, value.bytes());
            Some(Command::Transact { transaction }.to_bytes())
        }
        _ => None,
    }
}
