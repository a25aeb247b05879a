//! The programs of the server's cores: the real service over a model of a partition, which forgets everything when its host crashes.

use std::rc::Rc;

use dunlin_kv::routing::Routing;
use dunlin_kv::wire::{Limits, ServerMap};
use dunlin_kv::{KvService, Shard};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::{Datacenter, Next, Program, SimTransport, ThreadClock};
use dunlin_store::Model;
use dunlin_trial::Random;

use super::scenario::{SERVER, Scenario};
use crate::hunt::node::run_endpoint;

/// Longest value that the server says it takes.
const VALUE_BYTES_MAX: u32 = 1 << 20;

/// A core that serves.
pub struct Core {
    endpoint: Rc<Endpoint<SimTransport>>,
    clock: ThreadClock,
    idle_runs: u32,
}

impl Core {
    /// Starts a core, after `incarnation` crashes. Each incarnation of the server divides keys in another way, and all its cores agree.
    pub fn start(scenario: &Scenario, core: u16, incarnation: u32, transport: SimTransport) -> Core {
        let clock = transport.clock();
        let mut random = Random::new(scenario.seed ^ 0x5e44_e400 ^ u64::from(incarnation) << 40);
        let mut secret = [0; 16];
        secret.fill_with(|| random.next() as u8);
        let routing = Routing::new(secret, scenario.cores.len() as u16).expect("a server has cores");
        let addresses = (0..routing.cores()).map(|core| vec![Datacenter::addr(SERVER, core).to_string()]).collect();
        let map = ServerMap {
            incarnation: u64::from(incarnation),
            routing,
            limits: Limits { value_bytes_max: VALUE_BYTES_MAX },
            addresses,
        };
        let config =
            EndpointConfig { seed: Some(random.next() ^ u64::from(core)), ..scenario.cores[usize::from(core)].clone() };
        let endpoint = Rc::new(Endpoint::new(transport, config).expect("drawn settings are valid"));
        let shard = Rc::new(Shard::new(Model::new(), routing, core));
        KvService::new(shard, map).register(&endpoint).expect("a new endpoint has no handlers");
        Core { endpoint, clock, idle_runs: 0 }
    }
}

impl Program for Core {
    fn run(&mut self) -> Next {
        if run_endpoint(&self.endpoint, &self.clock, &mut self.idle_runs) {
            return Next::Soon;
        }
        Next::OnPacket { or_at: self.endpoint.next_timer() }
    }
}
