//! A server of small calls with a budget for memory held for other ends.

use std::cell::Cell;
use std::rc::Rc;

use dunlin_lab::peer::{Control, Role};
use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, EndpointConfig, PeerLimits, msgbuf};
use serde::{Deserialize, Serialize};

use super::counted::Counted;
use crate::BenchError;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};
use crate::rpc::roles::{BULK, BULK_IN_BUFFERS, COUNTED, ECHO};

/// Bytes of the responses of [`BULK`] and [`BULK_IN_BUFFERS`].
pub const BULK_BYTES: usize = 1 << 20;

/// Serves [`ECHO`], [`BULK`], [`BULK_IN_BUFFERS`] and [`COUNTED`] until it is stopped.
#[derive(Debug, Serialize, Deserialize)]
pub struct LimitedServer {
    /// Transport and endpoint.
    pub setup: Setup,
    /// Limit of bytes held for other ends.
    pub held_bytes_max: u64,
    /// Limit of bytes of message buffers in its process.
    pub buffer_bytes_max: u64,
    /// Limit of sessions of one host.
    pub sessions_of_host: u32,
}

/// The address of an RPC server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RpcServing {
    /// Its address.
    pub address: String,
    /// Its process id.
    pub process: u32,
}

impl Role for LimitedServer {
    const NAME: &'static str = "server with a budget";
    type Ready = RpcServing;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        self.setup.on_transport(Side::Server, Serve { server: &self, control })
    }
}

struct Serve<'a> {
    server: &'a LimitedServer,
    control: &'a Control<LimitedServer>,
}

impl OnTransport for Serve<'_> {
    type Output = ();

    fn run<T: Transport + 'static>(self, transport: T) -> Result<(), BenchError> {
        let LimitedServer { setup, held_bytes_max, buffer_bytes_max, sessions_of_host } = self.server;
        msgbuf::set_limit_bytes(*buffer_bytes_max);
        let peer_limits = PeerLimits { sessions_max: *sessions_of_host, ..PeerLimits::default() };
        let config = EndpointConfig { held_bytes_max: *held_bytes_max, peer_limits, ..setup.endpoint() };
        let endpoint = Rc::new(Endpoint::new(transport, config)?);
        endpoint.register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })?;
        let bulk = Rc::new(Cell::new(0));
        let of_handler = bulk.clone();
        endpoint.register(BULK, move |request| {
            of_handler.set(of_handler.get() + 1);
            // Separately allocated memory for each, like a value made for this request. If the requesting host is at
            // its share, this is refused, and the endpoint tells the client: nothing is left to do here.
            let _ = request.respond_from(vec![1; BULK_BYTES]);
        })?;
        endpoint.register(BULK_IN_BUFFERS, |request| {
            // Beyond the share of its host, the client gets an error instead.
            request.respond_written(BULK_BYTES, |buffer| {
                buffer.fill(1);
                buffer.len()
            });
        })?;
        let counting = Rc::downgrade(&endpoint);
        endpoint.register_async(COUNTED, move |_| {
            let counted = counting.upgrade().map(|endpoint| Counted::of(&endpoint.stats(), bulk.get()));
            async move { counted.unwrap_or_default().to_bytes() }
        })?;
        self.control.ready(RpcServing { address: endpoint.local_addr().to_string(), process: std::process::id() });
        endpoint.run_until(|| self.control.stopping());
        Ok(())
    }
}
