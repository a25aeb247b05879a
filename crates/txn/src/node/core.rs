//! One core of a node: a participant, the client beside it, and what the node's agent tells them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_coord::Standing;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::{EndpointStats, OwnedRequest};
use dunlin_serve::{CallPolicy, Channel, ChannelConfig, Core, Mailboxes, Pace, ServeError, Service, Site};
use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};

use super::control::{Answer, CONTROL, REQUEST_BYTES_MAX, Report, Request};
use super::document::encode;
use super::plan::Wanted;
use super::stats::{CoreStats, NodeStats};
use crate::client::{Client, ClientConfig, ClientStats, Recovered};
use crate::configuration::Configuration;
use crate::ids::{Epoch, NodeId, PartitionId, Place};
use crate::limits::Limits;
use crate::participant::{NotTaken, Participant, ParticipantStats};
use crate::service::serve;

/// Tables that wait until the agent makes them.
pub(super) const ASKS_MAX: usize = 16;
/// How long another node may take to report.
const REPORT_TIME: Duration = Duration::from_millis(500);
/// A coordinator number has that of its core in the lowest bits.
const CORE_BITS: u32 = 12;

/// Settings of a node's cores.
#[derive(Debug, Clone)]
pub struct CoreConfig {
    /// Limits of each participant; the same on all nodes.
    pub limits: Limits,
    /// Settings of the client beside each participant.
    pub client: ClientConfig,
    /// How fast each core fills its new copies, in bytes per second. Default 64 MiB.
    pub fill_bytes_per_second: u64,
}

impl Default for CoreConfig {
    fn default() -> Self {
        let (limits, client) = (Limits::default(), ClientConfig::default());
        CoreConfig { limits, client, fill_bytes_per_second: 64 << 20 }
    }
}

/// A table that somebody wants, and who waits for it.
pub(super) struct Ask {
    pub wanted: Wanted,
    pub answer: oneshot::Sender<Answer>,
}

/// A membership.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub node: NodeId,
    pub incarnation: u64,
    pub cluster: u64,
    pub standing: Standing,
}

/// What a node's agent tells its cores.
pub enum Letter {
    /// They are another member from now on, without data.
    #[doc(hidden)]
    Become(LetterBecome),
    /// They go on as the member that they are.
    #[doc(hidden)]
    Resume(LetterResume),
    /// They enter the epoch of a configuration.
    #[doc(hidden)]
    Enter(LetterEnter),
    /// One of them recovers.
    #[doc(hidden)]
    Recover(LetterRecover),
    /// One of them asks all others for the copies that were filled.
    #[doc(hidden)]
    Survey(LetterSurvey),
    /// Their counters.
    Inquiry(oneshot::Sender<Counts>),
}

pub struct LetterBecome(pub(super) Identity, pub(super) oneshot::Sender<()>);
pub struct LetterResume(pub(super) Standing, pub(super) oneshot::Sender<()>);
pub struct LetterEnter(pub(super) Arc<Configuration>, pub(super) oneshot::Sender<Result<(), NotTaken>>);
pub struct LetterRecover(pub(super) Epoch, pub(super) oneshot::Sender<Result<Recovered, String>>);
pub struct LetterSurvey(pub(super) oneshot::Sender<Vec<(PartitionId, NodeId)>>);

/// The counters of a core.
#[derive(Debug, Clone)]
pub struct Counts {
    /// The core.
    pub core: u16,
    /// Its client's.
    pub client: ClientStats,
    /// Its participant's.
    pub participant: ParticipantStats,
    /// What it has.
    pub report: Report,
    /// Its endpoint's.
    pub endpoint: EndpointStats,
}

/// The service that a node's cores provide.
pub struct TxnService {
    config: CoreConfig,
    asks: mpsc::Sender<Ask>,
}

impl TxnService {
    pub(super) fn new(config: CoreConfig, asks: mpsc::Sender<Ask>) -> TxnService {
        TxnService { config, asks }
    }
}

/// A core.
pub struct TxnCore<T: Transport>(Rc<Inside<T>>);

struct Inside<T: Transport> {
    site: Site<T, Letter>,
    config: CoreConfig,
    participant: Rc<RefCell<Participant>>,
    /// `None` before the node is a member.
    client: RefCell<Option<Client<T>>>,
    /// The present one: a node may be heard again.
    standing: Rc<RefCell<Option<Standing>>>,
    asks: mpsc::Sender<Ask>,
    /// For reports of other nodes.
    channels: RefCell<BTreeMap<Place, (Addr, Channel<T>)>>,
    entered: Cell<Epoch>,
}

/// Nothing: the configuration of a participant that is no member yet.
fn nothing(cluster: u64) -> Rc<Configuration> {
    Rc::new(super::plan::found(cluster, [0; 16]))
}

impl<T: Transport + 'static> Service<T> for TxnService {
    type Core = TxnCore<T>;
    type Ready = ();
    type Finish = ();

    fn build(&self, site: Site<T, Letter>) -> Result<(TxnCore<T>, ()), ServeError> {
        let place = Place { node: 0, core: site.core };
        let participant = Participant::new(place, 0, nothing(0), self.config.limits);
        let participant = Rc::new(RefCell::new(participant));
        participant.borrow_mut().guard(Rc::new(|| false));
        serve(&site.endpoint, &participant)?;
        site.endpoint.propagate_panics();
        let inside = Rc::new(Inside {
            config: self.config.clone(),
            participant,
            client: RefCell::default(),
            standing: Rc::default(),
            asks: self.asks.clone(),
            channels: RefCell::default(),
            entered: Cell::new(0),
            site,
        });
        let weak = Rc::downgrade(&inside);
        inside.site.endpoint.register_async(CONTROL, move |request| {
            let inside = weak.upgrade();
            async move {
                let answer = match inside {
                    Some(inside) => inside.control(&request).await,
                    None => Answer::NotNow("the node ends".into()),
                };
                answer.encode()
            }
        })?;
        Ok((TxnCore(inside), ()))
    }

    fn plan(&self, _: Vec<()>) -> Result<(), ServeError> {
        Ok(())
    }
}

impl<T: Transport + 'static> Core for TxnCore<T> {
    type Letter = Letter;
    type Plan = ();
    type Error = ServeError;

    fn read(&mut self, letter: Letter) -> Pace {
        let inside = &self.0;
        // The caller may be gone.
        match letter {
            Letter::Become(LetterBecome(identity, done)) => {
                inside.become_member(&identity);
                let _ = done.send(());
            }
            Letter::Resume(LetterResume(standing, done)) => {
                inside.standing.replace(Some(standing));
                let _ = done.send(());
            }
            Letter::Enter(LetterEnter(configuration, done)) => {
                let _ = done.send(inside.enter(&configuration));
            }
            Letter::Recover(LetterRecover(epoch, done)) => {
                let inside = inside.clone();
                self.0.site.endpoint.spawn(async move { drop(done.send(inside.recover(epoch).await)) });
            }
            Letter::Survey(LetterSurvey(done)) => {
                let inside = inside.clone();
                self.0.site.endpoint.spawn(async move { drop(done.send(inside.survey().await)) });
            }
            Letter::Inquiry(answer) => {
                let _ = answer.send(inside.counts());
            }
        }
        Pace::Go
    }

    fn end(self) -> Result<(), ServeError> {
        // The client holds the endpoint.
        self.0.client.take();
        self.0.channels.take();
        Ok(())
    }
}

impl<T: Transport + 'static> Inside<T> {
    fn become_member(&self, Identity { node, incarnation, cluster, standing }: &Identity) {
        let (core, timers) = (self.site.core, self.site.endpoint.timers());
        let place = Place { node: *node, core };
        let mut participant = Participant::new(place, *incarnation, nothing(*cluster), self.config.limits);
        let present = self.standing.clone();
        participant.guard(Rc::new(move || {
            present.borrow().as_ref().is_some_and(|standing| timers.boot_now() < standing.safe_until())
        }));
        self.participant.replace(participant);
        let config = ClientConfig { seed: incarnation ^ u64::from(core) << 48, ..self.config.client.clone() };
        // No other membership has this number, so no other client has.
        let coordinator = standing.membership().incarnation << CORE_BITS | u64::from(core);
        let client = Client::beside(&self.site.endpoint, coordinator, nothing(*cluster), config, &self.participant);
        self.client.replace(Some(client));
        self.standing.replace(Some(standing.clone()));
        self.entered.set(0);
    }

    fn enter(&self, configuration: &Configuration) -> Result<(), NotTaken> {
        // The agent tells it again if it does not know whether all cores have heard it.
        if **self.participant.borrow().configuration() == *configuration {
            return Ok(());
        }
        let configuration = Rc::new(configuration.clone());
        self.participant.borrow_mut().reconfigure(configuration.clone())?;
        let Some(client) = self.client.borrow().clone() else { return Ok(()) };
        client.reconfigure(configuration.clone());
        self.entered.set(configuration.epoch);
        let is_gone = |place: &Place, addr: &Addr| configuration.addr(*place) != Some(addr);
        self.channels.borrow_mut().retain(|place, (addr, _)| !is_gone(place, addr));
        if self.participant.borrow().filling().next().is_some() {
            let rate = self.config.fill_bytes_per_second;
            self.site.endpoint.spawn(async move { client.fill_copies(rate).await });
        }
        Ok(())
    }

    async fn recover(&self, epoch: Epoch) -> Result<Recovered, String> {
        let client = self.client.borrow().clone();
        match client.filter(|client| client.epoch() == epoch) {
            Some(client) => client.recover().await.map_err(|error| error.to_string()),
            None => Err(format!("epoch {epoch} is not entered yet")),
        }
    }

    fn is_safe(&self) -> bool {
        let now = self.site.endpoint.timers().boot_now();
        self.standing.borrow().as_ref().is_some_and(|standing| now < standing.safe_until())
    }

    fn report(&self) -> Report {
        let participant = self.participant.borrow();
        Report {
            incarnation: participant.incarnation(),
            epoch: participant.epoch(),
            opened: participant.opened(),
            is_safe: self.is_safe(),
            records: participant.log_records(),
            copies: participant.copies().collect(),
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            core: self.site.core,
            client: self.client.borrow().as_ref().map(Client::stats).unwrap_or_default(),
            participant: self.participant.borrow().stats(),
            report: self.report(),
            endpoint: self.site.endpoint.stats(),
        }
    }

    /// The counters of all cores.
    async fn stats(&self) -> NodeStats {
        let counts = self.site.mailboxes.ask_all(Letter::Inquiry).await;
        NodeStats {
            incarnation: self.participant.borrow().incarnation(),
            micros: self.site.endpoint.now() / 1000,
            cores: counts.iter().map(CoreStats::from).collect(),
        }
    }

    async fn control(&self, request: &OwnedRequest) -> Answer {
        if request.payload().len() > REQUEST_BYTES_MAX {
            return Answer::Refused(format!("the request has more than {REQUEST_BYTES_MAX} bytes"));
        }
        match Request::parse(request.payload()) {
            Err(why) => Answer::Refused(why),
            Ok(Request::Report) => Answer::Done(self.report().encode()),
            Ok(Request::Configuration { than }) => self.configuration(than),
            Ok(Request::Create(wanted)) => self.create(wanted).await,
            Ok(Request::Stats) => Answer::Done(self.stats().await.encode()),
        }
    }

    fn configuration(&self, than: Epoch) -> Answer {
        let configuration = self.participant.borrow().configuration().clone();
        match configuration.epoch {
            0 => Answer::NotNow("the node is no member of a service yet: it waits for the cluster manager".into()),
            epoch if epoch > than => Answer::Done(encode(&configuration)),
            _ => Answer::Done(String::new()),
        }
    }

    async fn create(&self, wanted: Wanted) -> Answer {
        let (answer, answered) = oneshot::channel();
        if self.asks.try_send(Ask { wanted, answer }).is_err() {
            return Answer::NotNow(format!("{ASKS_MAX} tables wait to be made already: ask again"));
        }
        answered.await.unwrap_or_else(|_| Answer::NotNow("the node has ended".into()))
    }

    /// The copies that were filled, on all nodes.
    async fn survey(&self) -> Vec<(PartitionId, NodeId)> {
        let configuration = self.participant.borrow().configuration().clone();
        let is_filling = |place: &Place| {
            configuration.filling.keys().any(|(partition, node)| {
                *node == place.node && configuration.copies(*partition).iter().any(|copy| copy == place)
            })
        };
        let places: Vec<Place> = configuration.places().filter(is_filling).collect();
        let reports = join_all(places.iter().map(|place| self.report_of(&configuration, *place))).await;
        let mut filled = Vec::new();
        for (place, report) in places.into_iter().zip(reports) {
            let Some(report) = report.filter(|it| it.incarnation == configuration.incarnation(place)) else { continue };
            let complete = report.copies.iter().filter(|copy| copy.is_complete).map(|copy| copy.partition);
            let is_awaited = |partition: &PartitionId| configuration.filling_since(*partition, place.node).is_some();
            // A core that is behind reports what it had in an earlier epoch.
            if report.epoch == configuration.epoch {
                filled.extend(complete.filter(is_awaited).map(|partition| (partition, place.node)));
            }
        }
        filled
    }

    async fn report_of(&self, configuration: &Configuration, place: Place) -> Option<Report> {
        if self.participant.borrow().place() == place {
            return Some(self.report());
        }
        let addr = configuration.addr(place)?.clone();
        let known =
            self.channels.borrow().get(&place).filter(|(known, _)| *known == addr).map(|(_, channel)| channel.clone());
        let channel = known.unwrap_or_else(|| {
            let channel = Channel::new(&self.site.endpoint, vec![addr.clone()], ChannelConfig::default());
            self.channels.borrow_mut().insert(place, (addr, channel.clone()));
            channel
        });
        let policy = CallPolicy::repeatable().within(REPORT_TIME);
        let answer = channel.call_with(CONTROL, Request::Report.encode(), policy).await.ok()?;
        match Answer::parse(&answer)? {
            Answer::Done(text) => Report::parse(&text),
            _ => None,
        }
    }
}

/// Tells all cores the same, and waits until each has answered.
pub(super) async fn tell_all<R>(
    mailboxes: &Mailboxes<Letter>,
    letter: impl Fn(oneshot::Sender<R>) -> Letter,
) -> Option<Vec<R>> {
    let answers = mailboxes.ask_all(letter).await;
    (answers.len() == usize::from(mailboxes.len())).then_some(answers)
}

/// Tells the first core something, and waits for its answer.
pub(super) async fn ask_first<R>(
    mailboxes: &Mailboxes<Letter>,
    letter: impl FnOnce(oneshot::Sender<R>) -> Letter,
) -> Option<R> {
    let (answer, answered) = oneshot::channel();
    mailboxes.send(0, letter(answer)).await.ok()?;
    answered.await.ok()
}
