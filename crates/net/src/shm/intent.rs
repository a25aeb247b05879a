//! What a sender is about to do to the queue, written where the receiver finds it if the sender dies.

/// Tickets a sender wants or holds, packed into one word of its slot.
///
/// A sender writes the intent before it takes the tickets, marks it held after, and clears it once all are published.
/// So every ticket that was taken and is not published is covered by the intent of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Intent {
    /// The first ticket, without its highest bits.
    first: u64,
    /// How many.
    count: u8,
    /// Whether they were certainly taken.
    held: bool,
}

/// Bits of a ticket that an intent keeps: at 50 M packets/s they wrap around after 20 years.
const TICKET_BITS: u32 = 55;
const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;

impl Intent {
    /// The word of a sender that wants and holds no tickets.
    pub(crate) const NONE: u64 = 0;

    /// The sender wants `count` tickets from `first` on.
    #[inline]
    pub(crate) fn wanted(first: u64, count: u8) -> u64 {
        Intent { first: first & TICKET_MASK, count, held: false }.pack()
    }

    /// The sender has taken them.
    #[inline]
    pub(crate) fn held(first: u64, count: u8) -> u64 {
        Intent { first: first & TICKET_MASK, count, held: true }.pack()
    }

    #[inline]
    fn pack(self) -> u64 {
        self.first | (self.count as u64) << TICKET_BITS | (self.held as u64) << 63
    }

    pub(crate) fn unpack(word: u64) -> Self {
        Intent { first: word & TICKET_MASK, count: (word >> TICKET_BITS) as u8, held: word >> 63 == 1 }
    }

    pub(crate) fn covers(&self, ticket: u64) -> bool {
        (ticket.wrapping_sub(self.first) & TICKET_MASK) < self.count as u64
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_exactly_its_tickets_also_around_the_wrap() {
        for first in [0, 1000, TICKET_MASK - 1, u64::MAX - 1] {
            for word in [Intent::wanted(first, 64), Intent::held(first, 64)] {
                let intent = Intent::unpack(word);
                assert!(!intent.covers(first.wrapping_sub(1)));
                assert!(intent.covers(first) && intent.covers(first.wrapping_add(63)));
                assert!(!intent.covers(first.wrapping_add(64)));
            }
        }
        assert!(!Intent::unpack(Intent::NONE).covers(0));
        assert!(Intent::unpack(Intent::held(5, 1)).is_held() && !Intent::unpack(Intent::wanted(5, 1)).is_held());
    }
}
