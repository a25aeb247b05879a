//! One direction of a cable, and the output queue that feeds it.
//!
//! A queue is first in, first out, and its rate is constant, so its whole state is one time: when the last bit queued
//! so far will have left. The queue's length at any time follows from it, and a packet's departure is known when it
//! joins. So a packet costs one event per hop: its arrival at the other end.

use crate::engine::time::Picos;
use crate::fault::PacketFaults;

/// What is at the end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    Host(u16),
    Switch(u16),
}

#[derive(Debug)]
pub(crate) struct Link {
    /// Time of one byte on the wire: exact for every rate that divides 8,000 Gbit/s, else rounded up.
    pub ps_per_byte: u64,
    pub propagation: Picos,
    /// Latency of the switch in front of the queue: a packet joins the queue this much after its arrival.
    pub lead: Picos,
    pub from: Node,
    pub to: Node,
    /// When the last queued bit will have left.
    pub free_at: Picos,
    /// When the last packet that must stay in order arrives; 0 when none is delayed any more.
    pub last_arrival: Picos,
    /// Whether any fault below is in force: checked for every packet.
    pub is_faulty: bool,
    pub is_down: bool,
    pub faults: Option<Box<PacketFaults>>,
    pub packets: u64,
    pub bytes: u64,
    pub dropped: u64,
    pub lost: u64,
    pub marked: u64,
}

impl Link {
    pub fn new(from: Node, to: Node, gbit_per_s: u32, propagation: Picos) -> Self {
        Link {
            ps_per_byte: 8000_u64.div_ceil(u64::from(gbit_per_s)),
            propagation,
            lead: 0,
            from,
            to,
            free_at: 0,
            last_arrival: 0,
            is_faulty: false,
            is_down: false,
            faults: None,
            packets: 0,
            bytes: 0,
            dropped: 0,
            lost: 0,
            marked: 0,
        }
    }

    /// How long a packet of `bytes`, overhead included, is on the wire.
    #[inline]
    pub fn serialization(&self, bytes: u64) -> Picos {
        bytes * self.ps_per_byte
    }

    /// Bytes in the queue that a packet arriving now joins, including the rest of the packet on the wire.
    #[inline]
    pub fn queued(&self, now: Picos) -> u64 {
        let left = self.free_at.saturating_sub(now + self.lead);
        if left == 0 { 0 } else { left.div_ceil(self.ps_per_byte) }
    }

    /// Queues a packet whose last bit cannot leave before `earliest`, and returns the time at which it leaves.
    #[inline]
    pub fn enqueue(&mut self, bytes: u64, earliest: Picos) -> Picos {
        self.free_at = (self.free_at + self.serialization(bytes)).max(earliest);
        self.packets += 1;
        self.bytes += bytes;
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(gbit_per_s: u32) -> Link {
        Link::new(Node::Host(0), Node::Switch(0), gbit_per_s, 0)
    }

    #[test]
    fn serialization_is_exact() {
        for (rate, picos) in [(10, 1_230_400), (25, 492_160), (40, 307_600), (100, 123_040), (400, 30_760)] {
            assert_eq!(link(rate).serialization(1538), picos, "1,538 B at {rate} Gbit/s");
        }
    }

    #[test]
    fn a_queue_drains_at_the_rate_of_its_link() {
        let mut link = link(25);
        assert_eq!(link.enqueue(1000, 320_000), 320_000);
        assert_eq!(link.enqueue(1000, 320_000), 640_000, "behind the first");
        assert_eq!(
            (link.queued(0), link.queued(320_000), link.queued(639_999), link.queued(640_000)),
            (2000, 1000, 1, 0)
        );
        assert_eq!(link.enqueue(100, 1_000_000), 1_000_000, "the link was idle before");
    }
}
