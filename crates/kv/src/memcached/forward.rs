//! memcached's protocol in front of a cluster: what mcrouter does for memcached servers.
//!
//! Commands whose effect on several replicas is well defined are forwarded: `get gets set add replace cas delete`.
//! Others are answered with an error that says so. The commands of a connection take effect in order, one at a time;
//! keys of one `get` are one multiget, unless their values are large.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_store::{Condition, Moment, Put, Refused, UnixSeconds, VALUE_BYTES_MAX};
use futures::stream::StreamExt as _;
use tokio::time::Instant;

use super::execute::expiry;
use super::limits::{LINE_BYTES_MAX, OUTPUT_BYTES_MAX};
use super::parse::{Ask, Mode, StatsKind, Step, StoreUnit, Unit, Verb, step};
use super::room::{Kept, Room};
use super::socket::{Socket, Stream};
use super::talk::{Memory, Piece, Talk, keys_at_once, read_some, words};
use crate::KvCluster;
use crate::cluster::{ClusterError, Missed, ServerError, Written};
use crate::server::clock::moment;

/// Keys of one retrieval that are read at once, at most. A retrieval of more is several multigets, one after the other.
pub const KEYS_AT_ONCE: usize = 1024;
/// Bytes of values that are being read, or wait for the clients of all connections to read them, and of long commands
/// that are incomplete: the default.
pub const FORWARD_BYTES_DEFAULT: usize = 1 << 30;
/// The part of these that is for commands.
const COMMANDS_SHARE: usize = 4;
/// The longest command that is not one line: a value with its line.
const COMMAND_BYTES_MAX: usize = VALUE_BYTES_MAX + LINE_BYTES_MAX + 2;
/// How often a connection that waits for its client looks whether others need its memory.
const LOOK: Duration = Duration::from_secs(1);
/// Keys of a `gets` that are read at once.
const READS_AT_ONCE: usize = 16;
/// Bytes of an error's text in an answer: a memcached client reads one line.
const ERROR_BYTES_MAX: usize = 512;

/// Serves memcached connections from a cluster, on one thread.
pub struct Forwarder<T: Transport> {
    cluster: KvCluster<T>,
    /// Time without a command after which a connection is closed.
    idle_max: Option<Duration>,
    begun: Instant,
    counts: Counts,
    commands: Room,
    values: Room,
}

/// What `stats` tells.
#[derive(Debug, Default)]
struct Counts {
    connections: Cell<u64>,
    connections_ever: Cell<u64>,
    gets: Cell<u64>,
    hits: Cell<u64>,
    sets: Cell<u64>,
    deletes: Cell<u64>,
    partial: Cell<u64>,
    failed: Cell<u64>,
    refused: Cell<u64>,
    cut_off: Cell<u64>,
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get().wrapping_add(more));
}

/// What a connection does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Parse on.
    More,
    /// Read more input.
    Read,
    Close,
}

impl<T: Transport + 'static> Forwarder<T> {
    /// Serves from this cluster, and closes connections that send nothing for `idle_max`. Holds about this many bytes of
    /// values and of long commands, and has room for one of each in any case.
    pub fn new(cluster: KvCluster<T>, idle_max: Option<Duration>, bytes: usize) -> Rc<Forwarder<T>> {
        let of_commands = bytes / COMMANDS_SHARE;
        let commands = Room::new(of_commands, COMMAND_BYTES_MAX);
        let values = Room::new(bytes - of_commands, VALUE_BYTES_MAX);
        Rc::new(Forwarder { cluster, idle_max, begun: Instant::now(), counts: Counts::default(), commands, values })
    }

    /// Serves a connection until its client closes it, or breaks the protocol. Needs tokio's runtime.
    pub async fn serve(self: Rc<Self>, socket: Socket) {
        let Socket { stream, is_unix, peer, host, permit: _permit } = socket;
        let mut stream = match Stream::new(stream, is_unix) {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%peer, %error, "cannot serve a memcached connection"),
        };
        add(&self.counts.connections, 1);
        add(&self.counts.connections_ever, 1);
        let memory = Memory::new(self.commands.part(host), self.values.part(host));
        let ended = self.talk(&mut stream, memory).await;
        self.counts.connections.set(self.counts.connections.get() - 1);
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "a memcached connection has ended");
        }
    }

    async fn talk(&self, stream: &mut Stream, mut memory: Memory) -> io::Result<()> {
        let mut talk = Talk::new();
        loop {
            let next = self.advance(&mut talk, &mut memory).await;
            if next != Next::More || talk.output.len() > OUTPUT_BYTES_MAX {
                self.write_all(stream, &mut talk.output, &memory).await?;
            }
            match next {
                Next::More => {}
                Next::Close => return Ok(()),
                Next::Read => {
                    if !self.has_memory(&talk, &mut memory).await {
                        talk.output.extend_from_slice(b"SERVER_ERROR out of memory reading request\r\n");
                        add(&self.counts.failed, 1);
                        return self.write_all(stream, &mut talk.output, &memory).await;
                    }
                    if self.wait(read_some(stream, &mut talk), &memory).await? == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Gets memory for a long command of which more is to be read. Meanwhile nothing is read from the connection. False
    /// if there is none for a long time: then the connection ends, and the command is not executed.
    async fn has_memory(&self, talk: &Talk, memory: &mut Memory) -> bool {
        let Some(bytes) = talk.long_command().filter(|_| memory.command.is_none()) else { return true };
        let reserved = self.commands.reserve_bytes(&memory.of_commands, bytes).await;
        memory.command = reserved.map(|reserved| reserved.keep(std::iter::once(bytes)));
        memory.command.is_some()
    }

    /// Writes the output. The client must read on within the time that it may be idle, and faster if others need the
    /// memory that the connection keeps.
    async fn write_all(&self, stream: &mut Stream, output: &mut Vec<u8>, memory: &Memory) -> io::Result<()> {
        let mut written = 0;
        while written < output.len() {
            match stream.try_write(&output[written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => written += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(poll_fn(|context| stream.poll_write_ready(context)), memory).await?;
                }
                Err(error) => return Err(error),
            }
        }
        output.clear();
        output.shrink_to(OUTPUT_BYTES_MAX);
        Ok(())
    }

    /// Waits for an event of a connection, at most as long as the connection may be idle.
    async fn wait<R>(&self, event: impl Future<Output = io::Result<R>>, memory: &Memory) -> io::Result<R> {
        let (ends, mut event) = (self.idle_max.map(|idle| Instant::now() + idle), pin!(event));
        let Memory { command, values, .. } = memory;
        let must_give_up = || {
            command.as_ref().is_some_and(|kept| self.commands.must_give_up(kept))
                || values.as_ref().is_some_and(|kept| self.values.must_give_up(kept))
        };
        loop {
            if must_give_up() {
                add(&self.counts.cut_off, 1);
                return Err(io::Error::new(io::ErrorKind::TimedOut, "its client is slow, and others need the memory"));
            }
            let look = (command.is_some() || values.is_some()).then(|| Instant::now() + LOOK);
            let Some(until) = [ends, look].into_iter().flatten().min() else { return event.await };
            if let Ok(result) = tokio::time::timeout_at(until, event.as_mut()).await {
                return result;
            }
            if ends.is_some_and(|ends| Instant::now() >= ends) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it was idle"));
            }
        }
    }

    /// Takes one step in the input.
    async fn advance(&self, talk: &mut Talk, memory: &mut Memory) -> Next {
        if let Some(piece) = talk.found.pop_front() {
            piece.write(&mut talk.output);
            // The last one is copied now. So there is always memory for some values, however many clients read nothing.
            if talk.found.is_empty() {
                memory.values = None;
            }
            return Next::More;
        }
        if talk.is_due() {
            self.retrieve(talk, memory).await;
            return Next::More;
        }
        if std::mem::take(&mut talk.is_parsed) {
            // After an error, nothing may follow.
            if !std::mem::take(&mut talk.has_failed) {
                talk.output.extend_from_slice(b"END\r\n");
            }
            return Next::More;
        }
        if talk.input.len() - talk.used < talk.wanted.max(1) {
            return Next::Read;
        }
        let Talk { input, used, mode, scanned, wanted, output, keys, all, with_cas, is_parsed, .. } = talk;
        let (start, is_first) = (*used, matches!(mode, Mode::Line));
        match step(*mode, &input[start..], *scanned, VALUE_BYTES_MAX) {
            Step::Unit(unit, taken, after) => {
                *used += taken;
                (*mode, *scanned, *wanted) = (after, 0, 1);
                if let Unit::Quit = unit {
                    return Next::Close;
                }
                match unit {
                    Unit::Get { key, get, is_last } if get.touch.is_none() => {
                        if is_first {
                            *all = words(&input[start..]).saturating_sub(1);
                        }
                        keys.push(key.to_vec());
                        (*with_cas, *is_parsed) = (get.with_cas, is_last);
                    }
                    unit => self.execute(&unit, output).await,
                }
                if matches!(talk.mode, Mode::Line) && memory.command.take().is_some() {
                    talk.forget_used();
                }
            }
            Step::Skip(taken, after) => {
                *used += taken;
                (*mode, *scanned, *wanted) = (after, 0, 1);
            }
            Step::NeedLine => {
                *scanned = input.len() - start;
                *wanted = *scanned + 1;
                return Next::Read;
            }
            Step::Need(bytes) => {
                *wanted = bytes;
                return Next::Read;
            }
            Step::Close => return Next::Close,
        }
        Next::More
    }

    async fn execute(&self, unit: &Unit<'_>, out: &mut Vec<u8>) {
        match unit {
            Unit::Get { is_last, .. } => {
                if *is_last {
                    self.refuse("gat", false, out);
                }
            }
            Unit::Store(unit) => self.store(unit, out).await,
            Unit::Delete { key, is_quiet } => {
                add(&self.counts.deletes, 1);
                let said = match self.cluster.delete(key).await.and_then(Written::everywhere) {
                    Ok(written) if written.had_item => "DELETED".to_owned(),
                    Ok(_) => "NOT_FOUND".to_owned(),
                    Err(error) => self.failure(&error),
                };
                say(&said, *is_quiet, out);
            }
            Unit::Touch { is_quiet, .. } => self.refuse("touch", *is_quiet, out),
            Unit::Count { is_quiet, .. } => self.refuse("incr and decr", *is_quiet, out),
            Unit::Meta(_) => self.refuse("a meta command", false, out),
            Unit::Say(said) => out.extend_from_slice(said),
            Unit::Ask(Ask::Flush { is_quiet, .. }) => self.refuse("flush_all", *is_quiet, out),
            Unit::Ask(Ask::Stats(StatsKind::General)) => self.stats(out),
            Unit::Ask(Ask::Stats(_)) => self.refuse("stats with a word", false, out),
            Unit::Quit => {}
        }
    }

    /// Reads some of the keys that are due, for which there is memory. The values that are found are to be written before
    /// the next are read.
    async fn retrieve(&self, talk: &mut Talk, memory: &mut Memory) {
        let Talk { keys, all, with_cas, found, has_failed, at_once, .. } = talk;
        if *has_failed {
            return keys.clear();
        }
        let Some(reserved) = self.values.reserve(&memory.of_values, keys.len().min(*at_once)).await else {
            add(&self.counts.failed, 1);
            found.push_back(Piece::Text(b"SERVER_ERROR out of memory writing get response\r\n".to_vec()));
            *has_failed = true;
            return keys.clear();
        };
        // Its line has come as a whole, and its client has read what was found before.
        memory.command.iter_mut().for_each(Kept::renew);
        let count = reserved.pieces().min(keys.len());
        let some: Vec<Vec<u8>> = keys.drain(..count).collect();
        add(&self.counts.gets, count as u64);
        let done = match *with_cas {
            true => self.read_with_cas(some, all.saturating_sub(1), found).await,
            false => self.cluster.multi_get_part(&some, all.saturating_sub(count)).await.0.map(|values| {
                for (key, value) in some.into_iter().zip(values) {
                    found.extend(value.map(|value| Piece::Value { key, cas: None, value }));
                }
            }),
        };
        add(&self.counts.hits, found.len() as u64);
        *at_once = keys_at_once(*at_once, found.len(), found.iter().map(Piece::value_bytes).sum());
        memory.values = (!found.is_empty()).then(|| reserved.keep(found.iter().map(Piece::value_bytes)));
        if let Err(error) = &done {
            let mut text = Vec::new();
            say(&self.failure(error), false, &mut text);
            found.push_back(Piece::Text(text));
            *has_failed = true;
        }
    }

    async fn read_with_cas(
        &self,
        keys: Vec<Vec<u8>>,
        others: usize,
        found: &mut VecDeque<Piece>,
    ) -> Result<(), ClusterError> {
        let read = |key: Vec<u8>| async move {
            let read = self.cluster.read_part(&key, others).await;
            read.map(|read| read.map(|(facts, value)| (key, facts.cas, value)))
        };
        let mut reads = futures::stream::iter(keys).map(read).buffered(READS_AT_ONCE);
        while let Some(read) = reads.next().await {
            found.extend(read?.map(|(key, cas, value)| Piece::Value { key, cas: Some(cas), value }));
        }
        Ok(())
    }

    async fn store(&self, unit: &StoreUnit<'_>, out: &mut Vec<u8>) {
        let condition = match unit.verb {
            Verb::Set => Condition::Always,
            Verb::Add => Condition::Absent,
            Verb::Replace => Condition::Present,
            Verb::Cas(token) => Condition::Unchanged(token),
            Verb::Append | Verb::Prepend => return self.refuse("append and prepend", unit.is_quiet, out),
        };
        add(&self.counts.sets, 1);
        let done = match unit.value {
            Some(value) => {
                let put =
                    Put { flags: unit.flags, expires: expires(unit.exptime, moment()), condition, ..Put::default() };
                self.cluster.put(unit.key, value, put).await
            }
            None => Err(ClusterError::Refused(Refused::TooLarge { len: VALUE_BYTES_MAX + 1, max: VALUE_BYTES_MAX })),
        };
        let said = match done.and_then(Written::everywhere) {
            Ok(_) => "STORED".to_owned(),
            Err(ClusterError::Refused(Refused::Exists)) => "NOT_STORED".to_owned(),
            Err(ClusterError::Refused(Refused::NotFound)) if !matches!(unit.verb, Verb::Cas(_)) => {
                "NOT_STORED".to_owned()
            }
            Err(ClusterError::Refused(Refused::NotFound)) => "NOT_FOUND".to_owned(),
            Err(ClusterError::Refused(Refused::Changed)) => "EXISTS".to_owned(),
            Err(error) => {
                if unit.verb == Verb::Set && has_no_room(&error) {
                    // As in memcached: a client that cannot store the new value must not read the old one. If it cannot
                    // be deleted either, the answer is an error all the same.
                    let _ = self.cluster.delete(unit.key).await;
                }
                match error {
                    ClusterError::Refused(Refused::TooLarge { .. }) => {
                        "SERVER_ERROR object too large for cache".to_owned()
                    }
                    error => self.failure(&error),
                }
            }
        };
        say(&said, unit.is_quiet, out);
    }

    /// Says that a command is not forwarded.
    fn refuse(&self, what: &str, is_quiet: bool, out: &mut Vec<u8>) {
        add(&self.counts.refused, 1);
        say(&format!("SERVER_ERROR {what} is not forwarded to a cluster: replicas could differ"), is_quiet, out);
    }

    /// Returns the line that reports an error.
    fn failure(&self, error: &ClusterError) -> String {
        if let ClusterError::Key(_) = error {
            return "CLIENT_ERROR bad command line format".into();
        }
        add(if let ClusterError::Partial { .. } = error { &self.counts.partial } else { &self.counts.failed }, 1);
        let text: String = error.to_string().chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
        let mut end = text.len().min(ERROR_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        format!("SERVER_ERROR {}", &text[..end])
    }

    fn stats(&self, out: &mut Vec<u8>) {
        let counts = &self.counts;
        let lines = [
            ("pid", u64::from(std::process::id())),
            ("uptime", self.begun.elapsed().as_secs()),
            ("time", u64::from(moment().to_wall(moment().now))),
            ("curr_connections", counts.connections.get()),
            ("total_connections", counts.connections_ever.get()),
            ("cmd_get", counts.gets.get()),
            ("get_hits", counts.hits.get()),
            ("get_misses", counts.gets.get().saturating_sub(counts.hits.get())),
            ("cmd_set", counts.sets.get()),
            ("cmd_delete", counts.deletes.get()),
            ("forward_partial", counts.partial.get()),
            ("forward_failed", counts.failed.get()),
            ("forward_refused", counts.refused.get()),
            ("forward_cut_off", counts.cut_off.get()),
            ("forward_command_bytes", self.commands.held() as u64),
            ("forward_value_bytes", self.values.held() as u64),
            ("servers", self.cluster.cluster().servers().len() as u64),
            ("replicas", self.cluster.cluster().replicas() as u64),
        ];
        for (name, value) in lines {
            out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
        }
        out.extend_from_slice(format!("STAT version {}\r\nEND\r\n", super::VERSION).as_bytes());
    }
}

/// Whether servers refused a value as too large, or since they are full.
fn has_no_room(error: &ClusterError) -> bool {
    let is_full = |missed: &Missed| matches!(missed.error, ServerError::Refused(Refused::Full));
    match error {
        ClusterError::Refused(Refused::TooLarge { .. }) => true,
        ClusterError::NoReplica { missed, .. } => missed.iter().any(is_full),
        _ => false,
    }
}

fn say(said: &str, is_quiet: bool, out: &mut Vec<u8>) {
    if !is_quiet {
        out.extend_from_slice(said.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// An item that is to expire at once has expired at this time, whatever the clock of a server says.
const LONG_AGO: UnixSeconds = 1;

/// Returns when an item expires, as servers are told: by the wall clock, since the time of each process is its own.
fn expires(exptime: i32, moment: Moment) -> Option<UnixSeconds> {
    if exptime < 0 { Some(LONG_AGO) } else { expiry(exptime, moment.to_wall(moment.now)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wall clock has been set by an hour since this process began.
    #[test]
    fn servers_are_told_when_an_item_expires_by_the_wall_clock() {
        const NOW: UnixSeconds = 1_800_000_000;
        for wall_ahead in [0, 3600, -3600] {
            let moment = Moment { now: NOW, wall_ahead };
            assert_eq!(expires(0, moment), None);
            assert_eq!(expires(60, moment), Some(moment.to_wall(NOW + 60)));
            assert_eq!(expires(-1, moment), Some(LONG_AGO), "a server may be late");
            assert_eq!(expires(1_900_000_000, moment), Some(1_900_000_000), "a time of the wall clock");
        }
    }
}
