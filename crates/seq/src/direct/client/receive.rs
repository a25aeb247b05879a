//! Receiving answers: numbers, hellos and refusals.

use dunlin_net::Transport;
use dunlin_net::clock::nanos;
use dunlin_net::transport::RX_BURST;

use super::DirectClient;
use super::call::{Course, State, UNSENT};
use super::error::{DirectError, Stall};
use crate::counter::NUMBERS_END;
use crate::direct::packet::{self, Kind, Packet, Refusal};
use crate::mutation::{Mutation, is_planted};

/// An attempt is repeated at once for up to this many hellos in a row; after more it waits like one without an answer.
const HELLOS_MAX: u8 = 3;
/// A poll receives until it has this many packets, or there are no more: what arrives in small pieces leaves in large
/// ones. It is as many as a burst over shared memory has, so there a poll is one burst, and the server works meanwhile.
pub(super) const ENOUGH: usize = 32;
/// A poll receives no more packets than this and a burst, unless timeouts are checked.
const ENOUGH_MAX: usize = 1024;

/// The epoch of a server, by its hello.
fn epoch_of(hello: &Packet) -> u32 {
    if hello.kind == Kind::Epoch { hello.incarnation } else { 0 }
}

impl<T: Transport> DirectClient<T> {
    /// Receives until there are enough packets, or no more.
    #[inline]
    pub(super) fn receive(&mut self, now: u64, done: &mut impl FnMut(u64, Result<u64, DirectError>)) -> usize {
        let mut total = 0;
        loop {
            let count = self.transport.rx_burst().min(RX_BURST);
            if count == 0 {
                return total;
            }
            self.take_burst(count, now, done);
            total += count;
            // After a full burst the next one may be there already.
            let is_enough = total >= ENOUGH && (count < RX_BURST || total >= ENOUGH_MAX);
            if is_enough || self.in_progress == 0 {
                return total;
            }
        }
    }

    /// Receives until nothing is there, or as much as the receive queue holds: a flood must not keep calls from timing
    /// out.
    #[cold]
    pub(super) fn receive_all(&mut self, now: u64, done: &mut impl FnMut(u64, Result<u64, DirectError>)) -> usize {
        let (mut total, limit) = (0, self.transport.rx_queue_len().max(2 * self.slots.len()));
        while total < limit {
            let count = self.transport.rx_burst().min(RX_BURST);
            if count == 0 {
                break;
            }
            self.take_burst(count, now, done);
            total += count;
        }
        total
    }

    /// Takes the packets of a burst. An answer with four bytes to a call of the present server, the usual case, is
    /// recognized by two comparisons.
    #[inline]
    fn take_burst(&mut self, count: usize, now: u64, done: &mut impl FnMut(u64, Result<u64, DirectError>)) {
        let (mut numbers, mut last) = (0, None);
        for i in 0..count {
            let packet = self.transport.rx_packet(i);
            if let Some((start, tag, lower)) = packet::split_short(packet.head())
                && start == self.low
            {
                let place = self.place_of(tag);
                let slot = &mut self.slots[place];
                let upper = if is_planted(Mutation::GuessNotKept) { self.guess } else { slot.guess };
                let number = u64::from(upper) << 32 | u64::from(lower);
                if slot.tag == tag && slot.named == self.named && number >= slot.floor {
                    let (token, guess) = (slot.token, slot.guess);
                    slot.free();
                    if number >= self.floor {
                        (self.floor, self.guess) = (number + 1, guess);
                    }
                    (numbers, last) = (numbers + 1, Some(place));
                    done(token, Ok(number));
                    continue;
                }
            }
            match Packet::parse(packet.head()) {
                Some(answer) if answer.kind != Kind::Ask => {
                    if let Some((token, ended)) = self.take(&answer, now) {
                        done(token, ended);
                    }
                }
                _ => self.stats.foreign += 1,
            }
        }
        self.in_progress -= numbers;
        self.stats.numbers += numbers as u64;
        if let Some(place) = last {
            let Course { deadline, server, .. } = self.courses[place];
            let begun = deadline.saturating_sub(self.timeout);
            self.servers[usize::from(server)].answered_in(now.saturating_sub(begun));
        }
    }

    /// Handles an answer; returns the result if the call has ended.
    #[inline(never)]
    fn take(&mut self, answer: &Packet, now: u64) -> Option<(u64, Result<u64, DirectError>)> {
        let (place, places) = (self.place_of(answer.tag), self.slots.len());
        let (slot, course) = (self.slots[place], self.courses[place]);
        let is_its_tag = slot.tag == answer.tag || (is_planted(Mutation::TagIgnored) && slot.is_used(place, places));
        if !is_its_tag || slot.floor == UNSENT {
            self.stats.late += 1;
            return None;
        }
        let number = match answer.kind {
            Kind::Low => {
                let upper = if is_planted(Mutation::GuessNotKept) { self.guess } else { slot.guess };
                u64::from(upper) << 32 | answer.data
            }
            Kind::Full => answer.data,
            Kind::Hello | Kind::Epoch | Kind::Refused | Kind::Ask => return self.take_word(place, answer, now),
        };
        // Another call may have learned of a later epoch, or of a restart, since this attempt was sent.
        let is_over = slot.named != self.name(course.server.into());
        if slot.named == 0 || answer.incarnation != slot.named || is_over {
            self.stats.stale += 1;
            return None;
        }
        if number >= NUMBERS_END {
            self.stats.foreign += 1;
            return None;
        }
        let token = self.end(place);
        if number < slot.floor {
            return Some((token, Err(self.went_back(course.server, number, slot.floor))));
        }
        self.stats.numbers += 1;
        self.stats.wrong_guesses += u64::from(answer.kind == Kind::Full);
        if number >= self.floor {
            (self.floor, self.guess) = (number + 1, (number >> 32) as u32);
        }
        Some((token, Ok(number)))
    }

    #[cold]
    fn went_back(&self, server: u16, first: u64, floor: u64) -> DirectError {
        let server = self.servers[usize::from(server)].addr.clone();
        DirectError::WentBack { server, first, seen: floor.saturating_sub(1) }
    }

    /// Handles an answer without a number.
    #[cold]
    fn take_word(&mut self, place: usize, answer: &Packet, now: u64) -> Option<(u64, Result<u64, DirectError>)> {
        let server = self.courses[place].server;
        let failed = match (answer.kind, answer.refusal()) {
            // A server that says hello has no terms: that is epoch 0.
            (Kind::Hello | Kind::Epoch, _)
                if epoch_of(answer) < self.epoch && !is_planted(Mutation::EpochForgotten) =>
            {
                self.refuse(place, Stall::OldEpoch, now);
                None
            }
            (Kind::Hello | Kind::Epoch, _) => self.meet(place, answer),
            (_, Some(Refusal::Exhausted)) => {
                Some(DirectError::Exhausted { server: self.servers[usize::from(server)].addr.clone() })
            }
            (_, Some(why)) => {
                self.refuse(place, if why == Refusal::Dry { Stall::Dry } else { Stall::NotServing }, now);
                None
            }
            _ => {
                self.stats.foreign += 1;
                None
            }
        };
        failed.map(|error| (self.end(place), Err(error)))
    }

    /// Pauses a call, unless it is paused already. If its server has numbers for nobody, asks the next one.
    fn refuse(&mut self, place: usize, why: Stall, now: u64) {
        let course = &mut self.courses[place];
        if course.state != State::Sent {
            self.stats.late += 1;
            return;
        }
        self.stats.refused += 1;
        (course.stall, self.stall) = (why, why);
        (course.state, course.due) = (State::Paused, now.saturating_add(nanos(self.config.pause)));
        self.look_at = self.look_at.min(course.due);
        let server = course.server;
        if why != Stall::Dry {
            self.turn_from(server);
        }
    }

    /// Handles a hello. The call is repeated at once, unless the server's next number is too low.
    fn meet(&mut self, place: usize, hello: &Packet) -> Option<DirectError> {
        let (slot, server) = (self.slots[place], self.courses[place].server);
        self.stats.hellos += 1;
        // The next number was read after the first attempt was sent.
        if hello.data < slot.floor {
            return Some(self.went_back(server, hello.data, slot.floor));
        }
        if hello.data >= self.floor {
            self.guess = (hello.data.min(NUMBERS_END - 1) >> 32) as u32;
        }
        if hello.kind == Kind::Epoch {
            self.epoch = hello.incarnation;
            // Also of servers without terms: their numbers are of an earlier epoch from now on.
            self.servers.iter_mut().for_each(|server| server.incarnation = 0);
        } else {
            self.servers[usize::from(server)].incarnation = hello.incarnation;
        }
        self.rename();
        // The hello stands for all attempts that named something else: nothing was drawn for them. They were sent before
        // those that are held back.
        let held = std::mem::take(&mut self.again);
        for place in 0..self.slots.len() {
            let (slot, course) = (&self.slots[place], &self.courses[place]);
            let is_sent = slot.is_used(place, self.slots.len()) && slot.floor != UNSENT && course.state == State::Sent;
            if !is_sent || slot.named == self.name(course.server.into()) {
                continue;
            }
            let (tag, course) = (slot.tag, &mut self.courses[place]);
            course.hellos = course.hellos.saturating_add(1);
            if course.hellos <= HELLOS_MAX {
                course.state = State::Queued;
                self.again.push((place as u32, tag));
            }
        }
        self.again.extend(held);
        None
    }
}
