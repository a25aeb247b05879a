//! Batches of single-key commands on their way to the core that owns their keys, with the answers on their way back.
//!
//! A batch is the text of its commands: it costs one copy, borrows nothing, and is parsed again by the core that runs
//! it.

use super::backend::{Backend, must_wait};
use super::execute::{self, Books, BurstEnd, Changes, LongValues, Pause};
use super::limits::{BURST_UNITS_MAX, FORWARD_BYTES_MAX, OUTPUT_BYTES_MAX};
use super::number;
use super::parse::{Get, Mode, Step, Unit, step};
use arrayvec::ArrayVec;
use dunlin_store::tier::Ticket;

/// Whether a unit is one of several keys of a retrieval that continues after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IsPart {
    Yes,
    No,
}

/// Commands with one key each, all owned by one core, and the answers so far. The core may stop early when the answers
/// get long; the batch is then sent again for the rest.
#[derive(Debug, Default)]
pub struct Batch {
    text: Vec<u8>,
    /// Where the text of each unit ends, and whether it is one of several keys of a retrieval.
    ends: Vec<(usize, IsPart)>,
    /// Units run.
    done: usize,
    answers: Vec<u8>,
    /// Where the answer of each unit of the last run ends.
    answer_ends: Vec<usize>,
    /// Units whose answers were taken before the last run.
    taken: usize,
    value_bytes_max: usize,
    answers_max: AnswersMax,
    /// How long it has waited since it was sent, in nanoseconds.
    waited: u64,
    /// Records that must be read before it can go on.
    awaited: Vec<Ticket>,
    /// The number of its client, for fair shares.
    client: u64,
}

/// The result of running a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// Return it: everything is done, or the answers have reached their limit.
    Over,
    /// Run it again, after the other tasks of the core had their turn.
    More,
    /// Run it again, after these records have been read: see `Batch::take_awaited`.
    Tier,
    /// Its next command is a change, which has to wait for another turn of the core.
    Turn,
}

/// The limit of the answers of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswersMax {
    /// This many bytes, plus anything that is not a value. A longer value is not retrieved: the batch is returned
    /// before it.
    Short(usize),
    /// [`OUTPUT_BYTES_MAX`], except that the first value may have any length.
    OneLong,
}

impl Default for AnswersMax {
    fn default() -> AnswersMax {
        AnswersMax::Short(OUTPUT_BYTES_MAX)
    }
}

impl Batch {
    /// Empties it; `value_bytes_max` is the longest value that a command may have.
    pub(super) fn reset(&mut self, value_bytes_max: usize) {
        self.text.clear();
        self.ends.clear();
        self.answers.clear();
        self.answer_ends.clear();
        (self.done, self.taken) = (0, 0);
        self.value_bytes_max = value_bytes_max;
    }

    /// Creates a batch of these commands, ready to run.
    #[cfg(test)]
    pub(crate) fn of(commands: &[&str]) -> Box<Batch> {
        let mut batch = Box::<Batch>::default();
        batch.reset(1 << 20);
        batch.begin_run(AnswersMax::OneLong);
        commands.iter().for_each(|command| batch.push_command(command.as_bytes()));
        batch
    }

    /// Returns the bytes of memory it has allocated, with what it will note of its answers.
    pub(super) fn memory_bytes(&self) -> usize {
        let ends = self.ends.capacity() * size_of::<(usize, IsPart)>();
        // One of each unit, once it has run.
        let answer_ends = self.answer_ends.capacity().max(self.ends.len()) * size_of::<usize>();
        self.text.capacity() + ends + self.answers.capacity() + answer_ends
    }

    /// Whether the last run returned answers.
    pub(crate) fn got_on(&self) -> bool {
        self.done > self.taken
    }

    /// Frees the memory of the answers, all of which were taken.
    pub(super) fn forget_answers(&mut self) {
        self.answers = Vec::new();
    }

    /// Returns the number of its units.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it has no units.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether its text has reached the limit.
    pub(super) fn is_full(&self) -> bool {
        self.text.len() > FORWARD_BYTES_MAX
    }

    /// Returns the bytes of its commands.
    pub(super) fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Adds one key of a retrieval. The end of the retrieval is not answered, except if it touches a single item.
    pub(super) fn push_get(&mut self, key: &[u8], get: Get) {
        let verb: &[u8] = match (get.with_cas, get.touch.is_some()) {
            (false, false) => b"get ",
            (true, false) => b"gets ",
            (false, true) => b"gat ",
            (true, true) => b"gats ",
        };
        self.text.extend_from_slice(verb);
        if let Some(exptime) = get.touch {
            if exptime < 0 {
                self.text.push(b'-');
            }
            number::write(&mut self.text, u64::from(exptime.unsigned_abs()));
            self.text.push(b' ');
        }
        self.text.extend_from_slice(key);
        self.text.extend_from_slice(b"\r\n");
        self.ends.push((self.text.len(), if get.is_lone_touch { IsPart::No } else { IsPart::Yes }));
    }

    /// Adds a command with its data block.
    pub(super) fn push_command(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
        self.ends.push((self.text.len(), IsPart::No));
    }

    /// Runs a burst of units on the partition of the core that owns their keys.
    pub fn run(&mut self, owner: &impl Backend) -> Ran {
        self.run_with(owner, if must_wait(owner) { Changes::Wait } else { Changes::Run })
    }

    /// As [`Batch::run`], right after it has waited for a turn.
    pub(crate) fn run_in_turn(&mut self, owner: &impl Backend) -> Ran {
        self.run_with(owner, Changes::Run)
    }

    fn run_with(&mut self, owner: &impl Backend, changes: Changes) -> Ran {
        let state = owner.state();
        let begun = state.timing.begin_after(self.waited);
        let mut units = ArrayVec::<Unit<'_>, BURST_UNITS_MAX>::new();
        for at in self.done..self.ends.len().min(self.done + BURST_UNITS_MAX) {
            let start = if at == 0 { 0 } else { self.ends[at - 1].0 };
            let (end, is_part) = self.ends[at];
            units.push(match step(Mode::Line, &self.text[start..end], 0, self.value_bytes_max) {
                Step::Unit(Unit::Get { key, get, .. }, _, _) if is_part == IsPart::Yes => {
                    Unit::Get { key, get: Get { is_lone_touch: false, ..get }, is_last: false }
                }
                Step::Unit(unit, _, _) => unit,
                // The same parser already accepted it as a unit.
                Step::Skip(..) | Step::NeedLine | Step::Need(_) | Step::Close => Unit::Say(UNAVAILABLE),
            });
        }
        let ends = &mut self.answer_ends;
        let note = |out: &Vec<u8>| ends.push(out.len());
        let metrics = &mut *owner.metrics().borrow_mut();
        let awaited = &mut self.awaited;
        let books = Books { now: owner.now(), counters: &state.counters, metrics, awaited };
        let answers = &mut self.answers;
        let (answers_max, long_values) = match self.answers_max {
            AnswersMax::Short(bytes) => (bytes, LongValues::Nowhere),
            AnswersMax::OneLong => (OUTPUT_BYTES_MAX, LongValues::First),
        };
        let pause = Pause { answers_max, long_values, for_tier: owner.has_tier(), changes };
        let (done, end) = owner.with_store(|store| execute::burst(units.iter(), store, books, answers, pause, note));
        debug_assert_eq!(self.done + done, self.taken + self.answer_ends.len());
        if let Some(begun) = begun {
            state.timing.end(&begun, metrics, units[..done].iter().filter_map(execute::kind));
        }
        self.done += done;
        match end {
            BurstEnd::Answers => Ran::Over,
            BurstEnd::Done if self.done == self.ends.len() => Ran::Over,
            BurstEnd::Tier => Ran::Tier,
            BurstEnd::Done | BurstEnd::Work => Ran::More,
            BurstEnd::Change => Ran::Turn,
        }
    }

    /// Returns the records that must be read before it can go on.
    pub(crate) fn take_awaited(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.awaited)
    }

    /// Returns the number of its client.
    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    /// Sets the number of its client.
    pub(super) fn set_client(&mut self, client: u64) {
        self.client = client;
    }

    /// Adds time that it has waited for a snapshot's disk, in nanoseconds.
    pub(crate) fn add_waited(&mut self, nanos: u64) {
        self.waited += nanos;
    }

    /// Prepares it for sending: the answers of the previous run were taken.
    pub(super) fn begin_run(&mut self, answers_max: AnswersMax) {
        self.waited = 0;
        self.answers_max = answers_max;
        self.answers.clear();
        self.answer_ends.clear();
        self.taken = self.done;
    }

    /// Returns the answer of a unit; `None` if the batch must be sent again to get it.
    pub(crate) fn answer(&self, unit: usize) -> Option<&[u8]> {
        let at = unit.checked_sub(self.taken)?;
        let end = *self.answer_ends.get(at)?;
        let start = if at == 0 { 0 } else { self.answer_ends[at - 1] };
        Some(&self.answers[start..end])
    }

    /// Whether this unit's answer is the last one of the last run.
    pub(super) fn is_last_answer(&self, unit: usize) -> bool {
        unit + 1 == self.done
    }
}

pub(super) const UNAVAILABLE: &[u8] = b"SERVER_ERROR the core that owns this key does not answer\r\n";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dunlin_store::Model;

    use super::*;
    use crate::memcached::Single;
    use crate::metrics::Operation;

    #[test]
    fn the_time_of_a_command_is_that_which_its_batch_has_waited() {
        const WAIT: Duration = Duration::from_secs(1);
        let core = Single::new(Model::new(), 0);
        let longest = || {
            let metrics = core.metrics().borrow();
            let (_, sets) = metrics.operations().find(|(operation, _)| *operation == Operation::Set).unwrap();
            sets.latency.percentile(100.0)
        };
        let mut batch = Batch::default();
        let mut run = |waited: Duration| {
            batch.reset(1024);
            batch.begin_run(AnswersMax::OneLong);
            batch.push_command(b"set key 0 0 1\r\nx\r\n");
            batch.add_waited(waited.as_nanos() as u64);
            assert_eq!(batch.run(&core), Ran::Over);
        };
        run(WAIT);
        assert!(longest() >= WAIT, "{:?}", longest());
        // The next one sent has not waited.
        run(Duration::ZERO);
        let metrics = core.metrics().borrow();
        let (_, sets) = metrics.operations().next().unwrap();
        assert!(sets.latency.count() == 2 && sets.latency.percentile(50.0) < WAIT);
    }
}
