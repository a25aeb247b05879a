//! A fixed number of key-value operations between a client and a server of one thread, over loopback with a clock that
//! this program moves: the same instructions in every run, to be counted under callgrind. `docs/count-instructions kv`
//! does that. Items and operations are those of the experiment `kv-rate`: keys of 16 bytes, values of 32, callbacks.
//!
//!     cargo run --release -p dunlin-kv --example kv_count_instructions 100000 get 11
//!
//! Arguments: operations, kind (get or put), operations in flight (1 to 128), and if need be items: 4096 by default,
//! which few caches lack, because instructions are counted and not misses. When an operation ends, its callback submits
//! the next.

use std::cell::RefCell;
use std::error::Error;
use std::rc::{Rc, Weak};
use std::time::Duration;

use dunlin_kv::client::{ClientConfig, Finished, KvError, Pipeline};
use dunlin_kv::routing::Routing;
use dunlin_kv::wire::{Limits, Operation, ServerMap, Status, ValueAnswer};
use dunlin_kv::{KvClient, KvService, Shard};
use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_store::{Mode, Partition, PartitionConfig, Put, Store};

const SERVER: u32 = 1;
const CLIENT: u32 = 2;
/// The network's delay, and how far the clock moves between two iterations of an endpoint.
const DELAY: Duration = Duration::from_micros(1);
/// Items, if no argument says how many.
const ITEMS: u64 = 4096;
/// Memory of the partition for an item, and beside that.
const MEMORY_PER_ITEM: usize = 160;
const MEMORY_BESIDE: usize = 16 << 20;
const VALUE_BYTES: usize = 32;
/// As `kv-rate` has at most: more than the slots of the client's sessions, so that calls queue.
const IN_FLIGHT_MAX: u64 = 128;
/// Bursts before those that are counted: the service times each of its first 1024.
const WARM_UP_BURSTS: u64 = 1100;
/// Operations that the server receives at once at most: the slots of the client's sessions.
const BURST_MAX: u64 = 32;
/// The server's time of day: any.
const NOW: u32 = 1_700_000_000;
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn key(number: u64) -> [u8; 16] {
    let low = number.wrapping_mul(GOLDEN);
    (u128::from(low ^ GOLDEN) << 64 | u128::from(low)).to_le_bytes()
}

/// Two endpoints and the network between them.
struct Pair {
    network: LoopbackNetwork,
    server: Rc<Endpoint<LoopbackTransport>>,
    client: Rc<Endpoint<LoopbackTransport>>,
}

impl Pair {
    fn new(items: u64) -> Result<Pair, Box<dyn Error>> {
        let network = LoopbackNetwork::new(LoopbackConfig { delay: DELAY, ..LoopbackConfig::default() });
        let config = EndpointConfig { seed: Some(1), ..EndpointConfig::default() };
        let server = Rc::new(Endpoint::new(network.endpoint(SERVER)?, config.clone())?);
        let client = Rc::new(Endpoint::new(network.endpoint(CLIENT)?, config)?);
        let memory = MEMORY_BESIDE + items as usize * MEMORY_PER_ITEM;
        let mut store = Partition::with_secret(PartitionConfig::new(Mode::Store, memory), [1, 2])?;
        for number in 0..items {
            let key = key(number);
            let key = store.key(&key)?;
            store.put(&key, &[number as u8; VALUE_BYTES], Put::default())?;
        }
        let routing = Routing::new([0; 16], 1).ok_or("no cores")?;
        let map = ServerMap {
            incarnation: 1,
            routing,
            limits: Limits { value_bytes_max: 1 << 20 },
            addresses: vec![vec![server.local_addr().to_string()]],
        };
        let shard = Rc::new(Shard::new(store, routing, 0));
        shard.set_now(NOW);
        KvService::new(shard, map).register(&server)?;
        Ok(Pair { network, server, client })
    }

    /// The other endpoint's iteration, between two of the client's.
    fn serve(&self) {
        self.network.advance(DELAY);
        self.server.run_once();
        self.network.advance(DELAY);
    }

    /// Runs both endpoints until a future of the client's is done.
    fn drive<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        loop {
            if let Some(output) = self.client.poll_once(future.as_mut()) {
                return output;
            }
            self.serve();
        }
    }
}

/// What is still to be done.
struct Load {
    pipeline: Weak<Pipeline>,
    unsubmitted: u64,
    drawn: u64,
    items: u64,
    is_put: bool,
    right: u64,
    failed: Option<KvError>,
}

impl Load {
    /// Submits the next operation, if there is one.
    fn submit(&mut self) {
        let Some(pipeline) = self.pipeline.upgrade() else { return };
        if self.unsubmitted == 0 {
            return;
        }
        self.unsubmitted -= 1;
        self.drawn = self.drawn.wrapping_add(GOLDEN);
        let number = ((u128::from(self.drawn) * u128::from(self.items)) >> 64) as u64;
        let key = key(number);
        let value = [number as u8; VALUE_BYTES];
        let operation = match self.is_put {
            true => Operation::Put { key: &key, value: &value, put: Put::default() },
            false => Operation::Get { key: &key },
        };
        self.failed = pipeline.submit(&operation, number).err();
    }

    fn on_end(&mut self, finished: &Finished) {
        let is_right = match &finished.result {
            Err(_) => false,
            Ok(_) if self.is_put => finished.status() == Some(Status::Done),
            Ok(response) => match ValueAnswer::parse(response) {
                Some(ValueAnswer::Found { start, .. }) => response[start..] == [finished.tag as u8; VALUE_BYTES],
                _ => false,
            },
        };
        self.right += u64::from(is_right);
        self.submit();
    }
}

/// Completes so many operations.
fn complete(pair: &Pair, pipeline: &Pipeline, load: &RefCell<Load>, operations: u64, in_flight: u64) {
    load.borrow_mut().unsubmitted = operations;
    (0..in_flight).for_each(|_| load.borrow_mut().submit());
    while pipeline.in_flight() > 0 {
        pair.client.run_once();
        pair.serve();
    }
}

/// The same. Callgrind counts what is called from here (`--toggle-collect`): the clock of the service takes another
/// number of instructions to calibrate in each run.
#[inline(never)]
fn counted(pair: &Pair, pipeline: &Pipeline, load: &RefCell<Load>, operations: u64, in_flight: u64) {
    complete(pair, pipeline, load, operations, in_flight);
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (operations, kind, in_flight, items) = match &arguments[..] {
        [operations, kind, in_flight] => (operations, kind, in_flight, ITEMS),
        [operations, kind, in_flight, items] => (operations, kind, in_flight, items.parse()?),
        _ => return Err("give the number of operations, get or put, and operations in flight: 100000 get 11".into()),
    };
    let (operations, in_flight) = (operations.parse()?, in_flight.parse()?);
    if !(1..=IN_FLIGHT_MAX).contains(&in_flight) {
        return Err(format!("{in_flight} operations in flight: choose 1 to {IN_FLIGHT_MAX}").into());
    }
    let is_put = match kind.as_str() {
        "get" => false,
        "put" => true,
        other => return Err(format!("there is no kind {other:?}: choose get or put").into()),
    };
    let pair = Pair::new(items)?;
    let client = pair.drive(KvClient::connect(&pair.client, &Addr::Node(SERVER), ClientConfig::default()))?;
    let load = Load { pipeline: Weak::new(), unsubmitted: 0, drawn: 0, items, is_put, right: 0, failed: None };
    let load = Rc::new(RefCell::new(load));
    let shared = load.clone();
    let pipeline = pair.drive(Pipeline::new(&client, move |finished| shared.borrow_mut().on_end(&finished)))?;
    let pipeline = Rc::new(pipeline);
    load.borrow_mut().pipeline = Rc::downgrade(&pipeline);
    complete(&pair, &pipeline, &load, WARM_UP_BURSTS * in_flight.min(BURST_MAX), in_flight);
    load.borrow_mut().right = 0;
    counted(&pair, &pipeline, &load, operations, in_flight);
    if let Some(error) = load.borrow_mut().failed.take() {
        return Err(error.into());
    }
    let right = load.borrow().right;
    if right != operations {
        return Err(format!("{} of {operations} answers are wrong", operations - right).into());
    }
    println!("{right} operations completed");
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("kv_count_instructions: {error}");
        std::process::exit(1);
    }
}
