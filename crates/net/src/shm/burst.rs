//! The packets of one receive burst, and where they came from.

use crate::shm::bulk;
use crate::shm::cell::{Cell, NO_BULK, Origin, Published};
use crate::shm::layout::INLINE_BYTES_MAX;
use crate::shm::region::Region;
use crate::transport::{HEAD_BYTES, RX_BURST, Route, RxPacket};

/// Packets handed out at once. Fewer than the trait allows: while the receiver works on one burst, its peer works on
/// the answers to the previous one. With everything in one burst each side would wait for the other.
pub(crate) const BURST_MAX: usize = 32;
const _: () = assert!(BURST_MAX <= RX_BURST);

/// What the receiver asks of the rest of its endpoint.
pub(crate) trait Senders {
    /// Whether the holder of a slot lives. A system call.
    fn is_alive(&self, slot: u16) -> bool;

    /// The route to the endpoint whose region has this nonce, if it is resolved.
    fn route_to(&self, nonce: u64) -> Option<Route>;
}

/// No route, in a packed field.
const NO_ROUTE: u32 = u32::MAX;

/// What the last lookup found for each sender slot, so that finding a packet's route costs one read of private memory.
#[derive(Debug)]
pub(crate) struct Sources(Box<[Source]>);

/// Generation 0 is nobody.
#[derive(Debug, Clone, Copy)]
struct Source {
    generation: u32,
    route: u32,
}

impl Sources {
    pub(crate) fn new(senders_max: u32) -> Self {
        Sources(vec![Source { generation: 0, route: NO_ROUTE }; senders_max as usize].into_boxed_slice())
    }

    /// Forgets everything, so that the next packets are looked up again.
    pub(crate) fn forget(&mut self) {
        self.0.fill(Source { generation: 0, route: NO_ROUTE });
    }

    /// The route to the holder of a slot, or [`NO_ROUTE`]; `None` if there is no such slot.
    #[inline(always)]
    fn route(&mut self, region: &Region, slot: u16, generation: u32, senders: &impl Senders) -> Option<u32> {
        let source = self.0.get_mut(slot as usize)?;
        if source.generation != generation {
            *source = Source::look_up(region, slot, generation, senders);
        }
        Some(source.route)
    }
}

impl Source {
    #[cold]
    fn look_up(region: &Region, slot: u16, generation: u32, senders: &impl Senders) -> Self {
        let nonce = region.slot_nonce(slot, generation);
        let route = nonce.and_then(|n| senders.route_to(n)).map_or(NO_ROUTE, |r| r.0);
        Source { generation, route }
    }
}

/// A received packet. A short one lies in the first of its cache lines, like in its cell.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Arrived {
    generation: u32,
    bulk: u32,
    route: u32,
    len: u16,
    slot: u16,
    /// The packet, or the head of one that lies in a bulk buffer.
    bytes: [u8; INLINE_BYTES_MAX],
}

impl Arrived {
    #[inline(always)]
    fn route(&self) -> Option<Route> {
        (self.route != NO_ROUTE).then_some(Route(self.route))
    }

    /// The packet, if it lies in a bulk buffer.
    #[inline(never)]
    fn in_bulk<'a>(&'a self, region: &'a Region) -> RxPacket<'a> {
        let bytes = region.bulk(self.bulk, self.len as usize).skip(HEAD_BYTES);
        RxPacket::shared(self.route(), &self.bytes[..HEAD_BYTES], bytes)
    }

    /// Copies the head of a packet in bulk buffer `index`; false if no such buffer is claimed under `tag` or it has
    /// fewer than `len` bytes.
    #[inline(never)]
    fn read_bulk_head(&mut self, region: &Region, index: u32, tag: u32, len: u16) -> bool {
        // The owner word also keeps another sender's cell from naming this buffer.
        let is_valid = len as u32 <= region.layout().sizes.mtu && bulk::is_owned(region, index, tag);
        if is_valid {
            region.bulk(index, HEAD_BYTES).copy_to(0, &mut self.bytes[..HEAD_BYTES]);
        }
        is_valid
    }
}

const NOTHING: Arrived =
    Arrived { generation: 0, bulk: NO_BULK, route: NO_ROUTE, len: 0, slot: 0, bytes: [0; INLINE_BYTES_MAX] };

/// The packets handed out until the next burst.
pub(crate) struct Burst {
    packets: Box<[Arrived; BURST_MAX]>,
    len: usize,
    /// How many of them lie in bulk buffers. (The type differs from that of `len` on purpose: with equal types the
    /// compiler updates both in one access, which waits for the stores that set them one by one.)
    bulk: u32,
}

impl Burst {
    pub(crate) fn new() -> Self {
        Burst { packets: Box::new([NOTHING; BURST_MAX]), len: 0, bulk: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes a published packet in and returns its length; `None` if it is malformed.
    ///
    /// # Panics
    /// If the burst is full.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        region: &Region,
        sources: &mut Sources,
        senders: &impl Senders,
        cell: Cell<'_>,
        published: Published,
    ) -> Option<usize> {
        let Published { len, slot, .. } = published;
        let Origin { generation, bulk } = cell.origin();
        let route = sources.route(region, slot, generation, senders)?;
        let packet = &mut self.packets[self.len];
        let is_inline = len as usize <= INLINE_BYTES_MAX;
        if is_inline {
            cell.read_packet(&mut packet.bytes, len as usize);
        } else if !packet.read_bulk_head(region, bulk, bulk::tag(slot, generation), len) {
            return None;
        }
        packet.bulk = if is_inline { NO_BULK } else { bulk };
        packet.generation = generation;
        packet.route = route;
        packet.len = len;
        packet.slot = slot;
        self.bulk += u32::from(!is_inline);
        self.len += 1;
        Some(len as usize)
    }

    /// Forgets a route that was released, whose number another peer may get.
    pub(crate) fn forget(&mut self, route: Route) {
        self.packets[..self.len].iter_mut().filter(|p| p.route == route.0).for_each(|p| p.route = NO_ROUTE);
    }

    /// Frees what the packets hold.
    #[inline]
    pub(crate) fn release(&mut self, region: &Region) {
        if self.bulk > 0 {
            let held = self.packets[..self.len].iter().filter(|p| p.bulk != NO_BULK);
            held.for_each(|p| bulk::free(region, p.bulk));
            self.bulk = 0;
        }
        self.len = 0;
    }

    /// Packet `i`.
    ///
    /// # Panics
    /// If there is no such packet.
    #[inline(always)]
    pub(crate) fn packet<'a>(&'a self, region: &'a Region, i: usize) -> RxPacket<'a> {
        let packet = &self.packets[..self.len][i];
        match packet.bulk {
            NO_BULK => RxPacket::private(packet.route(), &packet.bytes[..packet.len as usize]),
            _ => packet.in_bulk(region),
        }
    }

    /// The slot and generation packet `i` came from.
    ///
    /// # Panics
    /// If there is no such packet.
    pub(crate) fn origin(&self, i: usize) -> (u16, u32) {
        let packet = &self.packets[..self.len][i];
        (packet.slot, packet.generation)
    }
}
