//! Messages to participants, and their results.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, MsgBuf};
use dunlin_serve::channel::{Channel, ChannelConfig, ChannelError, Retry, Turning};
use futures::future::join_all;

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

/// Channels to all participants, opened on first use.
pub(super) struct Links<T: Transport> {
    endpoint: Rc<Endpoint<T>>,
    /// The participant of the local core, which is called without a message.
    home: Option<Rc<RefCell<Participant>>>,
    channels: RefCell<BTreeMap<Place, Channel<T>>>,
    seed: u64,
}

impl<T: Transport + 'static> Links<T> {
    pub fn new(endpoint: &Rc<Endpoint<T>>, home: Option<Rc<RefCell<Participant>>>, seed: u64) -> Links<T> {
        Links { endpoint: endpoint.clone(), home, channels: RefCell::default(), seed }
    }

    /// Transactions that have held locks or records on the local core for too long.
    pub fn overdue(&self) -> BTreeSet<TransactionId> {
        self.home.as_ref().map(|home| home.borrow_mut().overdue()).unwrap_or_default()
    }

    /// Releases the locks of a transaction on the local core.
    pub fn release(&self, ended: TransactionId) {
        if let Some(home) = &self.home {
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
    pub async fn send_all(&self, configuration: &Configuration, messages: &[Outgoing]) -> Vec<Sent> {
        if let [message] = messages {
            return vec![self.send(configuration, message).await];
        }
        join_all(messages.iter().map(|message| self.send(configuration, message))).await
    }

    async fn send(&self, configuration: &Configuration, message: &Outgoing) -> Sent {
        if let Some(home) = self.home.as_ref().filter(|home| home.borrow().place() == message.place) {
            let mut answer = Vec::new();
            home.borrow_mut().handle(message.kind, &message.payload, &mut answer);
            return judge(Answer::Local(answer));
        }
        let Some(channel) = self.channel(configuration, message.place) else {
            return Sent::NotRun("the configuration does not list it".to_owned());
        };
        let payload: Bytes = message.payload.clone();
        match channel.call(message.kind.req_type(), payload).await {
            Ok(answer) => judge(Answer::Remote(answer)),
            Err(ChannelError { why, may_have_run: false, .. }) => Sent::NotRun(why.to_string()),
            Err(ChannelError { why, may_have_run: true, .. }) => Sent::Lost(why.to_string()),
        }
    }

    fn channel(&self, configuration: &Configuration, place: Place) -> Option<Channel<T>> {
        if let Some(channel) = self.channels.borrow().get(&place) {
            return Some(channel.clone());
        }
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
