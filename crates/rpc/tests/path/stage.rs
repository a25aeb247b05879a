//! A server and a client over a path with unknown MTU.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::{CallError, EndpointConfig, MsgBuf, Session};

use crate::pair::{Lab, config};

/// Responds with as many bytes as the first four of the request say.
pub const SIZED: u8 = 1;
/// The largest packets that the two ends accept.
pub const AGREED: usize = 1472;
/// Data bytes of a packet of `mtu` bytes.
pub const fn data(mtu: usize) -> usize {
    (mtu - 32) & !15
}

pub struct Stage {
    pub lab: Lab,
    /// How many requests the handler received.
    pub runs: Rc<Cell<u32>>,
}

fn byte(i: usize) -> u8 {
    (i.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn request(len: usize, response_len: usize) -> MsgBuf {
    let mut request = MsgBuf::with_len(len.max(4)).unwrap();
    request.iter_mut().enumerate().for_each(|(i, b)| *b = byte(i));
    request[..4].copy_from_slice(&(response_len as u32).to_le_bytes());
    request
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(config())
    }

    pub fn with(config: EndpointConfig) -> Stage {
        let network = LoopbackConfig { mtu: AGREED, delay: Duration::from_micros(10), ..LoopbackConfig::default() };
        let lab = Lab::over(network, &[config.clone(), EndpointConfig { seed: Some(8), ..config }]);
        lab.network.make_mtu_uncertain();
        let runs = Rc::new(Cell::new(0));
        let count = runs.clone();
        let serve = move |request: dunlin_rpc::Request<'_>| {
            count.set(count.get() + 1);
            let payload = request.payload();
            assert!(payload[4..].iter().enumerate().all(|(i, b)| *b == byte(i + 4)), "the request is damaged");
            let len = u32::from_le_bytes(payload[..4].try_into().unwrap()) as usize;
            request.respond_with(len, |out| out.iter_mut().enumerate().for_each(|(i, b)| *b = byte(i)));
        };
        lab.server().register(SIZED, serve).unwrap();
        Stage { lab, runs }
    }

    /// Sets the MTU of the path from now on: for requests, and for responses.
    pub fn carries(&self, requests: usize, responses: usize) {
        self.lab.network.set_path_mtu(2, 1, requests).unwrap();
        self.lab.network.set_path_mtu(1, 2, responses).unwrap();
    }

    /// Lets time pass, in steps of a millisecond.
    pub fn wait(&self, time: Duration) {
        let end = self.lab.network.now() + time.as_nanos() as u64;
        while self.lab.network.now() < end {
            self.lab.turn();
            self.lab.network.advance(Duration::from_millis(1));
        }
    }

    /// Makes a call with requests and responses of these lengths.
    pub fn try_call(&self, session: &Session, request_len: usize, response_len: usize) -> Result<(), CallError> {
        let reply = self.lab.drive(1, session.call(SIZED, request(request_len, response_len)));
        let stats = session.stats().unwrap();
        assert_eq!(stats.credits, stats.credits_max, "credits are conserved");
        let reply = reply.map_err(|failure| failure.error)?;
        assert_eq!(reply.response.len(), response_len);
        assert!(reply.response.iter().enumerate().all(|(i, b)| *b == byte(i)), "the response is damaged");
        Ok(())
    }

    /// The same for a call that must succeed; returns the nanoseconds that it took. Its handler runs once.
    pub fn call(&self, session: &Session, request_len: usize, response_len: usize) -> u64 {
        let (start, runs) = (self.lab.network.now(), self.runs.get());
        self.try_call(session, request_len, response_len).unwrap();
        assert_eq!(self.runs.get(), runs + 1, "the handler runs once");
        self.lab.network.now() - start
    }

    /// Begins a call, for the caller to await.
    pub fn begin(&self, session: &Session, request_len: usize, response_len: usize) -> dunlin_rpc::Call<MsgBuf> {
        session.call(SIZED, request(request_len, response_len))
    }
}
