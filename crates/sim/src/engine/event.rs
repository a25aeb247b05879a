//! Events at points of virtual time.

use crate::fabric::packet::Transit;
use crate::fault::FaultId;

/// In the queue it is [`Packed`]; 24 bytes together with its time.
///
/// Events cannot be removed from the queue. If an event may be superseded (a thread is woken before its timer), the
/// table holds the valid time, and an event with another time is stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The last bit of a packet reaches the far end of a link.
    Arrive(Transit),
    /// A host's NIC may put its next packet on the wire.
    Transmit { host: u16 },
    /// A thread runs.
    Run { thread: u32 },
    /// A fault begins or ends.
    Fault { id: FaultId, begins: bool },
}

/// An event in the queue: two words, those of a [`Transit`], with the kind in the bits that it leaves free.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed([u64; 2]);

const KIND: u64 = (1 << Transit::FREE_BITS) - 1;
const ARRIVE: u64 = 0;
const TRANSMIT: u64 = 1;
const RUN: u64 = 2;
const FAULT: u64 = 3;
/// Set in the second word when a fault begins.
const BEGINS: u64 = KIND + 1;

impl Event {
    /// Packs an event.
    #[inline(always)]
    pub fn pack(self) -> Packed {
        Packed(match self {
            Event::Arrive(transit) => transit.words(),
            Event::Transmit { host } => [host.into(), TRANSMIT],
            Event::Run { thread } => [thread.into(), RUN],
            Event::Fault { id, begins } => [id.0.into(), FAULT | if begins { BEGINS } else { 0 }],
        })
    }
}

impl Packed {
    /// Unpacks an event.
    #[inline(always)]
    pub fn unpack(self) -> Event {
        let [first, second] = self.0;
        match second & KIND {
            ARRIVE => Event::Arrive(Transit::of_words(self.0)),
            TRANSMIT => Event::Transmit { host: first as u16 },
            RUN => Event::Run { thread: first as u32 },
            _ => Event::Fault { id: FaultId(first as u32), begins: second & BEGINS != 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_unpacked_as_it_was_packed() {
        let transit = Transit::new(u32::MAX, (u16::MAX, u16::MAX), (u16::MAX, u16::MAX), u16::MAX);
        let events = [
            Event::Arrive(transit),
            Event::Arrive(transit.onto(3, true)),
            Event::Transmit { host: u16::MAX },
            Event::Run { thread: u32::MAX },
            Event::Fault { id: FaultId(u32::MAX), begins: true },
            Event::Fault { id: FaultId(1), begins: false },
        ];
        for event in events {
            assert_eq!(event.pack().unpack(), event);
        }
    }
}
