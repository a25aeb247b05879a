//! The memory of the proxy for memcached clients.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use dunlin_kv::memcached::{Acceptor, ConnectionLimit, Forwarder, Listen};
use tokio::net::UnixStream;
use tokio::task::{LocalSet, spawn_local, yield_now};

use crate::world::{World, config};

const CONNECTIONS: usize = 8;
const KEYS: usize = 16;
const VALUE_BYTES: usize = 256 << 10;
/// Room for 16 values, or for four whose lengths are not known.
const MEMORY_BYTES: usize = 4 << 20;

/// Reads until `is_over` says so of all that came.
async fn read_until(stream: &UnixStream, is_over: impl Fn(&[u8]) -> bool) -> Vec<u8> {
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

async fn say(stream: &UnixStream, text: &str) {
    stream.writable().await.unwrap();
    assert_eq!(stream.try_write(text.as_bytes()).unwrap(), text.len());
}

/// Clients that ask at once for far more than the proxy may hold, and read nothing for a while.
#[test]
fn the_proxy_reads_no_more_than_it_may_hold_and_everybody_gets_everything() {
    let world = Rc::new(World::new(1, 1, 1));
    let cluster = world.connect(config());
    let value = vec![b'v'; VALUE_BYTES];
    for key in 0..KEYS {
        world.run(cluster.set(format!("k{key}").as_bytes(), &value)).unwrap().everywhere().unwrap();
    }
    let path = std::env::temp_dir().join(format!("dunlin-kv-proxy-{}", std::process::id()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let driving = spawn_local(async move {
            loop {
                world.client.run_once();
                world.turn();
                yield_now().await;
            }
        });
        let forwarder = Forwarder::new(cluster, None, MEMORY_BYTES);
        let acceptor = Acceptor::bind(&Listen::Unix(path.clone()), ConnectionLimit::new(100)).unwrap();
        let accepting = spawn_local(async move {
            loop {
                let socket = acceptor.accept().await;
                spawn_local(forwarder.clone().serve(socket));
            }
        });
        let connect = async || UnixStream::connect(&path).await.unwrap();
        let keys: String = (0..KEYS).map(|key| format!(" k{key}")).collect();
        let mut streams = Vec::new();
        for _ in 0..CONNECTIONS {
            let stream = connect().await;
            // What is missing does not tell how long values are.
            let missing: String = (0..500).map(|key| format!(" none{key}")).collect();
            say(&stream, &format!("get{missing}\r\n")).await;
            read_until(&stream, |all| all == b"END\r\n").await;
            streams.push(stream);
        }
        for stream in &streams {
            say(stream, &format!("get{keys}\r\n")).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asking = connect().await;
        say(&asking, "stats\r\n").await;
        let stats = read_until(&asking, |all| all.ends_with(b"END\r\n")).await;
        let stats = String::from_utf8(stats).unwrap();
        let hits = stats.lines().find_map(|line| line.strip_prefix("STAT get_hits ")).unwrap();
        let hits: usize = hits.parse().unwrap();
        // Each connection may have one value in its output, and one in the buffers of its socket.
        let most = MEMORY_BYTES / VALUE_BYTES + 2 * CONNECTIONS;
        assert!((1..=most).contains(&hits), "{hits} values, {most} at most");
        let reading = streams.iter().map(|stream| read_until(stream, |all| all.ends_with(b"\r\nEND\r\n")));
        for answer in futures::future::join_all(reading).await {
            let values = KEYS * VALUE_BYTES..KEYS * (VALUE_BYTES + 30);
            assert!(values.contains(&answer.len()), "{} bytes", answer.len());
        }
        driving.abort();
        accepting.abort();
    });
}
