//! All that is replicated: the user's machine, the sessions of its clients, and where the replicas are.

use crate::machine::{RestoreError, StateMachine};
use crate::mutation::{Mutation, is_planted};
use crate::sessions::{Admission, Limits, Sessions};
use crate::wire::bytes::{Reader, Writer};
use crate::wire::command::{Command, Kind};
use crate::wire::members::{self, Members};

/// Begins every snapshot.
const MAGIC: u64 = u64::from_le_bytes(*b"dunlnsm1");

/// The replicated state.
pub(crate) struct Replicated<M> {
    pub machine: M,
    pub sessions: Sessions,
    pub members: Members,
    /// The time of the cluster, in nanoseconds: the latest of all entries.
    pub time: u64,
    limits: Limits,
    /// The reply to the last command, if it was executed.
    reply: Vec<u8>,
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
        Replicated { machine, sessions: Sessions::default(), members, time: 0, limits, reply: Vec::new() }
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
        let mut out = vec![0; 16 + sessions.encoded_len() + members::encoded_len(&self.members)];
        let mut writer = Writer::new(&mut out);
        writer.u64(MAGIC);
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
        if reader.u64().map_err(wrong)? != MAGIC {
            return Err(RestoreError::new("it does not begin as one"));
        }
        let time = reader.u64().map_err(wrong)?;
        let sessions = Sessions::parse(&mut reader).map_err(wrong)?;
        let members = members::parse(&mut reader).map_err(wrong)?;
        self.machine.restore(reader.rest())?;
        (self.time, self.sessions, self.members) = (time, sessions, members);
        Ok(())
    }
}
