//! memcached's protocol in front of a cluster: what mcrouter does for memcached servers.
//!
//! Commands whose effect on several replicas is well defined are forwarded: `get gets set add replace cas delete`.
//! Others are answered with an error that says so. The commands of a connection take effect in order, one at a time;
//! keys of one `get` are one multiget, unless their values are large.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::ready;
use std::time::{Duration, Instant};

use dunlin_net::Transport;
use dunlin_store::{Condition, Put, Refused, VALUE_BYTES_MAX};
use futures::stream::StreamExt as _;

use super::execute::expiry;
use super::limits::{OUTPUT_BYTES_MAX, READ_BYTES};
use super::number;
use super::parse::{Ask, Mode, StatsKind, Step, StoreUnit, Unit, Verb, step};
use super::room::{OfValue, Reserved, Room};
use super::socket::{Socket, Stream};
use crate::KvCluster;
use crate::client::Value;
use crate::cluster::{ClusterError, Written};
use crate::server::clock::moment;

/// Keys of one retrieval that are read at once, at most. A retrieval of more is several multigets, one after the other.
pub const KEYS_AT_ONCE: usize = 1024;
/// As many as the first retrieval of a connection reads at once: how long its values are is not known yet.
const KEYS_AT_FIRST: usize = 16;
/// Bytes of values that one multiget is meant to return: the number of its keys follows the values before.
const BYTES_AT_ONCE: usize = 1 << 20;
/// Bytes of values that are being read, or wait for the clients of all connections to read them: the default.
pub const FORWARD_BYTES_DEFAULT: usize = 1 << 30;
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
    room: Room,
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

/// A part of the answer to a retrieval.
#[derive(Debug)]
enum Piece {
    Value { key: Vec<u8>, cas: Option<u64>, value: Value, _room: OfValue },
    Text(Vec<u8>),
}

/// Takes what a value needs out of the memory that was reserved for all of a retrieval.
fn piece(key: Vec<u8>, cas: Option<u64>, value: Value, reserved: &mut Reserved) -> Piece {
    let of_value = reserved.take(value.len());
    Piece::Value { key, cas, value, _room: of_value }
}

impl Piece {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Piece::Text(text) => out.extend_from_slice(text),
            Piece::Value { key, cas, value, .. } => {
                out.extend_from_slice(b"VALUE ");
                out.extend_from_slice(key);
                out.push(b' ');
                number::write(out, u64::from(value.flags()));
                out.push(b' ');
                number::write(out, value.len() as u64);
                if let Some(cas) = cas {
                    out.push(b' ');
                    number::write(out, *cas);
                }
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// The protocol of one connection: what it has read, and its answers.
#[derive(Debug)]
struct Talk {
    input: Vec<u8>,
    /// Bytes of the input that are done.
    used: usize,
    mode: Mode,
    scanned: usize,
    /// Bytes that the input must have before it is parsed.
    wanted: usize,
    output: Vec<u8>,
    /// The keys of a retrieval that were parsed, and not read yet.
    keys: Vec<Vec<u8>>,
    with_cas: bool,
    /// All keys of the retrieval were parsed.
    is_parsed: bool,
    /// What was retrieved and is to be written: the buffers that it was received in, so that a client which does not
    /// read holds no copy of all of it.
    found: VecDeque<Piece>,
    /// A retrieval has failed: its further keys are not read.
    has_failed: bool,
    /// Keys that are read at once.
    at_once: usize,
}

impl Talk {
    fn new() -> Talk {
        Talk {
            input: Vec::new(),
            used: 0,
            mode: Mode::default(),
            scanned: 0,
            wanted: 0,
            output: Vec::new(),
            keys: Vec::new(),
            with_cas: false,
            is_parsed: false,
            found: VecDeque::new(),
            has_failed: false,
            at_once: KEYS_AT_FIRST,
        }
    }

    /// Whether keys are to be read before more is parsed.
    fn is_due(&self) -> bool {
        !self.keys.is_empty() && (self.is_parsed || self.keys.len() >= self.at_once)
    }
}

/// Returns how many keys to read at once after so many values had so many bytes: misses do not tell how long values are.
fn keys_at_once(at_once: usize, values: usize, bytes: usize) -> usize {
    if values == 0 {
        return at_once;
    }
    let fitting = values * BYTES_AT_ONCE / bytes.max(1);
    fitting.clamp(1, (at_once * 2).min(KEYS_AT_ONCE))
}

impl<T: Transport + 'static> Forwarder<T> {
    /// Serves from this cluster, and closes connections that send nothing for `idle_max`. Holds so many bytes of values
    /// at most, and has room for one in any case.
    pub fn new(cluster: KvCluster<T>, idle_max: Option<Duration>, bytes: usize) -> Rc<Forwarder<T>> {
        let (counts, room) = (Counts::default(), Room::new(bytes));
        Rc::new(Forwarder { cluster, idle_max, begun: Instant::now(), counts, room })
    }

    /// Serves a connection until its client closes it, or breaks the protocol. Needs tokio's runtime.
    pub async fn serve(self: Rc<Self>, socket: Socket) {
        let Socket { stream, is_unix, peer, permit: _permit, .. } = socket;
        let mut stream = match Stream::new(stream, is_unix) {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%peer, %error, "cannot serve a memcached connection"),
        };
        add(&self.counts.connections, 1);
        add(&self.counts.connections_ever, 1);
        let ended = self.talk(&mut stream).await;
        self.counts.connections.set(self.counts.connections.get() - 1);
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "a memcached connection has ended");
        }
    }

    async fn talk(&self, stream: &mut Stream) -> io::Result<()> {
        let mut talk = Talk::new();
        loop {
            let next = self.advance(&mut talk).await;
            if next != Next::More || talk.output.len() > OUTPUT_BYTES_MAX {
                write_all(stream, &mut talk.output, self.idle_max).await?;
            }
            match next {
                Next::More => {}
                Next::Close => return Ok(()),
                Next::Read => {
                    let read = read_some(stream, &mut talk);
                    let len = match self.idle_max {
                        Some(idle) => match tokio::time::timeout(idle, read).await {
                            Ok(len) => len?,
                            Err(_) => return Ok(()),
                        },
                        None => read.await?,
                    };
                    if len == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes one step in the input.
    async fn advance(&self, talk: &mut Talk) -> Next {
        if let Some(piece) = talk.found.pop_front() {
            piece.write(&mut talk.output);
            return Next::More;
        }
        if talk.is_due() {
            self.retrieve(talk).await;
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
        let Talk { input, used, mode, scanned, wanted, output, keys, with_cas, is_parsed, .. } = talk;
        let start = *used;
        match step(*mode, &input[start..], *scanned, VALUE_BYTES_MAX) {
            Step::Unit(unit, taken, after) => {
                *used += taken;
                (*mode, *scanned, *wanted) = (after, 0, 1);
                if let Unit::Quit = unit {
                    return Next::Close;
                }
                match unit {
                    Unit::Get { key, get, is_last } if get.touch.is_none() => {
                        keys.push(key.to_vec());
                        (*with_cas, *is_parsed) = (get.with_cas, is_last);
                    }
                    unit => self.execute(&unit, output).await,
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
    async fn retrieve(&self, talk: &mut Talk) {
        let Talk { keys, with_cas, found, has_failed, at_once, .. } = talk;
        if *has_failed {
            return keys.clear();
        }
        let Some(mut reserved) = self.room.reserve(keys.len().min(*at_once)).await else {
            add(&self.counts.failed, 1);
            found.push_back(Piece::Text(b"SERVER_ERROR out of memory writing get response\r\n".to_vec()));
            *has_failed = true;
            return keys.clear();
        };
        let count = reserved.keys();
        let some: Vec<Vec<u8>> = keys.drain(..count).collect();
        add(&self.counts.gets, count as u64);
        let done = match *with_cas {
            true => self.read_with_cas(some, &mut reserved, found).await,
            false => self.cluster.multi_get(&some).await.map(|values| {
                for (key, value) in some.into_iter().zip(values) {
                    found.extend(value.map(|value| piece(key, None, value, &mut reserved)));
                }
            }),
        };
        add(&self.counts.hits, found.len() as u64);
        *at_once = keys_at_once(*at_once, found.len(), value_bytes(found));
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
        reserved: &mut Reserved,
        found: &mut VecDeque<Piece>,
    ) -> Result<(), ClusterError> {
        let read = |key: Vec<u8>| async move {
            let read = self.cluster.read(&key).await;
            read.map(|read| read.map(|(facts, value)| (key, facts.cas, value)))
        };
        let mut reads = futures::stream::iter(keys).map(read).buffered(READS_AT_ONCE);
        while let Some(read) = reads.next().await {
            found.extend(read?.map(|(key, cas, value)| piece(key, Some(cas), value, reserved)));
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
                    Put { flags: unit.flags, expires: expiry(unit.exptime, moment().now), condition, ..Put::default() };
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
                if unit.verb == Verb::Set && unit.value.is_none() {
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
            ("servers", self.cluster.cluster().servers().len() as u64),
            ("replicas", self.cluster.cluster().replicas() as u64),
        ];
        for (name, value) in lines {
            out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
        }
        out.extend_from_slice(format!("STAT version {}\r\nEND\r\n", super::VERSION).as_bytes());
    }
}

/// Returns the bytes of the values among these pieces.
fn value_bytes(found: &VecDeque<Piece>) -> usize {
    let bytes = |piece: &Piece| match piece {
        Piece::Value { value, .. } => value.len(),
        Piece::Text(_) => 0,
    };
    found.iter().map(bytes).sum()
}

fn say(said: &str, is_quiet: bool, out: &mut Vec<u8>) {
    if !is_quiet {
        out.extend_from_slice(said.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Reads what there is, after the input that is not done.
async fn read_some(stream: &mut Stream, talk: &mut Talk) -> io::Result<usize> {
    talk.input.drain(..std::mem::take(&mut talk.used));
    let filled = talk.input.len();
    // Room for all of a command whose length is known.
    let room = talk.wanted.saturating_sub(filled).max(READ_BYTES / 4);
    // An idle connection holds little.
    if filled == 0 {
        talk.input.shrink_to(READ_BYTES);
    }
    let len = poll_fn(|context| {
        // Not before there is something, so that an idle connection holds nothing.
        ready!(stream.poll_read_ready(context))?;
        talk.input.resize(filled + room, 0);
        stream.poll_read(context, &mut talk.input[filled..])
    })
    .await;
    talk.input.truncate(filled + *len.as_ref().unwrap_or(&0));
    len
}

/// Writes all of it. The client must read on within `idle_max` each time.
async fn write_all(stream: &mut Stream, output: &mut Vec<u8>, idle_max: Option<Duration>) -> io::Result<()> {
    let mut written = 0;
    while written < output.len() {
        match stream.try_write(&output[written..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => written += len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let ready = poll_fn(|context| stream.poll_write_ready(context));
                match idle_max {
                    Some(idle) => tokio::time::timeout(idle, ready).await??,
                    None => ready.await?,
                };
            }
            Err(error) => return Err(error),
        }
    }
    output.clear();
    output.shrink_to(OUTPUT_BYTES_MAX);
    Ok(())
}
