//! What clients ask a replica. The first byte says what: one of [`Kind`] begins a [`Command`], the rest stand here. Bytes 2 and 3 of all of them say which group is asked, and bytes 4 to 7 which
//! cluster, 0 if its client knows no number yet: then it is told one, and nothing is done.

use std::ops::Range;

use super::bytes::{Reader, Writer};
use super::command::{Command, Kind};
use super::members::{Members, encode as encode_members, encoded_len as members_len, parse as parse_members, parse_address};
use super::{GROUP, WireError};
use crate::cluster_id::ClusterId;

const READ: u8 = 16;
const INDEX: u8 = 17;
const PIECE: u8 = 18;
/// Of a read: whoever is asked is to answer.
const HERE: u8 = 1;
const STATUS: u8 = 32;
const CHANGE: u8 = 33;
const TRANSFER: u8 = 34;
const FOUNDED: u8 = 35;

/// Something that is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// To append a command to the log and execute it when it is committed.
    Command(Command<'a>),
    /// To answer a question as of now.
    Read(&'a [u8]),
    /// The same, of this replica whether it leads or not: one that follows asks its leader how much is committed, and answers
    /// when it has executed so much.
    ReadHere(&'a [u8]),
    /// The last entry that is committed as of now, of a leader.
    Index,
    /// A piece of a snapshot of the state of this replica.
    Piece {
        /// The state has the effects of this entry, at least.
        least: u64,
        /// The last entry in the snapshot of which the pieces before were; 0 for the first piece.
        index: u64,
        /// Where the piece begins.
        offset: u64,
    },
    /// How this replica is. It says so to everybody, whichever cluster is asked.
    Status,
    /// To change who belongs to the cluster.
    Change(Change),
    /// To make another replica leader.
    Transfer {
        /// Its id.
        to: u64,
    },
    /// The number of the cluster that these have founded: one of them asks, which has none yet.
    Founded {
        /// All first members, with their addresses.
        founders: Members,
        /// How many groups it has.
        groups: u16,
    },
}

/// A change of the cluster. One at a time: the next is refused until the one before is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A replica without a vote is added: it gets the log, and is not counted.
    AddLearner {
        /// Its id, never used before.
        id: u64,
        /// Where it is reached, as [`dunlin_net::Addr`] reads it.
        address: String,
    },
    /// A learner gets a vote.
    Promote {
        /// Its id.
        id: u64,
    },
    /// A replica leaves.
    Remove {
        /// Its id.
        id: u64,
    },
    /// A replica that is not heard of where it was, and comes back with its log, is reached elsewhere.
    Move {
        /// Its id.
        id: u64,
        /// Where it is reached from now on.
        address: String,
    },
}

impl Change {
    fn words(&self) -> (u8, u64, &str) {
        match self {
            Change::AddLearner { id, address } => (1, *id, address),
            Change::Promote { id } => (2, *id, ""),
            Change::Remove { id } => (3, *id, ""),
            Change::Move { id, address } => (4, *id, address),
        }
    }
}

impl<'a> Request<'a> {
    /// Bytes that it takes.
    pub fn encoded_len(&self) -> usize {
        match self {
            Request::Command(command) => command.encoded_len(),
            Request::Read(query) | Request::ReadHere(query) => 8 + query.len(),
            Request::Status | Request::Index => 8,
            Request::Piece { .. } => 8 + 3 * 8,
            Request::Change(change) => 16 + change.words().2.len(),
            Request::Transfer { .. } => 16,
            Request::Founded { founders, .. } => 16 + members_len(founders),
        }
    }

    /// Writes it, and gives its bytes.
    ///
    /// # Panics
    /// If `out` is not of its length.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let mut writer = match self {
            Request::Command(command) => return command.encode(out),
            _ => Writer::new(out),
        };
        let (op, detail) = match self {
            Request::Command(_) | Request::Read(_) => (READ, 0),
            Request::ReadHere(_) => (READ, HERE),
            Request::Index => (INDEX, 0),
            Request::Piece { .. } => (PIECE, 0),
            Request::Status => (STATUS, 0),
            Request::Change(change) => (CHANGE, change.words().0),
            Request::Transfer { .. } => (TRANSFER, 0),
            Request::Founded { .. } => (FOUNDED, 0),
        };
        writer.bytes(&[op, detail, 0, 0, 0, 0, 0, 0]);
        match self {
            Request::Read(query) | Request::ReadHere(query) => writer.bytes(query),
            Request::Piece { least, index, offset } => [least, index, offset].into_iter().for_each(|word| writer.u64(*word)),
            Request::Change(change) => {
                let (_, id, address) = change.words();
                writer.u64(id);
                writer.bytes(address.as_bytes());
            }
            Request::Transfer { to } => writer.u64(*to),
            Request::Founded { founders, groups } => {
                writer.u64(u64::from(*groups));
                encode_members(&mut writer, founders);
            }
            Request::Command(_) | Request::Status | Request::Index => {}
        }
        assert!(writer.is_full(), "a request is written to memory of its length");
        writer.len()
    }

    /// Reads it.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(bytes: &'a [u8]) -> Result<Request<'a>, WireError> {
        let mut reader = Reader::new(bytes);
        let op = reader.u8()?;
        if Kind::parse(op).is_ok() {
            return Command::parse(bytes).map(Request::Command);
        }
        let detail = reader.u8()?;
        reader.take(6)?;
        let request = match op {
            READ if detail == HERE => return Ok(Request::ReadHere(reader.rest())),
            READ => return Ok(Request::Read(reader.rest())),
            INDEX => Request::Index,
            PIECE => Request::Piece { least: reader.u64()?, index: reader.u64()?, offset: reader.u64()? },
            STATUS => Request::Status,
            CHANGE => {
                let id = reader.u64()?;
                let address = reader.take(reader.left())?;
                match (detail, address.is_empty()) {
                    (1, _) => Request::Change(Change::AddLearner { id, address: parse_address(address)? }),
                    (4, _) => Request::Change(Change::Move { id, address: parse_address(address)? }),
                    (2, true) => Request::Change(Change::Promote { id }),
                    (3, true) => Request::Change(Change::Remove { id }),
                    _ => return Err(WireError::Unknown { field: "change", value: detail.into() }),
                }
            }
            TRANSFER => Request::Transfer { to: reader.u64()? },
            FOUNDED => {
                let groups = reader.u64()?;
                let groups =
                    u16::try_from(groups).map_err(|_| WireError::Unknown { field: "number of groups", value: groups })?;
                Request::Founded { founders: parse_members(&mut reader)?, groups }
            }
            _ => return Err(WireError::Unknown { field: "request", value: op.into() }),
        };
        reader.end()?;
        Ok(request)
    }
}

/// Where a request says which cluster is asked.
const CLUSTER: Range<usize> = 4..8;

/// Writes into a request which cluster is asked.
pub fn set_cluster(request: &mut [u8], cluster: ClusterId) {
    request[CLUSTER].copy_from_slice(&cluster.short().to_le_bytes());
}

/// Writes into a request which group is asked; without it, that is group 0.
pub fn set_group(request: &mut [u8], group: u16) {
    request[GROUP].copy_from_slice(&group.to_le_bytes());
}

/// Whether a request that was parsed is for this cluster.
pub(crate) fn is_for(request: &[u8], cluster: ClusterId) -> bool {
    request[CLUSTER] == cluster.short().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::wire::group_of;

    #[test]
    fn what_is_written_is_read() {
        let command = Command { kind: Kind::Apply, time: 1, session: 2, sequence: 3, waits_from: 4, body: b"do" };
        let all = [
            Request::Command(command),
            Request::Command(Command { kind: Kind::OpenSession, body: b"", ..command }),
            Request::Read(b"what"),
            Request::ReadHere(b"what"),
            Request::Index,
            Request::Piece { least: 5, index: 7, offset: 9 },
            Request::Status,
            Request::Change(Change::AddLearner { id: 4, address: "udp://127.0.0.1:1".into() }),
            Request::Change(Change::Promote { id: 4 }),
            Request::Change(Change::Remove { id: 4 }),
            Request::Change(Change::Move { id: 4, address: "udp://127.0.0.1:2".into() }),
            Request::Transfer { to: 9 },
            Request::Founded { founders: [(1, "udp://127.0.0.1:1".into()), (2, "shm:two".into())].into(), groups: 8 },
        ];
        for request in all {
            let mut out = vec![0; request.encoded_len()];
            request.encode(&mut out);
            assert_eq!(Request::parse(&out).unwrap(), request);
            let cluster = |bits| ClusterId::from_bits(bits).unwrap();
            let others = [7, 8, 7 << 32 | 1, u64::MAX - 1].map(cluster);
            assert!(others.iter().all(|other| !is_for(&out, *other)));
            assert_eq!(group_of(&out), Some(0));
            set_group(&mut out, 300);
            assert_eq!(group_of(&out), Some(300));
            set_cluster(&mut out, cluster(7));
            assert_eq!(Request::parse(&out).unwrap(), request);
            assert!(is_for(&out, cluster(7)) && others[1..].iter().all(|other| !is_for(&out, *other)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_request_or_an_error(mut bytes in vec(any::<u8>(), 0..100), op in 0u8..40) {
            let _ = Request::parse(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = op;
            }
            let _ = Request::parse(&bytes);
        }
    }
}
