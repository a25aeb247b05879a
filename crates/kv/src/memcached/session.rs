//! One connection's protocol as a state machine without I/O: it consumes bytes and produces answers, and [`Progress`]
//! says what it waits for.

use arrayvec::ArrayVec;
use dunlin_store::tier::Ticket;

use super::backend::Backend;
use super::batch::Batch;
use super::budget::Memory;
use super::counters::Count;
use super::execute::{self, Books, BurstEnd, Changes, LongValues, Pause};
use super::limits::{
    BURST_UNITS_MAX, FAIR_UNITS_MAX, LINE_BYTES_MAX, OUTPUT_BYTES_MAX, RETRIEVAL_LINE_BYTES_MAX, SHORT_BYTES,
};
use super::parse::{Ask, KeyText, Mode, Step, Unit, decode_key, step};
use super::turn::{Merged, Turn};
use crate::metrics::Begun;
use crate::routing::Core;

/// The first byte that a client of the binary protocol sends.
const BINARY_MAGIC: u8 = 0x80;

/// What a session waits for. In each case the answers so far may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More input.
    More,
    /// That its answers are written, and others had their turn. The input may have more commands.
    Full,
    /// That its batches are sent to other cores and returned: see `Session::take_batches`, then `Session::merge`.
    Forward,
    /// Records of the tier: see `Session::take_awaited`.
    Tier,
    /// Memory: the next command needs more than `Session::set_memory` has allowed.
    Memory,
    /// Another turn of the core: the next command changes something, and changes wait for a snapshot's disk. See
    /// `Session::set_changes`.
    Turn,
    /// An answer that needs all cores, to be appended to the output.
    Ask(Ask),
    /// That its answers are written and the connection is closed.
    Close,
}

/// A unit of the burst, its place in the input, and how to interpret what follows.
struct Parsed<'a> {
    unit: Unit<'a>,
    start: usize,
    end: usize,
    after: Mode,
}

/// Why a burst ends.
enum Stop {
    /// It has reached its maximum length.
    Long,
    /// It took long: others must have their turn.
    Work,
    /// The next unit needs more memory than there is.
    Memory,
    /// The next unit needs an item that is in the tier.
    Tier,
    /// The next unit is a change, and changes wait.
    Change,
    /// The input has no more commands.
    Input,
    /// The next unit is not an operation.
    Ask(Ask, usize),
    Close,
}

/// The protocol of one connection.
#[derive(Debug)]
pub struct Session {
    mode: Mode,
    /// Bytes that the input must have before it is parsed.
    wanted: usize,
    /// Bytes of the input known to contain no line end.
    scanned: usize,
    is_fresh: bool,
    value_bytes_max: usize,
    memory: Memory,
    changes: Changes,
    /// How long the commands in the input have waited, in nanoseconds.
    waited: u64,
    turn: Turn,
    /// Records that must be read before it can go on.
    awaited: Vec<Ticket>,
    /// The number of its client, for fair shares.
    client: u64,
}

impl Session {
    /// Creates the session of a new connection that accepts values of at most `value_bytes_max` bytes.
    pub fn new(value_bytes_max: usize) -> Session {
        Session {
            mode: Mode::Line,
            wanted: 1,
            scanned: 0,
            is_fresh: true,
            value_bytes_max,
            memory: Memory::Ample,
            changes: Changes::Run,
            waited: 0,
            turn: Turn::default(),
            awaited: Vec::new(),
            client: 0,
        }
    }

    /// Returns the same session of a client with this number.
    #[must_use]
    pub(super) fn with_client(self, client: u64) -> Session {
        Session { client, ..self }
    }

    /// Returns the number of its client.
    pub(super) fn client(&self) -> u64 {
        self.client
    }

    /// Returns the records that must be read before it can go on.
    pub(super) fn take_awaited(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.awaited)
    }

    /// Sets how much memory the next commands may use.
    pub(super) fn set_memory(&mut self, memory: Memory) {
        self.memory = memory;
    }

    /// Sets whether the next commands may change something.
    pub(super) fn set_changes(&mut self, changes: Changes) {
        self.changes = changes;
    }

    /// Sets how long the commands in the input have waited for a snapshot's disk, in nanoseconds.
    pub(super) fn set_waited(&mut self, nanos: u64) {
        self.waited = nanos;
    }

    /// Returns the bytes that the input must have before parsing it is useful: up to the end of a data block, for
    /// example.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Executes the commands in the input, and appends the answers to `out`. Returns how many bytes of the input were
    /// consumed, and what it waits for.
    ///
    /// The next input must begin with the bytes that were not consumed.
    pub fn consume<B: Backend>(&mut self, input: &[u8], backend: &B, out: &mut Vec<u8>) -> (usize, Progress) {
        if input.len() < self.wanted {
            return (0, Progress::More);
        }
        if std::mem::take(&mut self.is_fresh) && input.first() == Some(&BINARY_MAGIC) {
            out.extend_from_slice(b"CLIENT_ERROR the binary protocol is not spoken here\r\n");
            return (input.len(), Progress::Close);
        }
        let mut at = 0;
        let mut budget = FAIR_UNITS_MAX;
        loop {
            let (used, count, stop) = self.run_burst(&input[at..], backend, out);
            at += used;
            budget = budget.saturating_sub(count);
            let progress = match stop {
                _ if !self.turn.is_empty() && (self.turn.is_full(self.memory) || !matches!(stop, Stop::Long)) => {
                    Progress::Forward
                }
                Stop::Input => Progress::More,
                Stop::Ask(ask, used) => {
                    at += used;
                    (self.mode, self.wanted, self.scanned) = (Mode::Line, 1, 0);
                    Progress::Ask(ask)
                }
                Stop::Close => Progress::Close,
                Stop::Work => Progress::Full,
                Stop::Memory => Progress::Memory,
                Stop::Tier => Progress::Tier,
                Stop::Change => Progress::Turn,
                Stop::Long
                    if self.turn.is_empty() && (budget == 0 || out.len() > self.memory.limit(OUTPUT_BYTES_MAX)) =>
                {
                    Progress::Full
                }
                Stop::Long => continue,
            };
            return (at, progress);
        }
    }

    /// Parses and runs up to [`BURST_UNITS_MAX`] units. Returns the bytes consumed, the units run, and why it ended.
    fn run_burst<B: Backend>(&mut self, input: &[u8], backend: &B, out: &mut Vec<u8>) -> (usize, usize, Stop) {
        let begun = backend.state().timing.begin_after(self.waited);
        let mut units = ArrayVec::<Parsed<'_>, BURST_UNITS_MAX>::new();
        let (mut at, mut mode, mut scanned, mut wanted) = (0, self.mode, self.scanned, 1);
        let stop = loop {
            if units.is_full() {
                break Stop::Long;
            }
            match step(mode, &input[at..], scanned, self.value_bytes_max) {
                Step::Unit(Unit::Ask(ask), used, _) => break Stop::Ask(ask, used),
                Step::Unit(Unit::Quit, ..) | Step::Close => break Stop::Close,
                Step::Unit(unit, used, after) => {
                    units.push(Parsed { unit, start: at, end: at + used, after });
                    at += used;
                    mode = after;
                    scanned = 0;
                }
                Step::Skip(used, after) => {
                    at += used;
                    mode = after;
                    scanned = 0;
                }
                Step::NeedLine => {
                    scanned = input.len() - at;
                    wanted = scanned + 1;
                    break Stop::Input;
                }
                Step::Need(bytes) => {
                    wanted = bytes;
                    break Stop::Input;
                }
            }
        };
        let (count, end) = self.run_units(&units, input, backend, out);
        if let Some(begun) = begun {
            note_time(&begun, &units[..count], backend);
        }
        if count == 0 && !units.is_empty() {
            // Nothing has changed: the units are parsed again later.
            let stop = match end {
                BurstEnd::Tier => Stop::Tier,
                BurstEnd::Change => Stop::Change,
                BurstEnd::Done | BurstEnd::Answers | BurstEnd::Work => Stop::Memory,
            };
            return (0, 0, stop);
        }
        if count < units.len() {
            // The other units are parsed again when the answers of these are written.
            let last = &units[count - 1];
            (self.mode, self.wanted, self.scanned) = (last.after, 1, 0);
            let stop = match end {
                BurstEnd::Work => Stop::Work,
                BurstEnd::Tier => Stop::Tier,
                BurstEnd::Change => Stop::Change,
                BurstEnd::Answers | BurstEnd::Done => Stop::Long,
            };
            return (last.end, count, stop);
        }
        (self.mode, self.wanted, self.scanned) = (mode, wanted, scanned);
        (at, count, if end == BurstEnd::Work && matches!(stop, Stop::Long) { Stop::Work } else { stop })
    }

    /// Runs units here, or adds them to the turn. Returns their number, which is zero only if memory is short or
    /// changes wait, and how those that ran here ended.
    fn run_units<B: Backend>(
        &mut self,
        units: &[Parsed<'_>],
        input: &[u8],
        backend: &B,
        out: &mut Vec<u8>,
    ) -> (usize, BurstEnd) {
        if units.is_empty() {
            return (0, BurstEnd::Done);
        }
        if backend.owns_all() {
            return run_here(units, backend, out, self.pause(), &mut self.awaited, |_| {});
        }
        let owners: ArrayVec<Option<Core>, BURST_UNITS_MAX> =
            units.iter().map(|parsed| owner(&parsed.unit, backend)).collect();
        if self.turn.is_empty() && owners.iter().all(Option::is_none) {
            return run_here(units, backend, out, self.pause(), &mut self.awaited, |_| {});
        }
        let (mut done, mut end) = (0, BurstEnd::Done);
        while done < units.len() && end == BurstEnd::Done && (done == 0 || !self.turn.is_full(self.memory)) {
            match owners[done] {
                Some(_) if self.memory == Memory::Short && units[done].end - units[done].start > SHORT_BYTES => break,
                Some(core) => {
                    self.push(core, &units[done], input);
                    backend.state().counters.add(Count::Forwarded);
                    done += 1;
                }
                None => {
                    let len = owners[done..].iter().take_while(|owner| owner.is_none()).count();
                    let pause = self.pause();
                    let (here, note) = self.turn.here();
                    let (ran, ended) =
                        run_here(&units[done..done + len], backend, here, pause, &mut self.awaited, note);
                    (done, end) = (done + ran, ended);
                }
            }
        }
        (done, end)
    }

    /// Returns when a burst that runs here pauses.
    fn pause(&self) -> Pause {
        let pause = match self.memory {
            Memory::Ample => Pause::default(),
            Memory::Short => Pause { answers_max: SHORT_BYTES, long_values: LongValues::Nowhere, ..Pause::default() },
        };
        Pause { changes: self.changes, ..pause }
    }

    fn push(&mut self, core: Core, parsed: &Parsed<'_>, input: &[u8]) {
        match parsed.unit {
            Unit::Get { key, get, is_last } => self.turn.push_get(core, key, get, is_last, self.value_bytes_max),
            _ => self.turn.push_command(core, &input[parsed.start..parsed.end], self.value_bytes_max),
        }
    }

    /// Takes out the batches for other cores, each with its lane.
    pub(super) fn take_batches(&mut self) -> Vec<(usize, Core, Box<Batch>)> {
        let mut batches = self.turn.take_all(self.memory);
        batches.iter_mut().for_each(|(_, _, batch)| batch.set_client(self.client));
        batches
    }

    /// Takes out the batch of one lane, some of whose answers are missing.
    pub(super) fn take_batch(&mut self, lane: usize, memory: Memory) -> Option<(Core, Box<Batch>)> {
        let (core, mut batch) = self.turn.take_again(lane, memory)?;
        batch.set_client(self.client);
        Some((core, batch))
    }

    /// Whether the batch of a lane returned answers when it was last sent.
    pub(super) fn got_on(&self, lane: usize) -> bool {
        self.turn.got_on(lane)
    }

    /// Returns the long answer at which a merge has stopped.
    pub(super) fn long_answer(&self) -> &[u8] {
        self.turn.long_answer()
    }

    /// Returns its maximum length.
    pub(super) fn long_answer_bytes_max(&self) -> usize {
        self.value_bytes_max + LINE_BYTES_MAX
    }

    /// Marks it as written.
    pub(super) fn pass_long_answer(&mut self) {
        self.turn.pass();
    }

    /// Returns the maximum memory of its turn once its answers are back. Frees what earlier turns left and this one
    /// does not use.
    pub(super) fn turn_bytes_with_answers(&mut self) -> usize {
        self.turn.release_spare();
        self.turn.bytes_with_answers(self.memory)
    }

    /// Returns the bytes of memory of its turn.
    pub(super) fn turn_bytes(&self) -> usize {
        self.turn.memory_bytes()
    }

    /// Returns the maximum length of the command in the input.
    pub(super) fn command_bytes_max(&self) -> usize {
        // The length of a line is known only at its end.
        if self.wanted == self.scanned + 1 { self.longest_command_bytes() } else { self.wanted }
    }

    /// Returns the maximum length of any command.
    pub(super) fn longest_command_bytes(&self) -> usize {
        RETRIEVAL_LINE_BYTES_MAX.max(LINE_BYTES_MAX + self.value_bytes_max + b"\r\n".len())
    }

    /// Puts back a batch that was returned.
    pub(super) fn put_batch(&mut self, lane: usize, batch: Box<Batch>) {
        self.turn.put(lane, batch);
    }

    /// Moves answers of a turn to the output, in order.
    pub(super) fn merge(&mut self, out: &mut Vec<u8>) -> Merged {
        self.turn.merge(out, self.memory)
    }

    /// Frees the memory of its turns: for a connection that becomes idle.
    pub(super) fn release(&mut self) {
        self.turn.release();
    }
}

/// Runs units whose keys this core owns; calls `note` after each. Returns their number, and why it ended.
fn run_here<B: Backend>(
    units: &[Parsed<'_>],
    backend: &B,
    out: &mut Vec<u8>,
    mut pause: Pause,
    awaited: &mut Vec<Ticket>,
    note: impl FnMut(&Vec<u8>),
) -> (usize, BurstEnd) {
    awaited.clear();
    let metrics = &mut *backend.metrics().borrow_mut();
    let books = Books { now: backend.now(), counters: &backend.state().counters, metrics, awaited };
    let units = units.iter().map(|parsed| &parsed.unit);
    pause.for_tier = backend.has_tier();
    backend.with_store(|store| execute::burst(units, store, books, out, pause, note))
}

/// Records the duration of a timed burst, for the operations that ran here.
#[cold]
fn note_time<B: Backend>(begun: &Begun, units: &[Parsed<'_>], backend: &B) {
    let is_here = |parsed: &&Parsed<'_>| backend.owns_all() || owner(&parsed.unit, backend).is_none();
    let kinds = units.iter().filter(is_here).filter_map(|parsed| execute::kind(&parsed.unit));
    backend.state().timing.end(begun, &mut backend.metrics().borrow_mut(), kinds);
}

fn owner<B: Backend>(unit: &Unit<'_>, backend: &B) -> Option<Core> {
    match unit.key()? {
        KeyText::Plain(key) => backend.elsewhere(key),
        // The parser rejects keys that cannot be decoded.
        KeyText::Base64(text) => backend.elsewhere(&decode_key(text)?),
    }
}
