//! The fault hunt of replicated state machines: a [cluster](super::cluster) with the key-value machine; random commands
//! on few keys.
//!
//! | File | What it holds |
//! |---|---|
//! | `caller` | the programs of clients |

mod caller;

use std::rc::Rc;

use dunlin_rpc::Endpoint;
use dunlin_sim::{SimTransport, ThreadClock};
use dunlin_smr::Node;
use dunlin_smr::kv::KvMachine;

use super::clients::driver::Driver;
use super::clients::item::{Input, Item};
use super::cluster::replica::Log;
use super::cluster::run::Shared;
use super::cluster::{Clocks, Load, Scenario, Service};

const MILLISECOND: u64 = 1_000_000;
/// Limit of the size of all items: more than a run writes.
const BYTES_MAX: u64 = 1 << 20;
/// Maximum average time that a replica takes to write a snapshot, in nanoseconds. A replacement of a replica waits for
/// up to three: the one that its leader is writing, the leader's next one, and its own.
const SNAPSHOT_NS_MAX: u64 = 10_000 * MILLISECOND;
/// Approximate bytes of a session with its last response in a snapshot, without the value.
const SESSION_BYTES: u64 = 64;

/// The key-value machine.
pub struct KeyValues;

impl Service for KeyValues {
    const LOAD: Load = Load {
        tag: 0x7261_6674,
        gaps_ns: &[200_000, MILLISECOND, 5 * MILLISECOND, 20 * MILLISECOND],
        clocks: Clocks::OfReplicas,
    };

    type Machine = KvMachine;
    type Companion = ();
    type Object = Option<Item>;
    type Client = Driver<caller::Work>;

    fn adapt(scenario: &mut Scenario) {
        // A client whose first attempts are shorter than a flush opens one session after the other.
        let attempts =
            scenario.end_ns() / scenario.client.attempt_timeout.as_nanos() as u64 + u64::from(scenario.steps);
        let sessions = (attempts * u64::from(scenario.clients)).min(scenario.node.sessions_max as u64);
        let commands = u64::from(scenario.steps) * u64::from(scenario.clients);
        let values = (sessions.min(commands) + scenario.keys as u64) * scenario.value_bytes_max;
        scenario.bound_snapshots(sessions * SESSION_BYTES + values, SNAPSHOT_NS_MAX);
    }

    fn new(_: &Scenario) -> KeyValues {
        KeyValues
    }

    fn machine(&self, scenario: &Scenario, id: u64, _: &ThreadClock) -> KvMachine {
        KvMachine::with_secret(BYTES_MAX, [scenario.seed, id]).expect("some MiB of memory")
    }

    fn accompany(_: &Rc<Shared<Self>>, _: u64, _: &Rc<Endpoint<SimTransport>>, _: &Node<KvMachine, Log>) {}

    fn start(
        shared: &Rc<Shared<Self>>,
        number: usize,
        incarnation: u32,
        transport: SimTransport,
    ) -> Driver<caller::Work> {
        caller::start(shared, number, incarnation, transport)
    }

    fn command(key: usize, input: &Input) -> Option<Vec<u8>> {
        caller::command(&Scenario::key(key), input)
    }
}
