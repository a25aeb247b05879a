//! Packets that wait inside the injector, for a time or for others to overtake them.

use crate::addr::Addr;
use crate::transport::Route;

use super::HELD_PACKETS_MAX;

/// Where a held packet goes.
#[derive(Debug)]
pub(super) enum Destination {
    Route(Route),
    Addr(Addr),
}

/// When a held packet is released: as soon as either limit is reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Release {
    /// A time on the transport's clock.
    pub(super) time: u64,
    /// A count of packets handed to the injector.
    pub(super) count: u64,
}

#[derive(Debug)]
pub(super) struct HeldPacket {
    pub(super) to: Destination,
    pub(super) bytes: Vec<u8>,
    release: Release,
    /// Breaks ties, so that packets of one release time leave in the order they came.
    number: u64,
}

/// The packets held, at most [`HELD_PACKETS_MAX`], and the buffers of packets that were released.
#[derive(Debug)]
pub(super) struct HeldPackets {
    packets: Vec<HeldPacket>,
    pushed: u64,
    /// The minimum of each over all packets, so that a check costs nothing until one is due.
    earliest: Release,
    free: Vec<Vec<u8>>,
}

const NEVER: Release = Release { time: u64::MAX, count: u64::MAX };

impl HeldPackets {
    pub(super) fn new() -> Self {
        HeldPackets { packets: Vec::new(), pushed: 0, earliest: NEVER, free: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.packets.len() == HELD_PACKETS_MAX
    }

    /// The earliest release time of any packet.
    pub(super) fn next_time(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.earliest.time)
    }

    pub(super) fn has_route(&self, route: Route) -> bool {
        self.packets.iter().any(|p| matches!(p.to, Destination::Route(r) if r == route))
    }

    pub(super) fn push(&mut self, to: Destination, bytes: Vec<u8>, release: Release) {
        debug_assert!(!self.is_full());
        self.packets.push(HeldPacket { to, bytes, release, number: self.pushed });
        self.pushed += 1;
        self.note(release);
    }

    /// Whether enough packets were handed over to release one.
    pub(super) fn is_overtaken(&self, count: u64) -> bool {
        !self.is_empty() && self.earliest.count <= count
    }

    /// Takes out the packet that is due first, if any is due at this time or count.
    pub(super) fn take_due(&mut self, limit: Release) -> Option<HeldPacket> {
        if self.is_empty() || (self.earliest.time > limit.time && self.earliest.count > limit.count) {
            return None;
        }
        let due = |p: &HeldPacket| p.release.time <= limit.time || p.release.count <= limit.count;
        let position = (0..self.packets.len())
            .filter(|&i| due(&self.packets[i]))
            .min_by_key(|&i| (self.packets[i].release.time, self.packets[i].number))?;
        let packet = self.packets.swap_remove(position);
        self.earliest = NEVER;
        for i in 0..self.packets.len() {
            self.note(self.packets[i].release);
        }
        Some(packet)
    }

    fn note(&mut self, release: Release) {
        self.earliest.time = self.earliest.time.min(release.time);
        self.earliest.count = self.earliest.count.min(release.count);
    }

    /// A buffer with these bytes.
    pub(super) fn copy_of(&mut self, header: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut bytes = self.free.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Takes back the buffer of a packet that was sent.
    pub(super) fn recycle(&mut self, bytes: Vec<u8>) {
        self.free.push(bytes);
    }
}
