//! The server of numbers.

use std::sync::Arc;

use dunlin_lab::peer::{Control, Role};
use dunlin_net::Transport;
use dunlin_rpc::Endpoint;
use dunlin_seq::direct::{DirectServer, DirectServerConfig};
use dunlin_seq::{Batching, Counter, SeqService};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::rpc::roles::setup::{OnTransport, OnTransports, Setup, Side};

/// How requests that arrive together are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answers {
    /// One addition to the counter for each. Spec-S0 also answers each by itself; an endpoint does so without
    /// [`TransmitBatching`](super::super::Factor::TransmitBatching).
    Single,
    /// One addition and one burst of answers for all of them.
    Bursts,
}

impl Answers {
    fn batching(self) -> Batching {
        match self {
            Answers::Single => Batching::Single,
            Answers::Bursts => Batching::Bursts,
        }
    }
}

/// The interface of a [`SeqServer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeqServing {
    /// RPC.
    Rpc(Answers),
    /// Spec-S0.
    Direct {
        /// How it answers.
        answers: Answers,
        /// Its transports. If there are several, bursts of answers leave by all of them in turn.
        queues: usize,
    },
}

/// A sequencer on one core, until it is stopped.
#[derive(Debug, Serialize, Deserialize)]
pub struct SeqServer {
    /// Transport, and endpoint for RPC.
    pub setup: Setup,
    /// Its interface.
    pub serving: SeqServing,
    /// The first number.
    pub start: u64,
}

impl Role for SeqServer {
    const NAME: &'static str = "sequencer";
    /// Its address; with several queues, the first one's.
    type Ready = String;
    /// Answers of all eight bytes that it sent because a guess was wrong. 0 by RPC, where nobody guesses.
    type Output = u64;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<u64, BenchError> {
        let counter = Arc::new(Counter::starting_at(self.start)?);
        match self.serving {
            SeqServing::Rpc(answers) => {
                let serve = ServeRpc { setup: &self.setup, batching: answers.batching(), counter, control };
                self.setup.on_transport(Side::Server, serve)
            }
            SeqServing::Direct { answers, queues } => {
                let serve = ServeDirect { batching: answers.batching(), counter, control };
                self.setup.on_transports(Side::Server, queues, serve)
            }
        }
    }
}

struct ServeRpc<'a> {
    setup: &'a Setup,
    batching: Batching,
    counter: Arc<Counter>,
    control: &'a Control<SeqServer>,
}

impl OnTransport for ServeRpc<'_> {
    type Output = u64;

    fn run<T: Transport + 'static>(self, transport: T) -> Result<u64, BenchError> {
        let endpoint = Endpoint::new(transport, self.setup.endpoint())?;
        SeqService::register(&endpoint, self.counter, self.batching)?;
        self.control.ready(endpoint.local_addr().to_string());
        endpoint.run_until(|| self.control.stopping());
        Ok(0)
    }
}

struct ServeDirect<'a> {
    batching: Batching,
    counter: Arc<Counter>,
    control: &'a Control<SeqServer>,
}

impl OnTransports for ServeDirect<'_> {
    type Output = u64;

    fn run<T: Transport + 'static>(self, queues: Vec<T>) -> Result<u64, BenchError> {
        let rotate = queues.len() > 1;
        let config = DirectServerConfig { batching: self.batching, rotate, ..DirectServerConfig::default() };
        let mut server = DirectServer::new(queues, self.counter, config)?;
        let addr = server.local_addrs().into_iter().next();
        self.control.ready(addr.map(|addr| addr.to_string()).unwrap_or_default());
        server.run_until(|| self.control.stopping());
        Ok(server.stats().wrong_guesses)
    }
}
