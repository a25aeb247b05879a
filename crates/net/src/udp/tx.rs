//! Sending: packets become trains, trains become system calls.

use std::io::{self, IoSlice};

use arrayvec::ArrayVec;

use crate::transport::{Route, TxPacket};

use super::Link;
use super::config::{Coalesce, Offload};
use super::sockaddr::SockAddr;
use super::train::{Borrowed, Fit, TRAIN_DATAGRAMS_MAX, Train};

/// Times a send is retried after an error that may belong to an earlier send.
const RETRIES: usize = 4;
/// Slices of a train that is cut into its datagrams: a cut adds at most one.
const CUT_SLICES_MAX: usize = 256;

/// The sending half.
pub(super) struct Tx {
    train: Train,
    packet_bytes_max: usize,
    gso: Offload,
}

/// How a train is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It is a single datagram.
    Single,
    /// In one piece that the kernel cuts. A single large datagram gains too: the kernel then stores it in pages, while
    /// otherwise it allocates the next power of two, and charges that to the receiver's buffer.
    Segmented,
    /// Datagram by datagram.
    Each,
}

impl Tx {
    pub(super) fn new(packet_bytes_max: usize, datagram_bytes: usize, coalesce: Coalesce, gso: Offload) -> Self {
        Tx { train: Train::new(datagram_bytes, coalesce), packet_bytes_max, gso }
    }

    /// Packs `packets` into trains and sends those that are full or refer to the caller's memory.
    #[inline]
    pub(super) fn burst(&mut self, link: &mut Link, packets: &[TxPacket<'_>]) {
        let mut borrowed = Borrowed::default();
        for packet in packets {
            if packet.is_empty() || packet.len() > self.packet_bytes_max {
                link.counters.tx_dropped_error += 1;
                continue;
            }
            if self.train.is_empty() {
                self.train.limit_joining(link.routes.joined_bytes(packet.route));
            }
            if self.train.push(packet, &mut borrowed) == Fit::No {
                self.send_train(link, &mut borrowed);
                self.train.limit_joining(link.routes.joined_bytes(packet.route));
                let fit = self.train.push(packet, &mut borrowed);
                debug_assert!(fit == Fit::Taken, "an empty train takes any packet");
            }
        }
        if !borrowed.is_empty() {
            self.send_train(link, &mut borrowed);
        }
    }

    /// Sends what is buffered.
    #[inline]
    pub(super) fn flush(&mut self, link: &mut Link) {
        if !self.train.is_empty() {
            self.send_train(link, &mut Borrowed::default());
        }
    }

    /// Sends one packet to an address that has no route.
    pub(super) fn stray(&mut self, link: &mut Link, packet: &[u8], to: &SockAddr) {
        self.flush(link);
        if packet.is_empty() || packet.len() > self.packet_bytes_max {
            link.counters.tx_dropped_error += 1;
            return;
        }
        let mut borrowed = Borrowed::default();
        let fit = self.train.push(&TxPacket { route: Route(u32::MAX), header: &[], payload: packet }, &mut borrowed);
        debug_assert!(fit == Fit::Taken, "an empty train takes any packet");
        self.send_to(link, &borrowed, Some(to), Offload::Off);
        self.train.clear(&mut borrowed);
    }

    /// Sends the train to its route and empties it.
    fn send_train(&mut self, link: &mut Link, borrowed: &mut Borrowed<'_>) {
        match link.routes.get(self.train.route()) {
            Some(peer) => {
                let to = peer.raw;
                let gso = if peer.gso_refused { Offload::Off } else { self.gso };
                let connected = link.direct.socket_to(self.train.route()).is_some();
                link.direct.on_send(self.train.route());
                self.send_to(link, borrowed, (!connected).then_some(&to), gso);
            }
            // The route was released.
            None => link.counters.tx_dropped_error += self.packets_from(0),
        }
        self.train.clear(borrowed);
    }

    /// Sends the train to `to`, or without `to` through the connected socket.
    fn send_to(&self, link: &mut Link, borrowed: &Borrowed<'_>, to: Option<&SockAddr>, gso: Offload) {
        let count = self.train.loads().len();
        let mut way = match gso {
            _ if count == 1 && borrowed.is_empty() => Way::Single,
            Offload::Auto => Way::Segmented,
            Offload::Off if count == 1 => Way::Single,
            Offload::Off => Way::Each,
        };
        let mut sent = 0;
        let mut failures = 0;
        // The datagram that the kernel last called too long, and whether any was confirmed too long.
        let (mut doubted, mut too_long) = (usize::MAX, false);
        let mut is_offload_in_doubt = false;
        while sent < count {
            match self.send_from(sent, way, link, borrowed, to) {
                Ok(more) => {
                    self.count_sent(link, sent, more);
                    sent += more;
                    if is_offload_in_doubt && !too_long {
                        // The same bytes were sent without the offload, so it was the offload that failed.
                        link.routes.on_gso_refused(self.train.route());
                    }
                }
                Err(error) => {
                    failures += 1;
                    match error.raw_os_error() {
                        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                            link.counters.tx_dropped_full += self.packets_from(sent);
                            return;
                        }
                        // A router may have reported this for an earlier datagram, so it counts only if it comes twice.
                        Some(libc::EMSGSIZE) if doubted != sent => {
                            link.take_errors();
                            doubted = sent;
                        }
                        Some(error @ (libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP))
                            if way == Way::Segmented =>
                        {
                            link.take_errors();
                            (way, doubted) = (Way::Each, usize::MAX);
                            // Two routers, or an attacker who forges their reports, may have called earlier datagrams
                            // too long.
                            is_offload_in_doubt = error != libc::EMSGSIZE;
                        }
                        // The link takes no datagram of this length. The others may be shorter.
                        Some(libc::EMSGSIZE) => {
                            link.take_errors();
                            too_long = true;
                            link.counters.tx_dropped_error += self.packets_from(sent) - self.packets_from(sent + 1);
                            sent += 1;
                        }
                        Some(libc::EINTR) if failures <= RETRIES => {}
                        // The kernel reports an error of an earlier datagram instead of sending this one. It may have
                        // had no room to say which.
                        Some(libc::ECONNREFUSED) if failures <= RETRIES => _ = link.take_errors(),
                        _ if link.take_errors() > 0 && failures <= RETRIES => {}
                        _ => {
                            link.counters.tx_dropped_error += self.packets_from(sent);
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Sends the datagrams from `first` on and returns how many were sent.
    fn send_from(
        &self,
        first: usize,
        way: Way,
        link: &Link,
        borrowed: &Borrowed<'_>,
        to: Option<&SockAddr>,
    ) -> io::Result<usize> {
        let socket = match to {
            Some(_) => &link.socket,
            None => link.direct.socket().unwrap_or(&link.socket),
        };
        let copied_only = self.train.copied_only(borrowed);
        match (way, copied_only) {
            (Way::Single, Some(bytes)) => socket.send_to(bytes, to).map(|()| 1),
            (Way::Single, None) => socket.send_slices(&self.train.slices(borrowed), to, None).map(|()| 1),
            (Way::Segmented, _) => {
                let segment = self.train.segment() as u16;
                let slices = self.train.slices(borrowed);
                socket.send_slices(&slices, to, Some(segment)).map(|()| self.train.loads().len())
            }
            (Way::Each, _) => {
                let slices = self.train.slices(borrowed);
                let mut pieces: ArrayVec<IoSlice<'_>, CUT_SLICES_MAX> = ArrayVec::new();
                let ends = cut(&slices, self.train.segment(), &mut pieces);
                let mut datagrams: ArrayVec<&[IoSlice<'_>], TRAIN_DATAGRAMS_MAX> = ArrayVec::new();
                let mut start = 0;
                for end in ends {
                    datagrams.push(&pieces[start..end]);
                    start = end;
                }
                socket.send_each(&datagrams[first..], to)
            }
        }
    }

    fn count_sent(&self, link: &mut Link, first: usize, datagrams: usize) {
        link.counters.tx_batches += 1;
        for load in &self.train.loads()[first..first + datagrams] {
            link.counters.tx_packets += load.packets;
            link.counters.tx_bytes += load.bytes;
        }
    }

    /// Packets in the datagrams from `first` on.
    fn packets_from(&self, first: usize) -> u64 {
        self.train.loads()[first..].iter().map(|load| load.packets).sum()
    }
}

/// Cuts `slices` into datagrams of `segment` bytes; the result holds where in `pieces` each one ends.
fn cut<'a>(
    slices: &'a [IoSlice<'a>],
    segment: usize,
    pieces: &mut ArrayVec<IoSlice<'a>, CUT_SLICES_MAX>,
) -> ArrayVec<usize, TRAIN_DATAGRAMS_MAX> {
    let mut ends = ArrayVec::new();
    let mut room = segment;
    for slice in slices {
        let mut rest: &[u8] = slice;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(room));
            pieces.push(IoSlice::new(piece));
            rest = after;
            room -= piece.len();
            if room == 0 {
                ends.push(pieces.len());
                room = segment;
            }
        }
    }
    if room < segment {
        ends.push(pieces.len());
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_fall_on_segments() {
        let slices = [IoSlice::new(b"abc"), IoSlice::new(b"defgh"), IoSlice::new(b"i")];
        let mut pieces = ArrayVec::new();
        let ends = cut(&slices, 4, &mut pieces);
        let text: Vec<&[u8]> = pieces.iter().map(|p| &**p).collect();
        assert_eq!(text, [b"abc".as_slice(), b"d", b"efgh", b"i"]);
        assert_eq!(ends.as_slice(), [2, 3, 4]);
    }
}
