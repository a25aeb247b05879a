//! Responses to clients: 8 bytes, the first of which is the result, then data that depends on it.

use super::WireError;
use super::bytes::{Reader, Writer};
use crate::cluster_id::{ClusterId, bits};

use super::members::{
    Members, encode as encode_members, encoded_len as members_len, parse as parse_members, parse_address,
};

/// Bytes of the header before a reply.
pub const RESPONSE_BYTES: usize = 8;
const OK: u8 = 0;
const NOT_LEADER: u8 = 1;
const BUSY: u8 = 2;
const NO_SESSION: u8 = 3;
const OLD: u8 = 4;
const REFUSED: u8 = 5;
const FAILED: u8 = 6;
const BAD: u8 = 7;
const TOO_LARGE: u8 = 8;
const DEPOSED: u8 = 9;
const OTHER_CLUSTER: u8 = 10;
const NO_GROUP: u8 = 11;

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response<'a> {
    /// The request was done; this is the reply.
    Ok(&'a [u8]),
    /// This replica does not lead. Nothing was done.
    NotLeader {
        /// The leader, as far as this replica knows.
        leader: Option<(u64, String)>,
    },
    /// This replica led when the request came, but no longer leads. A command may have been committed nevertheless, or
    /// may be yet.
    Deposed {
        /// The leader, as far as this replica knows.
        leader: Option<(u64, String)>,
    },
    /// A queue is full. Nothing was done.
    Busy,
    /// The session has ended, or never existed. The command was not executed for this request.
    NoSession,
    /// The client has said that it no longer waits for this command. It was not executed for this request.
    Old,
    /// The request cannot be done, for this reason. Nothing was changed.
    Refused(String),
    /// This replica has failed, and does nothing any more.
    Failed,
    /// The request is malformed.
    Bad,
    /// The request is for another cluster. Nothing was done.
    OtherCluster {
        /// This replica's cluster.
        ours: ClusterId,
    },
    /// The command is longer than allowed. Nothing was done.
    TooLarge,
    /// The request is for a group that this process does not have. Nothing was done.
    NoGroup {
        /// The number of groups; they are numbered from 0.
        groups: u32,
    },
}

impl<'a> Response<'a> {
    /// Returns its length in bytes.
    pub fn encoded_len(&self) -> usize {
        RESPONSE_BYTES
            + match self {
                Response::Ok(reply) => reply.len(),
                Response::NotLeader { leader: Some((_, address)) }
                | Response::Deposed { leader: Some((_, address)) } => 8 + address.len(),
                Response::Refused(why) => why.len(),
                Response::OtherCluster { .. } | Response::NoGroup { .. } => 8,
                _ => 0,
            }
    }

    /// Encodes it, and returns the number of bytes.
    ///
    /// # Panics
    /// If `out` does not have its length.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer::new(out);
        let status = match self {
            Response::Ok(_) => OK,
            Response::NotLeader { .. } => NOT_LEADER,
            Response::Deposed { .. } => DEPOSED,
            Response::Busy => BUSY,
            Response::NoSession => NO_SESSION,
            Response::Old => OLD,
            Response::Refused(_) => REFUSED,
            Response::Failed => FAILED,
            Response::Bad => BAD,
            Response::TooLarge => TOO_LARGE,
            Response::OtherCluster { .. } => OTHER_CLUSTER,
            Response::NoGroup { .. } => NO_GROUP,
        };
        writer.bytes(&[status, 0, 0, 0, 0, 0, 0, 0]);
        match self {
            Response::Ok(reply) => writer.bytes(reply),
            Response::NotLeader { leader: Some((id, address)) } | Response::Deposed { leader: Some((id, address)) } => {
                writer.u64(*id);
                writer.bytes(address.as_bytes());
            }
            Response::Refused(why) => writer.bytes(why.as_bytes()),
            Response::OtherCluster { ours } => writer.u64(ours.bits()),
            Response::NoGroup { groups } => writer.u64((*groups).into()),
            _ => {}
        }
        assert!(writer.is_full(), "a response is written to memory of its length");
        writer.len()
    }

    /// Parses it.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Response<'a>, WireError> {
        let mut reader = Reader::new(bytes);
        let status = reader.u8()?;
        reader.take(7)?;
        let response = match status {
            OK => return Ok(Response::Ok(reader.rest())),
            NOT_LEADER => Response::NotLeader { leader: parse_leader(&mut reader)? },
            DEPOSED => Response::Deposed { leader: parse_leader(&mut reader)? },
            REFUSED => return Ok(Response::Refused(String::from_utf8_lossy(reader.rest()).into_owned())),
            BUSY => Response::Busy,
            NO_SESSION => Response::NoSession,
            OLD => Response::Old,
            FAILED => Response::Failed,
            BAD => Response::Bad,
            TOO_LARGE => Response::TooLarge,
            OTHER_CLUSTER => Response::OtherCluster { ours: parse_cluster(reader.u64()?)? },
            NO_GROUP => {
                let groups = reader.u64()?;
                let unknown = WireError::Unknown { field: "number of groups", value: groups };
                Response::NoGroup { groups: groups.try_into().map_err(|_| unknown)? }
            }
            _ => return Err(WireError::Unknown { field: "status", value: status.into() }),
        };
        reader.end()?;
        Ok(response)
    }
}

fn parse_cluster(value: u64) -> Result<ClusterId, WireError> {
    ClusterId::from_bits(value).ok_or(WireError::Unknown { field: "number of a cluster", value })
}

fn parse_leader(reader: &mut Reader<'_>) -> Result<Option<(u64, String)>, WireError> {
    if reader.left() == 0 {
        return Ok(None);
    }
    Ok(Some((reader.u64()?, parse_address(reader.take(reader.left())?)?)))
}

/// The role of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// It follows a leader, or waits for one.
    Follower = 0,
    /// It asks the others for pre-votes or votes.
    Candidate = 1,
    /// It leads.
    Leader = 2,
}

/// A replica of another cluster that contacted this one, or that this one contacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// Its id in its cluster.
    pub id: u64,
    /// Its cluster.
    pub cluster: ClusterId,
}

/// The status of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its id.
    pub id: u64,
    /// The number of its cluster; `None` while it waits to learn it, and takes part in nothing.
    pub cluster: Option<ClusterId>,
    /// The number of groups of its process, numbered from 0; 0 if its version has no groups, which amounts to one.
    pub groups: u16,
    /// For a process that waits to be added: the group count of a cluster that it cannot join, since its own differs.
    /// Start it with that count.
    pub other_groups: Option<u16>,
    /// Its role.
    pub role: Role,
    /// Whether its disk hangs: a write or flush takes longer than [`crate::NodeConfig::flush_elections_max`] allows.
    pub disk_hangs: bool,
    /// Its term.
    pub term: u64,
    /// The leader, as far as it knows.
    pub leader: Option<u64>,
    /// The first entry that it still has.
    pub first: u64,
    /// The last entry that it has.
    pub last: u64,
    /// Its commit index.
    pub committed: u64,
    /// The last entry that it has executed.
    pub applied: u64,
    /// The number of clients' sessions.
    pub sessions: u64,
    /// The longest pause of its other work for a snapshot of its state, since it was started, in nanoseconds.
    pub snapshot_pause_max: u64,
    /// Voting replicas.
    pub voters: Vec<u64>,
    /// Learners.
    pub learners: Vec<u64>,
    /// For a leader, the last entry that each replica is known to have, in the order of voters and learners.
    pub matched: Vec<u64>,
    /// Replicas of other clusters that it has contact with by mistake: one of the lists of addresses is wrong.
    pub foreign: Vec<Foreign>,
    /// The address of each replica.
    pub addresses: Members,
}

/// Maximum number of foreign replicas in a status. Each takes 16 bytes.
pub(crate) const FOREIGN_MAX: usize = 16;

impl Status {
    /// Returns its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let ids = [&self.voters, &self.learners, &self.matched];
        let lists = ids.iter().map(|ids| 4 + 8 * ids.len()).sum::<usize>() + 4 + 16 * self.foreign.len();
        let len = 8 + 10 * 8 + lists + members_len(&self.addresses);
        let mut out = vec![0; len];
        let mut writer = Writer::new(&mut out);
        writer.u8(self.role as u8);
        writer.u8(self.disk_hangs.into());
        writer.u16(self.groups);
        writer.u16(self.other_groups.unwrap_or(0));
        writer.u16(0);
        let leader = self.leader.unwrap_or(0);
        let log = [self.first, self.last, self.committed, self.applied];
        let words = [self.id, bits(self.cluster), self.term, leader];
        let words = words.into_iter().chain(log).chain([self.sessions, self.snapshot_pause_max]);
        words.for_each(|word| writer.u64(word));
        for ids in ids {
            writer.u32(ids.len() as u32);
            ids.iter().for_each(|id| writer.u64(*id));
        }
        writer.u32(self.foreign.len() as u32);
        self.foreign.iter().flat_map(|Foreign { id, cluster }| [*id, cluster.bits()]).for_each(|word| writer.u64(word));
        encode_members(&mut writer, &self.addresses);
        debug_assert!(writer.is_full());
        out
    }

    /// Parses a status.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Status, WireError> {
        let mut reader = Reader::new(bytes);
        let role = match reader.u8()? {
            0 => Role::Follower,
            1 => Role::Candidate,
            2 => Role::Leader,
            value => return Err(WireError::Unknown { field: "role", value: value.into() }),
        };
        let disk_hangs = reader.u8()? != 0;
        let (groups, other_groups) = (reader.u16()?, reader.u16()?);
        reader.take(2)?;
        let mut word = || reader.u64();
        let (id, cluster) = (word()?, ClusterId::from_bits(word()?));
        let (term, leader) = (word()?, word()?);
        let (first, last, committed, applied) = (word()?, word()?, word()?, word()?);
        let (sessions, snapshot_pause_max) = (word()?, word()?);
        let mut ids = || {
            let count = reader.u32()? as usize;
            if count > reader.left() / 8 {
                return Err(WireError::Short);
            }
            (0..count).map(|_| reader.u64()).collect::<Result<Vec<u64>, WireError>>()
        };
        let (voters, learners, matched) = (ids()?, ids()?, ids()?);
        let count = reader.u32()? as usize;
        if count > FOREIGN_MAX {
            return Err(WireError::Unknown { field: "number of foreign replicas", value: count as u64 });
        }
        let foreign = |_| Ok(Foreign { id: reader.u64()?, cluster: parse_cluster(reader.u64()?)? });
        let foreign = (0..count).map(foreign).collect::<Result<Vec<Foreign>, WireError>>()?;
        let addresses = parse_members(&mut reader)?;
        reader.end()?;
        let leader = (leader != 0).then_some(leader);
        Ok(Status {
            id,
            cluster,
            groups,
            other_groups: (other_groups != 0).then_some(other_groups),
            role,
            disk_hangs,
            term,
            leader,
            first,
            last,
            committed,
            applied,
            sessions,
            snapshot_pause_max,
            voters,
            learners,
            matched,
            foreign,
            addresses,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let all = [
            Response::Ok(b"reply"),
            Response::NotLeader { leader: None },
            Response::NotLeader { leader: Some((3, "shm:three".into())) },
            Response::Deposed { leader: None },
            Response::Deposed { leader: Some((3, "shm:three".into())) },
            Response::Busy,
            Response::NoSession,
            Response::Old,
            Response::Refused("why".into()),
            Response::Failed,
            Response::Bad,
            Response::TooLarge,
            Response::NoGroup { groups: 65_535 },
            Response::OtherCluster { ours: ClusterId::from_bits(7).unwrap() },
        ];
        for response in all {
            let mut out = vec![0; response.encoded_len()];
            response.encode(&mut out);
            assert_eq!(Response::parse(&out).unwrap(), response);
        }
        let status = Status {
            id: 1,
            cluster: ClusterId::from_bits(6),
            groups: 300,
            other_groups: Some(7),
            role: Role::Leader,
            disk_hangs: true,
            term: 2,
            leader: Some(1),
            first: 3,
            last: 9,
            committed: 8,
            applied: 7,
            sessions: 4,
            snapshot_pause_max: 5,
            voters: vec![1, 2],
            learners: vec![3],
            matched: vec![9, 9, 8],
            foreign: vec![Foreign { id: 2, cluster: ClusterId::from_bits(5).unwrap() }],
            addresses: [(1, "shm:one".to_owned())].into(),
        };
        assert_eq!(Status::parse(&status.encode()).unwrap(), status);
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer_or_an_error(bytes in vec(any::<u8>(), 0..200), status in 0u8..12) {
            let _ = (Response::parse(&bytes), Status::parse(&bytes));
            let _ = Response::parse(&[&[status, 0, 0, 0, 0, 0, 0, 0], &bytes[..]].concat());
            let _ = Status::parse(&[&[2, 0, 0, 0, 0, 0, 0, 0], &bytes[..]].concat());
        }
    }
}
