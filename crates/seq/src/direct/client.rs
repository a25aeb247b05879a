//! The client of Spec-S0.

use std::time::Duration;

use arrayvec::ArrayVec;
use dunlin_net::clock::nanos;
use dunlin_net::poll::{Idle, PollPolicy, sleep_time};
use dunlin_net::transport::RX_BURST;
use dunlin_net::{Addr, NetError, PeerHealth, Route, Transport, TxPacket};

use super::packet::{self, Kind, Packet, Refusal, SHORT_BYTES, Words};
use crate::counter::NUMBERS_END;
use crate::mutation::{Mutation, is_planted};

/// An attempt is repeated at once for up to this many hellos in a row; after more it waits like one without an answer.
const HELLOS_MAX: u8 = 3;
/// Maximum number of doublings of an attempt's timeout.
const DOUBLINGS_MAX: u8 = 6;
/// A poll receives until it has this many packets, or there are no more: what arrives in small pieces leaves in large
/// ones. It is as many as a burst over shared memory has, so there a poll is one burst, and the server works meanwhile.
const ENOUGH: usize = 32;
/// A poll receives no more packets than this and a burst, unless timeouts are checked.
const ENOUGH_MAX: usize = 1024;
/// Empty polls of [`DirectClient::next_number`] before it pauses between two.
const POLLS_WITHOUT_PAUSE: u32 = 50;

/// Settings of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectConfig {
    /// Timeout of a call, for all attempts together. Default 2 s.
    pub timeout: Duration,
    /// Timeout of the first attempt. It is longer if the server's answers take longer, and doubles with each further
    /// attempt, up to 64 times. It is checked four times within this period. Default 10 ms.
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
    /// Answers to no waiting call: duplicates, and numbers of repeated attempts.
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
    /// [`DirectClient::next_number`] was called while other calls are in progress.
    #[error("{in_progress} calls are in progress: end them by poll() before next_number(), or use ask() for this one")]
    InProgress {
        /// How many.
        in_progress: usize,
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
    /// To be sent.
    Queued,
    /// An attempt is in flight.
    Sent,
    /// Refused; to be sent again when it is due.
    Paused,
}

/// What a call and its answer need. Its place follows from its tag.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
struct Slot {
    /// The tag of the call's attempts. In a free slot, the complement of the last one: no packet for this place has it.
    tag: u64,
    /// The caller's token.
    token: u64,
    /// Numbers of these attempts are not below this: all that the client had before the first of them. [`UNSENT`] before
    /// that.
    floor: u64,
    /// The guess of the attempts.
    guess: u32,
    /// The incarnation or epoch that they named. 0 if none: no number is drawn for those.
    named: u32,
}

/// The floor of a call that was not sent yet.
const UNSENT: u64 = u64::MAX;

impl Slot {
    #[inline]
    fn is_used(&self, place: usize, places: usize) -> bool {
        self.tag & (places as u64 - 1) == place as u64
    }

    #[inline]
    fn free(&mut self) {
        self.tag = !self.tag;
    }
}

/// The rest of a call. It is valid once the call was sent, or is held back.
#[derive(Debug, Clone, Copy)]
struct Course {
    /// When the attempt times out, or a pause is over.
    due: u64,
    /// When the call times out.
    deadline: u64,
    /// Index of the server asked.
    server: u16,
    attempts: u8,
    hellos: u8,
    state: State,
    stall: Stall,
}

/// A call to be sent again; void if its slot has another tag by then.
type Again = (u32, u64);

struct Server {
    addr: Addr,
    /// `None` if nobody is there, which shows over shared memory.
    route: Option<Route>,
    /// 0 until the first hello, and if the server has epochs: then requests name the client's.
    incarnation: u32,
    /// When its route was last checked.
    checked: u64,
    /// Mean time to an answer, and its mean deviation; 0 before the first.
    answers_in: u64,
    deviation: u64,
}

impl Server {
    /// Timeout of a first attempt: at least `least`.
    fn timeout(&self, least: u64) -> u64 {
        (self.answers_in + 4 * self.deviation).clamp(least, least.saturating_mul(1 << DOUBLINGS_MAX))
    }

    /// Notes the time from the first attempt of a call to its answer, in the way of RFC 6298. That of a call with more
    /// attempts is rather too long, and so ends repetitions that are not needed.
    fn answered_in(&mut self, time: u64) {
        if self.answers_in == 0 {
            (self.answers_in, self.deviation) = (time, time / 2);
            return;
        }
        self.deviation = self.deviation - self.deviation / 4 + self.answers_in.abs_diff(time) / 4;
        self.answers_in = self.answers_in - self.answers_in / 8 + time / 8;
    }

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
    /// [`DirectConfig::timeout`] and [`DirectConfig::attempt_timeout`], in nanoseconds.
    timeout: u64,
    attempt_timeout: u64,
    servers: Vec<Server>,
    /// Index of the server asked.
    at: usize,
    /// What requests to it name; 0 if the client is not acquainted with it.
    named: u32,
    /// How its answers with four bytes start.
    low: u64,
    /// Twice as many as calls, a power of two.
    slots: Box<[Slot]>,
    courses: Box<[Course]>,
    in_progress: usize,
    /// Where the search for a free slot goes on.
    next_place: usize,
    /// Calls that are to be sent for the first time.
    fresh: Vec<u32>,
    /// Calls that are to be sent again, or are held back until the client is acquainted with the server.
    again: Vec<Again>,
    /// The call that asks a server for its name. Until it has that, no other is sent.
    introducer: Option<Again>,
    /// Packets to be sent.
    packets: Box<[Words; RX_BURST]>,
    /// The expected upper half.
    guess: u32,
    /// The latest epoch that a server has named; 0 for none.
    epoch: u32,
    /// Above the highest number received; 0 before the first.
    floor: u64,
    /// Why a call was last delayed.
    stall: Stall,
    /// When timeouts are checked next.
    look_at: u64,
    stats: DirectStats,
}

/// The epoch of a server, by its hello.
fn epoch_of(hello: &Packet) -> u32 {
    if hello.kind == Kind::Epoch { hello.incarnation } else { 0 }
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
            known.push(Server { addr, route, incarnation: 0, checked: 0, answers_in: 0, deviation: 0 });
        }
        let first_tag = match config.first_tag {
            Some(tag) => tag,
            None => getrandom::u64().map_err(|error| DirectError::Random(error.to_string()))?,
        };
        let places = (2 * config.calls_max).next_power_of_two();
        let mask = places as u64 - 1;
        // Tags count up from the first one, as long as slots are used in turn.
        let tag = |place: u64| first_tag.wrapping_add(place.wrapping_sub(first_tag) & mask);
        let slot = |place| {
            let tag = !tag(place).wrapping_sub(places as u64);
            Slot { tag, token: 0, floor: UNSENT, guess: 0, named: 0 }
        };
        let course = Course {
            due: 0,
            deadline: 0,
            server: 0,
            attempts: 0,
            hellos: 0,
            state: State::Queued,
            stall: Stall::Silent,
        };
        let (timeout, attempt_timeout) = (nanos(config.timeout), nanos(config.attempt_timeout));
        Ok(DirectClient {
            transport,
            config,
            timeout,
            attempt_timeout,
            servers: known,
            at: 0,
            named: 0,
            low: 0,
            slots: (0..places as u64).map(slot).collect(),
            courses: vec![course; places].into_boxed_slice(),
            in_progress: 0,
            next_place: (first_tag & mask) as usize,
            fresh: Vec::with_capacity(config.calls_max),
            again: Vec::with_capacity(config.calls_max),
            introducer: None,
            packets: Box::new([Words::default(); RX_BURST]),
            guess: 0,
            epoch: 0,
            floor: 0,
            stall: Stall::Silent,
            look_at: 0,
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
        let places = self.slots.len();
        // At most half of the slots are in use.
        let place = loop {
            let place = self.next_place;
            self.next_place = (place + 1) & (places - 1);
            if !self.slots[place].is_used(place, places) {
                break place;
            }
        };
        // Each slot counts its tags up by the number of slots, so no two calls share one.
        let tag = (!self.slots[place].tag).wrapping_add(places as u64);
        self.slots[place] = Slot { tag, token, floor: UNSENT, guess: 0, named: 0 };
        self.fresh.push(place as u32);
        self.in_progress += 1;
        Ok(())
    }

    /// Takes arrived packets, sends calls, and handles timeouts. Calls `done` for each call that has ended. Returns how
    /// many packets arrived.
    #[inline]
    pub fn poll(&mut self, mut done: impl FnMut(u64, Result<u64, DirectError>)) -> usize {
        let now = self.transport.now();
        // Few calls wait for what has arrived, so that they are sent together with those that it lets begin. If nothing
        // is in flight, there is nothing to wait for.
        let is_idle = self.fresh.len() == self.in_progress;
        if self.fresh.len() >= ENOUGH || (is_idle && !self.fresh.is_empty()) {
            self.send(now);
        }
        let mut count = self.receive(now, &mut done);
        if self.in_progress > 0 && now >= self.look_at {
            // This thread may have stood still: all that has arrived since is taken first.
            count += self.receive_all(now, &mut done);
            self.send(now);
            self.look(now, &mut done);
        }
        if !self.fresh.is_empty() || !self.again.is_empty() {
            self.send(now);
        }
        count
    }

    /// Receives until there are enough packets, or no more.
    #[inline]
    fn receive(&mut self, now: u64, done: &mut impl FnMut(u64, Result<u64, DirectError>)) -> usize {
        let mut total = 0;
        loop {
            let count = self.transport.rx_burst().min(RX_BURST);
            if count == 0 {
                return total;
            }
            self.take_burst(count, now, done);
            total += count;
            // After a full burst the next one may be there already.
            let is_enough = total >= ENOUGH && (count < RX_BURST || total >= ENOUGH_MAX);
            if is_enough || self.in_progress == 0 {
                return total;
            }
        }
    }

    /// Receives until nothing is there, or as much as the receive queue holds: a flood must not keep calls from timing
    /// out.
    #[cold]
    fn receive_all(&mut self, now: u64, done: &mut impl FnMut(u64, Result<u64, DirectError>)) -> usize {
        let (mut total, limit) = (0, self.transport.rx_queue_len().max(2 * self.slots.len()));
        while total < limit {
            let count = self.transport.rx_burst().min(RX_BURST);
            if count == 0 {
                break;
            }
            self.take_burst(count, now, done);
            total += count;
        }
        total
    }

    /// Takes the packets of a burst. An answer with four bytes to a call of the present server, the usual case, is
    /// recognized by two comparisons.
    #[inline]
    fn take_burst(&mut self, count: usize, now: u64, done: &mut impl FnMut(u64, Result<u64, DirectError>)) {
        let (mut numbers, mut last) = (0, None);
        for i in 0..count {
            let packet = self.transport.rx_packet(i);
            if let Some((start, tag, lower)) = packet::split_short(packet.head())
                && start == self.low
            {
                let place = self.place_of(tag);
                let slot = &mut self.slots[place];
                let upper = if is_planted(Mutation::GuessNotKept) { self.guess } else { slot.guess };
                let number = u64::from(upper) << 32 | u64::from(lower);
                if slot.tag == tag && slot.named == self.named && number >= slot.floor {
                    let (token, guess) = (slot.token, slot.guess);
                    slot.free();
                    if number >= self.floor {
                        (self.floor, self.guess) = (number + 1, guess);
                    }
                    (numbers, last) = (numbers + 1, Some(place));
                    done(token, Ok(number));
                    continue;
                }
            }
            match Packet::parse(packet.head()) {
                Some(answer) if answer.kind != Kind::Ask => {
                    if let Some((token, ended)) = self.take(&answer, now) {
                        done(token, ended);
                    }
                }
                _ => self.stats.foreign += 1,
            }
        }
        self.in_progress -= numbers;
        self.stats.numbers += numbers as u64;
        if let Some(place) = last {
            let Course { deadline, server, .. } = self.courses[place];
            let begun = deadline.saturating_sub(self.timeout);
            self.servers[usize::from(server)].answered_in(now.saturating_sub(begun));
        }
    }

    /// Waits for the next number without an event loop: for threads that have nothing else to do. No other call may be
    /// in progress.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn next_number(&mut self) -> Result<u64, DirectError> {
        if self.in_progress > 0 {
            return Err(DirectError::InProgress { in_progress: self.in_progress });
        }
        self.ask(0)?;
        let (mut result, mut idle, mut empty) = (None, Idle::new(self.config.poll), 0u32);
        loop {
            let count = self.poll(|_, number| result = Some(number));
            if let Some(result) = result.take() {
                return result;
            }
            if count > 0 {
                idle.on_work();
                empty = 0;
                continue;
            }
            empty = empty.saturating_add(1);
            if empty > POLLS_WITHOUT_PAUSE {
                std::hint::spin_loop();
            }
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
        self.floor.checked_sub(1)
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

    /// After a change of what requests to the present server name.
    fn rename(&mut self) {
        self.named = self.name(self.at);
        // Without a name, no answer has a number: no packet starts with 0.
        self.low = if self.named == 0 { 0 } else { packet::start(Kind::Low, self.named) };
    }

    #[inline]
    fn place_of(&self, tag: u64) -> usize {
        (tag & (self.slots.len() as u64 - 1)) as usize
    }

    /// Sends what is to be sent.
    #[inline]
    fn send(&mut self, now: u64) {
        if self.named == 0 {
            self.introduce(now);
            return;
        }
        if !self.again.is_empty() {
            self.send_again(now);
        }
        if self.fresh.is_empty() {
            return;
        }
        let (guess, floor, named, server) = (self.guess, self.floor, self.named, &self.servers[self.at]);
        let course = self.sent(now);
        let start = packet::start(Kind::Ask, named);
        for places in self.fresh.chunks(RX_BURST) {
            let (slots, courses) = (&mut self.slots, &mut self.courses);
            let prepare = |(place, words): (&u32, &mut Words)| {
                let slot = &mut slots[*place as usize];
                (slot.floor, slot.guess, slot.named) = (floor, guess, named);
                courses[*place as usize] = course;
                *words = packet::words(start, slot.tag, guess.into());
            };
            places.iter().zip(self.packets.iter_mut()).for_each(prepare);
            if let Some(route) = server.route {
                let headers = self.packets[..places.len()].iter().map(|words| &words.as_flattened()[..SHORT_BYTES]);
                let packets = headers.map(|header| TxPacket { route, header, payload: &[] });
                if places.len() == 1 {
                    packets.for_each(|packet| self.transport.tx_burst(&[packet]));
                } else {
                    // Extended in place: what is collected is copied, with all its empty room.
                    let mut burst = ArrayVec::<TxPacket<'_>, RX_BURST>::new();
                    burst.extend(packets);
                    self.transport.tx_burst(&burst);
                }
                // Each burst leaves by itself, so that the server works on one while this client works on another.
                self.transport.tx_flush();
            }
        }
        self.stats.attempts += self.fresh.len() as u64;
        self.fresh.clear();
        self.look_at = self.look_at.min(now.saturating_add(self.attempt_timeout / 4));
    }

    /// A call whose first attempt is sent now.
    #[inline]
    fn sent(&self, now: u64) -> Course {
        Course {
            due: now.saturating_add(self.servers[self.at].timeout(self.attempt_timeout)),
            deadline: now.saturating_add(self.timeout),
            server: self.at as u16,
            attempts: 0,
            hellos: 0,
            state: State::Sent,
            stall: Stall::Silent,
        }
    }

    /// Sends one call to a server that the client is not acquainted with, unless one is on its way. The others are held
    /// back: nothing would be drawn for them, and each would cost the server an answer.
    #[cold]
    fn introduce(&mut self, now: u64) {
        let held = Course { state: State::Queued, due: u64::MAX, ..self.sent(now) };
        for place in self.fresh.drain(..) {
            self.courses[place as usize] = held;
            self.again.push((place, self.slots[place as usize].tag));
        }
        if self.in_progress > 0 {
            self.look_at = self.look_at.min(now.saturating_add(self.attempt_timeout / 4));
        }
        let is_out = |client: &Self, (place, tag): Again| {
            client.slots[place as usize].tag == tag && client.courses[place as usize].state != State::Queued
        };
        if self.introducer.is_some_and(|introducer| is_out(self, introducer)) {
            return;
        }
        let slots = &self.slots;
        self.again.retain(|(place, tag)| slots[*place as usize].tag == *tag);
        self.introducer = (!self.again.is_empty()).then(|| self.again.remove(0));
        let Some((place, _)) = self.introducer else { return };
        let tag = self.repeat(place, now);
        self.introducer = Some((place, tag));
        self.transmit(&[place]);
    }

    /// Sends calls that were sent before, or held back.
    #[cold]
    fn send_again(&mut self, now: u64) {
        let mut again = std::mem::take(&mut self.again);
        let slots = &self.slots;
        again.retain(|(place, tag)| slots[*place as usize].tag == *tag);
        for some in again.chunks(RX_BURST) {
            let places: ArrayVec<u32, RX_BURST> = some.iter().map(|(place, _)| *place).collect();
            for place in &places {
                self.repeat(*place, now);
            }
            self.transmit(&places);
        }
        again.clear();
        self.again = again;
        self.look_at = self.look_at.min(now.saturating_add(self.attempt_timeout / 4));
    }

    /// Prepares the next attempt of a call, and returns its tag. It is that of the earlier attempts, whose answers are as
    /// good, unless these named something else: then no answer to them counts, and none may be taken for one.
    fn repeat(&mut self, place: u32, now: u64) -> u64 {
        let (named, places) = (self.named, self.slots.len() as u64);
        let (slot, course) = (&mut self.slots[place as usize], &mut self.courses[place as usize]);
        if slot.named != 0 && slot.named != named {
            (slot.tag, slot.floor) = (slot.tag.wrapping_add(places), UNSENT);
        }
        if slot.floor == UNSENT {
            slot.floor = self.floor;
        }
        if slot.named != named {
            (slot.guess, slot.named) = (self.guess, named);
        }
        let timeout = self.servers[self.at].timeout(self.attempt_timeout);
        course.due = now.saturating_add(timeout.saturating_mul(1 << course.attempts.min(DOUBLINGS_MAX)));
        (course.state, course.server) = (State::Sent, self.at as u16);
        slot.tag
    }

    /// Sends attempts to the present server: at most [`RX_BURST`].
    fn transmit(&mut self, places: &[u32]) {
        let server = &self.servers[self.at];
        for (place, words) in places.iter().zip(self.packets.iter_mut()) {
            let Slot { tag, guess, named, .. } = self.slots[*place as usize];
            *words = packet::words(packet::start(Kind::Ask, named), tag, guess.into());
        }
        let sent = self.packets[..places.len()].iter().map(|words| &words.as_flattened()[..SHORT_BYTES]);
        let packets: ArrayVec<TxPacket<'_>, RX_BURST> = match server.route {
            Some(route) => sent.map(|header| TxPacket { route, header, payload: &[] }).collect(),
            None => ArrayVec::new(),
        };
        self.stats.attempts += places.len() as u64;
        self.transport.tx_burst(&packets);
        self.transport.tx_flush();
    }

    /// Handles an answer; returns the result if the call has ended.
    #[inline(never)]
    fn take(&mut self, answer: &Packet, now: u64) -> Option<(u64, Result<u64, DirectError>)> {
        let (place, places) = (self.place_of(answer.tag), self.slots.len());
        let (slot, course) = (self.slots[place], self.courses[place]);
        let is_its_tag = slot.tag == answer.tag || (is_planted(Mutation::TagIgnored) && slot.is_used(place, places));
        if !is_its_tag || slot.floor == UNSENT {
            self.stats.late += 1;
            return None;
        }
        let number = match answer.kind {
            Kind::Low => {
                let upper = if is_planted(Mutation::GuessNotKept) { self.guess } else { slot.guess };
                u64::from(upper) << 32 | answer.data
            }
            Kind::Full => answer.data,
            Kind::Hello | Kind::Epoch | Kind::Refused | Kind::Ask => return self.take_word(place, answer, now),
        };
        // Another call may have learned of a later epoch, or of a restart, since this attempt was sent.
        let is_over = slot.named != self.name(course.server.into());
        if slot.named == 0 || answer.incarnation != slot.named || is_over {
            self.stats.stale += 1;
            return None;
        }
        if number >= NUMBERS_END {
            self.stats.foreign += 1;
            return None;
        }
        let token = self.end(place);
        if number < slot.floor {
            return Some((token, Err(self.went_back(course.server, number, slot.floor))));
        }
        self.stats.numbers += 1;
        self.stats.wrong_guesses += u64::from(answer.kind == Kind::Full);
        if number >= self.floor {
            (self.floor, self.guess) = (number + 1, (number >> 32) as u32);
        }
        Some((token, Ok(number)))
    }

    /// Ends a call, and returns its token.
    fn end(&mut self, place: usize) -> u64 {
        self.slots[place].free();
        self.in_progress -= 1;
        self.slots[place].token
    }

    #[cold]
    fn went_back(&self, server: u16, first: u64, floor: u64) -> DirectError {
        let server = self.servers[usize::from(server)].addr.clone();
        DirectError::WentBack { server, first, seen: floor.saturating_sub(1) }
    }

    /// Handles an answer without a number.
    #[cold]
    fn take_word(&mut self, place: usize, answer: &Packet, now: u64) -> Option<(u64, Result<u64, DirectError>)> {
        let server = self.courses[place].server;
        let failed = match (answer.kind, answer.refusal()) {
            // A server that says hello has no terms: that is epoch 0.
            (Kind::Hello | Kind::Epoch, _)
                if epoch_of(answer) < self.epoch && !is_planted(Mutation::EpochForgotten) =>
            {
                self.refuse(place, Stall::OldEpoch, now);
                None
            }
            (Kind::Hello | Kind::Epoch, _) => self.meet(place, answer),
            (_, Some(Refusal::Exhausted)) => {
                Some(DirectError::Exhausted { server: self.servers[usize::from(server)].addr.clone() })
            }
            (_, Some(why)) => {
                self.refuse(place, if why == Refusal::Dry { Stall::Dry } else { Stall::NotServing }, now);
                None
            }
            _ => {
                self.stats.foreign += 1;
                None
            }
        };
        failed.map(|error| (self.end(place), Err(error)))
    }

    /// Pauses a call, unless it is paused already. If its server has numbers for nobody, asks the next one.
    fn refuse(&mut self, place: usize, why: Stall, now: u64) {
        let course = &mut self.courses[place];
        if course.state != State::Sent {
            self.stats.late += 1;
            return;
        }
        self.stats.refused += 1;
        (course.stall, self.stall) = (why, why);
        (course.state, course.due) = (State::Paused, now.saturating_add(nanos(self.config.pause)));
        self.look_at = self.look_at.min(course.due);
        let server = course.server;
        if why != Stall::Dry {
            self.turn_from(server);
        }
    }

    /// Handles a hello. The call is repeated at once, unless the server's next number is too low.
    fn meet(&mut self, place: usize, hello: &Packet) -> Option<DirectError> {
        let (slot, server) = (self.slots[place], self.courses[place].server);
        self.stats.hellos += 1;
        // The next number was read after the first attempt was sent.
        if hello.data < slot.floor {
            return Some(self.went_back(server, hello.data, slot.floor));
        }
        if self.floor == 0 {
            self.guess = (hello.data.min(NUMBERS_END - 1) >> 32) as u32;
        }
        if hello.kind == Kind::Epoch {
            self.epoch = hello.incarnation;
            // Also of servers without terms: their numbers are of an earlier epoch from now on.
            self.servers.iter_mut().for_each(|server| server.incarnation = 0);
        } else {
            self.servers[usize::from(server)].incarnation = hello.incarnation;
        }
        self.rename();
        // The hello stands for all attempts that named something else: nothing was drawn for them. They were sent before
        // those that are held back.
        let held = std::mem::take(&mut self.again);
        for place in 0..self.slots.len() {
            let (slot, course) = (&self.slots[place], &self.courses[place]);
            let is_sent = slot.is_used(place, self.slots.len()) && slot.floor != UNSENT && course.state == State::Sent;
            if !is_sent || slot.named == self.name(course.server.into()) {
                continue;
            }
            let (tag, course) = (slot.tag, &mut self.courses[place]);
            course.hellos = course.hellos.saturating_add(1);
            if course.hellos <= HELLOS_MAX {
                course.state = State::Queued;
                self.again.push((place as u32, tag));
            }
        }
        self.again.extend(held);
        None
    }

    /// Asks the next server from now on, if this one is currently asked.
    fn turn_from(&mut self, server: u16) {
        if self.at == usize::from(server) {
            self.at = (self.at + 1) % self.servers.len();
            self.rename();
        }
    }

    /// Checks for attempts that timed out, pauses that are over, and calls that timed out. All calls were sent, or are
    /// held back.
    #[cold]
    fn look(&mut self, now: u64, done: &mut impl FnMut(u64, Result<u64, DirectError>)) {
        self.look_at = now.saturating_add((self.attempt_timeout / 4).max(1));
        let places = self.slots.len();
        for place in 0..places {
            let Slot { tag, floor, .. } = self.slots[place];
            if !self.slots[place].is_used(place, places) {
                continue;
            }
            let course = &mut self.courses[place];
            if now >= course.deadline {
                let why = if floor == UNSENT { self.stall } else { course.stall };
                let server = self.servers[usize::from(course.server)].addr.clone();
                done(self.end(place), Err(DirectError::TimedOut { server, why }));
                continue;
            }
            if course.state == State::Queued || now < course.due {
                if course.state == State::Paused {
                    self.look_at = self.look_at.min(course.due);
                }
                continue;
            }
            let server = course.server;
            if course.state == State::Sent {
                self.stats.unanswered += 1;
                (course.stall, self.stall) = (Stall::Silent, Stall::Silent);
                course.attempts = course.attempts.saturating_add(1);
            }
            let was_silent = course.state == State::Sent;
            (course.state, course.hellos) = (State::Queued, 0);
            self.again.push((place as u32, tag));
            if was_silent {
                self.turn_from(server);
                let server = &mut self.servers[usize::from(server)];
                if server.checked != now {
                    server.checked = now;
                    server.find(&mut self.transport);
                }
            }
        }
    }
}

impl<T: Transport> std::fmt::Debug for DirectClient<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirectClient({} calls in progress)", self.in_progress)
    }
}
