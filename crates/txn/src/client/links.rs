//! Messages to participants, and their results.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, MsgBuf, Payload};
use dunlin_serve::channel::{Begun, Channel, ChannelConfig, ChannelError, Retry, Turning};
use smallvec::SmallVec;

use crate::configuration::Configuration;
use crate::ids::{Place, TransactionId};
use crate::participant::Participant;
use crate::transaction::Outgoing;
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
    channels: RefCell<BTreeMap<Place, Channel<T>>>,
    seed: u64,
}

impl<T: Transport + 'static> Links<T> {
    pub fn new(endpoint: &Rc<Endpoint<T>>, home: Option<Rc<RefCell<Participant>>>, seed: u64) -> Links<T> {
        let home = home.map(|home| {
            let place = home.borrow().place();
            (home, place)
        });
        Links { endpoint: endpoint.clone(), home, channels: RefCell::default(), seed }
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

    /// Drops the channels of participants that a configuration does not list.
    pub fn retain(&self, configuration: &Configuration) {
        let is_gone = |place: &Place| configuration.addr(*place).is_none();
        // Calls to them fail at once, instead of waiting for an answer.
        self.channels.borrow().iter().filter(|(place, _)| is_gone(place)).for_each(|(_, channel)| channel.close());
        self.channels.borrow_mut().retain(|place, _| !is_gone(place));
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
        if let Some(channel) = self.channels.borrow().get(&message.place) {
            return begin(channel);
        }
        match self.channel(configuration, message.place) {
            Some(channel) => begin(&channel),
            None => Sending::Ended(Sent::NotRun("the configuration does not list it".to_owned())),
        }
    }

    fn channel(&self, configuration: &Configuration, place: Place) -> Option<Channel<T>> {
        let addr = configuration.addr(place)?.clone();
        // No deadline: an abandoned call may still run, and its locks would stay.
        let seed = Some(self.seed ^ u64::from(place.node) << 20 ^ u64::from(place.core) << 52);
        // A phase repeats lost messages itself, as long as its epoch lasts.
        let retry = Retry { attempts_max: 2, ..Retry::default() };
        let config = ChannelConfig { timeout: None, turning: Turning::Always, seed, retry, ..ChannelConfig::default() };
        let channel = Channel::new(&self.endpoint, vec![addr], config);
        self.channels.borrow_mut().insert(place, channel.clone());
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
