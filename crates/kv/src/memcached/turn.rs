//! Answers in the order of the commands, while other cores work on some of them.

use super::batch::{Batch, UNAVAILABLE};
use super::limits::{OUTPUT_BYTES_MAX, TURN_UNITS_MAX};
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

/// How far a merge came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Merged {
    /// Every answer is in the output.
    All,
    /// The output is to be written first.
    Full,
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
    pub fn is_full(&self) -> bool {
        self.sources.len() >= TURN_UNITS_MAX
            || self.here.len() > OUTPUT_BYTES_MAX
            || self.lanes.iter().any(|lane| lane.batch.as_ref().is_some_and(|batch| batch.is_full()))
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

    /// How many cores are concerned.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Takes out what is to be sent in a lane.
    pub fn take(&mut self, lane: usize) -> Option<(Core, Box<Batch>)> {
        let lane = &mut self.lanes[lane];
        Some((lane.core, lane.batch.take()?))
    }

    /// Puts back what came back.
    pub fn put(&mut self, lane: usize, batch: Box<Batch>) {
        self.lanes[lane].batch = Some(batch);
    }

    /// Moves answers to the output, in order.
    pub fn merge(&mut self, out: &mut Vec<u8>) -> Merged {
        while let Some(source) = self.sources.get(self.merged) {
            if out.len() > OUTPUT_BYTES_MAX {
                return Merged::Full;
            }
            match *source {
                Source::Here(end) => {
                    out.extend_from_slice(&self.here[self.here_taken..end]);
                    self.here_taken = end;
                }
                Source::Lane(at) => {
                    let lane = &mut self.lanes[at];
                    match lane.batch.as_ref().map(|batch| batch.answer(lane.next)) {
                        Some(Some(answer)) => out.extend_from_slice(answer),
                        Some(None) => return Merged::Again(at),
                        None => out.extend_from_slice(UNAVAILABLE),
                    }
                    lane.next += 1;
                }
            }
            self.merged += 1;
        }
        self.sources.clear();
        self.here.clear();
        (self.merged, self.here_taken) = (0, 0);
        self.spare.extend(self.lanes.drain(..).filter_map(|lane| lane.batch));
        Merged::All
    }

    /// Gives its memory back.
    pub fn release(&mut self) {
        debug_assert!(self.is_empty());
        *self = Turn::default();
    }
}
