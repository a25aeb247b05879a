//! Sessions of clients, which make a retried command execute only once (Raft dissertation, section 6.3). They are part
//! of the replicated state: identical on all replicas, and in every snapshot.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

use crate::wire::WireError;
use crate::wire::bytes::{Reader, Writer};

/// Commands of one session whose replies are kept because the client may still ask for them. A client has at most this
/// many in progress.
pub const COMMANDS_PER_SESSION_MAX: usize = 64;

/// The record of one client.
#[derive(Debug, Clone, Default, PartialEq)]
struct Session {
    /// When it was last used, by the cluster's time in nanoseconds.
    used: u64,
    /// Commands with a lower number are never asked for again.
    waits_from: u64,
    /// Replies that the client may still ask for, by number.
    replies: Vec<(u64, Box<[u8]>)>,
    /// Whether it is in the set of sessions that keep replies.
    keeps: bool,
}

/// A session's place in the order in which sessions end: when it was last used, to about a second, and its id. A
/// session in use seldom moves.
type Place = (u64, u64);

/// The sessions by id. A command takes one at a time out of very many, and only a snapshot takes them all.
#[derive(Debug, Clone, Default, PartialEq)]
struct Table(HashMap<u64, Session, RandomState>);

impl Table {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, id: u64) -> Option<&Session> {
        #[cfg(test)]
        tests::look_at(1);
        self.0.get(&id)
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut Session> {
        #[cfg(test)]
        tests::look_at(1);
        self.0.get_mut(&id)
    }

    fn insert(&mut self, id: u64, session: Session) {
        self.0.insert(id, session);
    }

    fn remove(&mut self, id: u64) -> Option<Session> {
        #[cfg(test)]
        tests::look_at(1);
        self.0.remove(&id)
    }

    /// All of them, in no particular order.
    fn all(&self) -> impl Iterator<Item = (u64, &Session)> {
        #[cfg(test)]
        tests::look_at(self.len() as u64);
        self.0.iter().map(|(id, session)| (*id, session))
    }
}

/// All sessions.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sessions {
    by_id: Table,
    /// All sessions in the order in which they end, so that no command has to scan them for the first.
    by_use: BTreeSet<Place>,
    /// The same, for sessions that keep replies.
    keeping: BTreeSet<Place>,
    /// Total size of the replies, with overhead.
    reply_bytes: u64,
}

/// What a reply counts for beyond its own bytes.
const REPLY_OVERHEAD: u64 = 32;
/// Idle sessions that end when one is opened, at most. Further ones end when the next ones are opened.
const IDLE_ENDED_MAX: usize = 16;

/// Limits, identical at all replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Sessions at once. Opening one more ends the least recently used one, to within about a second, as everywhere
    /// here.
    pub sessions_max: usize,
    /// A session that was unused for this long ends when others are opened, in nanoseconds.
    pub idle_max: u64,
    /// Bytes of the replies that are kept, plus [`REPLY_OVERHEAD`] for each. Beyond that, the least recently used
    /// sessions that keep replies end.
    pub reply_bytes_max: u64,
}

/// What to do with a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission<'a> {
    /// It is new: execute it and record its reply.
    New,
    /// It was already executed: this is its reply.
    Done(&'a [u8]),
    /// The session does not exist.
    NoSession,
    /// The client has said that it no longer waits for it.
    Old,
    /// More commands would wait for replies than a session may have.
    TooMany,
}

impl Sessions {
    /// Returns the number of sessions.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Opens session `id`. Ends the least recently used ones if they were idle for too long, or if there are too many.
    pub fn open(&mut self, id: u64, time: u64, limits: Limits) {
        for _ in 0..IDLE_ENDED_MAX {
            // Ids are unique, so all replicas choose the same one.
            let Some((_, oldest)) = self.by_use.first().copied() else { break };
            let is_full = self.by_id.len() >= limits.sessions_max.max(1);
            let used = self.by_id.get(oldest).map_or(0, |session| session.used);
            if !is_full && time.saturating_sub(used) <= limits.idle_max {
                break;
            }
            self.close(oldest);
        }
        self.put(id, Session { used: time, waits_from: 1, ..Session::default() });
    }

    fn put(&mut self, id: u64, mut session: Session) {
        session.keeps = !session.replies.is_empty();
        self.by_use.insert(session.place(id));
        if session.keeps {
            self.keeping.insert(session.place(id));
        }
        self.reply_bytes += session.reply_bytes();
        self.by_id.insert(id, session);
    }

    /// Ends a session.
    pub fn close(&mut self, id: u64) {
        if let Some(session) = self.by_id.remove(id) {
            self.reply_bytes -= session.reply_bytes();
            self.by_use.remove(&session.place(id));
            self.keeping.remove(&session.place(id));
        }
    }

    /// Records that a session is in use, and forgets replies that the client no longer waits for; returns whether the
    /// session exists.
    pub fn keep(&mut self, id: u64, time: u64, waits_from: u64) -> bool {
        let is_there = self.touch(id, time, waits_from);
        self.settle(id);
        is_there
    }

    /// Like [`Sessions::keep`], but [`Sessions::settle`] or the next reply must follow, so that a session does not
    /// leave the set of those that keep replies with each command.
    fn touch(&mut self, id: u64, time: u64, waits_from: u64) -> bool {
        let Some(session) = self.by_id.get_mut(id) else { return false };
        let before = session.place(id);
        self.reply_bytes -= session.advance(time, waits_from);
        let after = session.place(id);
        if after != before {
            self.by_use.remove(&before);
            self.by_use.insert(after);
            if session.keeps {
                self.keeping.remove(&before);
                self.keeping.insert(after);
            }
        }
        true
    }

    /// Records that a session no longer keeps replies.
    fn settle(&mut self, id: u64) {
        if let Some(session) = self.by_id.get_mut(id)
            && session.keeps
            && session.replies.is_empty()
        {
            session.keeps = false;
            self.keeping.remove(&session.place(id));
        }
    }

    /// Decides whether to execute a command.
    pub fn admit(&mut self, id: u64, sequence: u64, waits_from: u64, time: u64) -> Admission<'_> {
        self.touch(id, time, waits_from);
        let Some(session) = self.by_id.get(id) else { return Admission::NoSession };
        let place = session.replies.iter().position(|(number, _)| *number == sequence);
        let (is_old, is_full) = (sequence < session.waits_from, session.replies.len() >= COMMANDS_PER_SESSION_MAX);
        if place.is_none() && !is_old && !is_full {
            return Admission::New;
        }
        self.settle(id);
        match place {
            Some(place) => Admission::Done(&self.by_id.get(id).expect("it was found above").replies[place].1),
            None if is_old => Admission::Old,
            None => Admission::TooMany,
        }
    }

    /// Records the reply to an executed command. If the kept replies exceed the limit, the least recently used sessions
    /// that keep replies end, possibly this one too.
    pub fn note(&mut self, id: u64, sequence: u64, reply: &[u8], limits: Limits) {
        if let Some(session) = self.by_id.get_mut(id) {
            session.replies.push((sequence, reply.into()));
            self.reply_bytes += counted(reply);
            if !std::mem::replace(&mut session.keeps, true) {
                self.keeping.insert(session.place(id));
            }
        }
        while self.reply_bytes > limits.reply_bytes_max
            && let Some((_, oldest)) = self.keeping.first().copied()
        {
            self.close(oldest);
        }
    }

    /// Returns their length in a snapshot.
    pub fn encoded_len(&self) -> usize {
        let replies = |session: &Session| session.replies.iter().map(|(_, reply)| 12 + reply.len()).sum::<usize>();
        4 + self.by_id.all().map(|(_, session)| 28 + replies(session)).sum::<usize>()
    }

    /// Encodes them, in an order that is identical at all replicas.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        let mut sessions: Vec<_> = self.by_id.all().collect();
        sessions.sort_unstable_by_key(|(id, _)| *id);
        writer.u32(sessions.len() as u32);
        for (id, session) in sessions {
            [id, session.used, session.waits_from].into_iter().for_each(|word| writer.u64(word));
            writer.u32(session.replies.len() as u32);
            for (sequence, reply) in &session.replies {
                writer.u64(*sequence);
                writer.counted(reply);
            }
        }
    }

    /// Restores the next session of a snapshot, which starts with their number.
    pub fn restore_one(&mut self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let (id, used, waits_from) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let replies = reader.u32()?;
        let reply = |_| Ok((reader.u64()?, reader.counted()?.into()));
        let replies = (0..replies).map(reply).collect::<Result<_, WireError>>()?;
        if self.by_id.get(id).is_some() {
            return Err(WireError::Unknown { field: "session", value: id });
        }
        self.put(id, Session { used, waits_from, replies, keeps: false });
        Ok(())
    }

    /// Skips the next session of a snapshot.
    pub fn skip_one(reader: &mut Reader<'_>) -> Result<(), WireError> {
        reader.take(3 * size_of::<u64>())?;
        for _ in 0..reader.u32()? {
            reader.u64()?;
            reader.counted()?;
        }
        Ok(())
    }
}

fn counted(reply: &[u8]) -> u64 {
    REPLY_OVERHEAD + reply.len() as u64
}

impl Session {
    fn place(&self, id: u64) -> Place {
        (self.used >> 30, id)
    }

    /// Forgets replies that the client no longer waits for; returns the size freed.
    fn advance(&mut self, time: u64, waits_from: u64) -> u64 {
        self.used = self.used.max(time);
        if waits_from <= self.waits_from {
            return 0;
        }
        let before = self.reply_bytes();
        self.waits_from = waits_from;
        self.replies.retain(|(sequence, _)| *sequence >= waits_from);
        before - self.reply_bytes()
    }

    fn reply_bytes(&self) -> u64 {
        self.replies.iter().map(|(_, reply)| counted(reply)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses all sessions.
    fn parse(reader: &mut Reader<'_>) -> Result<Sessions, WireError> {
        let (count, mut sessions) = (reader.u32()?, Sessions::default());
        (0..count).try_for_each(|_| sessions.restore_one(reader))?;
        Ok(sessions)
    }

    /// About a second.
    const S: u64 = 1 << 30;
    const LIMITS: Limits = Limits { sessions_max: 3, idle_max: 100 * S, reply_bytes_max: 1 << 20 };

    thread_local! {
        static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// Counts sessions that were looked at.
    pub fn look_at(sessions: u64) {
        STEPS.set(STEPS.get() + sessions);
    }

    /// The maximum number of sessions, whatever their state: the next command examines few of them.
    #[test]
    fn no_command_takes_a_look_at_all_sessions() {
        const SESSIONS: u64 = 65_536;
        let reply = [7; 68];
        let limits = Limits {
            sessions_max: SESSIONS as usize,
            idle_max: 10 * SESSIONS * S,
            reply_bytes_max: SESSIONS / 2 * 100,
        };
        let (mut sessions, mut time, mut most) = (Sessions::default(), 0, 0);
        let mut done = |sessions: &mut Sessions, command: &dyn Fn(&mut Sessions, u64)| {
            time += S;
            STEPS.take();
            command(sessions, time);
            most = most.max(STEPS.take());
        };
        let all = || 1..=SESSIONS;
        all().for_each(|id| done(&mut sessions, &|sessions, time| sessions.open(id, time, limits)));
        // All were used since they were opened, and half of them keep a reply, which fills the limit.
        all().for_each(|id| done(&mut sessions, &|sessions, time| assert!(sessions.keep(id, time, 1))));
        let half = || (1..=SESSIONS).filter(|id| id % 2 == 0);
        half().for_each(|id| done(&mut sessions, &|sessions, _| sessions.note(id, 1, &reply, limits)));
        all().for_each(|id| done(&mut sessions, &|sessions, time| assert!(sessions.keep(id, time, 1))));
        done(&mut sessions, &|sessions, time| sessions.open(SESSIONS + 1, time, limits));
        done(&mut sessions, &|sessions, _| sessions.note(SESSIONS + 1, 1, &reply, limits));
        // All are idle.
        let idle = 100 * SESSIONS * S;
        done(&mut sessions, &|sessions, time| sessions.open(SESSIONS + 2, time + idle, limits));
        assert!(most <= 3 * IDLE_ENDED_MAX as u64, "{most} sessions were looked at for one command");
        assert!(sessions.len() as u64 >= SESSIONS - 3 * IDLE_ENDED_MAX as u64);
    }

    /// The sessions that end are those that a full scan would choose, also after a snapshot.
    #[test]
    fn the_oldest_session_ends_first() {
        let mut random = dunlin_net::random::Random::new(3);
        let limits = Limits { sessions_max: 20, idle_max: 60 * S, reply_bytes_max: 3000 };
        let (mut sessions, mut used, mut time) = (Sessions::default(), std::collections::BTreeMap::new(), 0);
        for id in 1..20_000 {
            // Many sessions share the same time.
            time += random.below(3) / 2 * random.below(8) * S;
            match random.below(4) {
                0 => {
                    for _ in 0..IDLE_ENDED_MAX {
                        let Some((last, oldest)) = used.iter().map(|(id, used)| (*used, *id)).min() else { break };
                        if time - last <= limits.idle_max && used.len() < limits.sessions_max {
                            break;
                        }
                        used.remove(&oldest);
                    }
                    used.insert(id, time);
                    sessions.open(id, time, limits);
                }
                1 if random.below(50) == 0 => {
                    let mut out = vec![0; sessions.encoded_len()];
                    sessions.encode(&mut Writer::new(&mut out));
                    sessions = parse(&mut Reader::new(&out)).unwrap();
                }
                2 if random.below(5) == 0 => {
                    sessions.close(id - random.below(id.min(80)));
                    used.retain(|id, _| sessions.by_id.get(*id).is_some());
                }
                _ => {
                    let of = id - random.below(id.min(150));
                    assert_eq!(sessions.keep(of, time, 1), used.contains_key(&of));
                    used.entry(of).and_modify(|used| *used = time);
                }
            }
            assert!(
                used.keys().all(|id| sessions.by_id.get(*id).is_some()) && used.len() == sessions.len(),
                "command {id}"
            );
            assert_eq!(sessions.by_use.len(), sessions.len());
            let keeping = sessions.by_id.all().filter(|(_, session)| !session.replies.is_empty()).count();
            assert_eq!((sessions.keeping.len(), sessions.reply_bytes), (keeping, kept(&sessions)));
        }
    }

    #[test]
    fn a_command_is_new_once() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.admit(5, 1, 1, 0), Admission::NoSession);
        sessions.open(5, 0, LIMITS);
        assert_eq!(sessions.admit(5, 1, 1, 1), Admission::New);
        sessions.note(5, 1, b"one", LIMITS);
        assert_eq!(sessions.admit(5, 2, 1, 2), Admission::New);
        sessions.note(5, 2, b"two", LIMITS);
        assert_eq!(sessions.admit(5, 1, 1, 3), Admission::Done(b"one"));
        // The client has received the first.
        assert_eq!(sessions.admit(5, 2, 2, 4), Admission::Done(b"two"));
        assert_eq!(sessions.admit(5, 1, 1, 5), Admission::Old);
        assert_eq!(sessions.admit(5, 4, 2, 6), Admission::New, "one in between may come later, or never");
        sessions.close(5);
        assert_eq!(sessions.admit(5, 2, 2, 7), Admission::NoSession);
    }

    #[test]
    fn a_session_keeps_so_many_replies() {
        let mut sessions = Sessions::default();
        sessions.open(5, 0, LIMITS);
        for sequence in 1..=COMMANDS_PER_SESSION_MAX as u64 {
            assert_eq!(sessions.admit(5, sequence, 1, 0), Admission::New);
            sessions.note(5, sequence, b"", LIMITS);
        }
        assert_eq!(sessions.admit(5, 65, 1, 0), Admission::TooMany);
        assert_eq!(sessions.admit(5, 65, 2, 0), Admission::New);
    }

    #[test]
    fn sessions_end_by_time_and_by_number() {
        let mut sessions = Sessions::default();
        (1..=3).for_each(|id| sessions.open(id, id * S, LIMITS));
        sessions.open(4, 50 * S, LIMITS);
        assert!(!sessions.keep(1, 51 * S, 1), "it was used longest ago");
        assert!(sessions.keep(2, 60 * S, 1));
        sessions.open(5, 155 * S, LIMITS);
        assert!(!sessions.keep(3, 155 * S, 1) && !sessions.keep(4, 155 * S, 1) && sessions.keep(2, 155 * S, 1));
        assert_eq!(sessions.len(), 2);
    }

    /// Returns the kept bytes, recounted.
    fn kept(sessions: &Sessions) -> u64 {
        sessions.by_id.all().map(|(_, session)| session.reply_bytes()).sum()
    }

    #[test]
    fn sessions_end_by_the_bytes_of_their_replies() {
        let limits = Limits { sessions_max: 10, idle_max: 1000 * S, reply_bytes_max: 8 * 132 };
        let mut sessions = Sessions::default();
        (1..=4).for_each(|id| sessions.open(id, id * S, limits));
        for sequence in 1..=2 {
            for id in [1, 2, 3] {
                assert_eq!(sessions.admit(id, sequence, 1, (10 * sequence + id) * S), Admission::New);
                sessions.note(id, sequence, &[7; 100], limits);
            }
        }
        // Replies that the client has received no longer count.
        assert!(sessions.keep(2, 30 * S, 3));
        assert_eq!((sessions.reply_bytes, kept(&sessions)), (4 * 132, 4 * 132));
        (3..=6).for_each(|sequence| sessions.note(2, sequence, &[7; 100], limits));
        assert_eq!((sessions.len(), sessions.reply_bytes), (4, 8 * 132), "as much as may be");
        sessions.note(2, 7, b"", limits);
        // The first is the least recently used session that keeps replies; the fourth keeps none and stays.
        assert!(
            !sessions.keep(1, 40 * S, 1)
                && sessions.keep(3, 41 * S, 1)
                && sessions.keep(4, 42 * S, 1)
                && sessions.keep(2, 43 * S, 1)
        );
        assert_eq!((sessions.reply_bytes, kept(&sessions)), (6 * 132 + 32, 6 * 132 + 32));
        // A reply that alone exceeds the limit ends all sessions that keep replies, including its own.
        sessions.note(2, 8, &[7; 9 * 132], limits);
        assert_eq!((sessions.len(), sessions.reply_bytes), (1, 0));
        sessions.note(4, 1, b"reply", limits);
        sessions.open(9, 5000 * S, limits);
        assert_eq!((sessions.len(), sessions.reply_bytes), (1, 0), "it was not used for long");
    }

    #[test]
    fn they_are_read_as_they_were_written() {
        let mut sessions = Sessions::default();
        for id in [9, 4, 7] {
            sessions.open(id, id, LIMITS);
            sessions.note(id, 3, b"reply", LIMITS);
        }
        let mut out = vec![0; sessions.encoded_len()];
        sessions.encode(&mut Writer::new(&mut out));
        let mut reader = Reader::new(&out);
        assert_eq!(parse(&mut reader).unwrap(), sessions);
        assert_eq!(reader.left(), 0);
        (0..out.len()).for_each(|end| assert!(parse(&mut Reader::new(&out[..end])).is_err()));
    }
}
