//! The state of each packet of a multi-packet call: when it was sent, whether it was answered, whether it is lost.
//!
//! A packet is lost if one that was sent later was answered, and more time has passed than being overtaken explains:
//! RACK's rule (RFC 8985), with the number breaking ties among packets that left together. No timer declares a loss. So
//! if a peer is stopped and answers nothing, nothing counts as lost, and neither does reordering within the time that
//! [`Window::find_lost`] is given.

use std::ops::Range;

use crate::mutation::{Mutation, is_planted};

/// Not a time.
pub(crate) const NEVER: u64 = u64::MAX;
/// A window spans this many times the credits: while a hole is found and filled, which takes about three round trips,
/// later packets continue.
const CREDITS_SPANNED: usize = 4;
/// Most packets that any window spans: four times the most credits that a session has.
pub(crate) const WINDOW_PACKETS_MAX: usize = 4096;
const WINDOW_PACKETS_MIN: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In flight, and holds a credit.
    InFlight,
    /// Known to have arrived, and holds its credit until the response comes: the last packet of a request.
    Arrived,
    /// To be retransmitted.
    Lost,
    Answered,
}

#[derive(Debug, Clone, Copy)]
struct Packet {
    sent_at: u64,
    state: State,
    /// Whether it was sent more than once, so that an answer may be for either copy (Karn's rule).
    again: bool,
}

/// What the answer to a packet means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The packet was in flight; with its round trip, if only one copy was sent.
    Expected(Option<u64>),
    /// The packet was considered lost, and is not: it holds no credit any more.
    Late,
    /// The packet was answered before.
    Repeated,
}

/// The window. Packets are identified by their number in the call; the caller says which are in it. See the
/// [module](self).
#[derive(Debug)]
pub(crate) struct Window {
    packets: Box<[Packet]>,
    /// Credits that it holds.
    pub in_flight: u32,
    /// Packets that wait for retransmission.
    lost: u32,
    /// No lost packet is below this number.
    lost_from: u32,
    /// The send time and number of the most recently sent packet among those answered.
    latest: (u64, u32),
    /// Its round trip.
    rtt: u64,
    /// After an answer that may belong to either of two copies, nothing counts as lost before this time: answers to
    /// packets sent between the two may follow.
    ambiguous_until: u64,
    /// Whether the packet of `latest` was sent more than once.
    was_again: bool,
    /// When a packet that was overtaken counts as lost; [`NEVER`] if none was.
    pub due: u64,
    /// The REQUEST_FOR_RESPONSE that may be extended: its batch, its entry there, its first packet, how many it asks
    /// for.
    pub asked: Option<(u32, u32, u32, u32)>,
}

impl Window {
    /// Packets that a window spans for this many credits.
    pub fn span(credits: u16) -> usize {
        (credits as usize * CREDITS_SPANNED).next_power_of_two().clamp(WINDOW_PACKETS_MIN, WINDOW_PACKETS_MAX)
    }

    pub fn new(span: usize) -> Window {
        let packet = Packet { sent_at: 0, state: State::Answered, again: false };
        Window {
            packets: vec![packet; span].into_boxed_slice(),
            in_flight: 0,
            lost: 0,
            lost_from: 0,
            latest: (0, 0),
            rtt: 0,
            ambiguous_until: 0,
            was_again: false,
            due: NEVER,
            asked: None,
        }
    }

    /// Forgets all packets, for the next message or the next call.
    pub fn clear(&mut self) {
        (self.in_flight, self.lost, self.lost_from) = (0, 0, 0);
        (self.latest, self.rtt, self.ambiguous_until) = ((0, 0), 0, 0);
        (self.was_again, self.due, self.asked) = (false, NEVER, None);
    }

    /// Packets that wait for retransmission.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    pub fn capacity(&self) -> u32 {
        self.packets.len() as u32
    }

    #[inline]
    fn packet(&mut self, number: u32) -> &mut Packet {
        let mask = self.packets.len() - 1;
        &mut self.packets[number as usize & mask]
    }

    #[inline]
    fn state(&self, number: u32) -> State {
        self.packets[number as usize & (self.packets.len() - 1)].state
    }

    /// Notes that a packet is sent for the first time, and takes a credit.
    #[inline]
    pub fn send(&mut self, number: u32, now: u64) {
        *self.packet(number) = Packet { sent_at: now, state: State::InFlight, again: false };
        self.in_flight += 1;
    }

    /// Notes that a lost packet is retransmitted, and takes a credit.
    pub fn send_again(&mut self, number: u32, now: u64) {
        *self.packet(number) = Packet { sent_at: now, state: State::InFlight, again: true };
        self.in_flight += 1;
        self.lost -= 1;
        self.lost_from = number + 1;
    }

    /// Notes that a packet that holds a credit is retransmitted to provoke an answer.
    pub fn probe(&mut self, number: u32, now: u64) {
        let packet = self.packet(number);
        (packet.sent_at, packet.again) = (now, true);
    }

    /// Sets the time at which a packet left.
    #[inline]
    pub fn stamp(&mut self, number: u32, now: u64) {
        self.packet(number).sent_at = now;
    }

    #[inline]
    pub fn is_answered(&self, number: u32) -> bool {
        self.state(number) == State::Answered
    }

    /// Whether it waits for retransmission.
    pub fn is_lost(&self, number: u32) -> bool {
        self.state(number) == State::Lost
    }

    /// Gives up the last of these that holds a credit, and the credit; says whether there is one. The last packet of a
    /// request is given up even if it has arrived: after a recall, its credit may be the only one.
    pub fn lose_last(&mut self, numbers: Range<u32>) -> bool {
        let Some(last) = self.to_probe(numbers, true) else { return false };
        self.packet(last).state = State::Lost;
        self.in_flight -= 1;
        self.lost += 1;
        self.lost_from = self.lost_from.min(last);
        true
    }

    /// Whether a packet that the window still spans was sent more than once.
    pub fn was_sent_again(&self, number: u32) -> bool {
        self.packets[number as usize & (self.packets.len() - 1)].again
    }

    /// The first lost packet among these.
    #[inline]
    pub fn next_lost(&mut self, numbers: Range<u32>) -> Option<u32> {
        if self.lost == 0 {
            return None;
        }
        let found = (self.lost_from.max(numbers.start)..numbers.end).find(|number| self.state(*number) == State::Lost);
        debug_assert!(found.is_some(), "{} packets are lost, and none is found", self.lost);
        self.lost_from = found.unwrap_or(numbers.end);
        found
    }

    /// The packet to retransmit to provoke an answer: the last one that holds a credit, or the first.
    pub fn to_probe(&self, mut numbers: Range<u32>, last: bool) -> Option<u32> {
        let holds = |number: &u32| matches!(self.state(*number), State::InFlight | State::Arrived);
        if last { numbers.rfind(holds) } else { numbers.find(holds) }
    }

    /// Notes that a packet was answered.
    #[inline]
    pub fn answer(&mut self, number: u32, now: u64) -> Answer {
        let packet = self.packet(number);
        let Packet { sent_at, state, again } = *packet;
        packet.state = State::Answered;
        match state {
            State::Answered => return Answer::Repeated,
            State::Lost => {
                self.lost -= 1;
                return Answer::Late;
            }
            State::InFlight | State::Arrived => self.in_flight -= 1,
        }
        self.learn(number, sent_at, again, now);
        Answer::Expected((!again).then(|| now.saturating_sub(sent_at)))
    }

    /// Notes that the last packet of a request has arrived; the response answers it. If it was marked as lost it stays
    /// so, and is retransmitted: some packet must be in flight that provokes the response again if that is lost.
    pub fn arrive(&mut self, number: u32, now: u64) {
        let packet = self.packet(number);
        let Packet { sent_at, state, again } = *packet;
        // If it counts as lost, it holds no credit. It is retransmitted, so that an answer is awaited.
        if state == State::InFlight {
            packet.state = State::Arrived;
            self.learn(number, sent_at, again, now);
        }
    }

    /// Whether none of these was overtaken: everything in flight was sent after everything that was answered.
    #[inline]
    pub fn is_in_order(&self, numbers: Range<u32>) -> bool {
        // Without retransmissions, if everything is answered in order, the first packet follows everything answered.
        self.lost == 0 && self.due == NEVER && self.latest.1 < numbers.start && !self.was_again
    }

    #[inline]
    fn learn(&mut self, number: u32, sent_at: u64, again: bool, now: u64) {
        if (sent_at, number) <= self.latest {
            return;
        }
        self.latest = (sent_at, number);
        self.was_again = again;
        if again {
            self.ambiguous_until = now + self.rtt;
        } else {
            self.rtt = now.saturating_sub(sent_at);
        }
    }

    /// Finds packets among these that were overtaken longer ago than a round trip and `patience`, frees their credits,
    /// and returns their number. Sets [`Window::due`] for those that may yet come.
    pub fn find_lost(&mut self, numbers: Range<u32>, now: u64, patience: u64) -> u32 {
        self.due = NEVER;
        let mut found = 0;
        for number in numbers {
            let Packet { sent_at, state, .. } = *self.packet(number);
            if state != State::InFlight || (sent_at, number) >= self.latest {
                continue;
            }
            let due = (sent_at + self.rtt + patience).max(self.ambiguous_until);
            if now < due {
                self.due = self.due.min(due);
                continue;
            }
            if is_planted(Mutation::LostPacketForgotten) {
                self.packet(number).state = State::Answered;
                found += 1;
                continue;
            }
            self.packet(number).state = State::Lost;
            self.lost_from = if self.lost == 0 { number } else { self.lost_from.min(number) };
            self.lost += 1;
            found += 1;
        }
        self.in_flight -= found;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(count: u32) -> Window {
        let mut window = Window::new(64);
        (0..count).for_each(|number| window.send(number, 1000 + number as u64));
        window
    }

    #[test]
    fn a_hole_is_found_once_those_behind_it_are_answered() {
        let mut window = sent(32);
        for number in 0..32 {
            if number != 5 {
                assert_eq!(window.answer(number, 2000 + number as u64), Answer::Expected(Some(1000)));
            }
        }
        assert_eq!((window.in_flight, window.find_lost(5..32, 2031, 100)), (1, 0));
        assert_eq!(window.due, 1005 + 1000 + 100);
        assert_eq!(window.find_lost(5..32, 2105, 100), 1);
        assert_eq!((window.in_flight, window.due, window.next_lost(5..32)), (0, NEVER, Some(5)));
        window.send_again(5, 2105);
        assert_eq!((window.in_flight, window.next_lost(5..32)), (1, None));
        assert_eq!(window.answer(5, 3105), Answer::Expected(None), "which copy was answered is not known");
        assert_eq!(window.answer(5, 3106), Answer::Repeated);
        assert_eq!(window.answer(6, 3106), Answer::Repeated);
        assert!(window.was_sent_again(5) && !window.was_sent_again(6));
    }

    #[test]
    fn the_last_packet_gives_its_credit_to_a_lost_one() {
        let mut window = sent(4);
        assert!((1..4).all(|number| window.answer(number, 2000 + number as u64) != Answer::Repeated));
        assert_eq!(window.find_lost(0..4, 9000, 0), 1);
        (4..6).for_each(|number| window.send(number, 9000));
        assert!(window.is_lost(0) && window.lose_last(0..6));
        assert!(window.is_lost(5) && !window.is_lost(4));
        assert_eq!((window.in_flight, window.lost(), window.next_lost(0..6)), (1, 2, Some(0)));
        window.send_again(0, 9001);
        assert_eq!((window.in_flight, window.next_lost(0..6)), (2, Some(5)));
        assert_eq!(window.answer(5, 9002), Answer::Late, "it had arrived all the same");
        assert!(window.lose_last(0..6) && window.lose_last(0..6) && !window.lose_last(0..6));
    }

    #[test]
    fn the_last_packet_gives_its_credit_to_a_lost_one_even_if_it_has_arrived() {
        let mut window = sent(3);
        window.arrive(2, 2000);
        assert_eq!(window.find_lost(0..3, 9000, 0), 2);
        assert!(window.lose_last(0..3) && !window.lose_last(0..3));
        assert_eq!((window.in_flight, window.lost()), (0, 3));
        (0..2).for_each(|number| window.send_again(number, 9001));
        assert_eq!(window.next_lost(0..3), Some(2), "or nobody would ask when its response is lost");
    }

    #[test]
    fn what_was_merely_overtaken_is_not_lost() {
        let mut window = sent(32);
        for number in (0..32).rev() {
            assert_eq!(window.find_lost(0..32, 2000, 1000), 0);
            assert!(matches!(window.answer(number, 2031), Answer::Expected(Some(_))));
        }
        assert_eq!(window.in_flight, 0);
    }

    #[test]
    fn what_nothing_overtook_is_never_lost() {
        let mut window = sent(32);
        (0..30).for_each(|number| _ = window.answer(number, 2000));
        assert_eq!((window.find_lost(30..32, u64::MAX / 2, 0), window.due), (0, NEVER));
        assert_eq!((window.to_probe(30..32, true), window.to_probe(30..32, false)), (Some(31), Some(30)));
        window.probe(31, 9000);
        window.answer(31, 10_000);
        // The answer may belong to the first copy, and that to packet 30 may follow.
        assert_eq!(window.find_lost(30..32, 10_000, 0), 0);
        assert_eq!(window.find_lost(30..32, window.due, 0), 1);
    }

    #[test]
    fn a_packet_that_was_given_up_too_early_is_late() {
        let mut window = sent(3);
        window.answer(2, 2000);
        assert_eq!(window.find_lost(0..3, 9000, 0), 2);
        assert_eq!((window.answer(0, 9001), window.next_lost(0..3), window.in_flight), (Answer::Late, Some(1), 0));
    }

    #[test]
    fn the_last_packet_of_a_request_keeps_its_credit_until_the_response() {
        let mut window = sent(3);
        window.arrive(2, 2000);
        assert_eq!((window.in_flight, window.find_lost(0..3, 9000, 0), window.in_flight), (3, 2, 1));
        assert_eq!((window.to_probe(0..3, false), window.answer(2, 9000)), (Some(2), Answer::Expected(Some(7998))));
    }

    #[test]
    fn the_last_packet_of_a_request_is_sent_again_if_it_was_given_up() {
        let mut window = sent(3);
        window.send(3, 900);
        window.answer(1, 2000);
        assert_eq!(window.find_lost(0..4, 9000, 0), 2);
        window.arrive(3, 9001);
        assert_eq!(window.next_lost(1..4), Some(3), "or nobody would ask when its response is lost");
    }

    #[test]
    fn windows_are_as_wide_as_credits_ask_for_and_no_wider() {
        assert_eq!([1, 8, 32, 1024].map(Window::span), [64, 64, 128, 4096]);
    }
}
