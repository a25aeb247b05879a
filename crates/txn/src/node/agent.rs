//! The agent of a node: its membership, the configuration, and, if it is elected, placing.
//!
//! The agent joins the cluster manager, follows the configuration in its tree, and has the cores enter each. All agents
//! campaign for one lease. Its holder is the *placer*: it publishes the next configuration when a member has failed or
//! joined, or copies were filled, and recovers. Each configuration is written by a transaction that compares the lease
//! and the version of the one before. So there is one configuration for each epoch, and a placer that was paused
//! changes nothing: neither its lease nor the version is the same.
//!
//! A member that has failed by the cluster manager has stopped by its own clock before ([`Standing`]). If it is heard
//! again before a configuration has left it out, it goes on with its data: nothing was committed without it. That is
//! why a configuration is published only in the epoch of the cluster manager in which it was decided: no member can have
//! come back in between. A member that comes back later says so ([`Arrival::Back`]): if it was left out, it is not
//! listed again, and finds that out when it reads the configuration. It has missed writes, and may have records of
//! transactions that were aborted since.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use dunlin_coord::{
    Condition, CoordError, Coordinator, HEARTBEAT_EVERY, Health, Leadership, Lease, Revision, Scope, Standing,
    Transaction, View, campaign_as, join_after_leases, with_deadline,
};
use dunlin_net::Addr;
use dunlin_net::clock::nanos;
use dunlin_serve::Mailboxes;
use futures::future::{Either, select};
use tokio::sync::mpsc;

use super::control::Answer;
use super::core::{
    Ask, Identity, Letter, LetterBecome, LetterEnter, LetterRecover, LetterResume, LetterSurvey, ask_first, tell_all,
};
use super::document::{BadDocument, DOCUMENT_BYTES_MAX, encode, parse};
use super::plan::{self, Wanted};
use crate::configuration::{Configuration, Member};
use crate::ids::{Epoch, NodeId, PartitionId};
use crate::mutation::{Mutation, is_planted};

/// What members of this version say about themselves begins with this.
const ABOUT: &str = "txn 2";
/// Bytes of that: the limit of the cluster manager.
const ABOUT_BYTES_MAX: usize = 1 << 10;
/// How often a member asks whether it may join.
const JOIN_EVERY: Duration = Duration::from_millis(200);
/// Pause after an error.
const PAUSE: Duration = Duration::from_millis(50);
/// Of so many attempts to join that fail, one is logged.
const WARN_EVERY: u32 = 20;
/// Pause before a recovery is repeated.
const RECOVER_AGAIN: Duration = Duration::from_millis(10);
/// How often the placer asks for copies that were filled, while there are some to fill.
const SURVEY_EVERY: Duration = Duration::from_millis(100);
/// While other copies are being filled, those that were filled are published so often. Each configuration costs all
/// transactions a moment.
const PUBLISH_EVERY: Duration = Duration::from_secs(2);
/// How long a table may take to be made.
const MAKE_TIME: Duration = Duration::from_secs(5);
/// The state is read again after this time, whatever watching says.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Settings of an agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The node, as a member of the cluster manager: one process at a time.
    pub node: NodeId,
    /// The address of each of its cores.
    pub cores: Vec<Addr>,
    /// The path of the service in the tree: nodes of one service have the same. Default `/txn`.
    pub service: String,
    /// The time of the placer's lease. Default 2 s.
    pub lease: Duration,
    /// How long the placer waits for failed members to come back before it gives up partitions that have copies on these
    /// alone. Default 10 s.
    pub grace: Duration,
    /// Seed of the numbers that a new service draws, for repeatable tests. By default they are random.
    pub seed: Option<u64>,
}

impl AgentConfig {
    /// The default settings.
    pub fn new(node: NodeId, cores: Vec<Addr>) -> AgentConfig {
        AgentConfig {
            node,
            cores,
            service: "/txn".into(),
            lease: Duration::from_secs(2),
            grace: Duration::from_secs(10),
            seed: None,
        }
    }

    fn about(&self, arrival: Arrival, incarnation: u64) -> String {
        let cores: Vec<String> = self.cores.iter().map(ToString::to_string).collect();
        format!("{ABOUT} {} {} {incarnation} {}", self.service, arrival.word(), cores.join(","))
    }
}

/// What a member says about the data of its process as it joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// It has none: it may be listed.
    New,
    /// It has some, since it was listed before: if it is listed no more, it must not be listed again.
    Back,
}

impl Arrival {
    fn word(self) -> &'static str {
        match self {
            Arrival::New => "new",
            Arrival::Back => "back",
        }
    }

    fn of(word: &str) -> Option<Arrival> {
        [Arrival::New, Arrival::Back].into_iter().find(|arrival| arrival.word() == word)
    }
}

/// Why an agent cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAgent {
    /// Node 0 is none.
    #[error("node 0 is no node: choose a number from 1 on")]
    Node,
    /// Too many cores.
    #[error("the addresses of {cores} cores have {bytes} bytes, and {ABOUT_BYTES_MAX} fit: give the node fewer cores")]
    Cores {
        /// How many.
        cores: usize,
        /// Bytes of their addresses.
        bytes: usize,
    },
}

/// Why a member stops being one.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Coord(#[from] CoordError),
    #[error(transparent)]
    Document(#[from] BadDocument),
    #[error("the others go on without it")]
    LeftOut,
    #[error("{0}")]
    NotTaken(String),
    #[error("the cores have ended")]
    Cores,
}

/// A configuration and the version of its entry.
#[derive(Debug, Clone)]
struct Published {
    configuration: Arc<Configuration>,
    version: Revision,
}

/// The agent of a node.
pub struct Agent<C> {
    coordinator: C,
    mailboxes: Mailboxes<Letter>,
    config: AgentConfig,
    asks: RefCell<mpsc::Receiver<Ask>>,
    standing: RefCell<Option<Standing>>,
    /// The number under which the cores are a member, with their data; 0 if there is none yet.
    incarnation: Cell<u64>,
    /// Whether they may have entered a configuration that lists it.
    is_listed: Cell<bool>,
    /// What all cores have entered.
    entered: RefCell<Option<Published>>,
    waiting: RefCell<Vec<Waker>>,
}

impl<C: Coordinator> Agent<C> {
    pub(super) fn new(
        coordinator: C,
        mailboxes: Mailboxes<Letter>,
        config: AgentConfig,
        asks: mpsc::Receiver<Ask>,
    ) -> Result<Agent<C>, BadAgent> {
        let (cores, bytes) = (config.cores.len(), config.about(Arrival::Back, u64::MAX).len());
        if config.node == 0 {
            return Err(BadAgent::Node);
        }
        if bytes > ABOUT_BYTES_MAX {
            return Err(BadAgent::Cores { cores, bytes });
        }
        Ok(Agent {
            coordinator,
            mailboxes,
            config,
            asks: RefCell::new(asks),
            standing: RefCell::default(),
            incarnation: Cell::new(0),
            is_listed: Cell::new(false),
            entered: RefCell::default(),
            waiting: RefCell::default(),
        })
    }

    /// The cluster manager.
    pub fn coordinator(&self) -> &C {
        &self.coordinator
    }

    /// Works until `stop` is ready, and then leaves. Stop the cores first, so that nothing rests on the membership any
    /// more.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        match select(pin!(self.work()), pin!(stop)).await {
            Either::Left((never, _)) => match never {},
            Either::Right(((), _)) => {}
        }
        let standing = self.standing.take();
        if let Some(standing) = standing.filter(|standing| standing.safe_until() > 0) {
            standing.end();
            // If this fails, the member is taken for failed later.
            let _ = self.within(PAUSE * 20, self.coordinator.leave(standing.membership())).await;
        }
    }

    async fn sleep(&self, time: Duration) {
        self.coordinator.sleep_until(self.coordinator.now().saturating_add(nanos(time))).await;
    }

    async fn within<R>(
        &self,
        time: Duration,
        operation: impl Future<Output = Result<R, CoordError>>,
    ) -> Result<R, CoordError> {
        with_deadline(&self.coordinator, self.coordinator.now().saturating_add(nanos(time)), operation).await
    }

    fn path(&self) -> String {
        format!("{}/configuration", self.config.service)
    }

    async fn work(&self) -> std::convert::Infallible {
        let mut attempts = 0_u32;
        loop {
            let arrival = if self.is_listed.get() { Arrival::Back } else { Arrival::New };
            if arrival == Arrival::New {
                // Also if it has one: a configuration may have listed and left it out without its knowledge.
                self.incarnation.set(self.draw());
            }
            let about = self.config.about(arrival, self.incarnation.get());
            let node = u64::from(self.config.node);
            let membership = match join_after_leases(&self.coordinator, node, about.as_bytes(), JOIN_EVERY).await {
                Ok(membership) => membership,
                Err(why) => {
                    if attempts.is_multiple_of(WARN_EVERY) {
                        tracing::warn!(%why, "this node cannot join the cluster manager yet");
                    }
                    attempts = attempts.wrapping_add(1);
                    self.sleep(PAUSE * 10).await;
                    continue;
                }
            };
            attempts = 0;
            let standing = Standing::new(&membership);
            self.standing.replace(Some(standing.clone()));
            tracing::info!(node, incarnation = membership.incarnation, "this node is a member");
            let why = match select(pin!(self.lead(&standing)), pin!(self.follow_and_make(&standing))).await {
                Either::Left((why, _)) => Ended::Coord(why),
                Either::Right((why, _)) => why,
            };
            // From here on the cores serve nothing.
            let is_live = standing.safe_until() > 0 && !matches!(why, Ended::Coord(CoordError::NotLive { .. }));
            standing.end();
            if matches!(why, Ended::Coord(_)) {
                tracing::warn!(%why, "this node is no member any more, and joins again");
            } else {
                tracing::warn!(%why, "this node drops what it has, and joins as a new member");
                self.is_listed.set(false);
                self.entered.take();
            }
            if is_live {
                let _ = self.within(PAUSE * 20, self.coordinator.leave(&membership)).await;
            }
            self.sleep(PAUSE).await;
        }
    }

    /// A number that no other member has, or had.
    fn draw(&self) -> u64 {
        let (now, node) = (self.coordinator.now(), u64::from(self.config.node));
        let drawn = match self.config.seed {
            Some(seed) => seed ^ node << 48 ^ now,
            None => getrandom::u64().unwrap_or(now ^ node << 48),
        };
        drawn.max(1)
    }

    fn lists(&self, configuration: &Configuration) -> bool {
        configuration.nodes.get(&self.config.node).is_some_and(|it| it.incarnation == self.incarnation.get())
    }

    /// Reads the configuration, and the revision from which to watch.
    async fn read(&self) -> Result<(Option<Published>, Revision), Ended> {
        let listing = self.coordinator.list(&self.config.service, None).await?;
        let entry = listing.entries.into_iter().find(|entry| entry.path == self.path());
        let published = entry.map(|entry| {
            let text = String::from_utf8_lossy(&entry.value).into_owned();
            Ok::<_, BadDocument>(Published { configuration: Arc::new(parse(&text)?), version: entry.version })
        });
        Ok((published.transpose()?, listing.revision))
    }

    async fn follow_and_make(&self, standing: &Standing) -> Ended {
        match select(pin!(self.follow(standing)), pin!(self.make_tables())).await {
            Either::Left((Err(why), _)) => why,
            Either::Left((Ok(never), _)) | Either::Right((never, _)) => match never {},
        }
    }

    /// Has the cores enter each configuration.
    async fn follow(&self, standing: &Standing) -> Result<std::convert::Infallible, Ended> {
        let mut is_begun = false;
        loop {
            // After it has joined: no configuration that leaves it out can be published unnoticed.
            let after = match self.read().await {
                Ok((found, revision)) => {
                    if let Some(published) = found {
                        self.adopt(standing, &mut is_begun, published).await?;
                    }
                    revision
                }
                Err(why @ Ended::Coord(_)) => {
                    tracing::debug!(%why, "the configuration cannot be read now");
                    self.sleep(PAUSE).await;
                    continue;
                }
                // It says nothing about this node, which keeps its data. No epoch is recovered without it.
                Err(why @ Ended::Document(_)) => {
                    tracing::error!(%why, "this node goes on with the configuration before");
                    self.sleep(LOOK_EVERY).await;
                    continue;
                }
                Err(why) => return Err(why),
            };
            self.changed(&[Scope::Tree { root: self.config.service.clone() }], after, LOOK_EVERY).await;
        }
    }

    /// Waits for a change in one of these scopes, but no longer than a time.
    async fn changed(&self, scopes: &[Scope], after: Revision, time: Duration) {
        let watch = async |scope: &Scope| {
            let mut after = after;
            loop {
                match self.coordinator.changes(scope, after).await {
                    Ok(changes) if changes.events.is_empty() => after = changes.up_to,
                    Ok(_) => return,
                    // The caller reads everything again.
                    Err(_) => return self.sleep(PAUSE).await,
                }
            }
        };
        let watches = scopes.iter().map(|scope| Box::pin(watch(scope)));
        let any = async { drop(futures::future::select_all(watches).await) };
        select(pin!(any), pin!(self.sleep(time))).await;
    }

    async fn adopt(&self, standing: &Standing, is_begun: &mut bool, published: Published) -> Result<(), Ended> {
        let Published { configuration, .. } = &published;
        if self.is_listed.get() && !self.lists(configuration) {
            return Err(Ended::LeftOut);
        }
        if !std::mem::replace(is_begun, true) {
            self.begin(standing, configuration).await?;
        }
        if self.entered.borrow().as_ref().is_some_and(|entered| entered.configuration.epoch >= configuration.epoch) {
            return Ok(());
        }
        // Before they are told: if this future is dropped meanwhile, some have entered it.
        self.is_listed.set(self.lists(configuration));
        let all = tell_all(&self.mailboxes, |done| Letter::Enter(LetterEnter(configuration.clone(), done))).await;
        for entered in all.ok_or(Ended::Cores)? {
            entered.map_err(|why| Ended::NotTaken(why.to_string()))?;
        }
        tracing::info!(epoch = configuration.epoch, "this node has entered an epoch");
        self.entered.replace(Some(published));
        self.waiting.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Has the cores begin as a new member, or go on as the one that they are.
    async fn begin(&self, standing: &Standing, configuration: &Configuration) -> Result<(), Ended> {
        let told = if self.is_listed.get() {
            tell_all(&self.mailboxes, |done| Letter::Resume(LetterResume(standing.clone(), done))).await
        } else {
            self.entered.take();
            let identity = Identity {
                node: self.config.node,
                incarnation: self.incarnation.get(),
                cluster: configuration.cluster,
                standing: standing.clone(),
            };
            tell_all(&self.mailboxes, |done| Letter::Become(LetterBecome(identity.clone(), done))).await
        };
        told.map(drop).ok_or(Ended::Cores)
    }

    /// Waits until the cores have entered an epoch.
    async fn entered(&self, epoch: Epoch) {
        poll_fn(|context| {
            if self.entered.borrow().as_ref().is_some_and(|entered| entered.configuration.epoch >= epoch) {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Makes the tables that somebody asks this node for.
    #[allow(clippy::await_holding_refcell_ref, reason = "nothing else receives")]
    async fn make_tables(&self) -> std::convert::Infallible {
        loop {
            let ask = self.asks.borrow_mut().recv().await;
            let Some(Ask { wanted, answer }) = ask else { return std::future::pending().await };
            let (making, late) = (pin!(self.make_table(&wanted)), pin!(self.sleep(MAKE_TIME)));
            let made = select(making, late).await;
            let late = "the cluster manager does not answer: look whether the table is there, and ask again";
            // The caller may be gone.
            let _ = answer.send(match made {
                Either::Left((answer, _)) => answer,
                Either::Right(((), _)) => Answer::NotNow(late.into()),
            });
        }
    }

    /// Anybody may add a table, because that rests on no lease: it compares the version.
    async fn make_table(&self, wanted: &Wanted) -> Answer {
        loop {
            let published = match self.read().await {
                Ok((Some(published), _)) => published,
                Ok((None, _)) => return Answer::NotNow("the service has no members yet: ask again".into()),
                Err(why) => return Answer::NotNow(why.to_string()),
            };
            let next = match plan::with_table(&published.configuration, wanted) {
                Ok(next) => next,
                Err(why) => return Answer::Refused(why.to_string()),
            };
            let condition = Condition::Version { version: published.version };
            match self.coordinator.set(&self.path(), encode(&next).as_bytes(), condition).await {
                Ok(_) => {
                    tracing::info!(table = wanted.table.name, epoch = next.epoch, "a table is made");
                    self.entered(next.epoch).await;
                    return Answer::Done(String::new());
                }
                Err(CoordError::Changed { .. } | CoordError::NotFound { .. }) => {}
                Err(why) => return Answer::NotNow(why.to_string()),
            }
        }
    }

    /// Campaigns, and places while it leads. It sends the heartbeats of the member, so it goes on as long as that is
    /// one.
    async fn lead(&self, standing: &Standing) -> CoordError {
        let name = format!("{}/placer", self.config.service);
        loop {
            match campaign_as(&self.coordinator, standing, &name, self.config.lease).await {
                Ok(mut leadership) => {
                    let lease = leadership.lease().clone();
                    tracing::info!(token = lease.token, "this node places");
                    let why = leadership.while_safe(self.place(&lease)).await;
                    tracing::info!(why = why.map(|why| why.to_string()), "this node places no more");
                    self.resign(leadership).await;
                }
                Err(why) => tracing::debug!(%why, "this node does not place"),
            }
            if standing.safe_until() == 0 {
                let membership = standing.membership();
                return CoordError::NotLive { member: membership.member, incarnation: membership.incarnation };
            }
            let pause = pin!(self.sleep(PAUSE));
            if let Either::Right((why, _)) =
                select(pause, pin!(standing.attend(&self.coordinator, HEARTBEAT_EVERY))).await
            {
                return why;
            }
        }
    }

    async fn resign(&self, leadership: Leadership<'_, C>) {
        if leadership.is_safe() {
            // If this fails, the lease ends with its time.
            let _ = self.within(PAUSE * 4, leadership.resign()).await;
        }
    }

    /// Publishes configurations and recovers, until that fails.
    async fn place(&self, lease: &Lease) -> Ended {
        let published_at = self.coordinator.now();
        let mut placing = Placing { recovered: 0, published_at, losing_since: None, told_lost: 0 };
        loop {
            if let Err(why) = self.place_once(lease, &mut placing).await {
                return why;
            }
        }
    }

    async fn place_once(&self, lease: &Lease, placing: &mut Placing) -> Result<(), Ended> {
        let view = match self.coordinator.view(&self.config.service).await {
            Ok(view) => view,
            Err(why) if why.is_of_the_moment() => {
                self.sleep(PAUSE).await;
                return Ok(());
            }
            Err(why) => return Err(why.into()),
        };
        let entry = view.entries.iter().find(|entry| entry.path == self.path());
        let (now, condition) = match entry {
            None => {
                let draw = || getrandom::u64().map_err(|why| Ended::NotTaken(format!("no random numbers: {why}")));
                let drawn = match self.config.seed {
                    Some(seed) => [seed, seed, !seed],
                    None => [draw()?, draw()?, draw()?],
                };
                let mut seed = [0; 16];
                seed[..8].copy_from_slice(&drawn[1].to_le_bytes());
                seed[8..].copy_from_slice(&drawn[2].to_le_bytes());
                (plan::found(drawn[0].max(1), seed), Condition::Absent)
            }
            Some(entry) => {
                let text = String::from_utf8_lossy(&entry.value).into_owned();
                (parse(&text)?, Condition::Version { version: entry.version })
            }
        };
        let live = self.live(&view, &now);
        let filled = self.filled(&now, placing).await;
        let scopes = [Scope::Members, Scope::Tree { root: self.config.service.clone() }];
        let revision = view.members.revision;
        if let Some(next) = plan::next(&now, &live, &filled) {
            if placing.may_come_back(&now, &next, self.coordinator.now(), self.config.grace) {
                self.changed(&scopes, revision, SURVEY_EVERY).await;
                return Ok(());
            }
            // Not if somebody came back since: it would work in the epoch before.
            let change =
                Transaction::new().if_lease(lease).if_epoch(view.members.epoch).if_entry(&self.path(), condition);
            self.publish(change, &now, &next).await?;
            placing.published_at = self.coordinator.now();
            return Ok(());
        }
        placing.losing_since = None;
        placing.tell_lost(&now);
        if placing.recovered < now.epoch {
            let recovery = pin!(self.recover(now.epoch));
            // If a member fails now, the next epoch begins.
            let changed = pin!(self.changed(&scopes, revision, LOOK_EVERY));
            match select(recovery, changed).await {
                Either::Left((Some(transactions), _)) => {
                    placing.recovered = now.epoch;
                    tracing::info!(epoch = now.epoch, transactions, "an epoch is recovered");
                }
                Either::Left((None, _)) => self.sleep(RECOVER_AGAIN).await,
                Either::Right(_) => {}
            }
            return Ok(());
        }
        let pause = if now.filling.is_empty() { LOOK_EVERY } else { SURVEY_EVERY };
        self.changed(&scopes, revision, pause).await;
        Ok(())
    }

    /// Members that serve this service, but those that come back after they were left out.
    fn live(&self, view: &View, now: &Configuration) -> BTreeMap<NodeId, Member> {
        let mut live = BTreeMap::new();
        for member in view.members.members.iter().filter(|member| member.health == Health::Live) {
            let about = String::from_utf8_lossy(&member.about);
            let Some(rest) = about.strip_prefix(ABOUT).and_then(|rest| rest.strip_prefix(' ')) else {
                if about.starts_with("txn ") {
                    tracing::warn!(member = member.id, %about, "a member runs another version, and gets no data");
                }
                continue;
            };
            let (Some((service, arrival, about)), Ok(node)) = (read_about(rest), member.id.try_into()) else {
                continue;
            };
            let is_known = || now.nodes.get(&node).is_some_and(|it| it.incarnation == about.incarnation);
            let may_be_listed = arrival == Arrival::New || is_known() || is_planted(Mutation::ListedAgain);
            if service == self.config.service && may_be_listed {
                live.insert(node, about);
            }
        }
        live
    }

    /// The copies that were filled, if they are to be published now.
    async fn filled(&self, now: &Configuration, placing: &Placing) -> BTreeSet<(PartitionId, NodeId)> {
        if now.filling.is_empty() || placing.recovered < now.epoch {
            return BTreeSet::new();
        }
        let filled = ask_first(&self.mailboxes, |done| Letter::Survey(LetterSurvey(done))).await.unwrap_or_default();
        let is_due = self.coordinator.now() >= placing.published_at.saturating_add(nanos(PUBLISH_EVERY));
        if filled.len() < now.filling.len() && !is_due { BTreeSet::new() } else { filled.into_iter().collect() }
    }

    async fn publish(&self, change: Transaction, now: &Configuration, next: &Configuration) -> Result<(), Ended> {
        let text = encode(next);
        debug_assert!(text.len() <= DOCUMENT_BYTES_MAX, "the plan sees to it");
        match self.coordinator.transact(&change.set(&self.path(), text)).await {
            Ok(_) => {
                let left = |node: &&NodeId| next.nodes.get(node) != now.nodes.get(node);
                let failed: Vec<&NodeId> = now.nodes.keys().filter(left).collect();
                let joined: Vec<&NodeId> =
                    next.nodes.keys().filter(|node| next.nodes.get(node) != now.nodes.get(node)).collect();
                let filling = next.filling.len();
                tracing::info!(epoch = next.epoch, ?failed, ?joined, filling, "the next epoch begins");
                Ok(())
            }
            // Somebody else has changed it: it is read again.
            Err(
                CoordError::Changed { .. }
                | CoordError::Exists { .. }
                | CoordError::NotFound { .. }
                | CoordError::EpochChanged { .. },
            ) => Ok(()),
            Err(why) if why.is_of_the_moment() => {
                tracing::debug!(%why, "a configuration was not published");
                self.sleep(PAUSE).await;
                Ok(())
            }
            Err(why) => Err(why.into()),
        }
    }

    /// Recovers; returns how many transactions were committed by that, or `None` if it did not end well.
    async fn recover(&self, epoch: Epoch) -> Option<usize> {
        self.entered(epoch).await;
        match ask_first(&self.mailboxes, |done| Letter::Recover(LetterRecover(epoch, done))).await? {
            Ok(recovered) => Some(recovered.transactions),
            Err(why) => {
                tracing::debug!(epoch, why, "recovery goes on");
                None
            }
        }
    }
}

/// What a member says about itself, behind the version: its service, whether it has data, and the member that it is.
fn read_about(text: &str) -> Option<(&str, Arrival, Member)> {
    let mut words = text.rsplitn(4, ' ');
    let cores = words.next()?.split(',').map(|addr| addr.parse().ok()).collect::<Option<Vec<Addr>>>()?;
    let incarnation = words.next()?.parse().ok()?;
    let arrival = Arrival::of(words.next()?)?;
    Some((words.next()?, arrival, Member { incarnation, cores }))
}

/// What a placer remembers.
struct Placing {
    /// The last epoch that it has recovered. It recovers once after its election: the placer before may have failed.
    recovered: Epoch,
    /// When it published last.
    published_at: u64,
    /// Since when the next configuration would give up partitions.
    losing_since: Option<u64>,
    /// Lost partitions that it has reported.
    told_lost: usize,
}

impl Placing {
    /// Whether failed members are waited for, because partitions have copies on these alone.
    fn may_come_back(&mut self, now: &Configuration, next: &Configuration, time: u64, grace: Duration) -> bool {
        if next.lost().count() <= now.lost().count() {
            self.losing_since = None;
            return false;
        }
        if self.losing_since.is_none() {
            tracing::warn!(?grace, "all members that have copies of some partitions have failed: they may come back");
        }
        time < self.losing_since.get_or_insert(time).saturating_add(nanos(grace))
    }

    fn tell_lost(&mut self, now: &Configuration) {
        let lost: Vec<u32> = now.lost().map(|partition| partition.0).collect();
        if lost.len() > self.told_lost {
            tracing::error!(
                partitions = ?lost,
                "ALL COPIES OF THESE PARTITIONS ARE LOST: their members failed together; their items are gone, and requests for them are refused"
            );
        }
        self.told_lost = lost.len();
    }
}
