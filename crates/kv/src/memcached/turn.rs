//! Answers in the order of the commands, while other cores work on some of them.

use super::batch::{AnswersMax, Batch, UNAVAILABLE};
use super::budget::Memory;
use super::limits::{OUTPUT_BYTES_MAX, SHORT_BYTES, TURN_ANSWER_BYTES, TURN_UNITS_MAX};
use super::parse::Get;
use crate::routing::Core;

/// Where the next answer comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// The answers made here, up to this byte.
    Here(usize),
    /// The next answer of this lane.
    Lane(usize),
}

/// What goes to one core.
#[derive(Debug)]
struct Lane {
    core: Core,
    /// `None` while it is away, and if it did not come back.
    batch: Option<Box<Batch>>,
    /// The next unit whose answer is wanted.
    next: usize,
}

/// Memory of a batch that is kept for later turns, in bytes.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// How far a merge came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Merged {
    /// Every answer is in the output.
    All,
    /// The output is to be written first.
    Full,
    /// The next answer is to be written from where it is, without a copy: see [`Turn::long_answer`].
    Long,
    /// This lane's batch must be sent again.
    Again(usize),
}

/// The commands of one turn of a connection, when some of their keys are owned elsewhere.
#[derive(Debug, Default)]
pub(super) struct Turn {
    sources: Vec<Source>,
    /// The first source that was not merged.
    merged: usize,
    here: Vec<u8>,
    here_taken: usize,
    lanes: Vec<Lane>,
    /// Batches for later turns.
    // Boxed, since they travel so.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Batch>>,
}

impl Turn {
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether it has as much as it may.
    pub fn is_full(&self, memory: Memory) -> bool {
        let mut batches = self.lanes.iter().filter_map(|lane| lane.batch.as_ref());
        self.sources.len() >= TURN_UNITS_MAX
            || self.here.len() > memory.limit(OUTPUT_BYTES_MAX)
            || match memory {
                Memory::Ample => batches.any(|batch| batch.is_full()),
                Memory::Short => batches.map(|batch| batch.text_bytes()).sum::<usize>() > SHORT_BYTES,
            }
    }

    /// The answers made here. Each is to be followed by [`Turn::note_here`].
    pub fn here(&mut self) -> (&mut Vec<u8>, impl FnMut(&Vec<u8>)) {
        let sources = &mut self.sources;
        (&mut self.here, |out: &Vec<u8>| sources.push(Source::Here(out.len())))
    }

    fn batch(&mut self, core: Core, value_bytes_max: usize) -> &mut Batch {
        let lane = match self.lanes.iter().position(|lane| lane.core == core) {
            Some(lane) => lane,
            None => {
                let mut batch = self.spare.pop().unwrap_or_default();
                batch.reset(value_bytes_max);
                self.lanes.push(Lane { core, batch: Some(batch), next: 0 });
                self.lanes.len() - 1
            }
        };
        self.sources.push(Source::Lane(lane));
        self.lanes[lane].batch.get_or_insert_default()
    }

    /// Adds one key of a retrieval for another core, and what ends the retrieval if it is the last one.
    pub fn push_get(&mut self, core: Core, key: &[u8], get: Get, is_last: bool, value_bytes_max: usize) {
        self.batch(core, value_bytes_max).push_get(key, get);
        // A lone touch may be answered with an error, so what ends it comes from the core that runs it.
        if is_last && !get.is_lone_touch {
            self.here.extend_from_slice(b"END\r\n");
            self.sources.push(Source::Here(self.here.len()));
        }
    }

    /// Adds a command for another core.
    pub fn push_command(&mut self, core: Core, text: &[u8], value_bytes_max: usize) {
        self.batch(core, value_bytes_max).push_command(text);
    }

    /// Bytes that the answers of each lane may have when all are sent together.
    fn lane_answer_bytes(&self, memory: Memory) -> usize {
        (memory.limit(TURN_ANSWER_BYTES) / self.lanes.len().max(1)).max(SHORT_BYTES)
    }

    /// Bytes that it may have when its answers are back.
    pub fn bytes_with_answers(&self, memory: Memory) -> usize {
        self.memory_bytes() + self.lanes.len() * self.lane_answer_bytes(memory)
    }

    /// Takes out what is to be sent in all lanes together. No answer may be long, and all together are short.
    pub fn take_all(&mut self, memory: Memory) -> Vec<(usize, Core, Box<Batch>)> {
        let each = self.lane_answer_bytes(memory);
        let take = |(at, lane): (usize, &mut Lane)| {
            let mut batch = lane.batch.take()?;
            batch.begin_run(AnswersMax::Short(each));
            Some((at, lane.core, batch))
        };
        self.lanes.iter_mut().enumerate().filter_map(take).collect()
    }

    /// Takes out what is to be sent again in one lane. With ample memory the first answer may be long.
    pub fn take_again(&mut self, lane: usize, memory: Memory) -> Option<(Core, Box<Batch>)> {
        let lane = &mut self.lanes[lane];
        let mut batch = lane.batch.take()?;
        batch.begin_run(match memory {
            Memory::Ample => AnswersMax::OneLong,
            Memory::Short => AnswersMax::Short(SHORT_BYTES),
        });
        Some((lane.core, batch))
    }

    /// Whether the batch of a lane brought answers when it was sent last.
    pub fn got_on(&self, lane: usize) -> bool {
        self.lanes[lane].batch.as_ref().is_some_and(|batch| batch.got_on())
    }

    /// Bytes of memory it has.
    pub fn memory_bytes(&self) -> usize {
        let batches = self.lanes.iter().filter_map(|lane| lane.batch.as_ref()).chain(&self.spare);
        self.here.capacity() + batches.map(|batch| batch.memory_bytes()).sum::<usize>()
    }

    /// Puts back what came back.
    pub fn put(&mut self, lane: usize, batch: Box<Batch>) {
        self.lanes[lane].batch = Some(batch);
    }

    /// Moves answers to the output, in order.
    pub fn merge(&mut self, out: &mut Vec<u8>, memory: Memory) -> Merged {
        while let Some(source) = self.sources.get(self.merged) {
            if out.len() > memory.limit(OUTPUT_BYTES_MAX) {
                return Merged::Full;
            }
            if let Source::Lane(at) = *source {
                let lane = &self.lanes[at];
                if lane.batch.as_ref().is_some_and(|batch| batch.answer(lane.next).is_none()) {
                    return Merged::Again(at);
                }
            }
            let answer = self.long_answer();
            if answer.len() > memory.limit(OUTPUT_BYTES_MAX) {
                return if out.is_empty() { Merged::Long } else { Merged::Full };
            }
            out.extend_from_slice(answer);
            self.pass();
        }
        self.sources.clear();
        self.here.clear();
        self.here.shrink_to(SPARE_BYTES_MAX);
        (self.merged, self.here_taken) = (0, 0);
        let batches = self.lanes.drain(..).filter_map(|lane| lane.batch);
        self.spare.extend(batches.filter(|batch| batch.memory_bytes() <= SPARE_BYTES_MAX));
        Merged::All
    }

    /// The next answer, where a merge has stopped before it.
    pub fn long_answer(&self) -> &[u8] {
        match self.sources.get(self.merged) {
            Some(Source::Here(end)) => &self.here[self.here_taken..*end],
            Some(Source::Lane(at)) => {
                let lane = &self.lanes[*at];
                lane.batch.as_ref().map_or(UNAVAILABLE, |batch| batch.answer(lane.next).unwrap_or_default())
            }
            None => &[],
        }
    }

    /// Goes on behind the next answer, which was written.
    pub fn pass(&mut self) {
        match self.sources.get(self.merged) {
            Some(Source::Here(end)) => self.here_taken = *end,
            Some(Source::Lane(at)) => {
                let lane = &mut self.lanes[*at];
                // What is short is kept for the next turn.
                let is_long = |batch: &&mut Box<Batch>| batch.memory_bytes() > SPARE_BYTES_MAX;
                if let Some(batch) = lane.batch.as_mut().filter(is_long).filter(|batch| batch.is_last_answer(lane.next)) {
                    batch.forget_answers();
                }
                lane.next += 1;
            }
            None => return,
        }
        self.merged += 1;
    }

    /// Gives its memory back, and up what a client that is gone was to get.
    pub fn release(&mut self) {
        *self = Turn::default();
    }
}
