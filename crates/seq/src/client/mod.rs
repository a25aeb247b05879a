//! The RPC client: callers that wait at the same time share a request.
//!
//! A batch is sent as soon as the endpoint has run all ready tasks, unless enough batches are in flight. It takes all
//! callers that wait at that moment, in order, up to the maximum length of one run. So each number is drawn after its
//! call began. If a caller gives up, its numbers remain unused.
//!
//! Each request names the latest epoch that the client knows. A sequencer of a later epoch refuses it with that epoch,
//! and the client asks again under it. It takes no number from a sequencer of an earlier epoch, or under one.

mod ask;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::clock::nanos;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::{CallError, Endpoint, Timers};
use dunlin_serve::channel::{Retry, Turning, Why};
use dunlin_serve::epoch::refusal;
use dunlin_serve::{CallPolicy, Channel, ChannelConfig, ChannelError};

use self::ask::{Ask, Asking};
use crate::counter::RUN_MAX;
use crate::error::{SeqError, Setback};
use crate::mutation::{Mutation, is_planted};
use crate::wire::{Code, INFO, Info, NEXT, Next, encode_info};

/// Settings of a client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClientConfig {
    /// Timeout of a call, for all attempts together. Default 2 s.
    pub timeout: Duration,
    /// Timeout of the first attempt; one after a late one takes twice as long. Default 500 ms.
    pub attempt_timeout: Duration,
    /// Pause before another attempt. Default 1 ms.
    pub pause: Duration,
    /// Batches in flight at a time. With one, callers wait for the previous batch; default 2.
    pub batches_max: usize,
    /// Callers that share a batch. With 1, each caller has its own request. Default 1024.
    pub callers_per_batch: usize,
    /// Callers that may wait for a batch; more get [`SeqError::TooMany`]. Default 65,536.
    pub waiting_max: usize,
    /// When the endpoint's event loop runs. Default [`Turning::DuringCalls`].
    pub turning: Turning,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_millis(500),
            pause: Duration::from_millis(1),
            batches_max: 2,
            callers_per_batch: 1024,
            waiting_max: 65_536,
            turning: Turning::default(),
        }
    }
}

/// The counters of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Calls that got a run.
    pub calls: u64,
    /// Batches that were answered: `calls / batches` is the sharing achieved.
    pub batches: u64,
    /// Attempts that failed.
    pub setbacks: u64,
}

/// A client of one sequencer, or of several of which one serves. Clones share one state.
pub struct Client<T: Transport>(Rc<Inner<T>>);

impl<T: Transport> Clone for Client<T> {
    fn clone(&self) -> Self {
        Client(self.0.clone())
    }
}

struct Inner<T: Transport> {
    endpoint: Rc<Endpoint<T>>,
    servers: Vec<(Addr, Channel<T>)>,
    /// Index of the server that is asked.
    at: Cell<usize>,
    config: ClientConfig,
    waiting: RefCell<VecDeque<Rc<Ask>>>,
    /// A task is about to send a batch.
    is_sending: Cell<bool>,
    batches: Cell<usize>,
    /// The highest number that any caller got.
    seen: Cell<Option<u64>>,
    /// The latest epoch that a sequencer has named; 0 for none.
    epoch: Cell<u64>,
    stats: Cell<ClientStats>,
    /// Used by a planted bug only.
    stock: RefCell<Range<u64>>,
}

impl<T: Transport + 'static> Client<T> {
    /// A client of the sequencers at `servers`; if there are several, they must draw from one counter. It connects with
    /// its first call, and moves to the next address when one does not serve.
    pub fn new(endpoint: &Rc<Endpoint<T>>, servers: Vec<Addr>, config: ClientConfig) -> Client<T> {
        let retry = Retry { attempts_max: 1, ..Retry::default() };
        let channel = ChannelConfig {
            sessions_max: config.batches_max.div_ceil(dunlin_serve::channel::SLOTS as usize).clamp(1, 64),
            timeout: Some(config.attempt_timeout),
            retry,
            turning: config.turning,
            seed: None,
        };
        let channel = |addr: Addr| (addr.clone(), Channel::new(endpoint, vec![addr], channel));
        Client(Rc::new(Inner {
            endpoint: endpoint.clone(),
            servers: servers.into_iter().map(channel).collect(),
            at: Cell::new(0),
            config,
            waiting: RefCell::default(),
            is_sending: Cell::new(false),
            batches: Cell::new(0),
            seen: Cell::new(None),
            epoch: Cell::new(0),
            stats: Cell::default(),
            stock: RefCell::new(0..0),
        }))
    }

    /// Returns the next number. Dropping the future discards the number.
    ///
    /// # Errors
    /// [`SeqError`].
    pub async fn next(&self) -> Result<u64, SeqError> {
        if is_planted(Mutation::NumbersKept) {
            return self.next_of_stock().await;
        }
        Ok(self.run(1).await?.start)
    }

    /// Returns a run of consecutive numbers.
    ///
    /// # Errors
    /// [`SeqError`].
    pub async fn run(&self, length: u32) -> Result<Range<u64>, SeqError> {
        self.run_within(length, self.0.config.timeout).await
    }

    /// As [`Client::run`], with its own timeout.
    ///
    /// # Errors
    /// [`SeqError`].
    pub async fn run_within(&self, length: u32, timeout: Duration) -> Result<Range<u64>, SeqError> {
        match self.ask(length, timeout)?.await {
            Ok(first) => Ok(first..first + u64::from(length)),
            // The first attempt was still in flight.
            Err(SeqError::TimedOut { last: None }) => {
                let server = self.0.servers[self.0.at.get()].0.clone();
                Err(SeqError::TimedOut { last: Some(Setback::Silent(server)) })
            }
            Err(error) => Err(error),
        }
    }

    /// The timers of its endpoint.
    pub fn timers(&self) -> Timers {
        self.0.endpoint.timers()
    }

    /// The counters.
    pub fn stats(&self) -> ClientStats {
        self.0.stats.get()
    }

    /// The highest number that any caller got.
    pub fn seen(&self) -> Option<u64> {
        self.0.seen.get()
    }

    /// The latest epoch that it knows; 0 if the sequencer has no terms, or none has answered yet.
    pub fn epoch(&self) -> u64 {
        self.0.epoch.get()
    }

    /// The state of the sequencer that is asked first.
    ///
    /// # Errors
    /// [`SeqError::TimedOut`] with the reason, and others.
    pub async fn info(&self) -> Result<Info, SeqError> {
        let inner = &self.0;
        let (server, channel) = inner.servers.get(inner.at.get()).ok_or(SeqError::NoServer)?;
        let policy = CallPolicy::repeatable().within(inner.config.timeout);
        match channel.call_with(INFO, encode_info().to_vec(), policy).await {
            Ok(answer) => Info::parse(&answer).ok_or_else(|| protocol(server, "its information is malformed")),
            Err(why) => Err(match inner.judge(server, why) {
                Verdict::Final(error) => error,
                Verdict::Setback(last) => SeqError::TimedOut { last: Some(last) },
                Verdict::LaterEpoch => protocol(server, "it refuses its information for an epoch"),
            }),
        }
    }

    /// Queues a caller. The request is sent even if the future is never polled.
    fn ask(&self, length: u32, timeout: Duration) -> Result<Asking, SeqError> {
        let inner = &self.0;
        match length {
            0 => return Err(SeqError::EmptyRun),
            length if length > RUN_MAX => return Err(SeqError::LongRun { length }),
            _ => {}
        }
        if inner.servers.is_empty() {
            return Err(SeqError::NoServer);
        }
        let mut waiting = inner.waiting.borrow_mut();
        if waiting.len() >= inner.config.waiting_max {
            waiting.retain(|ask| ask.is_waited_for());
        }
        if waiting.len() >= inner.config.waiting_max {
            return Err(SeqError::TooMany { max: inner.config.waiting_max, setting: "waiting_max" });
        }
        let deadline = inner.endpoint.now().saturating_add(nanos(timeout));
        let ask = Rc::new(Ask::new(length, deadline));
        waiting.push_back(ask.clone());
        drop(waiting);
        Inner::send_soon(inner);
        Ok(Asking::new(ask, inner.endpoint.timers()))
    }

    async fn next_of_stock(&self) -> Result<u64, SeqError> {
        if let Some(number) = self.0.stock.borrow_mut().next() {
            return Ok(number);
        }
        let mut run = self.run(3).await?;
        let number = run.next().expect("a run of three");
        *self.0.stock.borrow_mut() = run;
        Ok(number)
    }
}

/// What to do after a failed attempt.
enum Verdict {
    Final(SeqError),
    Setback(Setback),
    /// It has named an epoch later than that of the request. The client knows it by now.
    LaterEpoch,
}

fn protocol(server: &Addr, why: impl Into<String>) -> SeqError {
    SeqError::Protocol { server: server.clone(), why: why.into().into() }
}

impl<T: Transport + 'static> Inner<T> {
    /// Spawns a task that sends a batch, unless one is pending, or enough are in flight. Callers that come before it
    /// runs join the batch.
    fn send_soon(inner: &Rc<Self>) {
        if inner.is_sending.get() || inner.batches.get() >= inner.config.batches_max.max(1) {
            return;
        }
        if inner.waiting.borrow().is_empty() {
            return;
        }
        inner.is_sending.set(true);
        let inner = inner.clone();
        inner.endpoint.clone().spawn(async move { inner.send().await });
    }

    async fn send(self: Rc<Self>) {
        self.is_sending.set(false);
        let (batch, length) = self.take_batch();
        if batch.is_empty() {
            return;
        }
        self.batches.set(self.batches.get() + 1);
        // Callers that do not fit wait for the next batch.
        Inner::send_soon(&self);
        match self.fetch(&batch, length).await {
            // Not enough for all callers, but perhaps for some.
            Err(SeqError::Exhausted { .. }) if batch.len() > 1 => {
                for ask in batch {
                    let alone = [ask];
                    let result = self.fetch(&alone, alone[0].length).await;
                    self.end(&alone, result);
                }
            }
            result => self.end(&batch, result),
        }
        self.batches.set(self.batches.get() - 1);
        Inner::send_soon(&self);
    }

    /// Passes its result to each caller of a batch.
    fn end(&self, batch: &[Rc<Ask>], result: Result<u64, SeqError>) {
        let mut stats = self.stats.get();
        stats.batches += u64::from(result.is_ok());
        if let Ok(first) = result {
            stats.calls += batch.len() as u64;
            let last = first + batch.iter().map(|ask| u64::from(ask.length)).sum::<u64>() - 1;
            self.seen.set(Some(self.seen.get().map_or(last, |seen| seen.max(last))));
        }
        self.stats.set(stats);
        let mut at = 0;
        for ask in batch {
            ask.end(result.clone().map(|first| first + at));
            at += u64::from(ask.length);
        }
    }

    /// Takes the callers of the next batch: those that still wait, as many as fit one run.
    fn take_batch(&self) -> (Vec<Rc<Ask>>, u32) {
        let now = self.endpoint.now();
        let (mut waiting, mut batch, mut length) = (self.waiting.borrow_mut(), Vec::new(), 0);
        while let Some(ask) = waiting.front() {
            let is_full = length + ask.length > RUN_MAX || batch.len() >= self.config.callers_per_batch.max(1);
            if is_full {
                break;
            }
            let Some(ask) = waiting.pop_front() else { break };
            // The caller's future ends by itself at its deadline.
            if ask.is_waited_for() && ask.deadline > now {
                length += ask.length;
                batch.push(ask);
            }
        }
        (batch, length)
    }

    /// Gets a run for a batch, with as many attempts as the callers have time for. Numbers drawn by failed attempts are
    /// lost.
    async fn fetch(&self, batch: &[Rc<Ask>], length: u32) -> Result<u64, SeqError> {
        let deadline = batch.iter().map(|ask| ask.deadline).max().unwrap_or(0);
        let (mut last, mut patience) = (None, self.config.attempt_timeout);
        loop {
            let left = Duration::from_nanos(deadline.saturating_sub(self.endpoint.now()));
            if left.is_zero() || !batch.iter().any(|ask| ask.is_waited_for()) {
                return Err(SeqError::TimedOut { last });
            }
            let at = self.at.get();
            let (server, channel) = &self.servers[at];
            let (seen, epoch) = (self.seen.get(), self.epoch.get());
            let policy = CallPolicy::default().within(left.min(patience));
            let verdict = match channel.call_with(NEXT, Next { epoch, length }.encode().to_vec(), policy).await {
                // Another batch has learned of a later epoch meanwhile.
                Ok(_) if self.epoch.get() != epoch => continue,
                Ok(answer) => match answer[..].try_into().map(u64::from_le_bytes) {
                    Ok(first) if first.checked_add(length.into()).is_none() => {
                        self.foreign(server, format!("a run begins at {first}"))
                    }
                    Ok(first) if seen.is_some_and(|seen| first <= seen) => {
                        let (server, seen) = (server.clone(), seen.unwrap_or_default());
                        return Err(SeqError::WentBack { server, first, seen });
                    }
                    Ok(first) => return Ok(first),
                    Err(_) => self.foreign(server, format!("an answer has {} bytes", answer.len())),
                },
                Err(why) => self.judge(server, why),
            };
            let setback = match verdict {
                Verdict::Final(error) => return Err(error),
                Verdict::Setback(setback) => setback,
                Verdict::LaterEpoch => continue,
            };
            let mut stats = self.stats.get();
            stats.setbacks += 1;
            self.stats.set(stats);
            if matches!(setback, Setback::Silent(_)) {
                // The servers may all be that slow.
                patience = patience.saturating_mul(2);
            }
            if !matches!(setback, Setback::Dry(_)) && self.at.get() == at {
                self.at.set((at + 1) % self.servers.len());
            }
            let pause = self.config.pause.min(left);
            batch.iter().for_each(|ask| ask.set_back(&setback));
            last = Some(setback);
            self.endpoint.timers().sleep(pause).await;
        }
    }

    /// What to do about a server that is no sequencer of this version: others may be.
    fn foreign(&self, server: &Addr, why: String) -> Verdict {
        if self.servers.len() == 1 {
            return Verdict::Final(protocol(server, why));
        }
        Verdict::Setback(Setback::Foreign { server: server.clone(), why: why.into() })
    }

    /// Decides whether another attempt may succeed.
    fn judge(&self, server: &Addr, why: ChannelError) -> Verdict {
        let (asked, server) = (server, server.clone());
        let Why::Call(call) = &why.why else { return Verdict::Setback(Setback::Call { server, why }) };
        if let Some(epoch) = refusal(call) {
            let known = self.epoch.get();
            if epoch < known && !is_planted(Mutation::EpochForgotten) {
                return Verdict::Setback(Setback::OldEpoch { server, epoch, known });
            }
            self.epoch.set(epoch);
            return Verdict::LaterEpoch;
        }
        match call {
            CallError::Application(error) => match Code::of(error.code()) {
                Some(Code::Exhausted) => Verdict::Final(SeqError::Exhausted { server }),
                Some(Code::NotServing) => Verdict::Setback(Setback::NotServing(server)),
                _ => self.foreign(asked, error.to_string()),
            },
            CallError::Busy => Verdict::Setback(Setback::Dry(server)),
            CallError::DeadlineExceeded => Verdict::Setback(Setback::Silent(server)),
            CallError::NoHandler | CallError::HandlerFailed => self.foreign(asked, call.to_string()),
            _ => Verdict::Setback(Setback::Call { server, why }),
        }
    }
}
