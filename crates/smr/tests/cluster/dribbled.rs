//! Snapshots whose pieces keep coming, but never the last one.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::{CallOptions, MsgBuf};
use dunlin_smr::{LogStore as _, NodeConfig, wire};

use super::harness::{Cluster, config};

const TOTAL: u64 = 150_000;

/// A sender that sends replica 1 a snapshot of many bytes, piece by piece.
struct Sender<'a> {
    cluster: &'a Cluster,
    sent: Vec<u8>,
}

impl Sender<'_> {
    /// Sends this many more bytes, and returns where the next piece must begin; `None` if the piece is refused.
    fn send(&mut self, bytes: usize) -> Option<u64> {
        let status = self.cluster.node(1).status();
        let offset = self.sent.len();
        self.sent.resize(offset + bytes, 7);
        let mut out = vec![wire::VERSION, 0, 0, 0];
        out.extend_from_slice(&crc32c::crc32c(&self.sent).to_le_bytes());
        let words = [status.cluster.unwrap().bits(), 2, 1, status.term, 1 << 40, 1, TOTAL, offset as u64];
        words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0]);
        [1_u64, 2].iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
        out.extend_from_slice(&self.sent[offset..]);
        let mut piece = MsgBuf::with_len(out.len()).unwrap();
        piece.copy_from_slice(&out);
        let answer = self.cluster.drive(async {
            let session = self.cluster.endpoint.connect(&Addr::Node(1)).await.unwrap();
            session.call_with(wire::CHUNK, piece, CallOptions::timeout(Duration::from_millis(20))).await.ok()
        });
        answer.map(|reply| u64::from_le_bytes(reply.response[..].try_into().unwrap()))
    }
}

/// One replica with a state so large that two snapshots of it and the incoming one do not fit.
fn with_state() -> Cluster {
    let limits = NodeConfig { snapshot_bytes_max: TOTAL, snapshot_memory_max: 2 * TOTAL, ..config() };
    let cluster = Cluster::new(1, NodeConfig { snapshot_entries: 50, keep_entries: 1, chunk_bytes: 10_000, ..limits });
    for number in 0..200 {
        cluster.put(&format!("key {}", number % 90), &[7; 1000]).unwrap();
    }
    assert!((90_000..100_000).contains(&cluster.node(1).with_log(|log| log.base().data.len())));
    cluster
}

/// Otherwise nothing would make room in the log.
#[test]
fn the_own_snapshot_goes_before_one_that_comes() {
    let cluster = with_state();
    let mut sender = Sender { cluster: &cluster, sent: Vec::new() };
    assert_eq!(sender.send(10), Some(10));
    for number in 0..500 {
        if number % 20 == 0 {
            sender.send(0);
        }
        cluster.put(&format!("key {}", number % 90), &[7; 1000]).unwrap();
        let bytes = cluster.node(1).with_log(|log| log.entry_bytes());
        assert!(bytes < 200_000, "{bytes} bytes of entries after {number} writes");
    }
}

#[test]
fn who_sends_nothing_or_too_little_is_not_waited_for() {
    let cluster = with_state();
    for bytes in [0, 1] {
        let mut sender = Sender { cluster: &cluster, sent: Vec::new() };
        assert_eq!(sender.send(10), Some(10));
        for _ in 0..8 {
            cluster.turns(Duration::from_millis(200));
            sender.send(bytes);
        }
        assert_eq!(sender.send(10), None, "{bytes} bytes came eight times");
    }
    // A sender that sends as much as a replica does is waited for.
    let mut sender = Sender { cluster: &cluster, sent: Vec::new() };
    for number in 1..=8 {
        assert_eq!(sender.send(10_000), Some(10_000 * number));
        cluster.turns(Duration::from_millis(200));
    }
}
