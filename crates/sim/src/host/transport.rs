//! The transport of a simulated thread.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use arrayvec::ArrayVec;
use dunlin_net::transport::RX_BURST;
use dunlin_net::wake::Event;
use dunlin_net::{
    Addr, Arm, BootClock, NetError, PeerHealth, Route, RxPacket, Transport, TransportCounters, TxPacket, Waker,
};

use super::clock::ThreadClock;
use super::thread::Arrived;
use crate::world::{Shared, World};

const WORD_BITS: usize = u64::BITS as usize;

/// The receive and transmit queues of one thread at its host's NIC, as packet I/O for the thread's program.
///
/// Every operation takes CPU time by the [`CostModel`](super::CostModel), and [`Transport::now`] is the thread's own
/// time: that of its current event, plus the CPU time charged since. Sending to a full transmit queue takes until there
/// is room again, as with a driver that spins.
///
/// A packet to a thread that has no transport travels to its host and is dropped there. [`Transport::wait`] never
/// sleeps: a program [returns](super::Next) when it wants to run. The transport of a crashed host is dead: it sends and
/// receives nothing, until it is dropped.
#[derive(Debug)]
pub struct SimTransport {
    shared: Rc<Shared>,
    clock: ThreadClock,
    addr: Addr,
    /// Index of the thread.
    thread: u32,
    incarnation: u32,
    mtu: usize,
    rx_queue_len: usize,
    /// How often each route was resolved. A route's number is the index of the thread it leads to, so each transport
    /// keeps only these few bytes for every other.
    users: Vec<u32>,
    /// A bit for each route that has users: read for every packet, so it is as small as possible.
    resolved: Vec<u64>,
    burst: ArrayVec<Received, RX_BURST>,
    counters: TransportCounters,
}

#[derive(Debug)]
struct Received {
    buffer: Box<[u8]>,
    len: u16,
    marked: bool,
    from: u32,
}

impl SimTransport {
    /// Binds to a thread that has no live transport.
    pub(crate) fn new(shared: &Rc<Shared>, thread: u32) -> Self {
        let mut world = shared.world.borrow_mut();
        let (mtu, rx_queue_len) = (world.mtu, world.rx_descriptors);
        let entry = &mut world.threads[thread as usize];
        let incarnation = entry.incarnations;
        entry.incarnations += 1;
        entry.transport = Some(incarnation);
        let (clock, host, number) = (entry.clock.clone(), entry.host, entry.number);
        world.hosts[host as usize].nic.add_queue(number);
        drop(world);
        SimTransport {
            shared: shared.clone(),
            clock,
            addr: Addr::Sim { host: host.into(), thread: number },
            thread,
            incarnation,
            mtu,
            rx_queue_len,
            users: Vec::new(),
            resolved: Vec::new(),
            burst: ArrayVec::new(),
            counters: TransportCounters::default(),
        }
    }

    /// The clock of the thread, with which its program charges itself for its work.
    pub fn clock(&self) -> ThreadClock {
        self.clock.clone()
    }

    fn is_alive(&self, world: &World) -> bool {
        world.threads[self.thread as usize].transport == Some(self.incarnation)
    }

    /// The index of the thread at an address.
    fn find(&self, addr: &Addr) -> Result<u32, NetError> {
        let Addr::Sim { host, thread } = *addr else {
            return Err(NetError::WrongKind { addr: addr.clone(), transport: "a simulated network" });
        };
        let found = self.shared.world.borrow_mut().thread_index(host, thread);
        found.map_err(|_| NetError::NotFound { addr: addr.clone() })
    }

    #[inline]
    fn is_resolved(&self, peer: u32) -> bool {
        self.resolved.get(peer as usize / WORD_BITS).is_some_and(|word| word >> (peer as usize % WORD_BITS) & 1 == 1)
    }

    /// Sends one packet, or counts why it cannot.
    #[inline]
    fn send(&mut self, world: &mut World, to: Option<u32>, header: &[u8], payload: &[u8]) {
        let len = header.len() + payload.len();
        let Some(to) = to.filter(|_| len <= self.mtu) else {
            self.counters.tx_dropped_error += 1;
            return;
        };
        self.clock.charge_picos(world.cost.tx_packet_ns * 1000 + world.cost.tx_byte_ps * len as u64);
        world.send(self.thread, to, header, payload);
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += len as u64;
    }

    /// Gives back the packets of the last burst.
    fn release_burst(&mut self, world: &mut World) {
        for received in self.burst.drain(..) {
            world.packets.buffers.give_back(received.buffer);
        }
    }
}

impl Transport for SimTransport {
    fn mtu(&self) -> usize {
        self.mtu
    }

    fn is_mtu_certain(&self, _route: Route) -> bool {
        !self.shared.world.borrow().is_mtu_uncertain
    }

    fn rx_queue_len(&self) -> usize {
        self.rx_queue_len
    }

    fn local_addr(&self) -> Addr {
        self.addr.clone()
    }

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        let peer = self.find(addr)?;
        if self.users.len() <= peer as usize {
            self.users.resize(peer as usize + 1, 0);
            self.resolved.resize(peer as usize / WORD_BITS + 1, 0);
        }
        self.users[peer as usize] += 1;
        self.resolved[peer as usize / WORD_BITS] |= 1 << (peer as usize % WORD_BITS);
        Ok(Route(peer))
    }

    fn release(&mut self, route: Route) {
        if self.is_resolved(route.0) {
            let peer = route.0 as usize;
            self.users[peer] -= 1;
            if self.users[peer] == 0 {
                self.resolved[peer / WORD_BITS] &= !(1 << (peer % WORD_BITS));
            }
        }
    }

    fn peer_health(&mut self, _route: Route) -> PeerHealth {
        PeerHealth::Unknown
    }

    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        let shared = self.shared.clone();
        let world = &mut *shared.world.borrow_mut();
        if !self.is_alive(world) {
            self.counters.tx_dropped_error += packets.len() as u64;
            return;
        }
        let before = self.counters.tx_packets;
        self.clock.charge(world.cost.tx_burst_ns);
        for packet in packets {
            let to = Some(packet.route.0).filter(|peer| self.is_resolved(*peer));
            self.send(world, to, packet.header, packet.payload);
        }
        self.counters.tx_batches += u64::from(self.counters.tx_packets > before);
    }

    /// Nothing to do: packets were copied, and the NIC has them.
    fn tx_flush(&mut self) {}

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        let to = self.find(addr)?;
        let shared = self.shared.clone();
        let world = &mut *shared.world.borrow_mut();
        if !self.is_alive(world) {
            self.counters.tx_dropped_error += 1;
            return Ok(());
        }
        self.clock.charge(world.cost.tx_burst_ns);
        let before = self.counters.tx_packets;
        self.send(world, Some(to), packet, &[]);
        self.counters.tx_batches += self.counters.tx_packets - before;
        Ok(())
    }

    fn rx_burst(&mut self) -> usize {
        let shared = self.shared.clone();
        let world = &mut *shared.world.borrow_mut();
        self.release_burst(world);
        if !self.is_alive(world) {
            return 0;
        }
        let now = self.clock.picos();
        let rx = &mut world.threads[self.thread as usize].rx;
        let mut bytes = 0;
        while let Some(arrived) = rx.front().copied().filter(|arrived| arrived.visible <= now && !self.burst.is_full())
        {
            let packet = world.packets.remove(arrived.packet);
            rx.pop_front();
            bytes += u64::from(arrived.len);
            let Arrived { len, marked, .. } = arrived;
            self.burst.push(Received { buffer: packet.buffer, len, marked, from: packet.from });
        }
        if rx.is_empty() {
            // Start again at the front, so that a queue that is usually short uses little memory.
            rx.clear();
        }
        let count = self.burst.len() as u64;
        if count == 0 {
            self.clock.charge(world.cost.poll_ns);
            return 0;
        }
        let cost = &world.cost;
        self.clock.charge_picos((cost.rx_burst_ns + cost.rx_packet_ns * count) * 1000 + cost.rx_byte_ps * bytes);
        world.counters.received += count;
        self.counters.rx_packets += count;
        self.counters.rx_bytes += bytes;
        self.counters.rx_batches += 1;
        count as usize
    }

    #[inline]
    fn rx_packet(&self, i: usize) -> RxPacket<'_> {
        let received = &self.burst[i];
        let route = Some(Route(received.from)).filter(|_| self.is_resolved(received.from));
        let packet = RxPacket::private(route, &received.buffer[..received.len as usize]);
        if received.marked { packet.with_ecn_mark() } else { packet }
    }

    fn rx_source(&self, i: usize) -> Option<Addr> {
        let world = self.shared.world.borrow();
        let from = &world.threads[self.burst[i].from as usize];
        Some(Addr::Sim { host: from.host.into(), thread: from.number })
    }

    #[inline]
    fn now(&self) -> u64 {
        self.clock.now()
    }

    /// The host's clock, plus the time for which it was stopped.
    fn boot_clock(&self) -> BootClock {
        let clock = self.clock.clone();
        BootClock::told_by(move || clock.boot_now())
    }

    fn wait(&mut self, _timeout: Duration) {
        self.counters.waits += 1;
    }

    fn waker(&self) -> Waker {
        let (wakes, thread) = (self.shared.wakes.clone(), self.thread);
        Waker::new(move || wakes.wake(thread))
    }

    /// Always readable: [`Transport::wait`] does not sleep either.
    fn wake_fd(&mut self) -> Result<OwnedFd, NetError> {
        Event::raised_fd()
    }

    fn arm(&mut self, _timeout: Duration) -> Arm {
        self.counters.waits += 1;
        Arm::Sleep(Duration::ZERO)
    }

    fn disarm(&mut self) {}

    fn counters(&self) -> TransportCounters {
        let world = self.shared.world.borrow();
        let mut counters = self.counters;
        counters.rx_dropped_kernel = world.threads[self.thread as usize].rx_dropped;
        counters
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        let world = &mut *shared.world.borrow_mut();
        self.release_burst(world);
        if self.is_alive(world) {
            world.unbind(self.thread);
        }
    }
}
