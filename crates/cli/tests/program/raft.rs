//! Replicas as processes, and a client under load that records acknowledged writes.

use std::cell::Cell;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::kv::{Answer, Command, Condition, Query};
use dunlin_smr::{Client, ClientConfig};

use super::{Server, dunlin};

/// Ports below the ephemeral range of the system: no other socket takes the port of a replica that is down for a
/// moment.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Timeout of all waiting in a test.
const PATIENCE: Duration = Duration::from_secs(60);
/// Writers of a load, and keys that are read at a time.
const WRITERS: u64 = 4;
const READERS: u64 = 16;

/// A replica in argument form: `1=udp://127.0.0.1:20001`, with a free port.
pub fn free_replica(id: u64) -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = std::process::id() as u16 % 1000 * 11;
    let all = PORTS.len() as u16;
    loop {
        let port = PORTS.start + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % all;
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return format!("{id}=udp://127.0.0.1:{port}");
        }
    }
}

/// A directory that is removed at the end of its test.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("dunlin-test-raft-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    /// The directory of a replica.
    pub fn of(&self, id: u64) -> String {
        self.0.join(id.to_string()).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a replica with a log on disk for the first time, as one of the first members.
pub fn found(directory: &Directory, peers: &str, id: u64, more: &[&str]) -> Server {
    serve(directory, peers, id, &[&["--new"], more].concat())
}

/// Starts a replica with a log on disk.
pub fn serve(directory: &Directory, peers: &str, id: u64, more: &[&str]) -> Server {
    let (id_text, data) = (id.to_string(), directory.of(id));
    let arguments = ["raft", "serve", "--id", &id_text, "--peers", peers, "--data", &data];
    Server::start(dunlin(&[&arguments, more].concat()))
}

/// `dunlin raft` with its exit code and output.
pub fn ask(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        dunlin(&[&["raft"], arguments].concat()).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// A command that must succeed.
pub fn done(arguments: &[&str]) -> String {
    let (code, out, err) = ask(arguments);
    assert_eq!(code, 0, "{arguments:?}: {out}{err}");
    out
}

pub fn status(replicas: &str) -> serde_json::Value {
    let (_, out, err) = ask(&["status", "--at", replicas, "--json"]);
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"))
}

/// The leader, once there is one.
pub fn leader(replicas: &str) -> u64 {
    until("somebody leads", || status(replicas)["leader"].as_u64())
}

/// Waits until `look` returns a value.
pub fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Writers in a thread. Each writes `key W N` for N = 0, 1, 2, ... in sequence, and appends every fourth N to `log W`.
pub struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    thread: JoinHandle<Vec<Written>>,
}

/// The acknowledgements of a writer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Written {
    /// All writes below this number were acknowledged.
    pub acknowledged: u64,
    /// Whether the outcome of its last write is unknown.
    pub in_doubt: bool,
}

impl Load {
    pub fn start(replicas: &str) -> Load {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (replicas, stop_there, count) = (replicas.to_owned(), stop.clone(), acknowledged.clone());
        let thread = thread::spawn(move || {
            let (endpoint, _) = client(&replicas);
            let written: Rc<[Cell<Written>]> = (0..WRITERS).map(|_| Cell::default()).collect();
            let busy = Rc::new(Cell::new(WRITERS));
            for writer in 0..WRITERS {
                // Each with its own session.
                let client = client_on(&endpoint, &replicas);
                let (written, busy, stop, count) = (written.clone(), busy.clone(), stop_there.clone(), count.clone());
                endpoint.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let mut so_far = written[writer as usize].get();
                        if !write(&client, writer, so_far.acknowledged).await {
                            so_far.in_doubt = true;
                            written[writer as usize].set(so_far);
                            break;
                        }
                        so_far.acknowledged += 1;
                        written[writer as usize].set(so_far);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    busy.set(busy.get() - 1);
                });
            }
            endpoint.run_until(|| busy.get() == 0);
            written.iter().map(Cell::get).collect()
        });
        Load { stop, acknowledged, thread }
    }

    /// Waits until this many more writes were acknowledged.
    pub fn go_on(&self, more: u64) {
        let before = self.acknowledged.load(Ordering::Relaxed);
        until("writes are acknowledged", || {
            (self.acknowledged.load(Ordering::Relaxed) >= before + more || self.thread.is_finished()).then_some(())
        });
    }

    pub fn stop(self) -> Vec<Written> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn client(replicas: &str) -> (Rc<Endpoint<AnyTransport>>, Client<AnyTransport>) {
    let local = "udp://127.0.0.1:0".parse().unwrap();
    let endpoint = Rc::new(Endpoint::new(AnyTransport::bind(&local).unwrap(), EndpointConfig::default()).unwrap());
    let client = client_on(&endpoint, replicas);
    (endpoint, client)
}

fn client_on(endpoint: &Rc<Endpoint<AnyTransport>>, replicas: &str) -> Client<AnyTransport> {
    let members = replicas.split(',').map(|replica| {
        let (id, addr) = replica.split_once('=').unwrap();
        (id.parse().unwrap(), addr.parse::<Addr>().unwrap())
    });
    let attempt_timeout = Duration::from_millis(300);
    let config = ClientConfig { timeout: PATIENCE, attempt_timeout, ..ClientConfig::default() };
    Client::new(endpoint, members, config)
}

fn key(writer: u64, number: u64) -> String {
    format!("key {writer} {number}")
}

/// A value of some bytes, different for each key.
fn value(writer: u64, number: u64) -> Vec<u8> {
    (0..64 + number % 100).map(|at| (writer * 31 + number * 7 + at) as u8).collect()
}

fn is_logged(number: u64) -> bool {
    number.is_multiple_of(4)
}

/// Writes, and returns whether the write was acknowledged.
async fn write(client: &Client<AnyTransport>, writer: u64, number: u64) -> bool {
    let log = format!("log {writer}");
    if number == 0 {
        let put = Command::Put { key: log.as_bytes(), value: &[], condition: Condition::Absent }.encode();
        if !is_done(client.execute(&put).await) {
            return false;
        }
    }
    if is_logged(number) {
        let append = Command::Append { key: log.as_bytes(), bytes: &(number as u32).to_le_bytes() }.encode();
        if !is_done(client.execute(&append).await) {
            return false;
        }
    }
    let (key, value) = (key(writer, number), value(writer, number));
    let put = Command::Put { key: key.as_bytes(), value: &value, condition: Condition::Always }.encode();
    is_done(client.execute(&put).await)
}

fn is_done(reply: Result<dunlin_smr::client::Reply, dunlin_smr::ClientError>) -> bool {
    match reply {
        Ok(reply) => {
            assert!(matches!(Answer::parse(&reply).unwrap(), Answer::Done { .. }), "{:?}", Answer::parse(&reply));
            true
        }
        Err(error) => {
            assert!(error.may_have_run(), "{error}");
            false
        }
    }
}

/// Reads all acknowledged writes back; logs must have each number once.
pub fn read_back(replicas: &str, written: &[Written]) {
    let (endpoint, client) = client(replicas);
    let client = Rc::new(client);
    for (writer, Written { acknowledged, in_doubt }) in (0..).zip(written) {
        let log = endpoint.block_on(get(&client, &format!("log {writer}"))).unwrap_or_default();
        let log: Vec<u64> = log.chunks(4).map(|number| u32::from_le_bytes(number.try_into().unwrap()).into()).collect();
        let expected: Vec<u64> = (0..acknowledged + u64::from(*in_doubt)).filter(|number| is_logged(*number)).collect();
        let is_last_missing = *in_doubt && is_logged(*acknowledged) && log.len() + 1 == expected.len();
        assert!(
            log == expected || is_last_missing && expected.starts_with(&log),
            "log {writer}: {log:?}, {expected:?}"
        );

        let busy = Rc::new(Cell::new(READERS));
        for reader in 0..READERS {
            let (client, busy, end) = (client.clone(), busy.clone(), *acknowledged);
            endpoint.spawn(async move {
                for number in (reader..end).step_by(READERS as usize) {
                    let (key, found) = (key(writer, number), get(&client, &key(writer, number)).await);
                    assert!(found == Some(value(writer, number)), "{key}, which was acknowledged, is {found:?}");
                }
                busy.set(busy.get() - 1);
            });
        }
        endpoint.run_until(|| busy.get() == 0);
    }
}

async fn get(client: &Client<AnyTransport>, key: &str) -> Option<Vec<u8>> {
    let reply = client.query(Query { key: key.as_bytes() }.encode()).await.unwrap();
    match Answer::parse(&reply).unwrap() {
        Answer::Value { value, .. } => Some(value.to_vec()),
        answer => {
            assert_eq!(answer, Answer::NotFound);
            None
        }
    }
}
