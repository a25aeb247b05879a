//! Slow disks and full logs: clients get back-pressure, and no event loop waits.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use dunlin_smr::NodeConfig;
use dunlin_smr::kv::{Command, Condition};
use dunlin_smr::wal::WalConfig;
use dunlin_smr::wire::response::Status;

use super::super::forged::{APPEND, Forged, send_all};
use super::{Cluster, config};

const UNFLUSHED_MAX: usize = 100_000;
const VALUE_BYTES: usize = 20_000;

fn wal() -> WalConfig {
    WalConfig { unflushed_bytes_max: UNFLUSHED_MAX, ..WalConfig::new(1) }
}

fn put(key: &str, value: &[u8]) -> Vec<u8> {
    Command::Put { key: key.as_bytes(), value, condition: Condition::Always }.encode()
}

#[test]
fn a_disk_that_is_behind_is_busy_and_no_loop_waits_for_it() {
    let cluster = Cluster::new(1, config(), wal());
    cluster.put("first", b"1").unwrap();
    cluster.hang(1);
    let commands: Vec<Vec<u8>> = (0..50).map(|number| put(&format!("key {number}"), &[7; VALUE_BYTES])).collect();
    let execute = async |command: &Vec<u8>| cluster.client.execute(command).await.map(|_| ()).unwrap();
    let mut puts: Vec<Pin<Box<dyn Future<Output = ()>>>> =
        commands.iter().map(|command| Box::pin(execute(command)) as _).collect();
    let mut poll = |cluster: &Cluster| {
        let before = puts.len();
        puts.retain_mut(|put| cluster.endpoint.poll_once(put.as_mut()).is_none());
        (before - puts.len(), puts.len())
    };
    for _ in 0..2000 {
        cluster.turn();
        assert_eq!(poll(&cluster).0, 0, "nothing is on the disk");
        let unflushed = cluster.places[&1].node.with_log(|log| log.wal().unflushed());
        // Commands that were accepted together.
        assert!(unflushed < UNFLUSHED_MAX + 33 * VALUE_BYTES, "{unflushed} bytes wait for the disk");
    }
    assert!(cluster.places[&1].node.counters().pushed_back > 0);
    cluster.heal(1);
    cluster.until("all are done", |cluster| poll(cluster).1 == 0);
}

#[test]
fn a_follower_whose_disk_is_behind_leaves_entries_unread() {
    let cluster = Cluster::new(3, NodeConfig { append_bytes_max: 20_000, ..config() }, wal());
    cluster.put("first", b"1").unwrap();
    let hung = cluster.leader() % 3 + 1;
    cluster.hang(hung);
    for number in 0..200 {
        cluster.put(&format!("key {number}"), &[7; VALUE_BYTES]).unwrap();
        let unflushed = cluster.places[&hung].node.with_log(|log| log.wal().unflushed());
        assert!(unflushed < UNFLUSHED_MAX + (2 << 20), "{unflushed} bytes wait for the disk");
        assert_eq!(cluster.local(hung, "key 0"), None, "nothing is on the disk");
    }
    cluster.heal(hung);
    cluster.until("it has caught up", |cluster| cluster.local(hung, "key 199").is_some());
}

/// Its answer says that it follows since then.
#[test]
fn a_follower_without_room_for_entries_follows_who_sends_them() {
    let wal = WalConfig { unflushed_bytes_max: VALUE_BYTES / 2, ..WalConfig::new(1) };
    let cluster = Cluster::new(3, config(), wal);
    cluster.put("first", b"1").unwrap();
    let leader = cluster.leader();
    let (hung, next) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    cluster.hang(hung);
    let unread = |cluster: &Cluster| cluster.places[&hung].node.counters().left_unread;
    cluster.put("second", &[7; VALUE_BYTES]).unwrap();
    cluster.turns(Duration::from_millis(1));
    let Status { cluster: number, term, last, .. } = cluster.status(hung);
    let append = Forged {
        kind: APPEND,
        to: hung,
        from: next,
        term: term + 1,
        log_term: term,
        index: last,
        terms: vec![term + 1],
        ..Forged::default()
    };
    let before = unread(&cluster);
    send_all(&cluster, number.unwrap().bits(), &[append]);
    assert!(unread(&cluster) > before);
    let status = cluster.status(hung);
    assert_eq!((status.term, status.leader, status.last), (term + 1, Some(next), last));
}

/// A full log takes a snapshot and continues, here 100 times.
#[test]
fn a_log_that_is_full_makes_room() {
    let wal = WalConfig { segment_bytes: 16 << 10, log_bytes_max: 64 << 10, ..WalConfig::new(1) };
    for members in [1, 3] {
        let cluster = Cluster::new(members, config(), wal);
        for number in 0..3000 {
            cluster.put(&format!("key {}", number % 10), &[number as u8; 2000]).unwrap();
            for place in cluster.places.values() {
                let bytes = place.node.with_log(|log| log.wal().bytes());
                assert!(bytes < 200 << 10, "{bytes} bytes of segments");
            }
        }
        cluster.turns(Duration::from_millis(100));
        for place in cluster.places.values() {
            assert_eq!(place.node.failure(), None);
            assert!(place.node.counters().snapshots_taken > 50, "{:?}", place.node.counters());
        }
    }
}
