//! Packets on their way, in one table, and the buffers that hold their bytes.

/// Packets up to this size are held in small buffers, so that many of them share the processor's cache.
const SMALL_BYTES: usize = 256;

/// A packet between `tx_burst` and `rx_burst`.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    /// A buffer from [`Buffers`], of which `len` bytes are the packet.
    pub buffer: Box<[u8]>,
    pub len: u16,
    /// Congestion experienced (ECN).
    pub marked: bool,
    pub to_host: u16,
    /// Index of the sending thread.
    pub from: u32,
    /// Index of the receiving thread.
    pub to: u32,
    /// What ECMP chooses by: the same for all packets of one sender to one receiver.
    pub flow: u32,
}

impl Packet {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len as usize]
    }
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
    pub fn duplicate(&mut self, number: u32) -> u32 {
        let original = &self.table[number as usize];
        let mut buffer = self.buffers.take(original.len as usize);
        buffer[..original.len as usize].copy_from_slice(original.bytes());
        let copy = Packet { buffer, ..*original };
        self.insert(copy)
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
                numbers.push(packets.insert(Packet { buffer, len: len as u16, ..Packet::default() }));
            }
            let copy = packets.duplicate(numbers[3]);
            assert_eq!((copy, packets[copy].bytes().len(), packets.live()), (4, 1472, 5), "round {round}");
            numbers.push(copy);
            numbers.into_iter().rev().for_each(|number| packets.discard(number));
        }
        assert_eq!((packets.live(), packets.table.len()), (0, 5));
        assert_eq!((packets.buffers.small.len(), packets.buffers.large.len()), (2, 3));
    }
}
