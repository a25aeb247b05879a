//! The [`Transport`] trait: what the RPC layer asks of packet I/O.
//!
//! It is what eRPC asks of a NIC (paper section 4): datagrams that may be lost, sent and received in bursts, a receive
//! queue of bounded length, and no connection state. Dispatch is static: the RPC endpoint is generic over its
//! transport.
//!
//! # Life of a packet
//!
//! *Sending.* [`Transport::resolve`] turns an [`Addr`] into a [`Route`] once; packets then name the route.
//! [`Transport::tx_burst`] takes several packets, each as a header slice and a payload slice. When it returns, the
//! transport holds no reference to either slice: they were copied, or handed to the kernel. (This is the invariant of
//! the paper's section 4.2.2, kept by construction.) Packets may be buffered until [`Transport::tx_flush`], which ends
//! every loop iteration.
//!
//! *Receiving.* [`Transport::rx_burst`] takes the packets that have arrived, up to [`RX_BURST`], and releases those of
//! the previous burst. [`Transport::rx_packet`] then lends each of them until the next `rx_burst`.
//!
//! # Sleeping
//!
//! [`Transport::wait`] is for a thread that has nothing else to wait for. A thread whose event loop waits for other
//! descriptors too (tokio, mio, io_uring, a plain `poll`) calls [`Transport::wake_fd`] once. Before it sleeps it calls
//! [`Transport::arm`]; unless that found work, it waits for the descriptor among its others; after that it calls
//! [`Transport::disarm`]. Between `arm` and `disarm` it must use nothing of the transport but [`Waker`]s. A transport
//! that is not armed costs its peers nothing.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::addr::Addr;
use crate::clock::{BootClock, Clock};
use crate::error::NetError;

/// Most packets handed out by one [`Transport::rx_burst`].
pub const RX_BURST: usize = 64;

/// Bytes at the start of a received packet that are always private to this process (of a shorter packet, all): enough
/// for every header of the RPC layer.
pub const HEAD_BYTES: usize = 64;

/// A resolved destination: an index into the transport's table of peers, small enough for sessions to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route(pub u32);

/// One packet to send: the bytes of `header`, then those of `payload`; together at least 1 and at most
/// [`Transport::route_mtu`].
///
/// An empty packet may arrive, or be dropped and counted in [`TransportCounters::tx_dropped_error`]: not every framing
/// can represent one. It does not affect other packets.
#[derive(Debug, Clone, Copy)]
pub struct TxPacket<'a> {
    /// The destination.
    pub route: Route,
    /// First bytes.
    pub header: &'a [u8],
    /// The rest; may be empty.
    pub payload: &'a [u8],
}

impl TxPacket<'_> {
    /// Bytes of the whole packet.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One received packet, lent until the next [`Transport::rx_burst`].
///
/// Its bytes may lie in memory that another process can still write. Then only the first [`HEAD_BYTES`] are private,
/// and the rest can only be copied out ([`RxPacket::copy_to`]). So no value can pass a check and then change before it
/// is used.
#[derive(Clone, Copy)]
pub struct RxPacket<'a> {
    route: Option<Route>,
    head: &'a [u8],
    tail: Option<crate::shm::SharedBytes<'a>>,
    ecn_marked: bool,
}

impl<'a> RxPacket<'a> {
    /// A packet that lies entirely in private memory.
    pub fn private(route: Option<Route>, bytes: &'a [u8]) -> Self {
        RxPacket { route, head: bytes, tail: None, ecn_marked: false }
    }

    /// A packet whose first bytes were copied to private memory and whose rest is still shared.
    pub(crate) fn shared(route: Option<Route>, head: &'a [u8], tail: crate::shm::SharedBytes<'a>) -> Self {
        RxPacket { route, head, tail: Some(tail), ecn_marked: false }
    }

    /// The same packet, marked by a switch because its queue was long (ECN, RFC 3168: "congestion experienced").
    #[inline]
    pub fn with_ecn_mark(self) -> Self {
        RxPacket { ecn_marked: true, ..self }
    }

    /// The same packet from another route.
    #[inline]
    pub(crate) fn with_route(self, route: Option<Route>) -> Self {
        RxPacket { route, ..self }
    }

    /// Whether a switch on the path marked the packet. Never set by transports that cannot see such marks.
    #[inline]
    pub fn ecn_marked(&self) -> bool {
        self.ecn_marked
    }

    /// The route back to the sender, if it was resolved before; `None` for a stranger.
    #[inline]
    pub fn route(&self) -> Option<Route> {
        self.route
    }

    /// Bytes of the packet.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.map_or(0, |t| t.len())
    }

    /// The private bytes at its start: the whole packet, or at least [`HEAD_BYTES`].
    #[inline]
    pub fn head(&self) -> &'a [u8] {
        self.head
    }

    /// The whole packet, if it lies in private memory.
    #[inline]
    pub fn bytes(&self) -> Option<&'a [u8]> {
        if self.tail.is_none() { Some(self.head) } else { None }
    }

    /// Copies `to.len()` bytes from `offset` on into `to`.
    ///
    /// # Panics
    /// If the packet ends before.
    #[inline]
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) {
        match self.head.get(offset..).and_then(|bytes| bytes.get(..to.len())) {
            Some(bytes) => to.copy_from_slice(bytes),
            None => self.copy_with_tail(offset, to),
        }
    }

    /// [`RxPacket::copy_to`] for bytes that do not all lie in its head.
    fn copy_with_tail(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= self.len(), "copy past the end of a packet");
        let from_head = self.head.len().saturating_sub(offset).min(to.len());
        let (first, rest) = to.split_at_mut(from_head);
        if from_head > 0 {
            first.copy_from_slice(&self.head[offset..offset + from_head]);
        }
        if let (Some(tail), false) = (self.tail, rest.is_empty()) {
            tail.copy_to(offset + from_head - self.head.len(), rest);
        }
    }
}

/// What a transport knows about a peer without contacting it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerHealth {
    /// The transport cannot tell; only the peer's packets can.
    Unknown,
    /// The peer's process lives.
    Alive,
    /// The network reported that nobody listens at the peer's address, and nothing has come from there since. This is a
    /// hint, not proof: anyone who can send packets can forge such a report.
    Refused,
    /// The peer's process has ended.
    Dead,
}

/// Counts since the transport was opened. Plain numbers, read by snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportCounters {
    /// Packets handed over by the caller and sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Datagrams, ring reservations or system calls they took: `tx_packets / tx_batches` is the batching achieved.
    pub tx_batches: u64,
    /// Packets dropped here because the receiver's queue, or the socket's buffer, was full.
    pub tx_dropped_full: u64,
    /// Packets dropped here because no memory was available: over shared memory, because the file system of the
    /// receiver's region is full.
    pub tx_dropped_no_memory: u64,
    /// Packets dropped here for any other reason: the peer is gone, the system refused.
    pub tx_dropped_error: u64,
    /// Reports from the network that nobody listens at a peer's address. These are hints, not proof: see
    /// [`PeerHealth::Refused`].
    pub tx_refused: u64,
    /// Packets handed to the caller.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Non-empty receive bursts (or system calls) they took.
    pub rx_batches: u64,
    /// Packets dropped here because they were malformed.
    pub rx_dropped_malformed: u64,
    /// Packets the kernel dropped because this receiver's buffer was full.
    pub rx_dropped_kernel: u64,
    /// Places in a shared queue that the receiver passed because their senders had not finished writing: they were
    /// stopped, or have died.
    pub rx_set_aside: u64,
    /// Packets that were written to such places after all.
    pub rx_late: u64,
    /// Places in a shared queue reclaimed from senders that died while they wrote.
    pub rx_reclaimed: u64,
    /// Times [`Transport::wait`] really slept, or [`Transport::arm`] allowed its caller to sleep.
    pub waits: u64,
}

impl TransportCounters {
    /// The sum of these counters and another transport's.
    pub(crate) fn plus(&self, other: &TransportCounters) -> TransportCounters {
        TransportCounters {
            tx_packets: self.tx_packets + other.tx_packets,
            tx_bytes: self.tx_bytes + other.tx_bytes,
            tx_batches: self.tx_batches + other.tx_batches,
            tx_dropped_full: self.tx_dropped_full + other.tx_dropped_full,
            tx_dropped_no_memory: self.tx_dropped_no_memory + other.tx_dropped_no_memory,
            tx_dropped_error: self.tx_dropped_error + other.tx_dropped_error,
            tx_refused: self.tx_refused + other.tx_refused,
            rx_packets: self.rx_packets + other.rx_packets,
            rx_bytes: self.rx_bytes + other.rx_bytes,
            rx_batches: self.rx_batches + other.rx_batches,
            rx_dropped_malformed: self.rx_dropped_malformed + other.rx_dropped_malformed,
            rx_dropped_kernel: self.rx_dropped_kernel + other.rx_dropped_kernel,
            rx_set_aside: self.rx_set_aside + other.rx_set_aside,
            rx_late: self.rx_late + other.rx_late,
            rx_reclaimed: self.rx_reclaimed + other.rx_reclaimed,
            waits: self.waits + other.waits,
        }
    }
}

/// The result of [`Transport::arm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// There is work, or may be: do not sleep, and receive. The transport is not armed.
    Work,
    /// It is armed: sleep until the descriptor is readable, but no longer than this.
    Sleep(Duration),
}

/// A handle with which any thread ends the current or next [`Transport::wait`] of an endpoint.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// Wraps the function that wakes the transport.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Waker(Arc::new(wake))
    }

    /// Ends the wait. Cheap enough to call once per event, not once per packet.
    pub fn wake(&self) {
        (self.0)()
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waker")
    }
}

/// Unreliable datagrams in bursts. See the [module](self) for the life of a packet.
///
/// One thread owns a transport. Times are nanoseconds on the transport's own monotonic clock.
pub trait Transport {
    /// Largest packet that every route takes, header and payload together, in bytes.
    fn mtu(&self) -> usize;

    /// Largest packet that a route in use takes: [`Transport::mtu`], or more where routes differ.
    fn route_mtu(&self, _route: Route) -> usize {
        self.mtu()
    }

    /// Whether every path to a route in use carries packets of [`Transport::route_mtu`]. If not, some hop of a network
    /// may silently drop long packets, and the user has to find out which sizes get through (RFC 8899). May cost system
    /// calls: ask once per session.
    fn is_mtu_certain(&self, _route: Route) -> bool {
        true
    }

    /// Limits the length of a datagram that joins packets, on a route in use, to that of a packet of `bytes` alone.
    /// Longer packets are still sent, each in a datagram of its own, so that no other is lost if a hop drops it. Until
    /// this is called, the limit is [`Transport::route_mtu`]. Transports that join no packets ignore it.
    fn limit_joining(&mut self, _route: Route, _bytes: usize) {}

    /// Packets the receive queue holds before more are dropped: the paper's |RQ|. It holds that many of any length up
    /// to [`Transport::mtu`], unless the transport was configured otherwise: over UDP
    /// [`UdpConfig::queued_packet_bytes`](crate::udp::UdpConfig::queued_packet_bytes) sets the length, and over shared
    /// memory it holds no more long packets than [`ShmConfig::bulk_buffers`](crate::shm::ShmConfig::bulk_buffers).
    fn rx_queue_len(&self) -> usize;

    /// The address at which others reach this transport; the first if it has several.
    fn local_addr(&self) -> Addr;

    /// All addresses at which others reach this transport.
    fn local_addrs(&self) -> Vec<Addr> {
        vec![self.local_addr()]
    }

    /// Whether no packet ever leaves this host. If so, no packet queues behind others in a network, and a late packet
    /// means only that a process waits for a processor.
    fn is_local(&self) -> bool {
        false
    }

    /// The same for the packets of one route in use.
    fn is_local_route(&self, _route: Route) -> bool {
        self.is_local()
    }

    /// Returns a route to `addr`. Resolving an address again gives the same route and counts one more user of it.
    ///
    /// # Errors
    /// [`NetError::WrongKind`], [`NetError::NotFound`] where the transport can know it, [`NetError::Full`] at the limit
    /// of routes.
    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError>;

    /// Releases one use of a route; after the last one its number may be given to another peer. A route that is not in
    /// use is ignored.
    fn release(&mut self, route: Route);

    /// What is known about the peer at `route`; never [`PeerHealth::Alive`] for a route that is not in use. May cost a
    /// system call: ask every few milliseconds, not per packet.
    fn peer_health(&mut self, route: Route) -> PeerHealth;

    /// Sends packets. Keep those to one destination together. Never blocks: packets that cannot be sent now are dropped
    /// and counted in [`TransportCounters::tx_dropped_full`]. A packet that is longer than its route takes
    /// ([`Transport::route_mtu`]), or whose route is not in use, is dropped and counted in
    /// [`TransportCounters::tx_dropped_error`]; the others of the burst are sent.
    fn tx_burst(&mut self, packets: &[TxPacket<'_>]);

    /// Sends every packet that [`Transport::tx_burst`] left buffered.
    fn tx_flush(&mut self);

    /// Sends one packet to an address without a route: the slow way, for answering strangers without keeping state
    /// about them. A packet that is too long is dropped and counted, as by [`Transport::tx_burst`].
    ///
    /// # Errors
    /// As [`Transport::resolve`].
    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError>;

    /// Receives up to [`RX_BURST`] packets without blocking; the packets of the previous burst are released.
    fn rx_burst(&mut self) -> usize;

    /// Packet `i` of the current burst.
    ///
    /// # Panics
    /// If `i` is not below what [`Transport::rx_burst`] returned.
    fn rx_packet(&self, i: usize) -> RxPacket<'_>;

    /// The sender's address of packet `i` of the current burst; `None` if it has no well-formed address.
    ///
    /// # Panics
    /// As [`Transport::rx_packet`].
    fn rx_source(&self, i: usize) -> Option<Addr>;

    /// Nanoseconds on this transport's clock. Never goes back.
    fn now(&self) -> u64;

    /// The same clock for other threads: it reads as [`Transport::now`] does. `None` if only the owner of the transport
    /// can read it, for example because a test or a simulation moves it.
    fn clock(&self) -> Option<Clock> {
        None
    }

    /// The clock for promises to others, which keeps running while the machine is suspended. It is the system's if
    /// [`Transport::now`] is, and otherwise the one that a test or a simulation moves.
    fn boot_clock(&self) -> BootClock;

    /// Sleeps until a packet arrives, the [`Waker`] is used, or `timeout` expires; may return early for no reason.
    fn wait(&mut self, timeout: Duration);

    /// A handle that ends a [`Transport::wait`], or the sleep of a thread that has armed this transport.
    fn waker(&self) -> Waker;

    /// A descriptor for an event loop that is not this transport's own: while the transport is armed
    /// ([`Transport::arm`]), it becomes readable when a packet arrives or a [`Waker`] is used. It works with
    /// level-triggered and edge-triggered waiting; do not read from it. Each call returns another descriptor of the
    /// same thing, which the caller owns and may keep past the transport's end; after that it never becomes readable
    /// again.
    ///
    /// # Errors
    /// [`NetError::Io`] if the system has no descriptor left, or cannot create what the descriptor refers to.
    fn wake_fd(&mut self) -> Result<OwnedFd, NetError>;

    /// Prepares for a sleep of at most `timeout` and looks once more for work: this look finds what came before it, and
    /// what comes after it makes the descriptor readable. Always [`Arm::Work`] before the first [`Transport::wake_fd`]:
    /// there is no descriptor to sleep on.
    ///
    /// A wake-up may still be lost if a sender is killed before it wakes the receiver. It must not cost more than one
    /// sleep: bound `timeout` by [`SLEEP_MAX`](crate::poll::SLEEP_MAX).
    fn arm(&mut self, timeout: Duration) -> Arm;

    /// Ends what [`Transport::arm`] began; call it after the sleep, whatever ended it. Does no harm if this transport
    /// is not armed.
    fn disarm(&mut self);

    /// Counts so far.
    fn counters(&self) -> TransportCounters;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_marked_only_where_a_transport_says_so() {
        let packet = RxPacket::private(Some(Route(3)), b"bytes");
        assert!(!packet.ecn_marked());
        let marked = packet.with_ecn_mark();
        assert!(marked.ecn_marked());
        assert_eq!((marked.route(), marked.bytes()), (packet.route(), packet.bytes()));
    }
}
