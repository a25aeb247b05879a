//! The memory of the proxy for memcached clients.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dunlin_kv::memcached::{Acceptor, ConnectionLimit, Forwarder, Listen};
use dunlin_kv::wire::ReplicaState;
use tokio::net::UnixStream;
use tokio::task::{LocalSet, spawn_local, yield_now};

use crate::world::{Client, World, config};

const CONNECTIONS: usize = 8;
const KEYS: usize = 16;
const VALUE_BYTES: usize = 256 << 10;
/// Room for 16 values, or for four whose lengths are not known.
const MEMORY_BYTES: usize = 4 << 20;

/// Reads until `is_over` says so of all that came.
pub async fn read_until(stream: &UnixStream, is_over: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 256 << 10]);
    while !is_over(&all) {
        stream.readable().await.unwrap();
        match stream.try_read(&mut buffer) {
            Ok(0) => panic!("closed after {} bytes", all.len()),
            Ok(len) => all.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    all
}

pub async fn say(stream: &UnixStream, text: &str) {
    stream.writable().await.unwrap();
    assert_eq!(stream.try_write(text.as_bytes()).unwrap(), text.len());
}

/// A proxy for memcached clients at a Unix socket, in a world whose time goes on beside it.
pub struct Proxy {
    path: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Proxy {
    pub fn new() -> Proxy {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dunlin-kv-proxy-{}-{number}", std::process::id()));
        Proxy { path, runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap() }
    }

    pub async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).await.unwrap()
    }

    /// Serves a cluster while `clients` is under way.
    pub fn serve<F: Future>(&self, world: Rc<World>, cluster: Client, bytes: usize, clients: F) -> F::Output {
        LocalSet::new().block_on(&self.runtime, async {
            let driving = spawn_local(async move {
                loop {
                    world.client.run_once();
                    world.turn();
                    yield_now().await;
                }
            });
            let forwarder = Forwarder::new(cluster, None, bytes);
            let acceptor = Acceptor::bind(&Listen::Unix(self.path.clone()), ConnectionLimit::new(100)).unwrap();
            let accepting = spawn_local(async move {
                loop {
                    let socket = acceptor.accept().await;
                    spawn_local(forwarder.clone().serve(socket));
                }
            });
            let output = clients.await;
            driving.abort();
            accepting.abort();
            output
        })
    }
}

/// Sets the keys that clients ask for.
fn with_values(world: &World) -> Client {
    let cluster = world.connect(config());
    let value = vec![b'v'; VALUE_BYTES];
    for key in 0..KEYS {
        world.run(cluster.set(format!("k{key}").as_bytes(), &value)).unwrap().everywhere().unwrap();
    }
    cluster
}

fn all_keys() -> String {
    (0..KEYS).map(|key| format!(" k{key}")).collect()
}

/// Waits until a figure of `stats` is as it should be; returns it.
async fn until(stream: &UnixStream, name: &str, is: impl Fn(usize) -> bool) -> usize {
    for _ in 0..20_000 {
        let value = stat(stream, name).await;
        if is(value) {
            return value;
        }
    }
    panic!("{name} stays {}", stat(stream, name).await);
}

async fn stat(stream: &UnixStream, name: &str) -> usize {
    say(stream, "stats\r\n").await;
    let stats = String::from_utf8(read_until(stream, |all| all.ends_with(b"END\r\n")).await).unwrap();
    let value = stats.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap().parse().unwrap()
}

/// Clients that ask at once for far more than the proxy may hold, and read nothing for a while.
#[test]
fn the_proxy_reads_no_more_than_it_may_hold_and_everybody_gets_everything() {
    let world = Rc::new(World::new(1, 1, 1));
    let (cluster, proxy) = (with_values(&world), Proxy::new());
    proxy.serve(world, cluster, MEMORY_BYTES, async {
        let mut streams = Vec::new();
        for _ in 0..CONNECTIONS {
            let stream = proxy.connect().await;
            // What is missing does not tell how long values are.
            let missing: String = (0..500).map(|key| format!(" none{key}")).collect();
            say(&stream, &format!("get{missing}\r\n")).await;
            read_until(&stream, |all| all == b"END\r\n").await;
            streams.push(stream);
        }
        for stream in &streams {
            say(stream, &format!("get{}\r\n", all_keys())).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let hits = stat(&proxy.connect().await, "get_hits").await;
        // Each connection may have one value in its output, and one in the buffers of its socket.
        let most = MEMORY_BYTES / VALUE_BYTES + 2 * CONNECTIONS;
        assert!((1..=most).contains(&hits), "{hits} values, {most} at most");
        let reading = streams.iter().map(|stream| read_until(stream, |all| all.ends_with(b"\r\nEND\r\n")));
        for answer in futures::future::join_all(reading).await {
            let values = KEYS * VALUE_BYTES..KEYS * (VALUE_BYTES + 30);
            assert!(values.contains(&answer.len()), "{} bytes", answer.len());
        }
    });
}

/// Of the same host, so its share does not help. What is left serves one value at a time, until those that read nothing
/// are cut off, although they may be idle for ever.
#[test]
fn clients_that_read_nothing_give_way_to_one_that_does() {
    const BAD: usize = 64;
    let world = Rc::new(World::new(1, 1, 1));
    let (cluster, proxy) = (with_values(&world), Proxy::new());
    proxy.serve(world, cluster, 16 * MEMORY_BYTES, async {
        tokio::time::pause();
        let asked = format!("get{}\r\n", all_keys());
        let (asking, good) = (proxy.connect().await, proxy.connect().await);
        let mut bad = Vec::new();
        for _ in 0..BAD {
            let before = stat(&asking, "get_hits").await;
            let stream = proxy.connect().await;
            say(&stream, &asked).await;
            bad.push(stream);
            // One after the other: all at once would have less memory each, as long as lengths are not known.
            until(&asking, "get_hits", |hits| hits > before).await;
        }
        let held = stat(&asking, "forward_value_bytes").await;
        assert!(held > 6 * MEMORY_BYTES, "{held} bytes of {} are held", 12 * MEMORY_BYTES);
        tokio::time::advance(Duration::from_secs(29)).await;
        say(&good, &asked).await;
        read_until(&good, |all| all.ends_with(b"\r\nEND\r\n")).await;
        assert_eq!(stat(&asking, "forward_cut_off").await, 0);
        tokio::time::advance(Duration::from_secs(2)).await;
        until(&asking, "forward_cut_off", |connections| connections > 0).await;
        until(&asking, "forward_value_bytes", |bytes| bytes < held).await;
        say(&good, &asked).await;
        read_until(&good, |all| all.ends_with(b"\r\nEND\r\n")).await;
    });
}

/// Values that come without an end are no memory beside the limit.
#[test]
fn incomplete_commands_have_a_share_of_their_own() {
    const CONNECTIONS: usize = 32;
    let world = Rc::new(World::new(1, 1, 1));
    let (cluster, proxy) = (with_values(&world), Proxy::new());
    proxy.serve(world, cluster, 16 * MEMORY_BYTES, async {
        tokio::time::pause();
        let begin = format!("set k 0 0 {}\r\n", 1 << 20);
        let (asking, good) = (proxy.connect().await, proxy.connect().await);
        let mut incomplete = Vec::new();
        for _ in 0..CONNECTIONS {
            let stream = proxy.connect().await;
            say(&stream, &begin).await;
            incomplete.push(stream);
        }
        // Three quarters of what is for commands, and no more of one host.
        let most = 3 * MEMORY_BYTES;
        until(&asking, "forward_command_bytes", |bytes| bytes > most * 9 / 10).await;
        // A short command reserves no memory, so it is executed even if none is left.
        say(&good, "set k1 0 0 1\r\nv\r\nget k1\r\n").await;
        read_until(&good, |all| all == b"STORED\r\nVALUE k1 0 1\r\nv\r\nEND\r\n").await;
        let holding = stat(&asking, "forward_command_bytes").await >> 20;
        assert!(stat(&asking, "forward_command_bytes").await <= most);
        // Those without memory learn that there is none, and are closed: so no command runs when nobody waits for it.
        tokio::time::advance(Duration::from_secs(6)).await;
        until(&asking, "forward_failed", |failed| failed == CONNECTIONS - holding).await;
        // Those that had some are cut off, since they send nothing.
        tokio::time::advance(Duration::from_secs(25)).await;
        until(&asking, "forward_cut_off", |cut_off| cut_off > 0).await;
        let setting = spawn_local(async move {
            let value = [begin.as_bytes(), &vec![b'v'; 1 << 20], b"\r\n"].concat();
            // One command after the other, the end of one with the beginning of the next.
            for value in [&value; 20].map(|value| &value[..]).concat().chunks(100_000) {
                let mut written = 0;
                while written < value.len() {
                    good.writable().await.unwrap();
                    written += good.try_write(&value[written..]).unwrap_or(0);
                    tokio::time::advance(Duration::from_millis(10)).await;
                }
            }
            read_until(&good, |all| all.len() == 20 * b"STORED\r\n".len()).await;
        });
        setting.await.unwrap();
        until(&asking, "forward_command_bytes", |bytes| bytes <= most).await;
        drop(incomplete);
        until(&asking, "forward_command_bytes", |bytes| bytes == 0).await;
    });
}

/// Neither for its answer, nor for the next command.
#[test]
fn a_command_that_is_done_keeps_no_memory() {
    let world = Rc::new(World::new(1, 1, 1));
    let (cluster, proxy) = (with_values(&world), Proxy::new());
    proxy.serve(world, cluster, 16 * MEMORY_BYTES, async {
        let (asking, stream) = (proxy.connect().await, proxy.connect().await);
        // A line of more than one read, whose answer the client does not read yet.
        let line = format!("get{}{}\r\n", all_keys(), " none".repeat(40_000));
        let (first, second) = line.split_at(line.len() / 2);
        say(&stream, first).await;
        until(&asking, "forward_command_bytes", |bytes| bytes > 0).await;
        say(&stream, second).await;
        until(&asking, "get_hits", |hits| hits > 0).await;
        read_until(&stream, |all| all.ends_with(b"END\r\n")).await;
        until(&asking, "forward_command_bytes", |bytes| bytes == 0).await;
        // The head of the next command comes with the end of this one: it has memory of its own.
        let value = vec![b'v'; 100_000];
        let both = [b"set k 0 0 100000\r\n", &value[..], b"\r\nset k 0 0 1000000\r\n"].concat();
        stream.writable().await.unwrap();
        assert_eq!(stream.try_write(&both).unwrap(), both.len());
        until(&asking, "forward_command_bytes", |bytes| bytes > 1_000_000).await;
    });
}

/// As in memcached: a client that cannot store the new value must not read the old one.
#[test]
fn a_set_that_the_servers_refuse_as_too_large_deletes_the_value_before() {
    let mut world = World::new(1, 1, 1);
    world.value_bytes_max = 1000;
    world.start(0, ReplicaState::Open);
    let (world, proxy) = (Rc::new(world), Proxy::new());
    let cluster = world.connect(config());
    proxy.serve(world, cluster, MEMORY_BYTES, async {
        let stream = proxy.connect().await;
        let long = "v".repeat(2000);
        for (command, expected) in [("set", ""), ("add", "VALUE k 0 1\r\nx\r\n"), ("replace", "VALUE k 0 1\r\nx\r\n")] {
            let set = "set k 0 0 1\r\nx\r\n";
            say(&stream, &format!("{set}{command} k 0 0 2000\r\n{long}\r\nget k\r\n")).await;
            let said = read_until(&stream, |all| all.ends_with(b"END\r\n")).await;
            let expected = format!("STORED\r\nSERVER_ERROR object too large for cache\r\n{expected}END\r\n");
            assert_eq!(String::from_utf8_lossy(&said), expected, "{command}");
        }
    });
}
