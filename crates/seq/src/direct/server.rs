//! The server of Spec-S0.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dunlin_net::poll::{Idle, PollPolicy, sleep_time};
use dunlin_net::transport::RX_BURST;
use dunlin_net::{Addr, BootClock, Route, Transport, TxPacket};

use super::packet::{self, Bytes, Kind, LONG_BYTES, Packet, Refusal, Words};
use super::peers::Peers;
use crate::counter::{Counter, Unavailable};
use crate::mutation::{Mutation, is_planted};
use crate::service::Batching;

/// No way to a client.
const NOWHERE: Route = Route(u32::MAX);
/// Maximum number of send queues of a server.
pub const QUEUES_MAX: usize = 16;
/// Empty turns between two readings of the clock.
const EMPTY_TURNS: u32 = 16;
/// Empty turns before a pause of the processor between two. A pause lasts longer than a turn.
const TURNS_WITHOUT_PAUSE: u32 = 48;

/// Settings of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectServerConfig {
    /// One addition and one burst of answers for all requests of a receive burst, or for each request. Default
    /// [`Batching::Bursts`].
    pub batching: Batching,
    /// Whether bursts of answers leave by all queues in turn, or by the queue on which the requests came. Default
    /// false.
    pub rotate: bool,
    /// Clients whose routes are remembered. Others are served more slowly. Default 1024.
    pub peers_max: usize,
    /// Tells this server from earlier ones at its address: not 0. `None` draws it from the operating system's random
    /// numbers; set it only in tests and simulations.
    pub incarnation: Option<u32>,
    /// What [`DirectServer::run_until`] does when there are no requests. With several queues it never sleeps.
    pub poll: PollPolicy,
}

impl Default for DirectServerConfig {
    fn default() -> Self {
        DirectServerConfig {
            batching: Batching::Bursts,
            rotate: false,
            peers_max: 1024,
            incarnation: None,
            poll: PollPolicy::default(),
        }
    }
}

/// The counters of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectServerStats {
    /// Requests answered with a number.
    pub numbers: u64,
    /// Of these, answers with all eight bytes, since the guess was wrong.
    pub wrong_guesses: u64,
    /// Additions to the counter: `numbers / draws` is the batching achieved.
    pub draws: u64,
    /// Packets of other formats or versions, and answers.
    pub foreign: u64,
    /// Requests without an incarnation or epoch: from clients that just started.
    pub unacquainted: u64,
    /// Requests that named another incarnation or epoch: stale, or from clients of another server.
    pub stale: u64,
    /// Requests refused: no numbers reserved, no term, no numbers left.
    pub refused: u64,
    /// Answers to clients that are not remembered: each burst for one of them costs a look-up of its address.
    pub to_strangers: u64,
    /// Requests without an answer, since there is no way to their senders: they are gone, or this process has no
    /// descriptors left.
    pub unsent: u64,
    /// Clients known now.
    pub peers: u64,
}

/// A request to be answered.
#[derive(Clone, Copy)]
struct Asked {
    tag: u64,
    /// Where the answer goes.
    route: Route,
    guess: u32,
    /// What it named.
    named: u32,
}

/// The sender of a packet.
#[derive(PartialEq, Eq)]
enum Source {
    Known(Route),
    Stranger(Addr),
}

/// A client that is unknown when a burst arrives.
struct Stranger {
    addr: Addr,
    /// `None` if there is no way to it.
    route: Option<Route>,
    /// Whether the route is for this burst only.
    is_passing: bool,
}

/// A server of numbers over one transport, or over several: its *queues*. One thread owns it.
///
/// Requests are served in the order of their bursts. With several queues, clients may use any of the addresses. With
/// rotation, the answers to one burst leave by one queue, and those to the next burst by the next queue. A NIC works on
/// such send queues in parallel (thesis, section 3.7.1). Shared memory and kernel UDP have no such hardware: several
/// queues are several regions or sockets, and rotation exists only to be measured.
pub struct DirectServer<T> {
    queues: Vec<T>,
    counter: Arc<Counter>,
    config: DirectServerConfig,
    incarnation: u32,
    boot_clock: BootClock,
    peers: Peers,
    /// The requests of a burst, and the answers to them.
    asked: Box<[Asked; RX_BURST]>,
    answers: Box<[Words; RX_BURST]>,
    /// Bursts of answers.
    bursts: u64,
    stats: DirectServerStats,
}

/// Why a server cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadServer {
    /// There are no queues, or too many.
    #[error("a server has 1 to {QUEUES_MAX} queues, not {0}")]
    Queues(usize),
    /// 0 is reserved for clients that do not know the incarnation.
    #[error("an incarnation cannot be 0")]
    Incarnation,
    /// The operating system gave no random numbers.
    #[error("no random numbers from the operating system: {0}")]
    Random(String),
}

impl<T: Transport> DirectServer<T> {
    /// A server of `counter`, which may be shared, over some transports.
    ///
    /// # Errors
    /// [`BadServer`].
    pub fn new(
        queues: Vec<T>,
        counter: Arc<Counter>,
        config: DirectServerConfig,
    ) -> Result<DirectServer<T>, BadServer> {
        if queues.is_empty() || queues.len() > QUEUES_MAX {
            return Err(BadServer::Queues(queues.len()));
        }
        let incarnation = match config.incarnation {
            Some(0) => return Err(BadServer::Incarnation),
            Some(incarnation) => incarnation,
            None => getrandom::u32().map_err(|error| BadServer::Random(error.to_string()))?.max(1),
        };
        let boot_clock = queues[0].boot_clock();
        let peers = Peers::new(queues.len(), config.peers_max);
        let stats = DirectServerStats::default();
        let asked = Box::new([Asked { tag: 0, route: Route(0), guess: 0, named: 0 }; RX_BURST]);
        let answers = Box::new([Words::default(); RX_BURST]);
        Ok(DirectServer { queues, counter, config, incarnation, boot_clock, peers, asked, answers, bursts: 0, stats })
    }

    /// Its addresses.
    pub fn local_addrs(&self) -> Vec<Addr> {
        self.queues.iter().flat_map(Transport::local_addrs).collect()
    }

    /// The counters.
    pub fn stats(&self) -> DirectServerStats {
        DirectServerStats { peers: self.peers.len() as u64, ..self.stats }
    }

    /// Its counter.
    pub fn counter(&self) -> &Arc<Counter> {
        &self.counter
    }

    /// Its transports.
    pub fn queues(&mut self) -> &mut [T] {
        &mut self.queues
    }

    /// Serves a burst of each queue, and returns the number of packets.
    #[inline]
    pub fn turn(&mut self) -> usize {
        (0..self.queues.len()).map(|queue| self.serve(queue)).sum()
    }

    /// Serves until `done` returns true. It is called after every 16 turns without work, and at least every 100 ms.
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool) {
        let policy = if self.queues.len() == 1 { self.config.poll } else { PollPolicy::Spin };
        let (mut idle, mut empty, mut busy) = (Idle::new(policy), 0u32, 0u32);
        loop {
            if self.turn() > 0 {
                idle.on_work();
                empty = 0;
                busy = busy.wrapping_add(1);
                if busy.is_multiple_of(1024) && done() {
                    return;
                }
                continue;
            }
            empty = empty.wrapping_add(1);
            if empty > TURNS_WITHOUT_PAUSE && policy != PollPolicy::Spin {
                std::hint::spin_loop();
            }
            if !empty.is_multiple_of(EMPTY_TURNS) {
                continue;
            }
            if done() {
                return;
            }
            let now = self.queues[0].now();
            if idle.should_sleep(now) {
                self.queues[0].wait(sleep_time(now, None));
                idle.on_wake(self.queues[0].now());
            }
        }
    }

    /// Receives a burst from a queue and answers it. All requests are received before the clock is read, and the clock
    /// is read before numbers are drawn.
    ///
    /// Requests of known clients, the usual case, are recognized by one comparison, and answered where they came from.
    #[inline]
    fn serve(&mut self, queue: usize) -> usize {
        let count = self.queues[queue].rx_burst().min(RX_BURST);
        if count == 0 {
            return 0;
        }
        let own = self.name().1;
        let ask = packet::start(Kind::Ask, own);
        let (mut asked, mut is_sorted, mut last) = (0, true, None);
        let mut others = ArrayVec::<u8, RX_BURST>::new();
        for i in 0..count {
            let packet = self.queues[queue].rx_packet(i);
            let request = packet::split_short(packet.head()).filter(|(start, ..)| *start == ask);
            let (Some((_, tag, guess)), Some(route)) = (request, packet.route()) else {
                others.push(i as u8);
                continue;
            };
            if last != Some(route) {
                is_sorted &= last < Some(route);
                last = Some(route);
                self.peers.has_asked(queue, route);
            }
            self.asked[asked] = Asked { tag, route, guess, named: own };
            asked += 1;
        }
        self.answer_all(queue, asked, is_sorted, self.config.rotate);
        if !others.is_empty() {
            self.serve_others(queue, &others);
        }
        count
    }

    /// Answers the requests of a burst, together or one by one: by the next queue in turn, or by their own.
    #[inline]
    fn answer_all(&mut self, queue: usize, asked: usize, is_sorted: bool, rotate: bool) {
        match self.config.batching {
            Batching::Bursts if asked > 0 => self.answer(queue, 0..asked, is_sorted, rotate),
            Batching::Bursts => {}
            Batching::Single => (0..asked).for_each(|at| self.answer(queue, at..at + 1, true, rotate)),
        }
    }

    /// What requests must name: the epoch, or the incarnation if the counter never had one. The kind of answer to
    /// others says which.
    #[inline]
    fn name(&self) -> (Kind, u32) {
        match self.counter.epoch() {
            0 => (Kind::Hello, self.incarnation),
            // Each epoch takes a lease at least, so they do not reach 2^32: that is more than a year of 10 ms each.
            epoch => (Kind::Epoch, u32::try_from(epoch).unwrap_or(u32::MAX)),
        }
    }

    /// Serves packets that are no requests of known clients by the right name.
    #[cold]
    fn serve_others(&mut self, queue: usize, others: &[u8]) {
        let own = self.name();
        let (mut asked, mut greeted, mut strangers) = (0, Vec::<Source>::new(), Vec::<Stranger>::new());
        for i in others.iter().map(|i| usize::from(*i)) {
            let packet = self.queues[queue].rx_packet(i);
            let route = packet.route();
            let Some(Packet { kind: Kind::Ask, incarnation, tag, data }) = Packet::parse(packet.head()) else {
                self.stats.foreign += 1;
                continue;
            };
            if incarnation != own.1 && !(own.0 == Kind::Epoch && is_planted(Mutation::EpochNotChecked)) {
                self.refuse_name(queue, i, incarnation, tag, &mut greeted);
                continue;
            }
            let route = match route {
                Some(route) => Some(route),
                None => self.queues[queue].rx_source(i).and_then(|addr| self.way(queue, addr, &mut strangers)),
            };
            let Some(route) = route else {
                self.stats.unsent += 1;
                continue;
            };
            self.asked[asked] = Asked { tag, route, guess: data as u32, named: incarnation };
            asked += 1;
        }
        // By the queue of the requests: routes for one burst are of that alone.
        self.answer_all(queue, asked, false, false);
        for Stranger { route, .. } in strangers.into_iter().filter(|stranger| stranger.is_passing) {
            route.into_iter().for_each(|route| self.queues[queue].release(route));
        }
    }

    /// The route to an unknown client: for good if there is room, otherwise for this burst.
    fn way(&mut self, queue: usize, addr: Addr, strangers: &mut Vec<Stranger>) -> Option<Route> {
        let stranger = match strangers.iter().position(|stranger| stranger.addr == addr) {
            Some(at) => &strangers[at],
            None => {
                let number = self.peers.meet(&addr, &mut self.queues);
                let known = self.peers.route(number, queue);
                let route = known.or_else(|| self.queues[queue].resolve(&addr).ok());
                strangers.push(Stranger { addr, route, is_passing: known.is_none() });
                strangers.last()?
            }
        };
        self.stats.to_strangers += u64::from(stranger.is_passing && stranger.route.is_some());
        stranger.route
    }

    /// Answers a request that named something else with a hello: one for each sender of the burst, so that many requests
    /// in one datagram get one answer. Keeps no state of the sender: its address may be spoofed.
    fn refuse_name(&mut self, queue: usize, i: usize, named: u32, tag: u64, greeted: &mut Vec<Source>) {
        let (kind, own) = self.name();
        if kind == Kind::Epoch {
            self.counter.heard_of(named.into());
        }
        if named == 0 {
            self.stats.unacquainted += 1;
        } else {
            self.stats.stale += 1;
        }
        let route = self.queues[queue].rx_packet(i).route();
        let source = match route {
            Some(route) => Source::Known(route),
            None => match self.queues[queue].rx_source(i) {
                Some(addr) => Source::Stranger(addr),
                None => return self.stats.unsent += 1,
            },
        };
        if greeted.contains(&source) {
            return;
        }
        let clock = &self.boot_clock;
        let answer = if self.counter.is_serving(|| clock.now()) {
            Packet { kind, incarnation: own, tag, data: self.counter.next() }
        } else {
            self.stats.refused += 1;
            Packet { kind: Kind::Refused, incarnation: own, tag, data: Refusal::NotServing as u64 }
        };
        let mut bytes: Bytes = [0; LONG_BYTES];
        let len = answer.write(&mut bytes);
        let transport = &mut self.queues[queue];
        match &source {
            Source::Known(route) => {
                transport.tx_burst(&[TxPacket { route: *route, header: &bytes[..len], payload: &[] }]);
                transport.tx_flush();
            }
            Source::Stranger(addr) if transport.tx_to(addr, &bytes[..len]).is_ok() => self.stats.to_strangers += 1,
            Source::Stranger(_) => self.stats.unsent += 1,
        }
        greeted.push(source);
    }

    /// Draws for some of the requests and answers them with one burst.
    #[inline]
    fn answer(&mut self, queue: usize, some: Range<usize>, is_sorted: bool, rotate: bool) {
        let clock = &self.boot_clock;
        let count = some.len() as u64;
        let (drawn, why) = match self.counter.draw(|| clock.now(), count) {
            Ok(range) => (range, Refusal::Dry),
            Err(Unavailable::Dry) => (0..0, Refusal::Dry),
            Err(Unavailable::NotServing) => (0..0, Refusal::NotServing),
            Err(Unavailable::Exhausted) => (0..0, Refusal::Exhausted),
        };
        let by = if rotate { self.bursts as usize % self.queues.len() } else { queue };
        self.bursts += 1;
        let is_moved = by != queue;
        if is_moved {
            for asked in &mut self.asked[some.clone()] {
                let route = self.peers.route_by(queue, asked.route, by);
                self.stats.unsent += u64::from(route.is_none());
                asked.route = route.unwrap_or(NOWHERE);
            }
        }
        let (mut number, mut wrong) = (drawn.start, 0);
        let answers = self.answers[some.clone()].iter_mut().zip(&self.asked[some]).map(|(words, asked)| {
            let (kind, data) = if number < drawn.end {
                let is_right = (number >> 32) as u32 == asked.guess || is_planted(Mutation::WrongGuessAccepted);
                wrong += u64::from(!is_right);
                number += 1;
                (if is_right { Kind::Low } else { Kind::Full }, number - 1)
            } else {
                (Kind::Refused, why as u64)
            };
            *words = packet::words(packet::start(kind, asked.named), asked.tag, data);
            TxPacket { route: asked.route, header: &words.as_flattened()[..kind.len()], payload: &[] }
        });
        let queue = &mut self.queues[by];
        if count == 1 {
            answers.for_each(|packet| queue.tx_burst(&[packet]));
        } else {
            // Extended in place: what is collected is copied, with all its empty room.
            let mut packets = ArrayVec::<TxPacket<'_>, RX_BURST>::new();
            packets.extend(answers);
            // Packets to one destination must be consecutive. Those of one client usually are.
            if !is_sorted || is_moved {
                packets.sort_by_key(|packet| packet.route);
            }
            queue.tx_burst(&packets);
        }
        queue.tx_flush();
        let numbers = drawn.end - drawn.start;
        self.stats.draws += 1;
        self.stats.numbers += numbers;
        self.stats.wrong_guesses += wrong;
        self.stats.refused += count - numbers;
    }
}
