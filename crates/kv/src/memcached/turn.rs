//! Puts answers in the order of the commands while other cores execute some of them.

use super::batch::{AnswersMax, Batch};
use super::budget::Memory;
use super::limits::{OUTPUT_BYTES_MAX, SHORT_BYTES, TURN_ANSWER_BYTES, TURN_UNITS_MAX};
use super::parse::Get;
use crate::routing::Core;

/// The source of the next answer.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// The answers built here, up to this byte.
    Here(usize),
    /// The next answer of this lane.
    Lane(usize),
}

/// The commands for one core.
#[derive(Debug)]
struct Lane {
    core: Core,
    /// `None` while the batch is away, and if it is lost.
    batch: Option<Box<Batch>>,
    /// The next unit whose answer is needed.
    next: usize,
}

/// Largest batch that is kept for later turns, in bytes of memory.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// The result of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Merged {
    /// Every answer is in the output.
    All,
    /// The output must be written first.
    Full,
    /// The next answer must be written in place, without a copy: see [`Turn::long_answer`].
    Long,
    /// This lane's batch must be sent again.
    Again(usize),
    /// The next answer is lost, with the batch of its lane.
    Lost,
}

/// The commands of one turn of a connection, when other cores own some of their keys.
#[derive(Debug, Default)]
pub(super) struct Turn {
    sources: Vec<Source>,
    /// The first source that is not merged yet.
    merged: usize,
    here: Vec<u8>,
    here_taken: usize,
    lanes: Vec<Lane>,
    /// Batches for later turns.
    // Boxed, since they are sent that way.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Batch>>,
}

impl Turn {
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether it has reached its limit.
    pub fn is_full(&self, memory: Memory) -> bool {
        let mut batches = self.lanes.iter().filter_map(|lane| lane.batch.as_ref());
        self.sources.len() >= TURN_UNITS_MAX
            || self.here.len() > memory.limit(OUTPUT_BYTES_MAX)
            || match memory {
                Memory::Ample => batches.any(|batch| batch.is_full()),
                Memory::Short => batches.map(|batch| batch.text_bytes()).sum::<usize>() > SHORT_BYTES,
            }
    }

    /// Returns the buffer of answers built here, and a function to call after each answer is appended.
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

    /// Adds one key of a retrieval for another core, and the end of the retrieval if it is the last key.
    pub fn push_get(&mut self, core: Core, key: &[u8], get: Get, is_last: bool, value_bytes_max: usize) {
        self.batch(core, value_bytes_max).push_get(key, get);
        // A lone touch may be answered with an error, so its end comes from the core that runs it.
        if is_last && !get.is_lone_touch {
            self.here.extend_from_slice(b"END\r\n");
            self.sources.push(Source::Here(self.here.len()));
        }
    }

    /// Adds a command for another core.
    pub fn push_command(&mut self, core: Core, text: &[u8], value_bytes_max: usize) {
        self.batch(core, value_bytes_max).push_command(text);
    }

    /// Returns the maximum length of the answers of each lane when all are sent together.
    fn lane_answer_bytes(&self, memory: Memory) -> usize {
        match memory {
            Memory::Ample => (TURN_ANSWER_BYTES / self.lanes.len().max(1)).max(SHORT_BYTES),
            Memory::Short => SHORT_BYTES,
        }
    }

    /// Frees memory that it kept and does not need. Call this before sending: that memory is not accounted for.
    pub fn release_spare(&mut self) {
        self.spare = Vec::new();
    }

    /// Returns its maximum memory once its answers are back.
    pub fn bytes_with_answers(&self, memory: Memory) -> usize {
        self.memory_bytes() + self.lanes.len() * self.lane_answer_bytes(memory)
    }

    /// Takes out what is to be sent in all lanes at once. No answer may be long, and all together are short.
    pub fn take_all(&mut self, memory: Memory) -> Vec<(usize, Core, Box<Batch>)> {
        let each = self.lane_answer_bytes(memory);
        let take = |(at, lane): (usize, &mut Lane)| {
            let mut batch = lane.batch.take()?;
            batch.begin_run(AnswersMax::Short(each));
            Some((at, lane.core, batch))
        };
        self.lanes.iter_mut().enumerate().filter_map(take).collect()
    }

    /// Takes out what is to be sent again in one lane. With ample memory, the first answer may be long.
    pub fn take_again(&mut self, lane: usize, memory: Memory) -> Option<(Core, Box<Batch>)> {
        let lane = &mut self.lanes[lane];
        let mut batch = lane.batch.take()?;
        batch.begin_run(match memory {
            Memory::Ample => AnswersMax::OneLong,
            Memory::Short => AnswersMax::Short(SHORT_BYTES),
        });
        Some((lane.core, batch))
    }

    /// Whether the batch of a lane returned answers when it was last sent.
    pub fn got_on(&self, lane: usize) -> bool {
        self.lanes[lane].batch.as_ref().is_some_and(|batch| batch.got_on())
    }

    /// Returns its bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let batches = self.lanes.iter().filter_map(|lane| lane.batch.as_ref()).chain(&self.spare);
        let sources = self.sources.capacity() * size_of::<Source>();
        sources + self.here.capacity() + batches.map(|batch| batch.memory_bytes()).sum::<usize>()
    }

    /// Puts back a returned batch.
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
                let Some(batch) = &lane.batch else { return Merged::Lost };
                if batch.answer(lane.next).is_none() {
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

    /// Returns the next answer, at which a merge has stopped.
    pub fn long_answer(&self) -> &[u8] {
        match self.sources.get(self.merged) {
            Some(Source::Here(end)) => &self.here[self.here_taken..*end],
            Some(Source::Lane(at)) => {
                let lane = &self.lanes[*at];
                lane.batch.as_ref().and_then(|batch| batch.answer(lane.next)).unwrap_or_default()
            }
            None => &[],
        }
    }

    /// Continues after the next answer, which was written.
    pub fn pass(&mut self) {
        match self.sources.get(self.merged) {
            Some(Source::Here(end)) => self.here_taken = *end,
            Some(Source::Lane(at)) => {
                let lane = &mut self.lanes[*at];
                // Small batches are kept for the next turn.
                let is_long = |batch: &&mut Box<Batch>| batch.memory_bytes() > SPARE_BYTES_MAX;
                if let Some(batch) = lane.batch.as_mut().filter(is_long).filter(|batch| batch.is_last_answer(lane.next))
                {
                    batch.forget_answers();
                }
                lane.next += 1;
            }
            None => return,
        }
        self.merged += 1;
    }

    /// Frees its memory, and discards answers for a client that is gone.
    pub fn release(&mut self) {
        *self = Turn::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_turn_is_also_what_it_notes_of_each_command() {
        const KEYS: usize = TURN_UNITS_MAX;
        /// An end of a command, an end of an answer, and where the answer comes from.
        const NOTES_BYTES: usize = 5 * size_of::<usize>();
        let mut turn = Turn::default();
        for _ in 0..KEYS {
            turn.push_command(1, b"mg k\r\n", 1);
        }
        let text: usize =
            turn.lanes.iter().filter_map(|lane| lane.batch.as_ref()).map(|batch| batch.text_bytes()).sum();
        let most = turn.bytes_with_answers(Memory::Short);
        assert!(most >= text + SHORT_BYTES + KEYS * NOTES_BYTES, "{most} bytes");
    }
}
