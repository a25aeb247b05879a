//! The programs of the server's cores: the real service on a real partition, which loses everything when its host
//! crashes.

use std::rc::Rc;

use dunlin_kv::routing::Routing;
use dunlin_kv::wire::{Limits, ServerMap};
use dunlin_kv::{KvService, Shard};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::{Datacenter, Next, Program, SimTransport, ThreadClock};
use dunlin_store::{Layout, MEMORY_BYTES_MIN, Mode, Partition, PartitionConfig, Store as _};
use dunlin_trial::Random;

use super::scenario::{SERVER, Scenario};
use crate::clients::item::NOW;
use crate::node::run_endpoint;

/// Memory of a cache: more than a run writes.
const CACHE_BYTES: usize = 16 << 20;

/// A serving core.
pub struct Core {
    endpoint: Rc<Endpoint<SimTransport>>,
    clock: ThreadClock,
    idle_runs: u32,
}

impl Core {
    /// Starts a core, after `incarnation` crashes. Each incarnation of the server partitions keys differently, and all
    /// its cores agree.
    pub fn start(scenario: &Scenario, core: u16, incarnation: u32, transport: SimTransport) -> Core {
        let clock = transport.clock();
        let mut random = Random::new(scenario.seed ^ 0x5e44_e400 ^ u64::from(incarnation) << 40);
        let mut secret = [0; 16];
        secret.fill_with(|| random.next() as u8);
        let routing = Routing::new(secret, scenario.cores.len() as u16).expect("a server has cores");
        let addresses = (0..routing.cores()).map(|core| vec![Datacenter::addr(SERVER, core).to_string()]).collect();
        // A store has enough to refuse nothing while its log is still cleaned; a cache has enough to evict nothing.
        let (mode, memory) =
            if random.chance(50) { (Mode::Store, MEMORY_BYTES_MIN) } else { (Mode::Cache, CACHE_BYTES) };
        let layout = if random.chance(50) { Layout::Inline } else { Layout::Log };
        let config = PartitionConfig { layout, ..PartitionConfig::new(mode, memory) };
        let partition = Partition::with_secret(config, [random.next(), u64::from(core)]).expect("a MiB of memory");
        let value_bytes_max = partition.stats().value_bytes_max as u32;
        let map =
            ServerMap { incarnation: u64::from(incarnation), routing, limits: Limits { value_bytes_max }, addresses };
        let config =
            EndpointConfig { seed: Some(random.next() ^ u64::from(core)), ..scenario.cores[usize::from(core)].clone() };
        let endpoint = Rc::new(Endpoint::new(transport, config).expect("drawn settings are valid"));
        let shard = Rc::new(Shard::new(partition, routing, core));
        shard.set_now(NOW);
        KvService::new(shard, map).register(&endpoint).expect("a new endpoint has no handlers");
        Core { endpoint, clock, idle_runs: 0 }
    }
}

impl Program for Core {
    fn run(&mut self) -> Next {
        if run_endpoint(&self.endpoint, &self.clock, &mut self.idle_runs) {
            return Next::Soon;
        }
        Next::OnPacket { or_at: self.endpoint.next_due() }
    }
}
