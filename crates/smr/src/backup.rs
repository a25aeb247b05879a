//! Backups: copies of a cluster's state, kept outside of it, from which another cluster can be founded.
//!
//! A copy is a file: a header, then each group's state in the order of groups. All numbers are little-endian.
//!
//! | Bytes | Header |
//! |---|---|
//! | 8 | `\x89DNLBK\r\n` |
//! | 4 | version of the format: 1 |
//! | 4 | number of groups |
//! | 8 | number of the cluster |
//! | 8 | time of the copy: seconds since 1970 |
//! | 4 | CRC-32C of the above |
//! | 4 | 0 |
//!
//! | Bytes | Group |
//! |---|---|
//! | 8 | index of the last entry applied to the state |
//! | 8 | term of that entry |
//! | 8 | length of the state, in bytes |
//! | 4 | CRC-32C of the state |
//! | 4 | CRC-32C of the group's number (four bytes) and of the fields above |
//! | | the state: a snapshot in the replicas' format (`docs/log-format.md`), which includes the clients' sessions |
//!
//! The state of each group is of one instant, and contains all writes that were acknowledged before the copy began. The
//! states of different groups are of different instants.
//!
//! The new cluster has a number of its own, one member, and no sessions. It rejects commands from clients of the old
//! cluster, since they name the old number. Its entries are numbered after the last entry of the copy, so versions
//! derived from entry numbers keep rising.

use std::io::{self, Read, Write};

use bytes::Bytes;
use dunlin_net::Addr;
use raft::eraftpb::{ConfState, HardState, Snapshot};

use crate::cluster_id::ClusterId;
use crate::log::{Batch, LogError, LogStore, Urgency};
use crate::machine::RestoreError;
use crate::state::{Origin, machine_part, refounded};
use crate::wal::format::{u32_at, u64_at};

const MAGIC: [u8; 8] = *b"\x89DNLBK\r\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 40;
const GROUP_HEADER_BYTES: usize = 32;
/// Longest state of a group that is accepted: the replicas' default limit for snapshots.
const STATE_BYTES_MAX: u64 = 4 << 30;
/// Bytes read at a time: a false length cannot reserve more memory than this.
const READ_BYTES: u64 = 1 << 20;

/// What the header of a copy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// The cluster that was copied.
    pub cluster: ClusterId,
    /// The number of groups.
    pub groups: u16,
    /// The time of the copy: seconds since 1970.
    pub made: u64,
}

/// The state of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupState {
    /// The last entry applied to the state.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// The state, in the format of replicas' snapshots.
    pub snapshot: Bytes,
}

impl GroupState {
    /// Returns the cluster that the state is of.
    ///
    /// # Errors
    /// If the bytes are not a valid state.
    pub fn cluster(&self) -> Result<ClusterId, RestoreError> {
        Origin::of_snapshot(&self.snapshot).map(|origin| origin.cluster)
    }

    /// Returns the state machine's part, as [`crate::StateMachine::restore`] takes it.
    ///
    /// # Errors
    /// If the bytes are not a valid state.
    pub fn of_machine(&self) -> Result<&[u8], RestoreError> {
        machine_part(&self.snapshot)
    }
}

/// A copy that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The copy cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The copy is corrupt.
    #[error("{0}")]
    Damaged(String),
    /// The copy has an unsupported version.
    #[error("it is of version {found} of the format, which this program does not read: use the program that wrote it")]
    Version {
        /// The version found.
        found: u32,
    },
    /// The bytes of a group are not a valid state.
    #[error("group {group}: {error}")]
    State {
        /// The group.
        group: u16,
        /// The reason.
        error: RestoreError,
    },
}

/// Writes a copy.
#[derive(Debug)]
pub struct BackupWriter<W> {
    out: W,
    next: u16,
    about: About,
}

impl<W: Write> BackupWriter<W> {
    /// Begins a copy.
    ///
    /// # Errors
    /// I/O errors of `out`.
    pub fn begin(mut out: W, about: About) -> io::Result<BackupWriter<W>> {
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&u32::from(about.groups).to_le_bytes());
        header.extend_from_slice(&about.cluster.bits().to_le_bytes());
        header.extend_from_slice(&about.made.to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        out.write_all(&header)?;
        Ok(BackupWriter { out, next: 0, about })
    }

    /// Adds the next group.
    ///
    /// # Errors
    /// I/O errors of `out`.
    ///
    /// # Panics
    /// If all groups have been added.
    pub fn add(&mut self, state: &GroupState) -> io::Result<()> {
        assert!(self.next < self.about.groups, "a copy has as many groups as it says");
        let header = group_header(self.next, state.index, state.term, &state.snapshot);
        self.out.write_all(&header)?;
        self.next += 1;
        self.out.write_all(&state.snapshot)
    }

    /// Returns the writer.
    ///
    /// # Panics
    /// If groups are missing.
    pub fn finish(self) -> W {
        assert_eq!(self.next, self.about.groups, "a copy has as many groups as it says");
        self.out
    }
}

fn group_header(group: u16, index: u64, term: u64, state: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(GROUP_HEADER_BYTES);
    for word in [index, term, state.len() as u64] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header.extend_from_slice(&crc32c::crc32c(state).to_le_bytes());
    let checksum = header_checksum(group, &header);
    header.extend_from_slice(&checksum.to_le_bytes());
    header
}

fn header_checksum(group: u16, header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&u32::from(group).to_le_bytes()), header)
}

/// Reads a copy, which may be corrupt or forged.
#[derive(Debug)]
pub struct BackupReader<R> {
    from: R,
    about: About,
    next: u16,
}

impl<R: Read> BackupReader<R> {
    /// Begins to read a copy.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn begin(mut from: R) -> Result<BackupReader<R>, BackupError> {
        let header: [u8; HEADER_BYTES] = read_array(&mut from, "its header")?;
        if header[..8] != MAGIC {
            return Err(damaged("it is no copy of a cluster that `dunlin raft backup` made"));
        }
        let version = u32_at(&header, 8);
        if version != VERSION {
            return Err(BackupError::Version { found: version });
        }
        if u32_at(&header, 32) != crc32c::crc32c(&header[..32]) {
            return Err(damaged("its header is not as it was written"));
        }
        let groups = u16::try_from(u32_at(&header, 12)).ok().filter(|groups| *groups > 0);
        let cluster = ClusterId::from_bits(u64_at(&header, 16));
        let (Some(groups), Some(cluster)) = (groups, cluster) else {
            return Err(damaged("its header says what no cluster is"));
        };
        Ok(BackupReader { from, about: About { cluster, groups, made: u64_at(&header, 24) }, next: 0 })
    }

    /// Returns what the header says.
    pub fn about(&self) -> About {
        self.about
    }

    /// Returns the state of the next group; `None` after the last one.
    ///
    /// # Errors
    /// [`BackupError`], also if anything follows the last group.
    pub fn next_group(&mut self) -> Result<Option<GroupState>, BackupError> {
        let group = self.next;
        if group == self.about.groups {
            return match self.from.read(&mut [0; 1])? {
                0 => Ok(None),
                _ => Err(damaged("something follows its end")),
            };
        }
        self.next += 1;
        let header: [u8; GROUP_HEADER_BYTES] = read_array(&mut self.from, &format!("group {group}"))?;
        if u32_at(&header, 28) != header_checksum(group, &header[..28]) {
            return Err(damaged(&format!("the header of group {group} is not as it was written")));
        }
        let (index, term, len) = (u64_at(&header, 0), u64_at(&header, 8), u64_at(&header, 16));
        // There must be room for entries after it.
        if index == 0 || term == 0 || index > 1 << 62 || term > 1 << 61 || len > STATE_BYTES_MAX {
            return Err(damaged(&format!("group {group} is of no log that there can be")));
        }
        let mut data = Vec::new();
        while (data.len() as u64) < len {
            let more = READ_BYTES.min(len - data.len() as u64);
            if self.from.by_ref().take(more).read_to_end(&mut data)? as u64 != more {
                return Err(damaged(&format!("it ends before the state of group {group} does")));
            }
        }
        if crc32c::crc32c(&data) != u32_at(&header, 24) {
            return Err(damaged(&format!("the state of group {group} is not as it was written")));
        }
        let state = GroupState { index, term, snapshot: data.into() };
        match state.cluster().map_err(|error| BackupError::State { group, error })? {
            cluster if cluster == self.about.cluster => Ok(Some(state)),
            other => Err(damaged(&format!("the state of group {group} is of cluster {other}"))),
        }
    }
}

fn damaged(what: &str) -> BackupError {
    BackupError::Damaged(what.to_owned())
}

fn read_array<const N: usize>(from: &mut impl Read, what: &str) -> Result<[u8; N], BackupError> {
    let mut array = [0; N];
    match from.read_exact(&mut array) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(damaged(&format!("it ends before {what} does")))
        }
        read => Ok(read.map(|()| array)?),
    }
}

/// A new cluster that is founded with the state of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCluster {
    origin: Origin,
}

impl NewCluster {
    /// Draws a number for a cluster with this many groups and this replica as its only member.
    ///
    /// # Errors
    /// If the system cannot provide a random number.
    pub fn draw(id: u64, addr: &Addr, groups: u16) -> io::Result<NewCluster> {
        let cluster = ClusterId::draw_afresh().map_err(|error| io::Error::other(error.to_string()))?;
        Ok(NewCluster { origin: Origin { cluster, groups, founders: [(id, addr.to_string())].into() } })
    }

    /// Returns the number of the cluster.
    pub fn number(&self) -> ClusterId {
        self.origin.cluster
    }

    /// Writes the states of another cluster into empty logs, one for each group in order: into all of them, or into
    /// none if a crash intervenes. Returns when that is durable.
    ///
    /// # Errors
    /// [`LogError`]: a state is invalid, or a log cannot be written.
    pub fn begin<L: LogStore>(&self, logs: &mut [L], states: &[GroupState]) -> Result<(), LogError> {
        let batches = states.iter().map(|state| self.first_batch(state)).collect::<Result<Vec<Batch>, _>>();
        let mut batches = batches.map_err(|error| LogError { why: error.to_string() })?;
        if let Some(last) = batches.last_mut() {
            // Logs that share a disk write everything collected so far with this batch.
            last.urgency = Urgency::Urgent;
        }
        for (log, batch) in logs.iter_mut().zip(batches) {
            log.append(batch)?;
        }
        logs.iter_mut().next_back().map_or(Ok(()), LogStore::close)
    }

    fn first_batch(&self, state: &GroupState) -> Result<Batch, RestoreError> {
        let mut snapshot = Snapshot { data: refounded(&state.snapshot, &self.origin)?.into(), ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (state.index, state.term);
        let voters = self.origin.founders.keys().copied().collect();
        metadata.set_conf_state(ConfState { voters, ..ConfState::default() });
        let hard_state = HardState { term: state.term, commit: state.index, ..HardState::default() };
        Ok(Batch { snapshot: Some(snapshot), hard_state: Some(hard_state), urgency: Urgency::Lazy, ..Batch::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::MemoryLog;
    use crate::machine::StateMachine;
    use crate::sessions::Limits;
    use crate::state::{Outcome, Replicated};
    use crate::wire::command::{Command, Kind};

    /// Records commands, one after the other.
    #[derive(Debug, Default)]
    struct Tape(Vec<u8>);

    impl StateMachine for Tape {
        fn apply(&mut self, _index: u64, command: &[u8], _reply: &mut Vec<u8>) {
            self.0.extend_from_slice(command);
        }

        fn query(&self, _query: &[u8], _reply: &mut Vec<u8>) {}

        fn snapshot(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.0);
        }

        fn fresh(&self) -> Result<Tape, RestoreError> {
            Ok(Tape::default())
        }

        fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
            self.0 = snapshot.to_vec();
            Ok(())
        }
    }

    const GROUPS: u16 = 3;

    fn cluster() -> ClusterId {
        ClusterId::from_bits(77).unwrap()
    }

    /// The state of a group with a session and a command.
    fn state(group: u16) -> GroupState {
        let limits = Limits { sessions_max: 10, idle_max: 1000, reply_bytes_max: 1000 };
        let founders = [(5, "shm:five".to_owned())];
        let mut state = Replicated::new(Box::new(Tape::default()), limits, founders.clone().into());
        state.origin = Some(Origin { cluster: cluster(), groups: GROUPS, founders: founders.into() });
        let mut execute = |index, kind, session, body: &[u8]| {
            let command = Command { kind, time: 9, session, sequence: 1, waits_from: 1, body };
            let mut entry = vec![0; command.encoded_len()];
            command.encode(&mut entry);
            assert!(matches!(state.apply(index, &entry), Outcome::Reply(_)));
        };
        execute(2, Kind::OpenSession, 0, b"");
        execute(3, Kind::Apply, 2, format!("group {group}").as_bytes());
        GroupState { index: 3 + u64::from(group), term: 4, snapshot: state.snapshot().into() }
    }

    fn written() -> Vec<u8> {
        let about = About { cluster: cluster(), groups: GROUPS, made: 1234 };
        let mut copy = BackupWriter::begin(Vec::new(), about).unwrap();
        (0..GROUPS).for_each(|group| copy.add(&state(group)).unwrap());
        copy.finish()
    }

    fn read(bytes: &[u8]) -> Result<Vec<GroupState>, BackupError> {
        let mut copy = BackupReader::begin(bytes)?;
        std::iter::from_fn(|| copy.next_group().transpose()).collect()
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let whole = written();
        assert_eq!(
            BackupReader::begin(&whole[..]).unwrap().about(),
            About { cluster: cluster(), groups: GROUPS, made: 1234 }
        );
        assert_eq!(read(&whole).unwrap(), (0..GROUPS).map(state).collect::<Vec<_>>());
        for len in 0..whole.len() {
            assert!(read(&whole[..len]).is_err(), "{len} bytes of it");
        }
        // The last word of the header is reserved.
        for byte in (0..whole.len()).filter(|byte| !(36..40).contains(byte)) {
            let mut changed = whole.clone();
            changed[byte] ^= 1 << (byte % 8);
            assert!(read(&changed).is_err(), "byte {byte}");
        }
        assert!(read(&[&whole[..], &[0]].concat()).is_err());
    }

    #[test]
    fn a_length_that_is_a_lie_reserves_nothing() {
        let mut header = Vec::new();
        for word in [3, 4, STATE_BYTES_MAX] {
            header.extend_from_slice(&word.to_le_bytes());
        }
        header.extend_from_slice(&[0; 4]);
        let checksum = header_checksum(0, &header);
        header.extend_from_slice(&checksum.to_le_bytes());
        let lie = [&written()[..HEADER_BYTES], &header].concat();
        assert!(matches!(read(&lie), Err(BackupError::Damaged(_))));
    }

    #[test]
    fn a_new_cluster_has_the_state_and_no_sessions() {
        let states: Vec<GroupState> = (0..GROUPS).map(state).collect();
        let addr = "udp://127.0.0.1:1".parse().unwrap();
        let new = NewCluster::draw(8, &addr, GROUPS).unwrap();
        let mut logs: Vec<MemoryLog> = (0..GROUPS).map(|_| MemoryLog::new()).collect();
        new.begin(&mut logs, &states).unwrap();
        for (group, log) in logs.iter().enumerate() {
            let metadata = log.base().get_metadata();
            assert_eq!(
                (metadata.index, metadata.term, log.hard_state().commit),
                (3 + group as u64, 4, 3 + group as u64)
            );
            assert_eq!(metadata.get_conf_state().voters, [8]);
            let state = GroupState { index: 1, term: 1, snapshot: log.base().data.clone() };
            assert_eq!(state.cluster().unwrap(), new.number());
            assert_eq!(state.of_machine().unwrap(), format!("group {group}").as_bytes());
            let members = crate::state::members_of_snapshot(&state.snapshot).unwrap();
            assert_eq!(members, [(8, addr.to_string())].into());
            assert!(state.snapshot.len() < states[group].snapshot.len(), "sessions are gone");
        }
    }
}
