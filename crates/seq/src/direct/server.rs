//! The server of Spec-S0.

use std::sync::Arc;

use arrayvec::ArrayVec;
use dunlin_net::poll::{Idle, PollPolicy, sleep_time};
use dunlin_net::transport::RX_BURST;
use dunlin_net::{Addr, BootClock, Route, Transport, TxPacket};

use super::packet::{Bytes, Kind, LONG_BYTES, Packet, Refusal};
use super::peers::{Peers, STRANGER};
use crate::counter::{Counter, Unavailable};
use crate::mutation::{Mutation, is_planted};
use crate::service::Batching;

/// Maximum number of send queues of a server.
pub const QUEUES_MAX: usize = 16;
/// Empty turns between two readings of the clock.
const EMPTY_TURNS: u32 = 16;

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
    /// Answers sent by address, since the client was unknown.
    pub to_strangers: u64,
    /// Clients known now.
    pub peers: u64,
}

/// A request to be answered.
#[derive(Clone, Copy)]
struct Asked {
    /// Its index in the burst.
    i: u8,
    peer: u32,
    tag: u64,
    /// The incarnation or epoch that it names: the server's.
    named: u32,
    guess: u32,
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
    /// Turns with requests.
    turns: u64,
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
        Ok(DirectServer { queues, counter, config, incarnation, boot_clock, peers, turns: 0, bursts: 0, stats })
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
        let (mut idle, mut empty, mut busy) = (Idle::new(policy), 0, 0u32);
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
            std::hint::spin_loop();
            empty += 1;
            if empty < EMPTY_TURNS {
                continue;
            }
            empty = 0;
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
    fn serve(&mut self, queue: usize) -> usize {
        let count = self.queues[queue].rx_burst();
        if count == 0 {
            return 0;
        }
        self.turns += 1;
        let own = self.name();
        let mut asked = ArrayVec::<Asked, RX_BURST>::new();
        let mut strangers = 0u64;
        for i in 0..count.min(RX_BURST) {
            let packet = self.queues[queue].rx_packet(i);
            let request = if packet.len() <= LONG_BYTES { Packet::parse(packet.head()) } else { None };
            let Some(Packet { kind: Kind::Ask, incarnation, tag, data }) = request else {
                self.stats.foreign += 1;
                continue;
            };
            let peer = packet.route().map_or(STRANGER, |route| self.peers.at(queue, route, self.turns));
            if incarnation != own.1 && !(own.0 == Kind::Epoch && is_planted(Mutation::EpochNotChecked)) {
                self.say_hello(queue, i, incarnation, tag);
                continue;
            }
            strangers += u64::from(peer == STRANGER);
            asked.push(Asked { i: i as u8, peer, tag, named: incarnation, guess: data as u32 });
        }
        if strangers > 0 {
            self.meet(queue, &mut asked);
        }
        match self.config.batching {
            Batching::Bursts => self.answer(queue, &asked),
            Batching::Single => asked.chunks(1).for_each(|one| self.answer(queue, one)),
        }
        count
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

    /// Answers with a hello, and keeps no state of the client: its address may be spoofed.
    #[cold]
    fn say_hello(&mut self, queue: usize, i: usize, named: u32, tag: u64) {
        let (kind, own) = self.name();
        if kind == Kind::Epoch {
            self.counter.heard_of(named.into());
        }
        if named == 0 {
            self.stats.unacquainted += 1;
        } else {
            self.stats.stale += 1;
        }
        let clock = &self.boot_clock;
        let answer = if self.counter.is_serving(|| clock.now()) {
            Packet { kind, incarnation: own, tag, data: self.counter.next() }
        } else {
            self.stats.refused += 1;
            refusal(own, tag, Refusal::NotServing)
        };
        self.send_to_stranger(queue, i, &answer);
    }

    fn send_to_stranger(&mut self, queue: usize, i: usize, packet: &Packet) {
        let Some(addr) = self.queues[queue].rx_source(i) else { return };
        let mut bytes: Bytes = [0; LONG_BYTES];
        let len = packet.write(&mut bytes);
        self.stats.to_strangers += 1;
        // The address may be gone; then the answer is not needed.
        let _ = self.queues[queue].tx_to(&addr, &bytes[..len]);
    }

    #[cold]
    fn meet(&mut self, queue: usize, asked: &mut [Asked]) {
        for asked in asked.iter_mut().filter(|asked| asked.peer == STRANGER) {
            if let Some(addr) = self.queues[queue].rx_source(asked.i.into()) {
                asked.peer = self.peers.meet(addr, &mut self.queues, self.turns);
            }
        }
    }

    /// Draws for some requests and answers them with one burst.
    fn answer(&mut self, queue: usize, asked: &[Asked]) {
        if asked.is_empty() {
            return;
        }
        let clock = &self.boot_clock;
        let (drawn, why) = match self.counter.draw(|| clock.now(), asked.len() as u64) {
            Ok(range) => (range, Refusal::Dry),
            Err(Unavailable::Dry) => (0..0, Refusal::Dry),
            Err(Unavailable::NotServing) => (0..0, Refusal::NotServing),
            Err(Unavailable::Exhausted) => (0..0, Refusal::Exhausted),
        };
        self.stats.draws += 1;
        let by = if self.config.rotate { self.bursts as usize % self.queues.len() } else { queue };
        self.bursts += 1;
        let mut bytes: [Bytes; RX_BURST] = [[0; LONG_BYTES]; RX_BURST];
        let mut sent = ArrayVec::<(Route, u8, u8), RX_BURST>::new();
        let mut numbers = drawn;
        for (at, asked) in asked.iter().enumerate() {
            let answer = match numbers.next() {
                Some(number) => {
                    self.stats.numbers += 1;
                    let is_right = (number >> 32) as u32 == asked.guess || is_planted(Mutation::WrongGuessAccepted);
                    self.stats.wrong_guesses += u64::from(!is_right);
                    let (kind, data) = if is_right { (Kind::Low, number & 0xffff_ffff) } else { (Kind::Full, number) };
                    Packet { kind, incarnation: asked.named, tag: asked.tag, data }
                }
                None => {
                    self.stats.refused += 1;
                    refusal(asked.named, asked.tag, why)
                }
            };
            match self.peers.route(asked.peer, by) {
                Some(route) => {
                    let len = answer.write(&mut bytes[at]);
                    sent.push((route, at as u8, len as u8));
                }
                None => self.send_to_stranger(queue, asked.i.into(), &answer),
            }
        }
        // Packets to one destination must be consecutive. Those of one client usually are.
        if sent.windows(2).any(|two| two[0].0 > two[1].0) {
            sent.sort_by_key(|(route, ..)| *route);
        }
        let packets: ArrayVec<TxPacket<'_>, RX_BURST> = sent
            .iter()
            .map(|(route, at, len)| TxPacket {
                route: *route,
                header: &bytes[*at as usize][..*len as usize],
                payload: &[],
            })
            .collect();
        self.queues[by].tx_burst(&packets);
        self.queues[by].tx_flush();
    }
}

fn refusal(incarnation: u32, tag: u64, why: Refusal) -> Packet {
    Packet { kind: Kind::Refused, incarnation, tag, data: why as u64 }
}
