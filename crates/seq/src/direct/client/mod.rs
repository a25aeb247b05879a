//! The client of Spec-S0.

mod call;
mod error;
mod receive;
mod send;
mod server;
mod settings;

use dunlin_net::clock::nanos;
use dunlin_net::poll::{Idle, sleep_time};
use dunlin_net::transport::RX_BURST;
use dunlin_net::{Addr, NetError, Transport};

use self::call::{Again, Course, Slot, State, UNSENT};
pub use self::error::{DirectError, Stall};
use self::receive::ENOUGH;
use self::server::Server;
pub use self::settings::{DirectConfig, DirectStats};
use super::packet::{self, Kind, Words};

/// Empty polls of [`DirectClient::next_number`] before it pauses between two.
const POLLS_WITHOUT_PAUSE: u32 = 50;

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

    /// Ends a call, and returns its token.
    fn end(&mut self, place: usize) -> u64 {
        self.slots[place].free();
        self.in_progress -= 1;
        self.slots[place].token
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
