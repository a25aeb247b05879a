//! Requests of clients to a replica. The first byte is the kind: a [`Kind`] begins a [`Command`]; the others are
//! defined here. In all of them, bytes 2 and 3 are the group, and bytes 4 to 7 the cluster, or 0 if the client knows no
//! number yet: then the replica tells it the number, and does nothing else.

use std::ops::Range;

use super::bytes::{Reader, Writer};
use super::command::{Command, Kind};
use super::members::{
    Members, encode as encode_members, encoded_len as members_len, parse as parse_members, parse_address,
};
use super::{GROUP, WireError};
use crate::cluster_id::ClusterId;

const READ: u8 = 16;
const INDEX: u8 = 17;
const PIECE: u8 = 18;
/// Flag of a read: this replica is to answer, leader or not.
const HERE: u8 = 1;
const STATUS: u8 = 32;
const CHANGE: u8 = 33;
const TRANSFER: u8 = 34;
const FOUNDED: u8 = 35;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// Append the command to the log, and execute it when it is committed.
    Command(Command<'a>),
    /// Answer a query as of now.
    Read(&'a [u8]),
    /// The same, of this replica whether it leads or not: a follower asks its leader for the commit index, and answers
    /// when it has executed that entry.
    ReadHere(&'a [u8]),
    /// Ask a leader for the current commit index.
    Index,
    /// Get a piece of a snapshot of this replica's state.
    Piece {
        /// The state must have the effects of at least this entry.
        least: u64,
        /// The last entry in the snapshot that the earlier pieces are from; 0 for the first piece.
        index: u64,
        /// The offset of the piece.
        offset: u64,
    },
    /// Get this replica's status, which it tells to everybody, whichever cluster the request names.
    Status,
    /// Change the membership of the cluster.
    Change(Change),
    /// Make another replica leader.
    Transfer {
        /// Its id.
        to: u64,
    },
    /// Get the number of the cluster that these members have founded. A first member that has none yet asks for it.
    Founded {
        /// All first members, with their addresses.
        founders: Members,
        /// The number of groups.
        groups: u16,
    },
}

/// A membership change. One at a time: the next is refused until the previous one is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Add a replica without a vote: it gets the log, but does not count towards a majority.
    AddLearner {
        /// Its id, never used before.
        id: u64,
        /// Its address, in the syntax of [`dunlin_net::Addr`].
        address: String,
    },
    /// Give a learner a vote.
    Promote {
        /// Its id.
        id: u64,
    },
    /// Remove a replica.
    Remove {
        /// Its id.
        id: u64,
    },
    /// Change the address of a replica that is no longer heard at its old one, and returns with its log.
    Move {
        /// Its id.
        id: u64,
        /// Its new address.
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
    /// Returns its length in bytes.
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

    /// Encodes it, and returns the number of bytes.
    ///
    /// # Panics
    /// If `out` does not have its length.
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
            Request::Piece { least, index, offset } => {
                [least, index, offset].into_iter().for_each(|word| writer.u64(*word))
            }
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

    /// Parses it.
    ///
    /// # Errors
    /// If it is malformed.
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
                let groups = u16::try_from(groups)
                    .map_err(|_| WireError::Unknown { field: "number of groups", value: groups })?;
                Request::Founded { founders: parse_members(&mut reader)?, groups }
            }
            _ => return Err(WireError::Unknown { field: "request", value: op.into() }),
        };
        reader.end()?;
        Ok(request)
    }
}

/// The field with the cluster in a request.
const CLUSTER: Range<usize> = 4..8;

/// Sets the cluster in an encoded request.
pub fn set_cluster(request: &mut [u8], cluster: ClusterId) {
    request[CLUSTER].copy_from_slice(&cluster.short().to_le_bytes());
}

/// Sets the group in an encoded request; without this it is group 0.
pub fn set_group(request: &mut [u8], group: u16) {
    request[GROUP].copy_from_slice(&group.to_le_bytes());
}

/// Whether a parsed request is for this cluster.
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
