//! Endpoints in one thread over the loopback network, whose clock these helpers move.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_net::{Addr, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig, Session};

pub type Ep = Endpoint<LoopbackTransport>;

/// Time that a test may take on its own clock.
const PATIENCE: Duration = Duration::from_secs(60);

/// A network and the endpoints on it; by convention the first is the server, the second its client.
pub struct Lab {
    pub network: LoopbackNetwork,
    pub endpoints: Vec<Ep>,
}

pub fn config() -> EndpointConfig {
    EndpointConfig { poll: PollPolicy::Sleep, seed: Some(7), ..EndpointConfig::default() }
}

pub fn address(i: usize) -> Addr {
    Addr::Node(i as u32 + 1)
}

impl Lab {
    pub fn new(configs: &[EndpointConfig]) -> Lab {
        Lab::over(LoopbackConfig::default(), configs)
    }

    pub fn over(network: LoopbackConfig, configs: &[EndpointConfig]) -> Lab {
        let network = LoopbackNetwork::new(network);
        network.advance_to(1_000_000_000);
        let mut lab = Lab { network, endpoints: Vec::new() };
        for (i, config) in configs.iter().enumerate() {
            lab.endpoints.push(lab.start(i, config));
        }
        lab
    }

    /// A server and a client with default settings.
    pub fn pair() -> Lab {
        Lab::new(&[config(), EndpointConfig { seed: Some(8), ..config() }])
    }

    /// Starts an endpoint at a free address.
    pub fn start(&self, i: usize, config: &EndpointConfig) -> Ep {
        let endpoint = Ep::new(self.network.endpoint(i as u32 + 1).unwrap(), config.clone()).unwrap();
        // A failed assertion in a handler must fail the test.
        endpoint.propagate_panics();
        endpoint
    }

    pub fn server(&self) -> &Ep {
        &self.endpoints[0]
    }

    pub fn client(&self) -> &Ep {
        &self.endpoints[1]
    }

    /// A session of the client with the server.
    pub fn connect(&self) -> Session {
        self.drive(1, self.client().connect(&address(0))).unwrap()
    }

    /// Runs one iteration of every endpoint, and advances the clock by a microsecond.
    pub fn turn(&self) {
        for endpoint in &self.endpoints {
            endpoint.run_once();
        }
        self.network.advance(Duration::from_micros(1));
    }

    /// Runs all until `future`, of endpoint `owner`, is done.
    pub fn drive<F: Future>(&self, owner: usize, future: F) -> F::Output {
        let mut future = pin!(future);
        let end = self.network.now() + PATIENCE.as_nanos() as u64;
        loop {
            self.turn();
            if let Some(output) = self.endpoints[owner].poll_once(future.as_mut()) {
                return output;
            }
            assert!(self.network.now() < end, "the future is not done after {PATIENCE:?}");
        }
    }

    /// Runs all until `done`.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) {
        let end = self.network.now() + PATIENCE.as_nanos() as u64;
        while !done() {
            self.turn();
            assert!(self.network.now() < end, "nothing came of it in {PATIENCE:?}");
        }
    }

    /// Runs all for a time, in steps small enough for timers.
    pub fn run_for(&self, time: Duration) {
        let end = self.network.now() + time.as_nanos() as u64;
        while self.network.now() < end {
            self.turn();
            self.network.advance(Duration::from_micros(20));
        }
    }
}
