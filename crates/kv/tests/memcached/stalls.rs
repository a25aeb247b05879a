//! A snapshot that holds changes up: who waits for it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use dunlin_kv::memcached::{
    Acceptor, Activity, Backend as _, ConnectionLimit, Inquiry, Listen, Service, Settings, Single,
};
use dunlin_store::{KeyHash, Model, Sweep as _, Visit, Watch};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local};

use super::script::START;
use super::sockets::PATIENCE;

/// A snapshot that has no turn for as long as `is_stalled`, and takes note of changes.
#[derive(Debug, Clone, Default)]
struct Snapshot {
    is_stalled: Arc<AtomicBool>,
    has_seen_change: Arc<AtomicBool>,
}

impl Watch for Snapshot {
    fn before_change(&mut self, _items: &dyn Visit, _hash: KeyHash) {
        self.has_seen_change.store(true, Relaxed);
    }

    fn before_flush(&mut self, _items: &dyn Visit) {}

    fn stalled(&self) -> Duration {
        if self.is_stalled.load(Relaxed) { Duration::from_secs(1) } else { Duration::ZERO }
    }
}

async fn ask(client: &mut TcpStream, request: &str, answer: &str) {
    client.write_all(request.as_bytes()).await.unwrap();
    expect(client, answer).await;
}

async fn expect(client: &mut TcpStream, answer: &str) {
    let mut read = vec![0; answer.len()];
    client.read_exact(&mut read).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&read), answer);
}

/// After about a thousand looks at a snapshot that gets no turn, changes go on: long after the reads here. Clients and
/// server share a thread, so a machine that is busy slows all of them down alike.
#[tokio::test]
async fn reads_do_not_wait_behind_the_changes_that_a_snapshot_holds_up() {
    const CROWD: usize = 20;
    const FOUND: &str = "VALUE bird 0 6\r\ndunlin\r\nEND\r\n";
    let core = Rc::new(Single::new(Model::new(), START));
    let snapshot = Snapshot::default();
    core.with_store(|store| drop(store.watch(Box::new(snapshot.clone()))));
    let work = async {
        let limit = ConnectionLimit::new(1024);
        let acceptor = Acceptor::bind(&"tcp://127.0.0.1:0".parse().unwrap(), limit.clone()).unwrap();
        let Listen::Tcp(address) = *acceptor.listen() else { panic!("{:?}", acceptor.listen()) };
        let service = Service::start(core.clone(), Settings::new(limit, None, START, Vec::new()));
        let adopting = service.clone();
        spawn_local(async move {
            loop {
                adopting.adopt(acceptor.accept().await);
            }
        });
        let connect = || async { TcpStream::connect(address).await.unwrap() };
        let mut reader = connect().await;
        ask(&mut reader, "set bird 0 0 6\r\ndunlin\r\n", "STORED\r\n").await;
        snapshot.is_stalled.store(true, Relaxed);
        snapshot.has_seen_change.store(false, Relaxed);
        let mut crowd = Vec::new();
        for number in 0..CROWD {
            let mut writer = connect().await;
            // What stands before a change does not wait for it, and what stands behind it does.
            let change = match number % 4 {
                0 => "set bird 0 0 4\r\nruff\r\n",
                1 => "gat 100 bird\r\n",
                2 => "mg bird T100\r\n",
                _ => "delete bird\r\n",
            };
            ask(&mut writer, &format!("get bird\r\n{change}mn\r\n"), FOUND).await;
            crowd.push(writer);
        }
        for request in ["get bird\r\n", "gets nobird\r\nget bird\r\n", "mg bird t\r\nget bird\r\n"] {
            let before = if request.starts_with("gets") { "END\r\n" } else { "" };
            let before = if request.starts_with("mg") { "HD t-1\r\n" } else { before };
            ask(&mut reader, request, &format!("{before}{FOUND}")).await;
        }
        assert!(!snapshot.has_seen_change.load(Relaxed), "changes went on while they had to wait");
        let connections = core.ask(Inquiry::Connections { first: 0, count: usize::MAX }).await.remove(0).each;
        let working = connections.iter().filter(|connection| connection.activity == Activity::Working);
        assert_eq!(working.count(), CROWD, "a connection in line is not idle: {connections:?}");
        snapshot.is_stalled.store(false, Relaxed);
        for writer in &mut crowd {
            let mut last = Vec::new();
            while !last.ends_with(b"MN\r\n") {
                assert!(writer.read_buf(&mut last).await.unwrap() > 0, "closed after {last:?}");
            }
            assert!(last.len() > b"MN\r\n".len(), "the change was answered, too");
        }
        assert!(snapshot.has_seen_change.load(Relaxed));
    };
    tokio::time::timeout(PATIENCE, LocalSet::new().run_until(work)).await.unwrap();
}
