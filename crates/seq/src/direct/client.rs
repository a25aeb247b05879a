//! The client of Spec-S0.

use std::collections::VecDeque;
use std::time::Duration;

use arrayvec::ArrayVec;
use dunlin_net::poll::{Idle, PollPolicy, sleep_time};
use dunlin_net::transport::RX_BURST;
use dunlin_net::{Addr, NetError, PeerHealth, Route, Transport, TxPacket};

use super::packet::{Bytes, Kind, LONG_BYTES, Packet, Refusal};
use crate::mutation::{Mutation, is_planted};

/// An attempt is repeated at once for up to this many hellos in a row; after more it waits like one without an answer.
const HELLOS_MAX: u8 = 3;
/// Timeouts are not checked while full bursts arrive, as many in a row as a receive queue may hold: their answers may be
/// in the next one.
const FULL_BURSTS_MAX: u8 = 64;
/// Maximum number of doublings of an attempt's timeout.
const DOUBLINGS_MAX: u8 = 6;

/// Settings of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectConfig {
    /// Timeout of a call, for all attempts together. Default 2 s.
    pub timeout: Duration,
    /// Timeout of the first attempt; it doubles with each further attempt, up to 64 times. It is checked four times
    /// within this period. Default 10 ms.
    pub attempt_timeout: Duration,
    /// Pause after a refused attempt. Default 1 ms.
    pub pause: Duration,
    /// Concurrent calls; 1 to 32,768. Default 1024.
    pub calls_max: usize,
    /// The first tag. `None` draws it from the operating system's random numbers; set it only in tests and simulations.
    pub first_tag: Option<u64>,
    /// What [`DirectClient::next_number`] does while it waits.
    pub poll: PollPolicy,
}

impl Default for DirectConfig {
    fn default() -> Self {
        DirectConfig {
            timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_millis(10),
            pause: Duration::from_millis(1),
            calls_max: 1024,
            first_tag: None,
            poll: PollPolicy::default(),
        }
    }
}

/// The counters of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectStats {
    /// Calls that got a number.
    pub numbers: u64,
    /// Of these, those whose guess was wrong.
    pub wrong_guesses: u64,
    /// Attempts.
    pub attempts: u64,
    /// Attempts without a timely answer: each may have cost a number.
    pub unanswered: u64,
    /// Attempts that were refused.
    pub refused: u64,
    /// Hellos received.
    pub hellos: u64,
    /// Packets of other formats or versions.
    pub foreign: u64,
    /// Answers of an incarnation other than the one asked, or of an earlier epoch.
    pub stale: u64,
    /// Answers to no waiting attempt: late, or duplicated.
    pub late: u64,
}

/// Why a call got no number.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// Too many calls are in progress.
    #[error("{max} calls are in progress already: wait for some of them, or raise calls_max")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The call timed out.
    #[error("no sequencer gave a number in time: {server} {why}")]
    TimedOut {
        /// The last server asked.
        server: Addr,
        /// Why it gave no number.
        why: Stall,
    },
    /// All numbers are handed out.
    #[error("{server} has no more numbers: its number space is exhausted")]
    Exhausted {
        /// The sequencer.
        server: Addr,
    },
    /// A sequencer hands out numbers that are not above those that this client already has.
    #[error(
        "{server} begins at {first}, and this client has had {seen} already: numbers came twice or will; stop the \
         sequencer, and start it above all numbers that were handed out (--start)"
    )]
    WentBack {
        /// The sequencer.
        server: Addr,
        /// The number it gave, or its next number.
        first: u64,
        /// The highest number that this client has.
        seen: u64,
    },
    /// An address cannot be resolved.
    #[error("cannot reach {server}: {why}")]
    Unreachable {
        /// The address.
        server: Addr,
        /// Why.
        why: String,
    },
    /// The client has no server address.
    #[error("no address of a sequencer was given: give one or more")]
    NoServer,
    /// A setting is out of range.
    #[error("setting {name}: {allowed}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its valid values.
        allowed: &'static str,
    },
    /// The operating system gave no random numbers.
    #[error("no random numbers from the operating system: {0}")]
    Random(String),
}

/// Why the last attempt of a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Stall {
    /// There was no answer.
    #[error("did not answer")]
    Silent,
    /// No numbers were reserved.
    #[error("waits for numbers to be reserved")]
    Dry,
    /// Another sequencer may serve.
    #[error("does not serve at the moment")]
    NotServing,
    /// The server is in an earlier epoch than another one that this client has asked: it was replaced.
    #[error("is in an earlier epoch: another sequencer has replaced it")]
    OldEpoch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// To be sent.
    Queued,
    /// An attempt is in flight.
    Sent,
    /// Refused; to be sent again when it is due.
    Paused,
}

/// A call, in the slot that the tag of its attempt names.
#[derive(Debug, Clone, Copy)]
struct Call {
    state: State,
    attempts: u8,
    hellos: u8,
    stall: Stall,
    /// Index of the server asked.
    server: u16,
    /// The guess of the attempt.
    guess: u32,
    /// The incarnation or epoch that the attempt named.
    named: u32,
    tag: u64,
    /// The caller's token.
    token: u64,
    /// The highest number known when the attempt was sent, if any.
    seen: Option<u64>,
    /// When the attempt times out, or a pause is over.
    due: u64,
    /// When the call times out; 0 until it is first sent, since the clock is read once for all packets sent together.
    deadline: u64,
}

const FREE: Call = Call {
    state: State::Free,
    attempts: 0,
    hellos: 0,
    stall: Stall::Silent,
    server: 0,
    guess: 0,
    named: 0,
    tag: 0,
    token: 0,
    seen: None,
    due: 0,
    deadline: 0,
};

struct Server {
    addr: Addr,
    /// `None` if nobody is there, which shows over shared memory.
    route: Option<Route>,
    /// 0 until the first hello, and if the server has epochs: then requests name the client's.
    incarnation: u32,
    /// When its route was last checked.
    checked: u64,
}

impl Server {
    /// Finds a server that is there only now, or that was started again: its region of shared memory is another one.
    fn find<T: Transport>(&mut self, transport: &mut T) {
        if let Some(route) = self.route.take_if(|route| transport.peer_health(*route) == PeerHealth::Dead) {
            transport.release(route);
        }
        if self.route.is_none() {
            self.route = transport.resolve(&self.addr).ok();
        }
    }
}

/// A client over one transport. One thread owns and drives it: with [`DirectClient::ask`] for each number, then
/// [`DirectClient::poll`] repeatedly; or with [`DirectClient::next_number`] for one number at a time.
///
/// ```
/// use std::sync::Arc;
///
/// use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
/// use dunlin_seq::Counter;
/// use dunlin_seq::direct::{DirectClient, DirectConfig, DirectServer, DirectServerConfig};
///
/// let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
/// let counter = Arc::new(Counter::starting_at(7)?);
/// let mut server = DirectServer::new(vec![network.endpoint(1)?], counter, DirectServerConfig::default())?;
/// let mut client = DirectClient::new(network.endpoint(2)?, vec![Addr::Node(1)], DirectConfig::default())?;
/// for token in 0..3 {
///     client.ask(token)?;
/// }
/// let mut numbers = Vec::new();
/// while numbers.len() < 3 {
///     client.poll(|token, number| numbers.push((token, number.unwrap())));
///     server.turn();
/// }
/// assert_eq!(numbers, [(0, 7), (1, 8), (2, 9)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DirectClient<T> {
    transport: T,
    config: DirectConfig,
    servers: Vec<Server>,
    /// Index of the server asked.
    at: usize,
    /// Slots of calls: twice as many as calls, a power of two.
    calls: Vec<Call>,
    in_progress: usize,
    /// Slots of calls to be sent.
    queued: VecDeque<u32>,
    next_tag: u64,
    /// The expected upper half.
    guess: u32,
    /// The latest epoch that a server has named; 0 for none.
    epoch: u32,
    /// The highest number received.
    seen: Option<u64>,
    /// When timeouts are checked next.
    look_at: u64,
    /// Full bursts that have arrived in a row since timeouts were to be checked.
    full_bursts: u8,
    stats: DirectStats,
}

/// The epoch of a server, by its hello.
fn epoch_of(hello: &Packet) -> u32 {
    if hello.kind == Kind::Epoch { hello.incarnation } else { 0 }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

impl<T: Transport> DirectClient<T> {
    /// A client of the sequencers at `servers`; if there are several, they must draw from one counter. Sends nothing
    /// yet. A server may be started later, and started again.
    ///
    /// # Errors
    /// [`DirectError::NoServer`], [`DirectError::Unreachable`], [`DirectError::Setting`], [`DirectError::Random`].
    pub fn new(mut transport: T, servers: Vec<Addr>, config: DirectConfig) -> Result<DirectClient<T>, DirectError> {
        if config.calls_max == 0 || config.calls_max > 1 << 15 {
            return Err(DirectError::Setting { name: "calls_max", allowed: "choose 1 to 32,768" });
        }
        if servers.is_empty() {
            return Err(DirectError::NoServer);
        }
        if servers.len() > 1000 {
            return Err(DirectError::Setting { name: "servers", allowed: "give at most 1,000 addresses" });
        }
        let mut known = Vec::with_capacity(servers.len());
        for addr in servers {
            let route = match transport.resolve(&addr) {
                Ok(route) => Some(route),
                Err(NetError::NotFound { .. }) => None,
                Err(why) => return Err(DirectError::Unreachable { server: addr, why: why.to_string() }),
            };
            known.push(Server { addr, route, incarnation: 0, checked: 0 });
        }
        let next_tag = match config.first_tag {
            Some(tag) => tag,
            None => getrandom::u64().map_err(|error| DirectError::Random(error.to_string()))?,
        };
        let places = (2 * config.calls_max).next_power_of_two();
        Ok(DirectClient {
            transport,
            config,
            servers: known,
            at: 0,
            calls: vec![FREE; places],
            in_progress: 0,
            queued: VecDeque::with_capacity(places),
            next_tag,
            guess: 0,
            epoch: 0,
            seen: None,
            look_at: 0,
            full_bursts: 0,
            stats: DirectStats::default(),
        })
    }

    /// Begins a call, which the next [`DirectClient::poll`] sends. `token` identifies it when it ends.
    ///
    /// # Errors
    /// [`DirectError::TooMany`].
    #[inline]
    pub fn ask(&mut self, token: u64) -> Result<(), DirectError> {
        if self.in_progress >= self.config.calls_max {
            return Err(DirectError::TooMany { max: self.config.calls_max });
        }
        self.in_progress += 1;
        self.queue(Call { token, ..FREE });
        Ok(())
    }

    /// Queues a call in the slot of its next tag.
    #[inline]
    fn queue(&mut self, call: Call) {
        let mask = self.calls.len() as u64 - 1;
        // At most half of the slots are in use.
        let place = loop {
            let place = (self.next_tag & mask) as usize;
            if self.calls[place].state == State::Free {
                break place;
            }
            self.next_tag = self.next_tag.wrapping_add(1);
        };
        self.calls[place] = Call { state: State::Queued, tag: self.next_tag, ..call };
        self.next_tag = self.next_tag.wrapping_add(1);
        self.queued.push_back(place as u32);
    }

    /// Sends queued calls, takes arrived packets, and handles timeouts. Calls `done` for each call that has ended.
    /// Returns how many packets arrived.
    #[inline]
    pub fn poll(&mut self, mut done: impl FnMut(u64, Result<u64, DirectError>)) -> usize {
        let now = self.transport.now();
        self.send(now);
        let count = self.transport.rx_burst();
        for i in 0..count.min(RX_BURST) {
            let packet = self.transport.rx_packet(i);
            let answer = if packet.len() <= LONG_BYTES { Packet::parse(packet.head()) } else { None };
            match answer {
                Some(answer) if answer.kind != Kind::Ask => {
                    if let Some((token, ended)) = self.take(&answer, now) {
                        done(token, ended);
                    }
                }
                _ => self.stats.foreign += 1,
            }
        }
        if self.in_progress > 0 && now >= self.look_at {
            // This thread may have stood still: what has arrived since is taken first.
            if count >= RX_BURST && self.full_bursts < FULL_BURSTS_MAX {
                self.full_bursts += 1;
            } else {
                self.full_bursts = 0;
                self.look(now, &mut done);
            }
        }
        if !self.queued.is_empty() {
            self.send(now);
        }
        count
    }

    /// Waits for the next number without an event loop: for threads that have nothing else to do. No other call may be
    /// in progress.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn next_number(&mut self) -> Result<u64, DirectError> {
        self.ask(0)?;
        let (mut result, mut idle) = (None, Idle::new(self.config.poll));
        loop {
            let count = self.poll(|_, number| result = Some(number));
            if let Some(result) = result.take() {
                return result;
            }
            if count > 0 {
                idle.on_work();
                continue;
            }
            std::hint::spin_loop();
            let now = self.transport.now();
            if idle.should_sleep(now) {
                self.transport.wait(sleep_time(now, self.next_due()));
                idle.on_wake(self.transport.now());
            }
        }
    }

    /// When [`DirectClient::poll`] has work even if nothing arrives, by the clock of the transport.
    pub fn next_due(&self) -> Option<u64> {
        (self.in_progress > 0).then_some(self.look_at)
    }

    /// Calls in progress.
    pub fn in_progress(&self) -> usize {
        self.in_progress
    }

    /// The highest number received.
    pub fn seen(&self) -> Option<u64> {
        self.seen
    }

    /// The latest epoch that it knows; 0 if the sequencer has no terms, or none has answered yet.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The counters.
    pub fn stats(&self) -> DirectStats {
        self.stats
    }

    /// Its transport.
    pub fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// What requests to a server name: its incarnation, or else the latest epoch.
    #[inline]
    fn name(&self, server: usize) -> u32 {
        match self.servers[server].incarnation {
            0 => self.epoch,
            incarnation => incarnation,
        }
    }

    fn send(&mut self, now: u64) {
        while !self.queued.is_empty() {
            let (server, guess, seen) = (&self.servers[self.at], self.guess, self.seen);
            let named = self.name(self.at);
            let timeout = nanos(self.config.timeout);
            let mut bytes: [Bytes; RX_BURST] = [[0; LONG_BYTES]; RX_BURST];
            let mut lens = ArrayVec::<usize, RX_BURST>::new();
            while let (Some(place), false) = (self.queued.front().copied(), lens.is_full()) {
                self.queued.pop_front();
                let call = &mut self.calls[place as usize];
                if call.state != State::Queued {
                    continue;
                }
                let doublings = call.attempts.min(DOUBLINGS_MAX);
                let time = nanos(self.config.attempt_timeout).saturating_mul(1 << doublings);
                call.due = now.saturating_add(time);
                if call.deadline == 0 {
                    call.deadline = now.saturating_add(timeout).max(1);
                }
                (call.state, call.guess, call.seen, call.server) = (State::Sent, guess, seen, self.at as u16);
                call.named = named;
                let ask = Packet { kind: Kind::Ask, incarnation: named, tag: call.tag, data: guess.into() };
                let to = &mut bytes[lens.len()];
                lens.push(ask.write(to));
            }
            self.stats.attempts += lens.len() as u64;
            if let Some(route) = server.route {
                let packets: ArrayVec<TxPacket<'_>, RX_BURST> = lens
                    .iter()
                    .zip(&bytes)
                    .map(|(len, bytes)| TxPacket { route, header: &bytes[..*len], payload: &[] })
                    .collect();
                self.transport.tx_burst(&packets);
            }
            self.look_at = self.look_at.min(now.saturating_add(nanos(self.config.attempt_timeout) / 4));
        }
        self.transport.tx_flush();
    }

    /// Handles an answer; returns the result if the call has ended.
    #[inline]
    fn take(&mut self, answer: &Packet, now: u64) -> Option<(u64, Result<u64, DirectError>)> {
        let place = (answer.tag & (self.calls.len() as u64 - 1)) as usize;
        let call = self.calls[place];
        let is_its_tag = call.tag == answer.tag || is_planted(Mutation::TagIgnored);
        if call.state != State::Sent || !is_its_tag {
            self.stats.late += 1;
            return None;
        }
        let introduces = matches!(answer.kind, Kind::Hello | Kind::Epoch | Kind::Refused);
        // Another call may have learned of a later epoch, or of a restart, since this attempt was sent.
        let is_over = call.named != self.name(call.server.into());
        if (answer.incarnation != call.named || is_over) && !introduces {
            self.stats.stale += 1;
            return None;
        }
        let number = match answer.kind {
            Kind::Low => {
                let upper = if is_planted(Mutation::GuessNotKept) { self.guess } else { call.guess };
                u64::from(upper) << 32 | answer.data
            }
            Kind::Full => {
                self.stats.wrong_guesses += 1;
                answer.data
            }
            Kind::Hello | Kind::Epoch | Kind::Refused | Kind::Ask => return self.take_word(place, answer, now),
        };
        self.calls[place].state = State::Free;
        self.in_progress -= 1;
        if call.seen.is_some_and(|seen| number <= seen) {
            return Some((call.token, Err(self.went_back(call.server, number, call.seen))));
        }
        self.stats.numbers += 1;
        if self.seen.is_none_or(|seen| number > seen) {
            self.seen = Some(number);
            self.guess = (number >> 32) as u32;
        }
        Some((call.token, Ok(number)))
    }

    #[cold]
    fn went_back(&self, server: u16, first: u64, seen: Option<u64>) -> DirectError {
        let server = self.servers[usize::from(server)].addr.clone();
        DirectError::WentBack { server, first, seen: seen.unwrap_or(0) }
    }

    /// Handles an answer without a number.
    #[cold]
    fn take_word(&mut self, place: usize, answer: &Packet, now: u64) -> Option<(u64, Result<u64, DirectError>)> {
        let mut call = self.calls[place];
        let failed = match (answer.kind, answer.refusal()) {
            // A server that says hello has no terms: that is epoch 0.
            (Kind::Hello | Kind::Epoch, _)
                if epoch_of(answer) < self.epoch && !is_planted(Mutation::EpochForgotten) =>
            {
                self.stats.refused += 1;
                call.stall = Stall::OldEpoch;
                self.turn_from(call.server);
                (call.state, call.due) = (State::Paused, now.saturating_add(nanos(self.config.pause)));
                self.look_at = self.look_at.min(call.due);
                None
            }
            (Kind::Hello | Kind::Epoch, _) => self.meet(&mut call, answer),
            (_, Some(Refusal::Exhausted)) => {
                let server = self.servers[usize::from(call.server)].addr.clone();
                Some(DirectError::Exhausted { server })
            }
            (_, Some(why)) => {
                self.stats.refused += 1;
                call.stall = if why == Refusal::Dry { Stall::Dry } else { Stall::NotServing };
                if why == Refusal::NotServing {
                    self.turn_from(call.server);
                }
                (call.state, call.due) = (State::Paused, now.saturating_add(nanos(self.config.pause)));
                self.look_at = self.look_at.min(call.due);
                None
            }
            _ => {
                self.stats.foreign += 1;
                None
            }
        };
        let Some(error) = failed else {
            if call.state == State::Queued {
                // Under a new tag.
                self.calls[place].state = State::Free;
                self.queue(call);
            } else {
                self.calls[place] = call;
            }
            return None;
        };
        self.calls[place].state = State::Free;
        self.in_progress -= 1;
        Some((call.token, Err(error)))
    }

    /// Handles a hello. The call is repeated at once, unless the server's next number is too low.
    fn meet(&mut self, call: &mut Call, hello: &Packet) -> Option<DirectError> {
        self.stats.hellos += 1;
        // The next number was read after the attempt was sent.
        if let Some(seen) = call.seen.filter(|seen| hello.data <= *seen) {
            return Some(self.went_back(call.server, hello.data, Some(seen)));
        }
        if self.seen.is_none() {
            self.guess = (hello.data >> 32) as u32;
        }
        if hello.kind == Kind::Epoch {
            self.epoch = hello.incarnation;
            // Also of servers without terms: their numbers are of an earlier epoch from now on.
            self.servers.iter_mut().for_each(|server| server.incarnation = 0);
        } else {
            self.servers[usize::from(call.server)].incarnation = hello.incarnation;
        }
        call.hellos = call.hellos.saturating_add(1);
        if call.hellos <= HELLOS_MAX {
            call.state = State::Queued;
        }
        None
    }

    /// Asks the next server from now on, if this one is currently asked.
    fn turn_from(&mut self, server: u16) {
        if self.at == usize::from(server) {
            self.at = (self.at + 1) % self.servers.len();
        }
    }

    /// Checks for attempts that timed out, pauses that are over, and calls that timed out.
    #[cold]
    fn look(&mut self, now: u64, done: &mut impl FnMut(u64, Result<u64, DirectError>)) {
        self.look_at = now.saturating_add((nanos(self.config.attempt_timeout) / 4).max(1));
        for place in 0..self.calls.len() {
            let mut call = self.calls[place];
            if call.state == State::Free {
                continue;
            }
            if call.deadline != 0 && now >= call.deadline {
                self.calls[place].state = State::Free;
                self.in_progress -= 1;
                let server = self.servers[usize::from(call.server)].addr.clone();
                done(call.token, Err(DirectError::TimedOut { server, why: call.stall }));
                continue;
            }
            if call.state == State::Queued || now < call.due {
                if call.state == State::Paused {
                    self.look_at = self.look_at.min(call.due);
                }
                continue;
            }
            if call.state == State::Sent {
                self.stats.unanswered += 1;
                call.stall = Stall::Silent;
                call.attempts = call.attempts.saturating_add(1);
                self.turn_from(call.server);
                let server = &mut self.servers[usize::from(call.server)];
                if server.checked != now {
                    server.checked = now;
                    server.find(&mut self.transport);
                }
            }
            call.hellos = 0;
            self.calls[place].state = State::Free;
            self.queue(call);
        }
    }
}

impl<T: Transport> std::fmt::Debug for DirectClient<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirectClient({} calls in progress)", self.in_progress)
    }
}
