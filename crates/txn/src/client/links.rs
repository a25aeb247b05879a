//! Messages to participants, and their results.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, MsgBuf, Payload};
use dunlin_serve::channel::{Begun, Channel, ChannelConfig, ChannelError, Retry, Turning};
use smallvec::SmallVec;

use crate::configuration::Configuration;
use crate::ids::{Epoch, PartitionId, Place, TransactionId};
use crate::participant::Participant;
use crate::transaction::Outgoing;
use crate::wire::WireError;
use crate::wire::answer::{Refusal, take_status};

/// The result of a message.
#[derive(Debug)]
pub(super) enum Sent {
    /// The participant executed it.
    Done(Answer),
    /// The participant refused it, and changed nothing.
    Refused(Refusal),
    /// It never got the message.
    NotRun(String),
    /// It was lost: the participant may have executed it.
    Lost(String),
}

/// An answer whose status was read.
#[derive(Debug)]
pub(super) enum Answer {
    Remote(MsgBuf),
    Local(Vec<u8>),
}

impl Answer {
    /// The bytes after the status.
    pub fn body(&self) -> &[u8] {
        match self {
            Answer::Remote(buf) => &buf[1..],
            Answer::Local(bytes) => &bytes[1..],
        }
    }
}

/// A message that was sent.
enum Sending<T: Transport + 'static> {
    Begun(Begun<T>),
    Ended(Sent),
}

impl<T: Transport + 'static> Sending<T> {
    /// Whether it has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let Sending::Begun(begun) = self else { return true };
        let Poll::Ready(result) = Pin::new(begun).poll(context) else { return false };
        *self = Sending::Ended(match result {
            Ok(answer) => judge(Answer::Remote(answer)),
            Err(ChannelError { why, may_have_run: false, .. }) => Sent::NotRun(why.to_string()),
            Err(ChannelError { why, may_have_run: true, .. }) => Sent::Lost(why.to_string()),
        });
        true
    }

    fn into_sent(self) -> Sent {
        match self {
            Sending::Ended(sent) => sent,
            Sending::Begun(_) => Sent::Lost("it was not awaited".to_owned()),
        }
    }
}

/// Channels to all participants, opened on first use.
pub(super) struct Links<T: Transport> {
    endpoint: Rc<Endpoint<T>>,
    /// The participant of the local core, which is called without a message.
    home: Option<(Rc<RefCell<Participant>>, Place)>,
    channels: RefCell<BTreeMap<Place, (Addr, Channel<T>)>>,
    /// The epoch of the channels.
    epoch: Cell<Epoch>,
    seed: u64,
}

impl<T: Transport + 'static> Links<T> {
    pub fn new(endpoint: &Rc<Endpoint<T>>, home: Option<Rc<RefCell<Participant>>>, seed: u64) -> Links<T> {
        let home = home.map(|home| {
            let place = home.borrow().place();
            (home, place)
        });
        Links { endpoint: endpoint.clone(), home, channels: RefCell::default(), epoch: Cell::new(0), seed }
    }

    /// Transactions that have held locks or records on the local core for too long.
    pub fn overdue(&self) -> BTreeSet<TransactionId> {
        self.home.as_ref().map(|(home, _)| home.borrow_mut().overdue()).unwrap_or_default()
    }

    /// Releases the locks of a transaction on the local core.
    pub fn release(&self, ended: TransactionId) {
        if let Some((home, _)) = &self.home {
            home.borrow_mut().release(ended);
        }
    }

    /// Copies on the local core that are not complete.
    pub fn filling(&self) -> Vec<PartitionId> {
        let home = self.home.as_ref().map(|(home, _)| home.borrow());
        home.map(|home| home.filling().map(|filling| filling.partition).collect()).unwrap_or_default()
    }

    /// Where the next page of such a copy begins.
    pub fn fetched(&self, partition: PartitionId) -> u64 {
        let home = self.home.as_ref().map(|(home, _)| home.borrow());
        let copy = home.and_then(|home| home.filling().find(|copy| copy.partition == partition));
        copy.map_or(0, |copy| copy.progress.0)
    }

    /// Begins to wait for a page of such a copy. Returns false if it needs none.
    pub fn await_page(&self, partition: PartitionId) -> bool {
        self.home.as_ref().is_some_and(|(home, _)| home.borrow_mut().await_page(partition))
    }

    /// Takes the page. Returns where the next begins, if there is one.
    pub fn take_page(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        from: u64,
        answer: &[u8],
    ) -> Result<Option<u64>, WireError> {
        let home = self.home.as_ref().map(|(home, _)| home.borrow_mut().take_page(partition, epoch, from, answer));
        home.unwrap_or(Ok(None))
    }

    /// Drops the channels of participants that a configuration does not list.
    pub fn retain(&self, configuration: &Configuration) {
        self.epoch.set(configuration.epoch);
        // A process that replaces another may be elsewhere.
        let is_gone = |place: &Place, addr: &Addr| configuration.addr(*place) != Some(addr);
        let channels = self.channels.borrow();
        // Calls to them fail at once, instead of waiting for an answer.
        channels.iter().filter(|(place, (addr, _))| is_gone(place, addr)).for_each(|(_, (_, channel))| channel.close());
        drop(channels);
        self.channels.borrow_mut().retain(|place, (addr, _)| !is_gone(place, addr));
    }

    /// Sends all messages at once; returns their results in the same order.
    pub async fn send_all(&self, configuration: &Configuration, messages: &[Outgoing]) -> SmallVec<[Sent; 4]> {
        let begin = |message| self.begin(configuration, message);
        let mut all: SmallVec<[Sending<T>; 4]> = messages.iter().map(begin).collect();
        // As `join_all`, without an allocation.
        poll_fn(|context| {
            let mut are_ready = true;
            for sending in &mut all {
                are_ready &= sending.poll(context);
            }
            if are_ready { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        all.into_iter().map(Sending::into_sent).collect()
    }

    fn begin(&self, configuration: &Configuration, message: &Outgoing) -> Sending<T> {
        if let Some((home, _)) = self.home.as_ref().filter(|(_, place)| *place == message.place) {
            let mut answer = Vec::new();
            home.borrow_mut().handle(message.kind, &message.payload, &mut answer);
            return Sending::Ended(judge(Answer::Local(answer)));
        }
        let payload = match MsgBuf::copy_from(&message.payload) {
            Ok(buf) => Payload::from(buf),
            // The process has no more message buffers; other memory is as good, but slower.
            Err(_) => Payload::from(message.payload.clone()),
        };
        let begin = |channel: &Channel<T>| Sending::Begun(channel.begin(message.kind.req_type(), payload));
        // A message of an earlier epoch may reach a process that has replaced another. It refuses it.
        if let Some((_, channel)) = self.channels.borrow().get(&message.place) {
            return begin(channel);
        }
        match self.channel(configuration, message.place) {
            Some(channel) => begin(&channel),
            None => Sending::Ended(Sent::NotRun("the configuration does not list it".to_owned())),
        }
    }

    fn channel(&self, configuration: &Configuration, place: Place) -> Option<Channel<T>> {
        let addr = configuration.addr(place)?;
        // No deadline: an abandoned call may still run, and its locks would stay.
        let seed = Some(self.seed ^ u64::from(place.node) << 20 ^ u64::from(place.core) << 52);
        // A phase repeats lost messages itself, as long as its epoch lasts.
        let retry = Retry { attempts_max: 2, ..Retry::default() };
        let config = ChannelConfig { timeout: None, turning: Turning::Always, seed, retry, ..ChannelConfig::default() };
        let channel = Channel::new(&self.endpoint, vec![addr.clone()], config);
        if configuration.epoch >= self.epoch.get() {
            self.channels.borrow_mut().insert(place, (addr.clone(), channel.clone()));
        }
        Some(channel)
    }
}

/// Reads the status of an answer.
fn judge(answer: Answer) -> Sent {
    let bytes: &[u8] = match &answer {
        Answer::Remote(buf) => buf,
        Answer::Local(bytes) => bytes,
    };
    match take_status(&mut &bytes[..]) {
        Ok(Ok(())) => Sent::Done(answer),
        Ok(Err(refusal)) => Sent::Refused(refusal),
        Err(error) => Sent::Lost(format!("its answer cannot be read: {error}")),
    }
}
