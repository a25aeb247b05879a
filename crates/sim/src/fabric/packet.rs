//! Packets on their way, in one table, and the buffers that hold their bytes.

/// Packets up to this size are held in small buffers, so that many of them share the processor's cache.
const SMALL_BYTES: usize = 256;

/// What a packet's two ends look at, between `tx_burst` and `rx_burst`.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    /// A buffer from [`Buffers`]; the packet is the first bytes of it.
    pub buffer: Box<[u8]>,
    /// Index of the sending thread.
    pub from: u32,
}

/// What a packet is known by on its way. It travels in events and queues, so that a hop touches no other memory of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transit {
    /// Its number in [`Packets`].
    pub number: u32,
    /// The link it is on.
    pub link: u16,
    /// Bytes.
    pub len: u16,
    pub to_host: u16,
    pub to_thread: u16,
    /// What ECMP chooses by: the same for all packets of one sender to one receiver.
    pub flow: u16,
    /// Congestion experienced (ECN).
    pub marked: bool,
}

/// Buffers to be used again.
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

    /// A buffer with room for `len` bytes, at most the MTU; what is in it is left from its last use.
    #[inline]
    pub fn take(&mut self, len: usize) -> Box<[u8]> {
        let (free, size) = if len <= SMALL_BYTES { (&mut self.small, SMALL_BYTES) } else { (&mut self.large, self.mtu) };
        free.pop().unwrap_or_else(|| vec![0; size].into_boxed_slice())
    }

    #[inline]
    pub fn give_back(&mut self, buffer: Box<[u8]>) {
        match buffer.len() {
            SMALL_BYTES => self.small.push(buffer),
            // What is left of a packet whose buffer was handed on.
            0 => {}
            _ => self.large.push(buffer),
        }
    }
}

/// The table of packets. Numbers are used again at once, the last freed first.
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

    /// A copy with bytes of its own.
    pub fn duplicate(&mut self, transit: Transit) -> Transit {
        let original = &self.table[transit.number as usize];
        let mut buffer = self.buffers.take(transit.len as usize);
        buffer[..transit.len as usize].copy_from_slice(&original.buffer[..transit.len as usize]);
        let copy = Packet { buffer, from: original.from };
        Transit { number: self.insert(copy), ..transit }
    }

    /// Takes a packet out of the table, with its buffer.
    #[inline]
    pub fn remove(&mut self, number: u32) -> Packet {
        self.free.push(number);
        std::mem::take(&mut self.table[number as usize])
    }

    /// Forgets a packet: it was dropped.
    pub fn discard(&mut self, number: u32) {
        let packet = self.remove(number);
        self.buffers.give_back(packet.buffer);
    }

    /// Packets on their way or waiting to be received.
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
            let original =
                Transit { number: numbers[3], len: 1472, link: 0, to_host: 0, to_thread: 0, flow: 0, marked: true };
            let copy = packets.duplicate(original);
            assert_eq!((copy.number, packets.live(), copy.marked), (4, 5, true));
            assert_eq!((packets[4].from, packets[4].buffer[1471]), (1472, round));
            numbers.push(copy.number);
            numbers.into_iter().rev().for_each(|number| packets.discard(number));
        }
        assert_eq!((packets.live(), packets.table.len()), (0, 5));
        assert_eq!((packets.buffers.small.len(), packets.buffers.large.len()), (2, 3));
    }
}
