//! The processes of the demo's key-value part: the server, and its drivers.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dunlin_kv::client::{ClientConfig, KvClient, Pipeline};
use dunlin_kv::memcached::Listen;
use dunlin_kv::server::{Server, ServerConfig};
use dunlin_kv::wire::{Operation, ValueAnswer};
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::{Addr, AnyTransport};
use dunlin_records::Record;
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_store::{Mode, Put};
use serde::{Deserialize, Serialize};

use super::data::{Random, Source};
use crate::BenchError;

/// Memory of the server, in bytes.
const MEMORY_BYTES: usize = 512 << 20;
/// Requests in flight at a time over shared memory and UDP.
const IN_FLIGHT: usize = 64;
/// Keys per request with the memcached library.
const KEYS_PER_REQUEST: usize = 32;
/// One operation in this many stores a value.
const STORES_ONE_IN: u64 = 20;
/// Interval at which a driver reports its rate.
const LIVE_INTERVAL: Duration = Duration::from_millis(200);
/// Iterations of the event loop between two readings of the clock.
const TURNS_PER_LOOK: u32 = 64;
/// Timeout of a memcached request, in seconds.
const MEMCACHED_SECONDS_MAX: u32 = 10;

/// The server: one core, all three interfaces, and a snapshot that it loads at the start if it exists.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DemoServer {
    /// Name of its shared memory.
    pub shm: String,
    /// Its snapshot.
    pub snapshot: PathBuf,
}

/// The addresses of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Serving {
    /// For shared memory.
    pub shm: String,
    /// For UDP.
    pub udp: String,
    /// For memcached clients, as HOST:PORT.
    pub memcached: String,
    /// Seconds from the start of its process until it served.
    pub seconds: f64,
}

impl Role for DemoServer {
    const NAME: &'static str = "key-value server";
    type Ready = Serving;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let begun = Instant::now();
        let failed = |error: &dyn ToString| BenchError::demo("serve keys and values", error.to_string());
        let mut config = ServerConfig::default();
        config.listen = vec![format!("shm:{}", self.shm).parse()?, "udp://127.0.0.1:0".parse()?];
        config.memcached = vec!["tcp://127.0.0.1:0".parse::<Listen>().map_err(|error| failed(&error))?];
        config.memory_bytes = MEMORY_BYTES;
        config.mode = Mode::Store;
        config.snapshot = Some(self.snapshot);
        let server = Server::start(config, |_| {}).map_err(|error| failed(&error))?;
        let address = |kind: &str| {
            let found = server.addresses().iter().map(Addr::to_string).find(|address| address.starts_with(kind));
            found.ok_or_else(|| failed(&format!("it does not listen at {kind}")))
        };
        let memcached = server.memcached_addresses().first().ok_or_else(|| failed(&"it has no memcached port"))?;
        control.ready(Serving {
            shm: address("shm:")?,
            udp: address("udp:")?,
            memcached: memcached.trim_start_matches("tcp://").to_owned(),
            seconds: begun.elapsed().as_secs_f64(),
        });
        while !control.stopping() && server.is_running() {
            std::thread::sleep(Duration::from_millis(5));
        }
        server.stop().map(drop).map_err(|error| failed(&error))
    }
}

/// Reads keys at random, stores one in twenty again, and compares every value.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DemoDriver {
    /// The server's address: `shm:`, `udp://`, or HOST:PORT of its memcached port.
    pub server: String,
    /// The client to use.
    pub by: Client,
    /// The source of its records.
    pub source: Source,
    /// Length of the run.
    pub run: Duration,
}

/// Kinds of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Client {
    /// Dunlin's.
    Dunlin,
    /// The crate `memcache`.
    Memcache,
}

/// The result of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Driven {
    /// Keys read or stored per second.
    pub rate: f64,
    /// Keys read or stored.
    pub operations: u64,
}

impl Role for DemoDriver {
    const NAME: &'static str = "key-value client";
    type Ready = ();
    type Output = Driven;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Driven, BenchError> {
        let records = self.source.read()?.records;
        let mut pace = Pace::new(self.run, control);
        match self.by {
            Client::Dunlin => drive(&self.server, &records, &mut pace)?,
            Client::Memcache => drive_memcached(&self.server, &records, &mut pace)?,
        }
        match pace.end() {
            Driven { operations: 0, .. } => Err(BenchError::no_samples("a key-value client")),
            driven => Ok(driven),
        }
    }
}

/// The end of a run, and its rate so far.
struct Pace<'a> {
    /// When the first operation began: connecting is not counted.
    begun: Option<Instant>,
    run: Duration,
    shown: Instant,
    operations: u64,
    control: &'a Control<DemoDriver>,
}

impl<'a> Pace<'a> {
    fn new(run: Duration, control: &'a Control<DemoDriver>) -> Self {
        Pace { begun: None, run, shown: Instant::now(), operations: 0, control }
    }

    /// Records the total work. Returns false at the end.
    fn go_on(&mut self, operations: u64) -> bool {
        self.operations = operations;
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if self.shown.elapsed() >= LIVE_INTERVAL {
            self.shown = Instant::now();
            self.control.live(Metric::Operations, self.rate());
        }
        begun.elapsed() < self.run && !self.control.stopping()
    }

    fn rate(&self) -> f64 {
        let seconds = self.begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64());
        self.operations as f64 / seconds.max(1e-6)
    }

    fn end(&self) -> Driven {
        Driven { rate: self.rate(), operations: self.operations }
    }
}

/// With Dunlin's client, [`IN_FLIGHT`] at a time.
fn drive(server: &str, records: &[Record], pace: &mut Pace<'_>) -> Result<(), BenchError> {
    let failed = |error: &dyn ToString| BenchError::demo("read and store keys", error.to_string());
    let server: Addr = server.parse()?;
    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(&server)?, EndpointConfig::default())?);
    let mut config = ClientConfig::default();
    config.sessions_per_core = 8;
    let connected = endpoint.block_on(KvClient::connect(&endpoint, &server, config));
    let client = connected.map_err(|error| failed(&error))?;
    // The tag of a response gives its expected content: the index of the record, and whether it was stored.
    let expected: Rc<[Vec<u8>]> = records.iter().map(|record| record.value.clone()).collect();
    let (done, wrong) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
    let on_end = {
        let (done, wrong) = (Rc::clone(&done), Rc::clone(&wrong));
        move |finished: dunlin_kv::client::Finished| {
            done.set(done.get() + 1);
            let value = &expected[(finished.tag >> 1) as usize];
            let is_right = finished.result.is_ok_and(|response| match ValueAnswer::parse(&response) {
                Some(ValueAnswer::Found { start, .. }) => finished.tag & 1 == 1 || response[start..] == value[..],
                _ => false,
            });
            wrong.set(wrong.get() + u64::from(!is_right));
        }
    };
    let pipeline = endpoint.block_on(Pipeline::new(&client, on_end)).map_err(|error| failed(&error))?;
    let mut random = Random(1);
    while pace.go_on(done.get()) {
        for _ in 0..TURNS_PER_LOOK {
            while pipeline.in_flight() < IN_FLIGHT {
                let at = (random.next() % records.len() as u64) as usize;
                let Record { key, value, .. } = &records[at];
                let (operation, stored) = if random.next().is_multiple_of(STORES_ONE_IN) {
                    (Operation::Put { key, value, put: Put::default() }, 1)
                } else {
                    (Operation::Get { key }, 0)
                };
                pipeline.submit(&operation, (at as u64) << 1 | stored).map_err(|error| failed(&error))?;
            }
            endpoint.run_once();
        }
    }
    endpoint.run_until(|| pipeline.in_flight() == 0);
    if wrong.get() > 0 {
        return Err(failed(&format!("{} of {} answers were wrong", wrong.get(), done.get())));
    }
    Ok(())
}

/// With a library that knows nothing of Dunlin, [`KEYS_PER_REQUEST`] keys at a time.
fn drive_memcached(server: &str, records: &[Record], pace: &mut Pace<'_>) -> Result<(), BenchError> {
    let failed = |error: &dyn ToString| BenchError::demo("read and store keys as memcached", error.to_string());
    let client = memcached_client(server)?;
    let usable: Vec<(&str, &[u8])> = records.iter().filter_map(memcached_record).collect();
    if usable.is_empty() {
        return Err(failed(&"none of the keys is text, as memcached's protocol needs it"));
    }
    let (mut random, mut done) = (Random(2), 0u64);
    while pace.go_on(done) {
        let some: Vec<(&str, &[u8])> =
            (0..KEYS_PER_REQUEST).map(|_| usable[(random.next() % usable.len() as u64) as usize]).collect();
        let keys: Vec<&str> = some.iter().map(|(key, _)| *key).collect();
        let values = client.gets::<Vec<u8>>(&keys).map_err(|error| failed(&error))?;
        for (key, value) in &some {
            if values.get(*key).map(Vec::as_slice) != Some(value) {
                return Err(failed(&format!("the value of {key} was wrong")));
            }
        }
        let (key, value) = some[0];
        client.set(key, value, 0).map_err(|error| failed(&error))?;
        done += some.len() as u64 + 1;
    }
    Ok(())
}

/// A client of the crate `memcache`, which speaks the text protocol.
pub(super) fn memcached_client(server: &str) -> Result<memcache::Client, BenchError> {
    let url = format!("memcache://{server}?protocol=ascii&tcp_nodelay=true&timeout={MEMCACHED_SECONDS_MAX}");
    memcache::connect(url).map_err(|error| BenchError::demo("connect as memcached does", error.to_string()))
}

/// Key and value of a record whose key a memcached client can send.
pub(super) fn memcached_record(record: &Record) -> Option<(&str, &[u8])> {
    let key = std::str::from_utf8(&record.key).ok()?;
    let is_sendable = key.bytes().all(|byte| byte.is_ascii_graphic());
    is_sendable.then_some((key, &record.value[..]))
}
