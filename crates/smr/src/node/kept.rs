//! Questions that are kept until there is an answer: a client that waits for an event asks once, and is answered when
//! it happens. A waiting question costs memory, and nothing else.

use std::collections::{BTreeMap, VecDeque};

use dunlin_net::clock::nanos;

use super::clients::respond;
use super::core::Core;
use super::reads::Read;
use crate::wire::response::Response;

/// The fewest kept questions for which a sweep looks for abandoned ones.
const SWEEP_MIN: usize = 64;

/// All kept questions.
#[derive(Default)]
pub(super) struct KeptQuestions {
    /// Questions without an answer yet, by number.
    waiting: BTreeMap<u64, Read>,
    bytes: usize,
    /// Questions that have an answer and wait for their turn.
    ready: VecDeque<Read>,
    /// How many were left after the last sweep.
    swept: usize,
    /// When the last sweep for lack of room took place, by the replica's clock.
    refused: u64,
}

impl KeptQuestions {
    pub fn len(&self) -> usize {
        self.waiting.len() + self.ready.len()
    }

    /// Takes a question that has an answer by now.
    pub fn next_ready(&mut self) -> Option<Read> {
        self.ready.pop_front()
    }
}

impl Core {
    /// Registers a question that the machine has kept.
    pub fn keep_question(&mut self, read: Read) {
        // The cost of a sweep is spread over as many questions as arrived since the last one.
        if self.kept.waiting.len() >= 2 * self.kept.swept.max(SWEEP_MIN) {
            self.sweep_kept();
        }
        if !self.has_room_to_keep(&read) {
            self.make_room_to_keep();
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
        self.kept.len() < self.config.kept_questions_max
            && self.kept.bytes + read.query.len() <= self.config.read_bytes_max
    }

    /// Sweeps at most once per tick: rejected clients ask again and again.
    fn make_room_to_keep(&mut self) {
        let now = self.now();
        if self.kept.refused == 0 || now >= self.kept.refused + nanos(self.config.tick) {
            self.kept.refused = now;
            self.sweep_kept();
        }
    }

    /// Forgets questions that no client waits for any more.
    fn sweep_kept(&mut self) {
        self.counters.kept_swept += self.kept.waiting.len() as u64;
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

    /// Takes the questions that have an answer by now.
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

    /// Answers all of them with this response: the clients must ask another replica.
    pub fn end_kept(&mut self, response: &Response<'_>) {
        let kept = std::mem::take(&mut self.kept);
        for read in kept.ready.into_iter().chain(kept.waiting.into_values()) {
            self.state.machine.forget(read.number);
            respond(read.reply, response);
        }
    }
}
