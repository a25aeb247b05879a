//! Pieces of a snapshot, sent in order, each when the previous one was taken: so a snapshot of any size is sent in
//! messages of limited size.

use raft::eraftpb::{ConfState, Snapshot};

use super::bytes::{Reader, Writer};
use super::{VERSION, WireError, cluster_of};

/// Maximum number of replicas in a configuration.
const IDS_MAX: usize = 64;
/// The highest index of an entry, so that there is room for more after it.
const INDEX_MAX: u64 = 1 << 62;

/// A piece: its header, then its bytes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chunk<'a> {
    /// The group whose state it contains.
    pub group: u16,
    /// The cluster of all replicas involved.
    pub cluster: u64,
    /// The sender.
    pub from: u64,
    /// The receiver.
    pub to: u64,
    /// The sender's term.
    pub term: u64,
    /// The last log entry that the snapshot covers.
    pub index: u64,
    /// The term of that entry.
    pub index_term: u64,
    /// Voting replicas, as of that entry.
    pub voters: Vec<u64>,
    /// Learners.
    pub learners: Vec<u64>,
    /// The length of the whole snapshot.
    pub total: u64,
    /// The offset of this piece.
    pub offset: u64,
    /// CRC-32C of the snapshot up to the end of this piece.
    pub checksum: u32,
    /// The piece's bytes: at least one.
    pub bytes: &'a [u8],
}

impl Chunk<'_> {
    /// Returns its length in bytes.
    pub fn encoded_len(&self) -> usize {
        8 + 8 * 8 + 8 + 8 * (self.voters.len() + self.learners.len()) + self.bytes.len()
    }

    /// Encodes it, and returns the number of bytes.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer::new(out);
        writer.u8(VERSION);
        writer.u8(0);
        writer.u16(self.group);
        writer.u32(self.checksum);
        let words = [self.cluster, self.from, self.to, self.term, self.index, self.index_term, self.total, self.offset];
        words.into_iter().for_each(|word| writer.u64(word));
        writer.u32(self.voters.len() as u32);
        writer.u32(self.learners.len() as u32);
        self.voters.iter().chain(&self.learners).for_each(|id| writer.u64(*id));
        writer.bytes(self.bytes);
        debug_assert!(writer.is_full());
        writer.len()
    }

    /// Returns the snapshot that it belongs to, without its data.
    pub fn header(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.index;
        metadata.term = self.index_term;
        metadata.set_conf_state(ConfState {
            voters: self.voters.clone(),
            learners: self.learners.clone(),
            ..ConfState::default()
        });
        snapshot
    }
}

/// Parses a piece.
///
/// # Errors
/// If it is malformed, or of another cluster.
pub(crate) fn parse(bytes: &[u8], cluster: u64) -> Result<Chunk<'_>, WireError> {
    let theirs = cluster_of(bytes)?;
    if theirs != cluster {
        return Err(WireError::OtherCluster { theirs, ours: cluster });
    }
    let mut reader = Reader::new(bytes);
    reader.take(2)?;
    let group = reader.u16()?;
    let checksum = reader.u32()?;
    reader.take(8)?;
    let [from, to, term, index, index_term, total, offset] = {
        let mut words = [0; 7];
        for word in &mut words {
            *word = reader.u64()?;
        }
        words
    };
    let (voters, learners) = (reader.u32()? as usize, reader.u32()? as usize);
    if voters > IDS_MAX || learners > IDS_MAX {
        return Err(WireError::Unknown { field: "number of members", value: voters.max(learners) as u64 });
    }
    let mut ids = |count: usize| (0..count).map(|_| reader.u64()).collect::<Result<Vec<u64>, WireError>>();
    let (voters, learners) = (ids(voters)?, ids(learners)?);
    check_members(&voters, &learners)?;
    if index == 0 || index > INDEX_MAX {
        return Err(WireError::Unknown { field: "index", value: index });
    }
    // The library uses term 0 for entries that it does not have.
    if index_term == 0 || index_term > term {
        return Err(WireError::Unknown { field: "term of the index", value: index_term });
    }
    let bytes = reader.rest();
    if bytes.is_empty() {
        return Err(WireError::Short);
    }
    if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > total) {
        return Err(WireError::Long);
    }
    Ok(Chunk { group, cluster, from, to, term, index, index_term, voters, learners, total, offset, checksum, bytes })
}

/// Checks members for what the library could not handle: no voters, and ids that are 0 or repeated.
fn check_members(voters: &[u64], learners: &[u64]) -> Result<(), WireError> {
    if voters.is_empty() {
        return Err(WireError::Unknown { field: "number of voters", value: 0 });
    }
    let mut ids: Vec<u64> = voters.iter().chain(learners).copied().collect();
    ids.sort_unstable();
    let twice = ids.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    match twice.or(ids.first().copied().filter(|id| *id == 0)) {
        Some(value) => Err(WireError::Unknown { field: "id of a member", value }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{hash_set, vec};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            words in any::<[u32; 5]>(), terms in (1..9_u64, 0..9_u64), ids in hash_set(1..u64::MAX, 1..9), piece in vec(any::<u8>(), 1..50)
        ) {
            let [from, to, index, offset, checksum] = words.map(u64::from);
            let (index, index_term, term) = (index + 1, terms.0, terms.0 + terms.1);
            let mut voters: Vec<u64> = ids.into_iter().collect();
            let learners = voters.split_off(voters.len().div_ceil(2));
            let total = offset + piece.len() as u64;
            let chunk = Chunk { group: 5, cluster: 3, from, to, term, index, index_term, voters, learners, total, offset, checksum: checksum as u32, bytes: &piece };
            let mut out = vec![0; chunk.encoded_len()];
            chunk.encode(&mut out);
            prop_assert_eq!(parse(&out, 3).unwrap(), chunk.clone());
            prop_assert_eq!(crate::wire::group_of(&out), Some(5));
            prop_assert!(parse(&out, 4).is_err());
        }

        #[test]
        fn any_bytes_give_a_piece_or_an_error(mut bytes in vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, 0);
            if bytes.len() > 16 {
                bytes[0] = VERSION;
                bytes[8..16].fill(0);
                let _ = parse(&bytes, 0);
            }
        }
    }
}
