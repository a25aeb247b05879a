//! The key-value part of the demo: loads real records into a server, reads them in three ways at once, and kills it.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dunlin_kv::client::{ClientConfig, KvClient};
use dunlin_kv::transfer::{self, Loading, Skipped};
use dunlin_lab::LabError;
use dunlin_lab::measure::Spread;
use dunlin_lab::peer::Peer;
use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_net::{Addr, AnyTransport};
use dunlin_records::{Numbered, Record, RecordError};
use dunlin_rpc::{Endpoint, EndpointConfig};

use super::data::{Data, Source};
use super::roles::{Client, DemoDriver, DemoServer, Driven, Serving, memcached_client, memcached_record};
use crate::{BenchError, Lab};

/// Steps in the progress bar.
pub(super) const STEPS: usize = 8;
/// Records in flight at a time.
const LOADING_IN_FLIGHT: usize = 256;
/// Keys per request when all records are verified.
const KEYS_PER_CHECK: usize = 256;
/// Keys read one by one through the memcached library.
const ASKED_ONE_BY_ONE: usize = 200;
/// Time limit of the server.
const SERVER_LIMIT: Duration = Duration::from_secs(60);
/// Timeout of one operation.
const DEADLINE: Duration = Duration::from_secs(20);
/// Length of a driver's run, in run lengths.
const RUNS_PER_DRIVE: u32 = 2;

/// Runs it.
pub(super) fn run(lab: &mut Lab, source: &Source) -> Result<(), BenchError> {
    lab.step("reading the records");
    let data = source.read()?;
    let files = Files::new();
    let role = DemoServer { shm: format!("demo-{}", std::process::id()), snapshot: files.snapshot.clone() };

    lab.step("starting a key-value server");
    let mut server = lab.server(role.clone(), SERVER_LIMIT)?;
    let serving = server.ready()?;
    let items = format!("{} records of {}", data.records.len(), data.origin);

    lab.step(format!("loading {items}"));
    let seconds = Remote::new(&serving.shm)?.load(&data.records)?;
    let rate = Spread::single(data.records.len() as f64 / seconds);
    lab.push(RowBuilder::new(format!("kv: load {items}"), Metric::Operations, rate));

    drive(lab, source, &serving)?;
    lab.step("asking a memcached library for some keys");
    ask_one_by_one(&serving.memcached, &data.records)?;

    lab.step("saving a snapshot, then killing the server");
    // By a new client: an earlier one, whose endpoint did not run meanwhile, has lost its sessions.
    Remote::new(&serving.shm)?.snapshot()?;
    // Without a clean shutdown.
    server.kill()?;

    lab.step("starting the server again from its snapshot");
    let mut server = lab.server(role, SERVER_LIMIT)?;
    let serving = server.ready()?;
    let case = format!("kv: ready again with {} records", data.records.len());
    lab.push(RowBuilder::new(case, Metric::LatencyP50, Spread::single(serving.seconds * 1e9)));
    verify(lab, &serving, &data)?;
    server.stop()
}

/// Drives the server in each way alone, then in all ways at once.
fn drive(lab: &mut Lab, source: &Source, serving: &Serving) -> Result<(), BenchError> {
    let run = lab.run_length() * RUNS_PER_DRIVE;
    let ways = [
        ("shm", &serving.shm, Client::Dunlin),
        ("udp", &serving.udp, Client::Dunlin),
        ("memcached library", &serving.memcached, Client::Memcache),
    ];
    let driver = |server: &str, by: Client| DemoDriver { server: server.into(), by, source: source.clone(), run };
    lab.step("driving it over shared memory, UDP and the memcached port in turn");
    for (name, server, by) in ways {
        let driven = lab.client(driver(server, by), run)?.result()?;
        push(lab, format!("kv: {name}"), driven);
    }
    lab.step("driving it all three ways at once");
    let peers: Vec<Peer<DemoDriver>> =
        ways.iter().map(|(_, server, by)| lab.client(driver(server, *by), run)).collect::<Result<_, _>>()?;
    for ((name, ..), peer) in ways.iter().zip(peers) {
        let driven = peer.result()?;
        push(lab, format!("kv: {name}, all three at once"), driven);
    }
    Ok(())
}

fn push(lab: &mut Lab, case: String, driven: Driven) {
    lab.push(RowBuilder::new(case, Metric::Operations, Spread::single(driven.rate)));
}

/// Reads keys from all over the data through a library that knows nothing of Dunlin.
fn ask_one_by_one(server: &str, records: &[Record]) -> Result<(), BenchError> {
    let client = memcached_client(server)?;
    let usable: Vec<(&str, &[u8])> = records.iter().filter_map(memcached_record).collect();
    for (key, value) in usable.iter().step_by(usable.len().div_ceil(ASKED_ONE_BY_ONE).max(1)) {
        let found =
            client.get::<Vec<u8>>(key).map_err(|error| BenchError::demo("ask as memcached does", error.to_string()))?;
        if found.as_deref() != Some(value) {
            return Err(BenchError::demo("ask as memcached does", format!("the value of {key} was wrong")));
        }
    }
    Ok(())
}

/// Compares every record of a server that was killed and restarted.
fn verify(lab: &mut Lab, serving: &Serving, data: &Data) -> Result<(), BenchError> {
    let remote = Remote::new(&serving.udp)?;
    let begun = Instant::now();
    let mut verified = 0;
    for some in data.records.chunks(KEYS_PER_CHECK) {
        if lab.interrupt().is_set() {
            return Err(LabError::Interrupted.into());
        }
        remote.compare(some)?;
        verified += some.len();
    }
    let rate = verified as f64 / begun.elapsed().as_secs_f64().max(1e-6);
    let case = format!("kv: verify all {verified} records after kill and restart, udp");
    lab.push(RowBuilder::new(case, Metric::Operations, Spread::single(rate)));
    Ok(())
}

/// A client in this process.
struct Remote {
    endpoint: Rc<Endpoint<AnyTransport>>,
    client: KvClient<AnyTransport>,
}

impl Remote {
    fn new(server: &str) -> Result<Remote, BenchError> {
        let server: Addr = server.parse()?;
        let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(&server)?, EndpointConfig::default())?);
        let mut config = ClientConfig::default();
        config.deadline = Some(DEADLINE);
        let client = KvClient::new(&endpoint, &server, config);
        Ok(Remote { endpoint, client })
    }

    /// Stores every record, and returns the seconds it took.
    fn load(&self, records: &[Record]) -> Result<f64, BenchError> {
        let begun = Instant::now();
        let numbered: Vec<Result<Numbered, RecordError>> =
            (1..).zip(records).map(|(line, record)| Ok(Numbered { line, record: record.clone() })).collect();
        let loading = Loading::new(LOADING_IN_FLIGHT).strict();
        let loaded =
            self.endpoint.block_on(transfer::load(&self.client, numbered.into_iter(), loading, &mut Unwatched));
        loaded.map_err(|error| BenchError::demo("load the records", error.to_string()))?;
        Ok(begun.elapsed().as_secs_f64().max(1e-6))
    }

    fn snapshot(&self) -> Result<(), BenchError> {
        let saved = self.endpoint.block_on(self.client.snapshot());
        saved.map_err(|error| BenchError::demo("save a snapshot", error.to_string()))
    }

    /// Reads some records and fails if one differs.
    fn compare(&self, records: &[Record]) -> Result<(), BenchError> {
        let keys: Vec<&[u8]> = records.iter().map(|record| &record.key[..]).collect();
        let values = self.endpoint.block_on(self.client.multi_get(&keys));
        let values = values.map_err(|error| BenchError::demo("read the records again", error.to_string()))?;
        for (record, value) in records.iter().zip(values) {
            if value.as_deref() != Some(&record.value[..]) {
                let why = format!("{:?} is lost or changed", String::from_utf8_lossy(&record.key));
                return Err(BenchError::demo("read the records again", why));
            }
        }
        Ok(())
    }
}

/// Shows nothing while records are loaded: it takes only a moment.
struct Unwatched;

impl transfer::Watch for Unwatched {
    fn loaded(&mut self, _records: u64) -> bool {
        true
    }

    fn skipped(&mut self, _skipped: &Skipped) {}
}

/// The demo's own directory, removed at the end.
struct Files {
    directory: PathBuf,
    snapshot: PathBuf,
}

impl Files {
    fn new() -> Files {
        let directory = std::env::temp_dir().join(format!("dunlin-demo-{}", std::process::id()));
        let snapshot = directory.join("kv.snapshot");
        // If it cannot be made, the server reports that when it saves.
        let _ = std::fs::create_dir_all(&directory);
        Files { directory, snapshot }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

fn remove(directory: &Path) {
    // If this fails, the files stay in the temporary directory.
    let _ = std::fs::remove_dir_all(directory);
}
