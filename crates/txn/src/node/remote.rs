//! A client of a service, which finds its nodes by the address of any of them, and follows the configuration.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use dunlin_net::clock::nanos;
use dunlin_net::random::Random;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, Timers};
use dunlin_serve::{CallPolicy, Channel, ChannelConfig};
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;

use super::control::{Answer, CONTROL, Report, Request};
use super::document::parse;
use super::plan::Wanted;
use super::stats::NodeStats;
use crate::client::{Client, ClientConfig, Outcome, Transaction};
use crate::configuration::Configuration;
use crate::error::TxnError;
use crate::ids::{Epoch, Place, TransactionId};

/// Settings of a client of a service.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// Settings of its coordinator.
    pub client: ClientConfig,
    /// How long [`Remote::run`] and the others may take. Default 5 s.
    pub timeout: Duration,
    /// How long one node may take to answer. [`Remote::connect`] doubles it as long as none does. Default 500 ms.
    pub attempt_timeout: Duration,
    /// How often the configuration is asked for while transactions are open; an idle client asks less often. Default
    /// 50 ms.
    pub look_every: Duration,
    /// Seed of the number of its coordinator, for repeatable tests: no other client may have the same. By default it is
    /// random.
    pub seed: Option<u64>,
}

impl Default for RemoteConfig {
    fn default() -> Self {
        RemoteConfig {
            client: ClientConfig::default(),
            timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_millis(500),
            look_every: Duration::from_millis(50),
            seed: None,
        }
    }
}

/// An idle client asks for the configuration after so many times its interval.
const IDLE_LOOKS: u32 = 10;
/// Pauses before a transaction runs again: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Remote coordinators have this bit in their number: those on nodes have the revision at which they joined.
const REMOTE: u64 = 1 << 63;
/// How long nodes are waited for that may be dead, while others have answered that they know of no later configuration.
/// If none answers in time, the next look takes twice as long; if one does, twice as long as that answer. It is never
/// longer than an attempt.
const LOOK_TIME: Duration = Duration::from_millis(100);

/// Why a service did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// No node has answered in time.
    #[error("no node of the service answers: {why}")]
    Silent {
        /// What the last one said, or why it could not be asked.
        why: String,
    },
    /// A node has refused.
    #[error("{0}")]
    Refused(String),
    /// A table may have been made: its node did not answer any more.
    #[error("it is not known whether the table was made: {0}; look with `table list`")]
    InDoubt(String),
    /// A node is of another service than the others.
    #[error("{addr} is a node of cluster {theirs:016x}, and others are of cluster {ours:016x}: correct the addresses")]
    OtherCluster {
        /// Its address.
        addr: String,
        /// Its cluster.
        theirs: u64,
        /// That of the others.
        ours: u64,
    },
    /// There is no source of random numbers.
    #[error("no random numbers: {0}")]
    Random(String),
    /// The transaction failed.
    #[error(transparent)]
    Transaction(#[from] TxnError),
}

impl RemoteError {
    /// Whether it may have been done.
    pub fn may_have_run(&self) -> bool {
        match self {
            RemoteError::Transaction(error) => error.may_have_committed(),
            RemoteError::InDoubt(_) => true,
            _ => false,
        }
    }
}

/// Asks one node for its counters, whether or not it is a member of a service.
///
/// # Errors
/// [`RemoteError::Silent`] if it does not answer in time; [`RemoteError::Refused`] if it is no such node, or one of
/// another version.
pub async fn stats_of<T: Transport + 'static>(node: &Channel<T>, timeout: Duration) -> Result<NodeStats, RemoteError> {
    match ask(node, &Request::Stats, timeout).await {
        Err(why) => Err(RemoteError::Silent { why }),
        Ok(Answer::Done(text)) => {
            let unread = || RemoteError::Refused("its counters cannot be read: run the same version everywhere".into());
            NodeStats::parse(&text).ok_or_else(unread)
        }
        Ok(Answer::Refused(why) | Answer::NotNow(why)) => Err(RemoteError::Refused(why)),
    }
}

/// A client of a service. Clones share one coordinator.
pub struct Remote<T: Transport + 'static>(Rc<Inner<T>>);

impl<T: Transport + 'static> Clone for Remote<T> {
    fn clone(&self) -> Self {
        Remote(self.0.clone())
    }
}

struct Inner<T: Transport + 'static> {
    endpoint: Rc<Endpoint<T>>,
    timers: Timers,
    /// Where it was told to ask.
    at: Vec<Addr>,
    config: RemoteConfig,
    client: Client<T>,
    configuration: RefCell<Rc<Configuration>>,
    channels: RefCell<BTreeMap<Addr, Channel<T>>>,
    /// Which node is asked next by an idle client.
    turn: Cell<usize>,
    /// How long a look for a later configuration takes at most.
    look_time: Cell<Duration>,
    random: RefCell<Random>,
}

/// Asks the node at an address.
async fn ask<T: Transport + 'static>(
    channel: &Channel<T>,
    request: &Request,
    time: Duration,
) -> Result<Answer, String> {
    let policy = CallPolicy::repeatable().within(time);
    let answer = channel.call_with(CONTROL, request.encode(), policy).await.map_err(|error| error.to_string())?;
    Answer::parse(&answer).ok_or_else(|| "its answer cannot be read: run the same version everywhere".into())
}

/// Reads a configuration that was answered; `None` if there is no later one.
fn read(answer: Result<Answer, String>) -> Result<Option<Configuration>, String> {
    match answer? {
        Answer::Done(text) if text.is_empty() => Ok(None),
        Answer::Done(text) => parse(&text).map(Some).map_err(|error| error.to_string()),
        Answer::Refused(why) | Answer::NotNow(why) => Err(why),
    }
}

impl<T: Transport + 'static> Remote<T> {
    /// Connects to a service by the addresses of some of its nodes: any of them tells where all are.
    ///
    /// # Errors
    /// [`RemoteError::Silent`] if none answers in time; [`RemoteError::OtherCluster`] if they are of several services.
    pub async fn connect(
        endpoint: &Rc<Endpoint<T>>,
        at: Vec<Addr>,
        config: RemoteConfig,
    ) -> Result<Remote<T>, RemoteError> {
        let timers = endpoint.timers();
        let deadline = timers.now().saturating_add(nanos(config.timeout));
        let channel = |addr: &Addr| Channel::new(endpoint, vec![addr.clone()], ChannelConfig::default());
        let channels: BTreeMap<Addr, Channel<T>> = at.iter().map(|addr| (addr.clone(), channel(addr))).collect();
        let (mut patience, mut why) = (config.attempt_timeout, "there is no address".to_owned());
        let mut has_reason = false;
        let found = loop {
            let request = Request::Configuration { than: 0 };
            let asked = channels.iter().map(|(addr, channel)| {
                let request = &request;
                async move { (addr, ask(channel, request, patience).await) }
            });
            let mut found: Option<Configuration> = None;
            let mut late = None;
            let (asked_at, mut is_silent) = (timers.now(), true);
            for (addr, answer) in join_all(asked).await {
                let is_unanswered = answer.is_err();
                is_silent &= is_unanswered;
                match (read(answer), &found) {
                    (Ok(Some(new)), Some(known)) if new.cluster != known.cluster => {
                        let (theirs, ours) = (new.cluster, known.cluster);
                        return Err(RemoteError::OtherCluster { addr: addr.to_string(), theirs, ours });
                    }
                    (Ok(Some(new)), known) if known.as_ref().is_none_or(|known| known.epoch < new.epoch) => {
                        found = Some(new);
                    }
                    (Ok(_), _) => {}
                    (Err(error), _) if is_unanswered => late = Some(error),
                    (Err(error), _) => (why, has_reason) = (error, true),
                }
            }
            // What a node has said is worth more than that it is silent now.
            why = late.filter(|_| !has_reason).unwrap_or(why);
            match found {
                Some(found) => break found,
                None => {
                    let is_late = is_silent && timers.now() >= asked_at.saturating_add(nanos(patience));
                    timers.sleep(config.look_every).await;
                    let left = Duration::from_nanos(deadline.saturating_sub(timers.now()));
                    if left.is_zero() {
                        return Err(RemoteError::Silent { why });
                    }
                    // All nodes may be that slow.
                    patience = if is_late { patience.saturating_mul(2).min(left) } else { patience.min(left) };
                }
            }
        };
        let random = match config.seed {
            Some(seed) => seed,
            None => getrandom::u64().map_err(|why| RemoteError::Random(why.to_string()))?,
        };
        let configuration = Rc::new(found);
        let client_config = ClientConfig { seed: random, ..config.client.clone() };
        let client = Client::new(endpoint, random | REMOTE, configuration.clone(), client_config);
        let inner = Rc::new(Inner {
            endpoint: endpoint.clone(),
            timers,
            at,
            look_time: Cell::new(LOOK_TIME.min(config.attempt_timeout)),
            config,
            client,
            configuration: RefCell::new(configuration),
            channels: RefCell::new(channels),
            turn: Cell::new(0),
            random: RefCell::new(Random::new(random)),
        });
        endpoint.spawn(follow(Rc::downgrade(&inner)));
        Ok(Remote(inner))
    }

    /// The coordinator, which follows the configuration.
    pub fn client(&self) -> &Client<T> {
        &self.0.client
    }

    /// The last configuration that it was told.
    pub fn configuration(&self) -> Rc<Configuration> {
        self.0.configuration.borrow().clone()
    }

    /// Asks all nodes for a later configuration. Returns whether there is one.
    pub async fn refresh(&self) -> bool {
        self.0.refresh().await
    }

    /// Runs a transaction and commits it, as [`Client::run`] does, but for as long as the timeout of the settings: also
    /// while members fail and are replaced. A transaction in doubt is not run again; [`Remote::settle`] tells what
    /// became of it.
    ///
    /// # Errors
    /// That of the last run.
    pub async fn run<R>(
        &self,
        mut work: impl AsyncFnMut(&mut Transaction<T>) -> Result<R, TxnError>,
    ) -> Result<R, TxnError> {
        let inner = &self.0;
        let (deadline, mut pause) = (inner.deadline(), PAUSE_MIN);
        let mut is_first = true;
        loop {
            let mut transaction = inner.client.begin();
            let result = match work(&mut transaction).await {
                Ok(result) if transaction.is_open() => transaction.commit().await.map(|()| result),
                Ok(result) => return Ok(result),
                Err(error) => {
                    transaction.abort().await;
                    Err(error)
                }
            };
            let error = match result {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            // A table may be newer than what this client knows.
            let may_be_new = matches!(error, TxnError::NoTable { .. }) && std::mem::take(&mut is_first);
            let is_over = inner.timers.now() >= deadline;
            if is_over || !(error.may_be_repeated() || may_be_new) {
                return Err(error);
            }
            if !matches!(error, TxnError::Conflict { .. } | TxnError::RangeConflict { .. } | TxnError::Busy { .. }) {
                inner.refresh().await;
            }
            let part = inner.random.borrow_mut().below(nanos(pause));
            inner.timers.sleep(Duration::from_nanos(part)).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Asks what became of a transaction in doubt, until that is known or the time is up.
    ///
    /// # Errors
    /// That of the last attempt.
    pub async fn settle(&self, transaction: TransactionId) -> Result<Outcome, TxnError> {
        let inner = &self.0;
        let deadline = inner.deadline();
        loop {
            let outcome = inner.client.outcome(transaction).await;
            let is_known = matches!(outcome, Ok(Outcome::Committed | Outcome::Aborted | Outcome::Forgotten));
            if is_known || inner.timers.now() >= deadline {
                return outcome;
            }
            inner.refresh().await;
            inner.timers.sleep(PAUSE_MAX).await;
        }
    }

    /// Makes a table.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn create_table(&self, wanted: Wanted) -> Result<(), RemoteError> {
        let inner = &self.0;
        let (deadline, name) = (inner.deadline(), wanted.table.name.clone());
        let mut why = "there is none".to_owned();
        for addr in inner.nodes() {
            let left = Duration::from_nanos(deadline.saturating_sub(inner.timers.now()));
            if left.is_zero() {
                break;
            }
            let channel = inner.channel(&addr);
            // Not twice: the second would say that it exists.
            let policy = CallPolicy::default().within(left);
            match channel.call_with(CONTROL, Request::Create(wanted.clone()).encode(), policy).await {
                Ok(answer) => match Answer::parse(&answer) {
                    Some(Answer::Done(_)) => {
                        while self.configuration().table(&name).is_none() && inner.timers.now() < deadline {
                            inner.refresh().await;
                            inner.timers.sleep(PAUSE_MAX).await;
                        }
                        return Ok(());
                    }
                    Some(Answer::Refused(why)) => return Err(RemoteError::Refused(why)),
                    Some(Answer::NotNow(said)) => why = said,
                    None => why = "its answer cannot be read: run the same version everywhere".into(),
                },
                Err(error) if error.may_have_run => return Err(RemoteError::InDoubt(error.to_string())),
                Err(error) => why = error.to_string(),
            }
        }
        Err(RemoteError::Silent { why })
    }

    /// What each core of each member has; an error for those that do not answer.
    pub async fn reports(&self) -> BTreeMap<Place, Result<Report, String>> {
        let inner = &self.0;
        let configuration = self.configuration();
        let report = async |place: Place| {
            let addr = configuration.addr(place).ok_or("it has no address")?;
            match ask(&inner.channel(addr), &Request::Report, inner.config.attempt_timeout).await? {
                Answer::Done(text) => Report::parse(&text).ok_or_else(|| "its report cannot be read".to_owned()),
                Answer::Refused(why) | Answer::NotNow(why) => Err(why),
            }
        };
        let all = configuration.places().map(|place| {
            let report = &report;
            async move { (place, report(place).await) }
        });
        join_all(all).await.into_iter().collect()
    }
}

impl<T: Transport + 'static> Inner<T> {
    fn deadline(&self) -> u64 {
        self.timers.now().saturating_add(nanos(self.config.timeout))
    }

    /// The first core of each member, and where it was told to ask.
    fn nodes(&self) -> Vec<Addr> {
        let configuration = self.configuration.borrow();
        let mut all: Vec<Addr> =
            configuration.nodes.values().filter_map(|member| member.cores.first().cloned()).collect();
        for addr in &self.at {
            if !all.contains(addr) {
                all.push(addr.clone());
            }
        }
        all
    }

    fn channel(&self, addr: &Addr) -> Channel<T> {
        let known = self.channels.borrow().get(addr).cloned();
        known.unwrap_or_else(|| {
            let channel = Channel::new(&self.endpoint, vec![addr.clone()], ChannelConfig::default());
            self.channels.borrow_mut().insert(addr.clone(), channel.clone());
            channel
        })
    }

    /// Adopts a configuration, if it is later. One of another cluster is not.
    fn adopt(&self, found: Configuration) -> bool {
        let known = self.configuration.borrow().clone();
        if found.cluster != known.cluster || found.epoch <= known.epoch {
            return false;
        }
        let found = Rc::new(found);
        self.client.reconfigure(found.clone());
        *self.configuration.borrow_mut() = found;
        let nodes = self.nodes();
        let all: Vec<Addr> = self.configuration.borrow().nodes.values().flat_map(|it| it.cores.clone()).collect();
        self.channels.borrow_mut().retain(|addr, _| nodes.contains(addr) || all.contains(addr));
        true
    }

    /// Asks some nodes; does not wait for the others once one has a later configuration.
    async fn ask_for_later(&self, nodes: Vec<Addr>) -> bool {
        let than: Epoch = self.client.epoch();
        let request = Request::Configuration { than };
        let channels: Vec<Channel<T>> = nodes.iter().map(|addr| self.channel(addr)).collect();
        let (time, asked_at) = (self.look_time.get(), self.timers.now());
        let asked = channels.iter().map(|channel| ask(channel, &request, time));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut answered_in = None;
        while let Some(answer) = asked.next().await {
            let took = Duration::from_nanos(self.timers.now() - asked_at);
            answered_in = answered_in.or_else(|| answer.is_ok().then_some(took));
            if let Ok(Some(found)) = read(answer)
                && self.adopt(found)
            {
                return true;
            }
        }
        // If none answers, all may be that slow.
        let is_late = || self.timers.now() >= asked_at.saturating_add(nanos(time));
        let next = match answered_in {
            Some(took) => (2 * took).max(LOOK_TIME),
            None if is_late() => 2 * time,
            None => time,
        };
        self.look_time.set(next.min(self.config.attempt_timeout));
        self.client.epoch() > than
    }

    async fn refresh(&self) -> bool {
        self.ask_for_later(self.nodes()).await
    }
}

/// Keeps the configuration of a client up to date, as long as it lives.
async fn follow<T: Transport + 'static>(weak: Weak<Inner<T>>) {
    let mut idle = 0;
    while let Some(sleep) = weak.upgrade().map(|inner| inner.timers.sleep(inner.config.look_every)) {
        sleep.await;
        let Some(inner) = weak.upgrade() else { return };
        let is_busy = inner.client.open() > 0;
        idle = if is_busy { 0 } else { idle + 1 };
        if !is_busy && !u32::is_multiple_of(idle, IDLE_LOOKS) {
            continue;
        }
        let mut nodes = inner.nodes();
        if !is_busy {
            let turn = inner.turn.replace(inner.turn.get() + 1) % nodes.len().max(1);
            nodes = nodes.into_iter().skip(turn).take(1).collect();
        }
        inner.ask_for_later(nodes).await;
    }
}
