//! Places of the queue that were taken and not published.
//!
//! A sender that was descheduled between the two will publish; one that was killed never will. The receiver may wait for the
//! first and must give up on the second, and it can tell: every sender writes down what it takes before it takes it
//! ([`Intent`]), and holds a lock for life. Meanwhile packets beyond the hole are delivered; [`Consumed`] records which.

use std::sync::atomic::Ordering;

use crate::shm::burst::Senders;
use crate::shm::intent::Intent;
use crate::shm::region::Region;

/// The intents of all senders at one moment, to find out whose the holes are.
pub(crate) struct Intents(Vec<(u16, Intent)>);

impl Intents {
    /// Reads them. They tell of tickets that were taken before.
    pub(crate) fn read(region: &Region) -> Self {
        let slots = 0..region.layout().sizes.senders_max as u16;
        let intents = slots.map(|slot| (slot, region.intent(slot).load(Ordering::Acquire)));
        Intents(intents.filter(|&(_, word)| word != Intent::NONE).map(|(slot, word)| (slot, Intent::unpack(word))).collect())
    }

    /// Whether nobody alive will publish `ticket`. If so, the caller must look again whether it is published: its sender may
    /// have done that before the intents were read.
    pub(crate) fn is_abandoned(&self, ticket: u64, senders: &impl Senders) -> bool {
        let mut is_wanted = false;
        for (slot, intent) in self.0.iter().filter(|(_, intent)| intent.covers(ticket)) {
            let is_alive = senders.is_alive(*slot);
            if intent.is_held() {
                // Whoever else wanted the ticket did not get it.
                return !is_alive;
            }
            is_wanted |= is_alive;
        }
        !is_wanted
    }
}

/// Which tickets at and beyond the receiver's head are done with.
#[derive(Debug)]
pub(crate) struct Consumed {
    words: Box<[u64]>,
    count: usize,
}

impl Consumed {
    /// For a queue of `queue_len`, a power of two of at least 64.
    pub(crate) fn new(queue_len: u32) -> Self {
        Consumed { words: vec![0; queue_len as usize / 64].into_boxed_slice(), count: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn place(&self, ticket: u64) -> (usize, u64) {
        ((ticket / 64) as usize & (self.words.len() - 1), 1 << (ticket % 64))
    }

    pub(crate) fn contains(&self, ticket: u64) -> bool {
        let (word, bit) = self.place(ticket);
        self.words[word] & bit != 0
    }

    pub(crate) fn insert(&mut self, ticket: u64) {
        let (word, bit) = self.place(ticket);
        self.count += usize::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    /// Removes `head` and what follows it without a gap, and returns the first ticket that is not in.
    pub(crate) fn advance(&mut self, mut head: u64) -> u64 {
        while self.count > 0 && self.contains(head) {
            let (word, bit) = self.place(head);
            self.words[word] &= !bit;
            self.count -= 1;
            head = head.wrapping_add(1);
        }
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumed_tickets_advance_the_head_without_gaps() {
        for start in [0u64, 60, u64::MAX - 5] {
            let mut consumed = Consumed::new(128);
            let at = |i: u64| start.wrapping_add(i);
            for i in [1, 2, 4, 127] {
                consumed.insert(at(i));
                consumed.insert(at(i));
            }
            assert_eq!(consumed.advance(at(0)), at(0));
            consumed.insert(at(0));
            assert_eq!(consumed.advance(at(0)), at(3));
            assert!(!consumed.contains(at(1)) && consumed.contains(at(4)) && consumed.contains(at(127)));
            consumed.insert(at(3));
            assert_eq!(consumed.advance(at(3)), at(5));
            assert!(!consumed.is_empty());
        }
    }
}
