//! Questions that wait until there is an answer: a client that wants to hear of something asks once, and is answered when it happens. While one waits it costs
//! memory, and nothing else.

use std::collections::{BTreeMap, VecDeque};

use super::clients::respond;
use super::core::Core;
use super::reads::Read;
use crate::log::LogStore;
use crate::machine::StateMachine;
use crate::wire::response::Response;

/// Fewest questions among which those are looked for that nobody waits for any more.
const SWEEP_MIN: usize = 64;

/// All of them.
#[derive(Default)]
pub(super) struct KeptQuestions {
    /// By number: those for which there is no answer yet.
    waiting: BTreeMap<u64, Read>,
    bytes: usize,
    /// For their turn: there is an answer.
    ready: VecDeque<Read>,
    /// How many were left when it was looked last who still waits.
    swept: usize,
}

impl KeptQuestions {
    pub fn len(&self) -> usize {
        self.waiting.len() + self.ready.len()
    }

    /// One that has an answer by now.
    pub fn next_ready(&mut self) -> Option<Read> {
        self.ready.pop_front()
    }
}

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Keeps a question that the machine has kept.
    pub fn keep_question(&mut self, read: Read) {
        // The cost of a sweep is spread over as many questions as came since the last one.
        if self.kept.waiting.len() >= 2 * self.kept.swept.max(SWEEP_MIN) {
            self.sweep_kept();
        }
        if !self.has_room_to_keep(&read) {
            self.sweep_kept();
        }
        if !self.has_room_to_keep(&read) {
            self.state.machine.forget(read.number);
            self.counters.pushed_back += 1;
            return respond(read.reply, &Response::Busy);
        }
        self.kept.bytes += read.query.len();
        self.kept.waiting.insert(read.number, read);
    }

    fn has_room_to_keep(&self, read: &Read) -> bool {
        self.kept.len() < self.config.kept_questions_max && self.kept.bytes + read.query.len() <= self.config.read_bytes_max
    }

    /// Forgets those that nobody waits for any more.
    fn sweep_kept(&mut self) {
        let machine = &mut self.state.machine;
        let bytes = &mut self.kept.bytes;
        self.kept.waiting.retain(|number, read| {
            let is_waited_for = read.reply.is_waited_for();
            if !is_waited_for {
                machine.forget(*number);
                *bytes -= read.query.len();
            }
            is_waited_for
        });
        self.kept.swept = self.kept.waiting.len();
    }

    /// Takes those for which there is an answer by now.
    pub fn wake_kept(&mut self) {
        if self.kept.waiting.is_empty() {
            return;
        }
        for number in self.state.machine.take_ready() {
            let Some(read) = self.kept.waiting.remove(&number) else { continue };
            self.kept.bytes -= read.query.len();
            self.counters.kept_answered += 1;
            self.kept.ready.push_back(read);
        }
    }

    /// Answers all of them with this: they are to ask another replica.
    pub fn end_kept(&mut self, response: &Response<'_>) {
        let kept = std::mem::take(&mut self.kept);
        for read in kept.ready.into_iter().chain(kept.waiting.into_values()) {
            self.state.machine.forget(read.number);
            respond(read.reply, response);
        }
    }
}
