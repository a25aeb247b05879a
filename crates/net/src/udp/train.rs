//! A train of datagrams: packets to one destination, packed so that one system call sends them all.
//!
//! Small packets are copied into the train, so they may wait in it for more. For large payloads the train keeps only a
//! reference, in a [`Borrowed`] whose lifetime ends with the burst: no reference to the caller's memory can outlive
//! `tx_burst`.
//!
//! The first complete datagram sets the segment size. Later ones are padded to it, or end the train if padding would
//! waste too much.

use std::io::IoSlice;

use arrayvec::ArrayVec;

use crate::transport::{Route, TxPacket};

use super::config::Coalesce;
use super::frame::{frame_bytes, length};

/// Bytes of a whole train: the most that one IP packet carries, minus the headers of IPv6 and UDP.
pub(super) const TRAIN_BYTES_MAX: usize = (65_535 - 40 - 8) / 2 * 2;
/// Datagrams of a train: the kernel's limit for one send with segmentation offload (128 since Linux 6.9, 64 before).
pub(super) const TRAIN_DATAGRAMS_MAX: usize = 64;
/// Payloads up to this length are copied: handing the kernel two more slices costs more.
const COPY_BYTES_MAX: usize = 2048;
/// Payloads that can be borrowed; further ones are copied.
const BORROWED_MAX: usize = 64;
/// Most slices of a train: each borrowed payload has copied bytes before it, and the train may end with copied bytes.
const SLICES_MAX: usize = 2 * BORROWED_MAX + 1;
/// A datagram is padded to the segment size if that adds at most one part in this many.
const PADDING_SHARE: usize = 4;

/// Payloads of the current burst that are part of a train without having been copied: each with its place among the
/// copied bytes.
#[derive(Default)]
pub(super) struct Borrowed<'a>(ArrayVec<(usize, &'a [u8]), BORROWED_MAX>);

/// The bytes of a train, in order.
pub(super) type Slices<'a> = ArrayVec<IoSlice<'a>, SLICES_MAX>;

/// What a datagram of a train carries, for the counters.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// Whether a packet was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Fit {
    Taken,
    /// The train has to be sent first.
    No,
}

/// Datagrams to one destination, the last of them still open.
pub(super) struct Train {
    route: Route,
    loads: ArrayVec<Load, TRAIN_DATAGRAMS_MAX>,
    /// Bytes of all datagrams, including borrowed payloads.
    bytes: usize,
    /// Where the open datagram begins.
    open_at: usize,
    /// Size of every datagram but the last; 0 while the first is open.
    segment: usize,
    copied: Box<[u8; TRAIN_BYTES_MAX]>,
    copied_len: usize,
    /// Most bytes of a datagram that holds several packets, and of each datagram in a train of several.
    joined_bytes: usize,
    datagram_bytes: usize,
    coalesce: Coalesce,
}

impl Train {
    /// An empty train whose datagrams have at most `datagram_bytes`: even, and at most [`TRAIN_BYTES_MAX`].
    pub(super) fn new(datagram_bytes: usize, coalesce: Coalesce) -> Self {
        assert!(datagram_bytes <= TRAIN_BYTES_MAX && datagram_bytes.is_multiple_of(2));
        Train {
            route: Route(0),
            loads: ArrayVec::new(),
            bytes: 0,
            open_at: 0,
            segment: 0,
            copied: Box::new([0; TRAIN_BYTES_MAX]),
            copied_len: 0,
            joined_bytes: datagram_bytes,
            datagram_bytes,
            coalesce,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.loads.is_empty()
    }

    pub(super) fn route(&self) -> Route {
        self.route
    }

    /// What each datagram carries.
    pub(super) fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// Size of every datagram but the last, or of the only one, in bytes.
    pub(super) fn segment(&self) -> usize {
        if self.segment == 0 { self.bytes } else { self.segment }
    }

    /// Sets how long the datagrams of an empty train may get by joining packets. A longer packet travels in a train of
    /// its own: if it is lost, no other packet is lost with it.
    #[inline]
    pub(super) fn limit_joining(&mut self, bytes: usize) {
        debug_assert!(self.is_empty());
        self.joined_bytes = bytes.min(self.datagram_bytes);
    }

    /// Adds a packet of 1 to `datagram_bytes - 2` bytes. An empty train takes any such packet.
    #[inline]
    pub(super) fn push<'a>(&mut self, packet: &TxPacket<'a>, borrowed: &mut Borrowed<'a>) -> Fit {
        let len = packet.len();
        debug_assert!(len > 0 && frame_bytes(len) <= self.datagram_bytes);
        if self.is_empty() {
            self.route = packet.route;
            self.loads.push(Load::default());
        } else if packet.route != self.route || !self.make_room(frame_bytes(len)) {
            return Fit::No;
        }
        self.copy(&length(len));
        self.copy(packet.header);
        if packet.payload.len() > COPY_BYTES_MAX && !borrowed.0.is_full() {
            borrowed.0.push((self.copied_len, packet.payload));
            self.bytes += packet.payload.len();
        } else {
            self.copy(packet.payload);
        }
        if len % 2 == 1 {
            self.copy(&[0]);
        }
        if let Some(load) = self.loads.last_mut() {
            load.packets += 1;
            load.bytes += len as u64;
        }
        Fit::Taken
    }

    /// Makes room for `need` bytes after the present ones, in the open datagram or in a new one.
    #[inline]
    fn make_room(&mut self, need: usize) -> bool {
        let open = self.bytes - self.open_at;
        if open > self.joined_bytes || need > self.joined_bytes {
            return false;
        }
        let full = if self.segment == 0 { self.joined_bytes } else { self.segment };
        let joins = self.coalesce == Coalesce::Fill && open + need <= full && self.bytes + need <= TRAIN_BYTES_MAX;
        joins || self.begin_datagram(need)
    }

    /// Closes the open datagram and opens one that will hold `need` bytes, if the train may continue.
    fn begin_datagram(&mut self, need: usize) -> bool {
        let open = self.bytes - self.open_at;
        let segment = if self.segment == 0 { open } else { self.segment };
        let padding = segment - open;
        if need > segment
            || padding > segment / PADDING_SHARE
            || self.bytes + padding + need > TRAIN_BYTES_MAX
            || self.loads.is_full()
        {
            return false;
        }
        self.segment = segment;
        self.copied[self.copied_len..self.copied_len + padding].fill(0);
        self.copied_len += padding;
        self.bytes += padding;
        self.open_at = self.bytes;
        self.loads.push(Load::default());
        true
    }

    #[inline]
    fn copy(&mut self, from: &[u8]) {
        self.copied[self.copied_len..self.copied_len + from.len()].copy_from_slice(from);
        self.copied_len += from.len();
        self.bytes += from.len();
    }

    /// The whole train, if all of it was copied.
    #[inline]
    pub(super) fn copied_only(&self, borrowed: &Borrowed<'_>) -> Option<&[u8]> {
        borrowed.0.is_empty().then(|| &self.copied[..self.copied_len])
    }

    /// The bytes of the train, in order.
    pub(super) fn slices<'a>(&'a self, borrowed: &Borrowed<'a>) -> Slices<'a> {
        let mut slices = Slices::new();
        let mut from = 0;
        for &(at, payload) in &borrowed.0 {
            // A borrowed payload has at least its length before it, so no slice is empty.
            slices.push(IoSlice::new(&self.copied[from..at]));
            slices.push(IoSlice::new(payload));
            from = at;
        }
        if from < self.copied_len {
            slices.push(IoSlice::new(&self.copied[from..self.copied_len]));
        }
        slices
    }

    /// Empties the train.
    #[inline]
    pub(super) fn clear(&mut self, borrowed: &mut Borrowed<'_>) {
        borrowed.0.clear();
        self.loads.clear();
        self.bytes = 0;
        self.open_at = 0;
        self.segment = 0;
        self.copied_len = 0;
    }
}

impl Borrowed<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(payload: &[u8]) -> TxPacket<'_> {
        TxPacket { route: Route(3), header: &[], payload }
    }

    fn bytes(train: &Train, borrowed: &Borrowed<'_>) -> Vec<u8> {
        train.slices(borrowed).iter().flat_map(|s| s.to_vec()).collect()
    }

    #[test]
    fn small_packets_share_a_datagram() {
        let mut train = Train::new(1472, Coalesce::Fill);
        let mut borrowed = Borrowed::default();
        for _ in 0..29 {
            assert_eq!(train.push(&packet(&[7; 48]), &mut borrowed), Fit::Taken);
        }
        assert_eq!(train.loads().len(), 1);
        assert_eq!(train.push(&packet(&[7; 48]), &mut borrowed), Fit::Taken);
        assert_eq!((train.loads().len(), train.segment()), (2, 29 * 50));
        assert!(train.copied_only(&borrowed).is_some());
    }

    #[test]
    fn large_payloads_are_noted_and_stand_in_order() {
        let mut train = Train::new(4000, Coalesce::Fill);
        let payloads = [vec![1; 3900], vec![2; 3900], vec![3; 10]];
        let mut borrowed = Borrowed::default();
        let mut expected = Vec::new();
        for payload in &payloads {
            let header: &[u8] = &[9, 9];
            assert_eq!(train.push(&TxPacket { route: Route(0), header, payload }, &mut borrowed), Fit::Taken);
            expected.extend_from_slice(&(payload.len() as u16 + 2).to_le_bytes());
            expected.extend_from_slice(header);
            expected.extend_from_slice(payload);
        }
        assert!(train.copied_only(&borrowed).is_none());
        assert_eq!(bytes(&train, &borrowed), expected);
        assert_eq!((train.loads().len(), train.segment()), (3, 3904));
    }

    #[test]
    fn padding_is_bounded() {
        let mut train = Train::new(1472, Coalesce::Fill);
        let payload = [1; 1470];
        let mut borrowed = Borrowed::default();
        for (len, fit) in
            [(1470, Fit::Taken), (1300, Fit::Taken), (1470, Fit::Taken), (800, Fit::Taken), (1470, Fit::No)]
        {
            assert_eq!(train.push(&packet(&payload[..len]), &mut borrowed), fit, "{len}");
        }
        assert_eq!(bytes(&train, &borrowed).len(), 3 * 1472 + 802);
        train.clear(&mut borrowed);
        assert!(train.is_empty() && train.copied_only(&borrowed).is_some_and(<[u8]>::is_empty));
    }

    #[test]
    fn packets_longer_than_the_joining_limit_travel_alone() {
        let mut train = Train::new(1472, Coalesce::Fill);
        train.limit_joining(1202);
        let mut borrowed = Borrowed::default();
        let long = [2; 1300];
        let lens = |train: &mut Train, lens: &[usize]| {
            let mut borrowed = Borrowed::default();
            train.clear(&mut borrowed);
            let fits = lens.iter().map(|len| train.push(&packet(&long[..*len]), &mut borrowed) == Fit::Taken);
            fits.collect::<Vec<bool>>()
        };
        assert_eq!(lens(&mut train, &[1300, 10]), [true, false], "nothing joins a long one");
        assert_eq!(lens(&mut train, &[10, 1300]), [true, false], "nor does it join others");
        assert_eq!(lens(&mut train, &[1200, 1200, 1100, 90, 1300]), [true, true, true, true, false]);
        assert_eq!((train.segment(), train.loads().len()), (1202, 3));
        train.clear(&mut borrowed);
        train.limit_joining(usize::MAX);
        assert_eq!(lens(&mut train, &[1300, 10, 1300]), [true, true, true]);
    }

    #[test]
    fn limits_of_the_kernel_are_kept() {
        let mut train = Train::new(TRAIN_BYTES_MAX, Coalesce::Off);
        let mut borrowed = Borrowed::default();
        let taken = (0..1000).take_while(|_| train.push(&packet(&[1]), &mut borrowed) == Fit::Taken).count();
        assert_eq!(taken, TRAIN_DATAGRAMS_MAX);

        for (datagram, payload) in [(9354, 9352), (1472, 1470), (9354, 3000), (9354, 48), (65_486, 3000)] {
            let mut train = Train::new(datagram, Coalesce::Fill);
            let payload = vec![1; payload];
            let mut borrowed = Borrowed::default();
            while train.push(&packet(&payload), &mut borrowed) == Fit::Taken {}
            let total = bytes(&train, &borrowed).len();
            assert!(total <= TRAIN_BYTES_MAX && total + 2 * datagram > TRAIN_BYTES_MAX, "{datagram}: {total}");
        }
    }

    #[test]
    fn another_destination_does_not_fit() {
        let mut train = Train::new(1472, Coalesce::Fill);
        let mut borrowed = Borrowed::default();
        assert_eq!(train.push(&packet(&[1]), &mut borrowed), Fit::Taken);
        let other = TxPacket { route: Route(4), ..packet(&[1]) };
        assert_eq!(train.push(&other, &mut borrowed), Fit::No);
    }
}
