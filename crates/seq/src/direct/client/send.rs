//! Sending calls: for the first time, again, or held back until the client is acquainted with the server.

use arrayvec::ArrayVec;
use dunlin_net::transport::RX_BURST;
use dunlin_net::{Transport, TxPacket};

use super::DirectClient;
use super::call::{Again, Course, Slot, State, UNSENT};
use super::error::Stall;
use super::server::DOUBLINGS_MAX;
use crate::direct::packet::{self, Kind, SHORT_BYTES, Words};

impl<T: Transport> DirectClient<T> {
    /// Sends what is to be sent.
    #[inline]
    pub(super) fn send(&mut self, now: u64) {
        if self.named == 0 {
            self.introduce(now);
            return;
        }
        if !self.again.is_empty() {
            self.send_again(now);
        }
        if self.fresh.is_empty() {
            return;
        }
        let (guess, floor, named, server) = (self.guess, self.floor, self.named, &self.servers[self.at]);
        let course = self.sent(now);
        let start = packet::start(Kind::Ask, named);
        for places in self.fresh.chunks(RX_BURST) {
            let (slots, courses) = (&mut self.slots, &mut self.courses);
            let prepare = |(place, words): (&u32, &mut Words)| {
                let slot = &mut slots[*place as usize];
                (slot.floor, slot.guess, slot.named) = (floor, guess, named);
                courses[*place as usize] = course;
                *words = packet::words(start, slot.tag, guess.into());
            };
            places.iter().zip(self.packets.iter_mut()).for_each(prepare);
            if let Some(route) = server.route {
                let headers = self.packets[..places.len()].iter().map(|words| &words.as_flattened()[..SHORT_BYTES]);
                let packets = headers.map(|header| TxPacket { route, header, payload: &[] });
                if places.len() == 1 {
                    packets.for_each(|packet| self.transport.tx_burst(&[packet]));
                } else {
                    // Extended in place: what is collected is copied, with all its empty room.
                    let mut burst = ArrayVec::<TxPacket<'_>, RX_BURST>::new();
                    burst.extend(packets);
                    self.transport.tx_burst(&burst);
                }
                // Each burst leaves by itself, so that the server works on one while this client works on another.
                self.transport.tx_flush();
            }
        }
        self.stats.attempts += self.fresh.len() as u64;
        self.fresh.clear();
        self.look_at = self.look_at.min(now.saturating_add(self.attempt_timeout / 4));
    }

    /// A call whose first attempt is sent now.
    #[inline]
    fn sent(&self, now: u64) -> Course {
        Course {
            due: now.saturating_add(self.servers[self.at].timeout(self.attempt_timeout)),
            deadline: now.saturating_add(self.timeout),
            server: self.at as u16,
            attempts: 0,
            hellos: 0,
            state: State::Sent,
            stall: Stall::Silent,
        }
    }

    /// Sends one call to a server that the client is not acquainted with, unless one is on its way. The others are held
    /// back: nothing would be drawn for them, and each would cost the server an answer.
    #[cold]
    fn introduce(&mut self, now: u64) {
        let held = Course { state: State::Queued, due: u64::MAX, ..self.sent(now) };
        for place in self.fresh.drain(..) {
            self.courses[place as usize] = held;
            self.again.push((place, self.slots[place as usize].tag));
        }
        if self.in_progress > 0 {
            self.look_at = self.look_at.min(now.saturating_add(self.attempt_timeout / 4));
        }
        let is_out = |client: &Self, (place, tag): Again| {
            client.slots[place as usize].tag == tag && client.courses[place as usize].state != State::Queued
        };
        if self.introducer.is_some_and(|introducer| is_out(self, introducer)) {
            return;
        }
        let slots = &self.slots;
        self.again.retain(|(place, tag)| slots[*place as usize].tag == *tag);
        self.introducer = (!self.again.is_empty()).then(|| self.again.remove(0));
        let Some((place, _)) = self.introducer else { return };
        let tag = self.repeat(place, now);
        self.introducer = Some((place, tag));
        self.transmit(&[place]);
    }

    /// Sends calls that were sent before, or held back.
    #[cold]
    fn send_again(&mut self, now: u64) {
        let mut again = std::mem::take(&mut self.again);
        let slots = &self.slots;
        again.retain(|(place, tag)| slots[*place as usize].tag == *tag);
        for some in again.chunks(RX_BURST) {
            let places: ArrayVec<u32, RX_BURST> = some.iter().map(|(place, _)| *place).collect();
            for place in &places {
                self.repeat(*place, now);
            }
            self.transmit(&places);
        }
        again.clear();
        self.again = again;
        self.look_at = self.look_at.min(now.saturating_add(self.attempt_timeout / 4));
    }

    /// Prepares the next attempt of a call, and returns its tag. It is that of the earlier attempts, whose answers are as
    /// good, unless these named something else: then no answer to them counts, and none may be taken for one.
    fn repeat(&mut self, place: u32, now: u64) -> u64 {
        let (named, places) = (self.named, self.slots.len() as u64);
        let (slot, course) = (&mut self.slots[place as usize], &mut self.courses[place as usize]);
        if slot.named != 0 && slot.named != named {
            (slot.tag, slot.floor) = (slot.tag.wrapping_add(places), UNSENT);
        }
        if slot.floor == UNSENT {
            slot.floor = self.floor;
        }
        if slot.named != named {
            (slot.guess, slot.named) = (self.guess, named);
        }
        let timeout = self.servers[self.at].timeout(self.attempt_timeout);
        course.due = now.saturating_add(timeout.saturating_mul(1 << course.attempts.min(DOUBLINGS_MAX)));
        (course.state, course.server) = (State::Sent, self.at as u16);
        slot.tag
    }

    /// Sends attempts to the present server: at most [`RX_BURST`].
    fn transmit(&mut self, places: &[u32]) {
        let server = &self.servers[self.at];
        for (place, words) in places.iter().zip(self.packets.iter_mut()) {
            let Slot { tag, guess, named, .. } = self.slots[*place as usize];
            *words = packet::words(packet::start(Kind::Ask, named), tag, guess.into());
        }
        let sent = self.packets[..places.len()].iter().map(|words| &words.as_flattened()[..SHORT_BYTES]);
        let packets: ArrayVec<TxPacket<'_>, RX_BURST> = match server.route {
            Some(route) => sent.map(|header| TxPacket { route, header, payload: &[] }).collect(),
            None => ArrayVec::new(),
        };
        self.stats.attempts += places.len() as u64;
        self.transport.tx_burst(&packets);
        self.transport.tx_flush();
    }
}
