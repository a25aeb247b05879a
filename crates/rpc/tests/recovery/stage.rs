//! A server and a client whose packets follow scripts.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
use dunlin_net::{Addr, PollPolicy};
use dunlin_rpc::wire::{Header, Kind};
use dunlin_rpc::{Counters, Endpoint, EndpointConfig, MsgBuf, Recovery, Session};

use crate::scripted::{Fate, Script, Scripted, SharedScript};

/// Responds with as many bytes as the first four of the request say.
pub const SIZED: u8 = 1;
/// Data bytes of a packet of the loopback network.
pub const DATA: usize = (1472 - 32) & !15;
/// Delay in one direction.
const DELAY: Duration = Duration::from_micros(10);
const PATIENCE: u64 = 20_000_000_000;

pub struct Stage {
    pub network: LoopbackNetwork,
    pub server: Endpoint<Scripted>,
    pub client: Endpoint<Scripted>,
    pub requests: SharedScript,
    pub answers: SharedScript,
    pub runs: Rc<Cell<u32>>,
    /// When the server runs again, if it is stopped.
    pub stopped_until: Cell<u64>,
}

pub fn config() -> EndpointConfig {
    let congestion = dunlin_rpc::CongestionControl::None;
    EndpointConfig { poll: PollPolicy::Sleep, credits: 32, seed: Some(7), congestion, ..EndpointConfig::default() }
}

/// Byte `i` of a message.
fn byte(i: usize) -> u8 {
    (i.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

impl Stage {
    pub fn new() -> (Stage, Session) {
        Stage::with(config(), config())
    }

    pub fn with(server: EndpointConfig, client: EndpointConfig) -> (Stage, Session) {
        let network = LoopbackNetwork::new(LoopbackConfig { delay: DELAY, ..LoopbackConfig::default() });
        network.advance_to(1_000_000_000);
        let (requests, answers) = (SharedScript::default(), SharedScript::default());
        let start = |node, script: &SharedScript, config| {
            let inner = network.endpoint(node).unwrap();
            Endpoint::new(Scripted { inner, network: network.clone(), script: script.clone() }, config).unwrap()
        };
        let server = start(1, &answers, server);
        let client = start(2, &requests, EndpointConfig { seed: Some(8), ..client });
        let runs = Rc::new(Cell::new(0));
        let count = runs.clone();
        server
            .register(SIZED, move |request| {
                count.set(count.get() + 1);
                let payload = request.payload();
                assert!(payload[4..].iter().enumerate().all(|(i, b)| *b == byte(i + 4)), "the request is damaged");
                let len = u32::from_le_bytes(payload[..4].try_into().unwrap()) as usize;
                request.respond_with(len, |out| out.iter_mut().enumerate().for_each(|(i, b)| *b = byte(i)));
            })
            .unwrap();
        let stage = Stage { network, server, client, requests, answers, runs, stopped_until: Cell::new(0) };
        let session = stage.drive(stage.client.connect(&Addr::Node(1))).unwrap();
        // So that the round trip is known.
        stage.call(&session, 2 * DATA, 2 * DATA);
        for script in [&stage.requests, &stage.answers] {
            *script.borrow_mut() = Script::default();
        }
        stage.runs.set(0);
        (stage, session)
    }

    pub fn turn(&self) {
        if self.network.now() >= self.stopped_until.get() {
            self.server.run_once();
        }
        self.client.run_once();
        self.network.advance(Duration::from_micros(1));
    }

    pub fn drive<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let end = self.network.now() + PATIENCE;
        loop {
            self.turn();
            if let Some(output) = self.client.poll_once(future.as_mut()) {
                return output;
            }
            assert!(self.network.now() < end, "the call does not end: {}", self.client.stats());
        }
    }

    /// Makes a call with a request and a response of these lengths; returns the nanoseconds that it took.
    pub fn call(&self, session: &Session, request_len: usize, response_len: usize) -> u64 {
        let start = self.network.now();
        let reply = self.drive(session.call(SIZED, request(request_len, response_len))).unwrap();
        assert_eq!(reply.response.len(), response_len);
        assert!(reply.response.iter().enumerate().all(|(i, b)| *b == byte(i)), "the response is damaged");
        let stats = session.stats().unwrap();
        assert_eq!(stats.credits, stats.credits_max);
        self.network.now() - start
    }

    pub fn counters(&self) -> Counters {
        self.client.stats().counters
    }

    /// Decides the fate of packets that the client sends.
    pub fn on_request(&self, decide: impl FnMut(&Header) -> Fate + 'static) {
        self.requests.borrow_mut().set(decide);
    }

    /// Decides the fate of packets that the server sends.
    pub fn on_answer(&self, decide: impl FnMut(&Header) -> Fate + 'static) {
        self.answers.borrow_mut().set(decide);
    }

    /// How often the client sent request packet `packet`.
    pub fn copies(&self, packet: u32) -> usize {
        let is_it = |h: &&Header| h.kind == Kind::Request && h.multi.map_or(0, |multi| multi.packet) == packet;
        self.requests.borrow().sent.iter().filter(is_it).count()
    }
}

pub fn request(len: usize, response_len: usize) -> MsgBuf {
    let mut request = MsgBuf::with_len(len).unwrap();
    request.iter_mut().enumerate().for_each(|(i, b)| *b = byte(i));
    request[..4].copy_from_slice(&(response_len as u32).to_le_bytes());
    request
}

/// Settings with go-back-N.
pub fn go_back_n() -> EndpointConfig {
    EndpointConfig { recovery: Recovery::GoBackN, ..config() }
}

/// The `nth` packet that `matches` has this fate; all others arrive.
pub fn only(mut nth: u32, fate: Fate, matches: impl Fn(&Header) -> bool) -> impl FnMut(&Header) -> Fate {
    move |header| {
        if !matches(header) {
            return Fate::Arrives;
        }
        nth = nth.wrapping_sub(1);
        if nth == u32::MAX { fate } else { Fate::Arrives }
    }
}

pub fn is_packet(kind: Kind, packet: u32) -> impl Fn(&Header) -> bool {
    move |header| header.kind == kind && header.multi.map_or(0, |multi| multi.packet) == packet
}
