//! Pieces of snapshots, as another replica would send them.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::{CallOptions, MsgBuf};
use dunlin_smr::{LogStore as _, wire};

use super::Cluster;

/// A snapshot that is sent in one piece, or the claims of its first piece.
#[derive(Debug, Clone)]
pub struct Forged {
    pub cluster: u64,
    pub from: u64,
    pub to: u64,
    pub term: u64,
    pub index: u64,
    pub index_term: u64,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    pub total: u64,
    pub checksum: u32,
    pub bytes: Vec<u8>,
}

impl Forged {
    /// Returns the snapshot that a replica's log begins with, as this leader would send it to `to`.
    pub fn base_of(cluster: &Cluster, id: u64, from: u64, to: u64) -> Forged {
        let status = cluster.status(from);
        let snapshot = cluster.places[&id].node.with_log(|log| log.base().clone());
        let metadata = snapshot.get_metadata();
        Forged {
            cluster: status.cluster.unwrap().bits(),
            from,
            to,
            term: status.term,
            index: metadata.index,
            index_term: metadata.term,
            voters: metadata.get_conf_state().voters.clone(),
            learners: metadata.get_conf_state().learners.clone(),
            total: snapshot.data.len() as u64,
            checksum: crc32c::crc32c(&snapshot.data),
            bytes: snapshot.data.to_vec(),
        }
    }

    fn piece(&self) -> MsgBuf {
        let mut out = vec![wire::VERSION, 0, 0, 0];
        out.extend_from_slice(&self.checksum.to_le_bytes());
        let words = [self.cluster, self.from, self.to, self.term, self.index, self.index_term, self.total, 0];
        words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        for ids in [&self.voters, &self.learners] {
            out.extend_from_slice(&(ids.len() as u32).to_le_bytes());
        }
        self.voters.iter().chain(&self.learners).for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
        out.extend_from_slice(&self.bytes);
        let mut piece = MsgBuf::with_len(out.len()).unwrap();
        piece.copy_from_slice(&out);
        piece
    }

    /// Sends it without waiting for the answer.
    pub fn post(&self, cluster: &Cluster) {
        let (piece, connecting) = (self.piece(), cluster.endpoint.connect(&Addr::Node(self.to as u32)));
        cluster.endpoint.spawn(async move {
            let session = connecting.await.unwrap();
            drop(session.call_with(wire::CHUNK, piece, CallOptions::timeout(Duration::from_millis(50))).await);
        });
    }

    /// Sends it, and returns where the next piece must begin; `None` if the piece is refused.
    pub fn send(&self, cluster: &Cluster) -> Option<u64> {
        let piece = self.piece();
        let answer = cluster.drive(async {
            let session = cluster.endpoint.connect(&Addr::Node(self.to as u32)).await.unwrap();
            session.call_with(wire::CHUNK, piece, CallOptions::timeout(Duration::from_millis(50))).await.ok()
        });
        answer.map(|reply| u64::from_le_bytes(reply.response[..].try_into().unwrap()))
    }
}
