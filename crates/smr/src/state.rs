//! All that is replicated: the user's machine, the sessions of its clients, and where the replicas are.

use crate::cluster_id::ClusterId;
use crate::machine::{RestoreError, StateMachine};
use crate::mutation::{Mutation, is_planted};
use crate::sessions::{Admission, Limits, Sessions};
use crate::wire::bytes::{Reader, Writer};
use crate::wire::command::{Command, Kind};
use crate::wire::members::{self, Members};

/// Begins every snapshot.
const MAGIC: u64 = u64::from_le_bytes(*b"dunlnsm2");
/// Began those of a time when clusters had no numbers of their own.
const MAGIC_WITHOUT_CLUSTER: u64 = u64::from_le_bytes(*b"dunlnsm1");

/// The replicated state.
pub(crate) struct Replicated<M> {
    pub machine: M,
    pub origin: Option<Origin>,
    pub sessions: Sessions,
    pub members: Members,
    /// The time of the cluster, in nanoseconds: the latest of all entries.
    pub time: u64,
    limits: Limits,
    /// The reply to the last command, if it was executed.
    reply: Vec<u8>,
}

/// What tells a cluster from others, as long as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub cluster: ClusterId,
    /// The first members, with the addresses that they had: who of them has no number yet is told it by the others.
    pub founders: Members,
}

impl Origin {
    /// That of the state that a snapshot holds.
    ///
    /// # Errors
    /// If it is no snapshot.
    pub fn of_snapshot(snapshot: &[u8]) -> Result<Origin, RestoreError> {
        Origin::parse(&mut Reader::new(snapshot))
    }

    fn encoded_len(&self) -> usize {
        16 + members::encoded_len(&self.founders)
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(MAGIC);
        writer.u64(self.cluster.bits());
        members::encode(writer, &self.founders);
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Origin, RestoreError> {
        let wrong = |error| RestoreError::new(format!("{error}"));
        match reader.u64().map_err(wrong)? {
            MAGIC => {}
            MAGIC_WITHOUT_CLUSTER => {
                return Err(RestoreError::new(
                    "it is of a version of this program whose clusters had no numbers of their own: read the items with that version, found a new cluster with \
                     this one, and write them there",
                ));
            }
            _ => return Err(RestoreError::new("it does not begin as one")),
        }
        let cluster = ClusterId::from_bits(reader.u64().map_err(wrong)?);
        let cluster = cluster.ok_or_else(|| RestoreError::new("it has no number of a cluster"))?;
        Ok(Origin { cluster, founders: members::parse(reader).map_err(wrong)? })
    }
}

/// How a command went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    Reply(&'a [u8]),
    NoSession,
    Old,
    Busy,
}

impl<M: StateMachine> Replicated<M> {
    pub fn new(machine: M, limits: Limits, members: Members) -> Replicated<M> {
        Replicated { machine, origin: None, sessions: Sessions::default(), members, time: 0, limits, reply: Vec::new() }
    }

    /// Executes the command of an entry. Bytes that are none were never sent by a replica, and change nothing.
    pub fn apply(&mut self, index: u64, entry: &[u8]) -> Outcome<'_> {
        self.reply.clear();
        let Ok(command) = Command::parse(entry) else { return Outcome::Reply(&[]) };
        self.time = self.time.max(command.time);
        match command.kind {
            Kind::Apply => self.execute(index, &command),
            Kind::OpenSession => {
                // The index is as unique as an id can be.
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

    /// All of it as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = self.own_part();
        self.machine.snapshot(&mut out);
        out
    }

    /// Begins a snapshot, of which this is the first piece.
    pub fn begin_snapshot(&mut self) -> Vec<u8> {
        let mut out = self.own_part();
        self.machine.begin_snapshot(&mut out);
        out
    }

    /// All but the machine as bytes.
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

    /// Becomes what a snapshot says.
    ///
    /// # Errors
    /// If it is none.
    pub fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
        let wrong = |error| RestoreError::new(format!("{error}"));
        let mut reader = Reader::new(snapshot);
        let origin = Origin::parse(&mut reader)?;
        let time = reader.u64().map_err(wrong)?;
        let sessions = Sessions::parse(&mut reader).map_err(wrong)?;
        let members = members::parse(&mut reader).map_err(wrong)?;
        self.machine.restore(reader.rest())?;
        (self.origin, self.time, self.sessions, self.members) = (Some(origin), time, sessions, members);
        Ok(())
    }
}
