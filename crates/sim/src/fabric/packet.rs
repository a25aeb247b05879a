//! Packets in flight, in one table, and the buffers that hold their bytes.

use dunlin_net::prefetch;

/// Packets up to this size are held in small buffers, so that many of them share the processor's cache.
const SMALL_BYTES: usize = 256;

/// The part of a packet that its two ends read, between `tx_burst` and `rx_burst`.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    /// A buffer from [`Buffers`]; the packet is its first bytes.
    pub buffer: Box<[u8]>,
    /// Index of the sending thread.
    pub from: u32,
}

/// The part of a packet that every hop needs. It travels in events and queues, so that a hop touches no other memory of
/// the packet.
///
/// Two words that are moved as they are. A struct of many fields is written field by field and then read whole, so the
/// processor stalls until each field has reached its cache: that took more time than the rest of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transit {
    /// From the lowest bit: number (32), link (16), bytes (16).
    what: u64,
    /// From the lowest bit: free for events ([`Transit::FREE_BITS`]), mark (1), flow (16), from bit 32 thread (16),
    /// host (16).
    whither: u64,
}

impl Transit {
    /// This many of the lowest bits of the second word are zero.
    pub const FREE_BITS: u32 = 2;
    const MARK: u64 = 1 << Transit::FREE_BITS;

    /// Packet `number` of `len` bytes, on its host's wire, `link`. ECMP chooses by `flow`, which is the same for all
    /// packets of one sender to one receiver.
    #[inline]
    pub fn new(number: u32, (link, len): (u16, u16), (to_host, to_thread): (u16, u16), flow: u16) -> Self {
        Transit {
            what: u64::from(number) | u64::from(link) << 32 | u64::from(len) << 48,
            whither: u64::from(flow) << 16 | u64::from(to_thread) << 32 | u64::from(to_host) << 48,
        }
    }

    /// The two words, and back.
    #[inline]
    pub fn words(self) -> [u64; 2] {
        [self.what, self.whither]
    }

    #[inline]
    pub fn of_words([what, whither]: [u64; 2]) -> Self {
        Transit { what, whither }
    }

    /// Its number in [`Packets`].
    #[inline]
    pub fn number(self) -> u32 {
        self.what as u32
    }

    fn of_number(self, number: u32) -> Self {
        Transit { what: self.what & !u64::from(u32::MAX) | u64::from(number), ..self }
    }

    /// The link it is on.
    #[inline]
    pub fn link(self) -> u16 {
        (self.what >> 32) as u16
    }

    /// Bytes.
    #[inline]
    pub fn len(self) -> u16 {
        (self.what >> 48) as u16
    }

    #[inline]
    pub fn to_host(self) -> u16 {
        (self.whither >> 48) as u16
    }

    #[inline]
    pub fn to_thread(self) -> u16 {
        (self.whither >> 32) as u16
    }

    #[inline]
    pub fn flow(self) -> u16 {
        (self.whither >> 16) as u16
    }

    /// Whether congestion was experienced (ECN).
    #[inline]
    pub fn is_marked(self) -> bool {
        self.whither & Transit::MARK != 0
    }

    /// The same packet, on another link, marked if it was or `marked` is set.
    #[inline]
    pub fn onto(self, link: u16, marked: bool) -> Self {
        let what = self.what & !(0xffff << 32) | u64::from(link) << 32;
        Transit { what, whither: self.whither | if marked { Transit::MARK } else { 0 } }
    }
}

/// Buffers for reuse.
#[derive(Debug)]
pub(crate) struct Buffers {
    small: Vec<Box<[u8]>>,
    large: Vec<Box<[u8]>>,
    mtu: usize,
}

impl Buffers {
    pub fn new(mtu: usize) -> Self {
        Buffers { small: Vec::new(), large: Vec::new(), mtu }
    }

    /// A buffer with room for `len` bytes, at most the MTU; it still holds the bytes of its last use.
    #[inline]
    pub fn take(&mut self, len: usize) -> Box<[u8]> {
        let (free, size) =
            if len <= SMALL_BYTES { (&mut self.small, SMALL_BYTES) } else { (&mut self.large, self.mtu) };
        free.pop().unwrap_or_else(|| vec![0; size].into_boxed_slice())
    }

    #[inline]
    pub fn give_back(&mut self, buffer: Box<[u8]>) {
        match buffer.len() {
            SMALL_BYTES => self.small.push(buffer),
            // The rest of a packet whose buffer was handed on.
            0 => {}
            _ => self.large.push(buffer),
        }
    }
}

/// The table of packets. Numbers are reused at once, the last freed first.
#[derive(Debug)]
pub(crate) struct Packets {
    table: Vec<Packet>,
    free: Vec<u32>,
    pub buffers: Buffers,
}

impl Packets {
    pub fn new(mtu: usize) -> Self {
        Packets { table: Vec::new(), free: Vec::new(), buffers: Buffers::new(mtu) }
    }

    #[inline]
    pub fn insert(&mut self, packet: Packet) -> u32 {
        if let Some(number) = self.free.pop() {
            self.table[number as usize] = packet;
            return number;
        }
        self.table.push(packet);
        self.table.len() as u32 - 1
    }

    /// Makes a copy with its own bytes.
    pub fn duplicate(&mut self, transit: Transit) -> Transit {
        let (original, len) = (&self.table[transit.number() as usize], transit.len() as usize);
        let mut buffer = self.buffers.take(len);
        buffer[..len].copy_from_slice(&original.buffer[..len]);
        let copy = Packet { buffer, from: original.from };
        transit.of_number(self.insert(copy))
    }

    /// Prefetches a packet that will be read some events later.
    #[inline]
    pub fn prefetch(&self, number: u32) {
        if let Some(packet) = self.table.get(number as usize) {
            prefetch::read(packet);
        }
    }

    /// As [`Packets::prefetch`], for its bytes. The packet itself should be in the cache.
    #[inline]
    pub fn prefetch_bytes(&self, number: u32) {
        prefetch::read(&*self.table[number as usize].buffer);
    }

    /// Takes a packet out of the table, with its buffer.
    #[inline]
    pub fn remove(&mut self, number: u32) -> Packet {
        self.free.push(number);
        std::mem::take(&mut self.table[number as usize])
    }

    /// Removes a dropped packet.
    pub fn discard(&mut self, number: u32) {
        let packet = self.remove(number);
        self.buffers.give_back(packet.buffer);
    }

    /// Packets in flight or waiting to be received.
    pub fn live(&self) -> usize {
        self.table.len() - self.free.len()
    }
}

impl std::ops::Index<u32> for Packets {
    type Output = Packet;

    #[inline]
    fn index(&self, number: u32) -> &Packet {
        &self.table[number as usize]
    }
}

impl std::ops::IndexMut<u32> for Packets {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut Packet {
        &mut self.table[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transit_keeps_what_it_is_made_of() {
        let (low, high) = (0x1234, u16::MAX);
        for (number, link, len, host, thread, flow) in [
            (u32::MAX, low, low, low, low, low),
            (7, high, low, low, low, low),
            (7, low, high, low, low, low),
            (7, low, low, high, low, low),
            (7, low, low, low, high, low),
            (7, low, low, low, low, high),
        ] {
            let transit = Transit::new(number, (link, len), (host, thread), flow);
            let fields = |t: Transit| (t.number(), t.len(), t.to_host(), t.to_thread(), t.flow());
            assert_eq!((transit.link(), transit.is_marked()), (link, false));
            assert_eq!(fields(transit), (number, len, host, thread, flow));
            assert_eq!(transit.words()[1] & ((1 << Transit::FREE_BITS) - 1), 0);
            let marked = transit.onto(3, true).onto(4, false);
            assert_eq!((marked.link(), marked.is_marked(), fields(marked)), (4, true, fields(transit)));
            assert_eq!(Transit::of_words(marked.words()), marked);
        }
    }

    #[test]
    fn numbers_and_buffers_are_used_again() {
        let mut packets = Packets::new(1472);
        for round in 0..10 {
            let mut numbers = Vec::new();
            for len in [1, SMALL_BYTES, SMALL_BYTES + 1, 1472] {
                let buffer = packets.buffers.take(len);
                assert!(buffer.len() >= len);
                numbers.push(packets.insert(Packet { buffer, from: len as u32 }));
            }
            packets[numbers[3]].buffer[1471] = round;
            let original = Transit::new(numbers[3], (0, 1472), (0, 0), 0).onto(0, true);
            let copy = packets.duplicate(original);
            assert_eq!((copy.number(), packets.live(), copy.is_marked()), (4, 5, true));
            assert_eq!((packets[4].from, packets[4].buffer[1471]), (1472, round));
            numbers.push(copy.number());
            numbers.into_iter().rev().for_each(|number| packets.discard(number));
        }
        assert_eq!((packets.live(), packets.table.len()), (0, 5));
        assert_eq!((packets.buffers.small.len(), packets.buffers.large.len()), (2, 3));
    }
}
