//! The whole replicated state: the user's machine, the sessions of its clients, and the members' addresses.

use crate::cluster_id::ClusterId;
use crate::config::NodeError;
use crate::erased::Machine;
use crate::machine::{Piece, RestoreError, free_beside};
use crate::mutation::{Mutation, is_planted};
use crate::sessions::{Admission, Limits, Sessions};
use crate::wire::WireError;
use crate::wire::bytes::{Reader, Writer};
use crate::wire::command::{Command, Kind};
use crate::wire::members::{self, Members};

/// The first bytes of every snapshot.
const MAGIC: u64 = u64::from_le_bytes(*b"dunlnsm3");
/// The first bytes of snapshots without the number of groups.
const MAGIC_WITHOUT_GROUPS: u64 = u64::from_le_bytes(*b"dunlnsm2");
/// The first bytes of snapshots from before clusters had numbers.
const MAGIC_WITHOUT_CLUSTER: u64 = u64::from_le_bytes(*b"dunlnsm1");

/// From this many sessions on, a thread frees them.
const MANY_SESSIONS: usize = 1024;

/// The replicated state.
pub(crate) struct Replicated {
    pub machine: Box<dyn Machine>,
    pub origin: Option<Origin>,
    pub sessions: Sessions,
    pub members: Members,
    /// The cluster's time, in nanoseconds: the latest time in any entry.
    pub time: u64,
    limits: Limits,
    /// The reply to the last command, if it was executed.
    reply: Vec<u8>,
}

/// The identity of a cluster, which never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub cluster: ClusterId,
    /// The number of groups of its processes; 0 if it was founded by a version that did not record it.
    pub groups: u16,
    /// The first members, with their initial addresses: those that have the number tell it to those that do not.
    pub founders: Members,
}

impl Origin {
    /// Returns the origin recorded in a snapshot.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn of_snapshot(snapshot: &[u8]) -> Result<Origin, RestoreError> {
        Origin::parse(&mut Reader::new(snapshot))
    }

    /// Checks that a process has as many groups as the cluster was founded with.
    ///
    /// # Errors
    /// [`NodeError::OtherGroups`].
    pub fn check_groups(&self, ours: u16) -> Result<(), NodeError> {
        match self.groups {
            theirs if theirs != 0 && theirs != ours => Err(NodeError::OtherGroups { ours, theirs }),
            _ => Ok(()),
        }
    }

    fn encoded_len(&self) -> usize {
        let groups = if self.groups > 0 { 8 } else { 0 };
        16 + groups + members::encoded_len(&self.founders)
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(if self.groups > 0 { MAGIC } else { MAGIC_WITHOUT_GROUPS });
        writer.u64(self.cluster.bits());
        if self.groups > 0 {
            writer.u64(self.groups.into());
        }
        members::encode(writer, &self.founders);
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Origin, RestoreError> {
        let has_groups = match reader.u64().map_err(wrong)? {
            MAGIC => true,
            MAGIC_WITHOUT_GROUPS => false,
            MAGIC_WITHOUT_CLUSTER => {
                return Err(RestoreError::new(
                    "it is of a version of this program whose clusters had no numbers of their own: read the items with that version, found a new cluster with \
                     this one, and write them there",
                ));
            }
            _ => return Err(RestoreError::new("it does not begin as one")),
        };
        let cluster = ClusterId::from_bits(reader.u64().map_err(wrong)?);
        let cluster = cluster.ok_or_else(|| RestoreError::new("it has no number of a cluster"))?;
        let groups = if has_groups { reader.u64().map_err(wrong)? } else { 0 };
        let groups = u16::try_from(groups).map_err(|_| RestoreError::new(format!("it is of {groups} groups")))?;
        Ok(Origin { cluster, groups, founders: members::parse(reader).map_err(wrong)? })
    }
}

/// Returns the members recorded in a snapshot, without restoring the rest.
///
/// # Errors
/// If the bytes are not a snapshot.
pub(crate) fn members_of_snapshot(snapshot: &[u8]) -> Result<Members, RestoreError> {
    members::parse(&mut past_sessions(snapshot)?.1).map_err(wrong)
}

/// Returns the machine's part of a snapshot.
///
/// # Errors
/// If the bytes are not a snapshot.
pub(crate) fn machine_part(snapshot: &[u8]) -> Result<&[u8], RestoreError> {
    past_sessions(snapshot).and_then(|(_, mut reader)| {
        members::parse(&mut reader).map_err(wrong)?;
        Ok(reader.rest())
    })
}

/// Converts a snapshot into the initial state of another cluster: without sessions, and with that cluster's first
/// members.
///
/// # Errors
/// If the bytes are not a snapshot.
pub(crate) fn refounded(snapshot: &[u8], origin: &Origin) -> Result<Vec<u8>, RestoreError> {
    let ((time, _), machine) = (past_sessions(snapshot)?, machine_part(snapshot)?);
    let none = Sessions::default();
    let len = origin.encoded_len() + 8 + none.encoded_len() + members::encoded_len(&origin.founders) + machine.len();
    let mut out = vec![0; len];
    let mut writer = Writer::new(&mut out);
    origin.encode(&mut writer);
    writer.u64(time);
    none.encode(&mut writer);
    members::encode(&mut writer, &origin.founders);
    writer.bytes(machine);
    Ok(out)
}

/// Returns the cluster's time, and a reader of the part after the sessions: members and machine.
fn past_sessions(snapshot: &[u8]) -> Result<(u64, Reader<'_>), RestoreError> {
    let mut reader = Reader::new(snapshot);
    Origin::parse(&mut reader)?;
    let time = reader.u64().map_err(wrong)?;
    let sessions = reader.u32().map_err(wrong)?;
    (0..sessions).try_for_each(|_| Sessions::skip_one(&mut reader)).map_err(wrong)?;
    Ok((time, reader))
}

/// The outcome of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    Reply(&'a [u8]),
    NoSession,
    Old,
    Busy,
}

impl Replicated {
    pub fn new(machine: Box<dyn Machine>, limits: Limits, members: Members) -> Replicated {
        Replicated { machine, origin: None, sessions: Sessions::default(), members, time: 0, limits, reply: Vec::new() }
    }

    /// Executes the command of an entry. Malformed bytes change nothing; a replica never sends them.
    pub fn apply(&mut self, index: u64, entry: &[u8]) -> Outcome<'_> {
        self.reply.clear();
        let Ok(command) = Command::parse(entry) else { return Outcome::Reply(&[]) };
        self.time = self.time.max(command.time);
        match command.kind {
            Kind::Apply => self.execute(index, &command),
            Kind::OpenSession => {
                // The index is unique, as an id must be.
                self.sessions.open(index, self.time, self.limits);
                self.reply.extend_from_slice(&index.to_le_bytes());
                Outcome::Reply(&self.reply)
            }
            Kind::CloseSession => {
                self.sessions.close(command.session);
                Outcome::Reply(&[])
            }
            Kind::KeepAlive => match self.sessions.keep(command.session, self.time, command.waits_from) {
                true => Outcome::Reply(&[]),
                false => Outcome::NoSession,
            },
        }
    }

    fn execute(&mut self, index: u64, command: &Command<'_>) -> Outcome<'_> {
        let Command { session, sequence, waits_from, body, .. } = *command;
        let Replicated { machine, sessions, reply, time, limits, .. } = self;
        if session == 0 || is_planted(Mutation::CommandRunsAgain) {
            machine.apply(index, body, reply);
            return Outcome::Reply(reply);
        }
        match sessions.admit(session, sequence, waits_from, *time) {
            Admission::New => {}
            Admission::Done(before) => {
                reply.extend_from_slice(before);
                return Outcome::Reply(reply);
            }
            Admission::NoSession => return Outcome::NoSession,
            Admission::Old => return Outcome::Old,
            Admission::TooMany => return Outcome::Busy,
        }
        machine.apply(index, body, reply);
        sessions.note(session, sequence, reply, *limits);
        Outcome::Reply(reply)
    }

    /// Returns the whole state as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = self.own_part();
        self.machine.snapshot(&mut out);
        out
    }

    /// Begins a snapshot, and returns its first piece.
    pub fn begin_snapshot(&mut self) -> Vec<u8> {
        let mut out = self.own_part();
        self.machine.begin_snapshot(&mut out);
        out
    }

    /// Returns everything but the machine as bytes.
    fn own_part(&self) -> Vec<u8> {
        let none = Sessions::default();
        let sessions = if is_planted(Mutation::SessionsNotInSnapshot) { &none } else { &self.sessions };
        let origin = self.origin.as_ref().expect("a replica takes part in nothing before it knows its cluster");
        let mut out = vec![0; origin.encoded_len() + 8 + sessions.encoded_len() + members::encoded_len(&self.members)];
        let mut writer = Writer::new(&mut out);
        origin.encode(&mut writer);
        writer.u64(self.time);
        sessions.encode(&mut writer);
        members::encode(&mut writer, &self.members);
        out
    }

    /// Returns an empty state with the settings of this one.
    pub fn fresh(&self) -> Result<Replicated, RestoreError> {
        Ok(Replicated::new(self.machine.fresh_machine()?, self.limits, Members::default()))
    }

    /// Frees it, outside of the event loop if it is large.
    pub fn discard(self) {
        if self.sessions.len() >= MANY_SESSIONS {
            free_beside(self.sessions);
        }
        self.machine.discard_machine();
    }
}

/// A state that is being restored from a snapshot.
pub(crate) struct Restore {
    state: Replicated,
    /// Bytes of the snapshot restored so far.
    at: usize,
    part: Part,
}

/// The next part of a snapshot.
enum Part {
    Head,
    /// This many sessions, then the members.
    Sessions(u32),
    /// The machine, from this offset on.
    Machine(usize),
    Nothing,
}

impl Restore {
    /// Begins with an empty state.
    pub fn new(state: Replicated) -> Restore {
        Restore { state, at: 0, part: Part::Head }
    }

    /// Restores about `bytes` more, possibly slightly more.
    ///
    /// # Errors
    /// If the bytes are not a snapshot of such a state. No further piece may follow then.
    pub fn take_piece(&mut self, snapshot: &[u8], bytes: usize) -> Result<Piece, RestoreError> {
        let end = self.at.saturating_add(bytes);
        loop {
            self.part = match self.part {
                Part::Head => self.take_head(snapshot),
                Part::Sessions(left) => self.take_sessions(snapshot, left, end),
                Part::Machine(from) => self.take_machine(snapshot, from, end),
                Part::Nothing => return Ok(Piece::Last),
            }?;
            if self.at >= end && !matches!(self.part, Part::Nothing) {
                return Ok(Piece::Another);
            }
        }
    }

    /// Returns the state, once all pieces are restored.
    pub fn into_state(self) -> Replicated {
        self.state
    }

    fn take_head(&mut self, snapshot: &[u8]) -> Result<Part, RestoreError> {
        let mut reader = Reader::new(snapshot);
        self.state.origin = Some(Origin::parse(&mut reader)?);
        self.state.time = reader.u64().map_err(wrong)?;
        let sessions = reader.u32().map_err(wrong)?;
        self.at = reader.position();
        Ok(Part::Sessions(sessions))
    }

    fn take_sessions(&mut self, snapshot: &[u8], mut left: u32, end: usize) -> Result<Part, RestoreError> {
        let mut reader = Reader::new(&snapshot[self.at..]);
        while left > 0 && self.at + reader.position() < end {
            self.state.sessions.restore_one(&mut reader).map_err(wrong)?;
            left -= 1;
        }
        if left == 0 {
            self.state.members = members::parse(&mut reader).map_err(wrong)?;
        }
        self.at += reader.position();
        Ok(if left == 0 { Part::Machine(self.at) } else { Part::Sessions(left) })
    }

    fn take_machine(&mut self, snapshot: &[u8], from: usize, end: usize) -> Result<Part, RestoreError> {
        let snapshot = &snapshot[from..];
        let begin = self.at - from;
        let next = self.state.machine.restore_piece(snapshot, begin, end.saturating_sub(self.at).max(1))?;
        if next > snapshot.len() || next <= begin && next < snapshot.len() {
            return Err(RestoreError::new("the machine took nothing of it"));
        }
        self.at = from + next;
        Ok(if next == snapshot.len() { Part::Nothing } else { Part::Machine(from) })
    }
}

fn wrong(error: WireError) -> RestoreError {
    RestoreError::new(error.to_string())
}
