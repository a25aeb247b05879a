//! The transport of a simulated thread.

use std::rc::Rc;
use std::time::Duration;

use arrayvec::ArrayVec;
use dunlin_net::random::Random;
use dunlin_net::transport::RX_BURST;
use dunlin_net::{Addr, NetError, PeerHealth, Route, RxPacket, Transport, TransportCounters, TxPacket, Waker};

use super::clock::ThreadClock;
use crate::world::flight::Flow;
use crate::world::{Shared, World};

/// Most peers of one transport.
const ROUTES_MAX: usize = 1 << 20;

/// The receive and transmit queue of one thread at its host's NIC, as packet I/O for the program that the thread runs.
///
/// Every operation takes CPU time by the [`CostModel`](super::CostModel), and [`Transport::now`] is the thread's own time: that of the
/// event that it handles and what it was charged since. Sending to a full transmit queue takes until there is room again, as it would
/// for a driver that spins.
///
/// A packet to a thread that has no transport travels to its host and is dropped there. [`Transport::wait`] never sleeps: a program says
/// when it wants to run by what it [returns](super::Next). The transport of a host that crashed is dead: it sends nothing and receives
/// nothing, until it is dropped.
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
    /// By route number.
    routes: Vec<RouteEntry>,
    free_routes: Vec<Route>,
    /// By index of the thread at the other end.
    route_to: Vec<Option<Route>>,
    burst: ArrayVec<Received, RX_BURST>,
    counters: TransportCounters,
}

#[derive(Debug, Clone, Copy)]
struct RouteEntry {
    flow: Flow,
    users: u32,
}

#[derive(Debug)]
struct Received {
    buffer: Box<[u8]>,
    len: u16,
    marked: bool,
    from: u32,
}

impl SimTransport {
    /// Takes the place at a thread that has no live transport.
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
            routes: Vec::new(),
            free_routes: Vec::new(),
            route_to: Vec::new(),
            burst: ArrayVec::new(),
            counters: TransportCounters::default(),
        }
    }

    /// The clock of the thread, with which its program charges itself for what it does.
    pub fn clock(&self) -> ThreadClock {
        self.clock.clone()
    }

    fn is_alive(&self, world: &World) -> bool {
        world.threads[self.thread as usize].transport == Some(self.incarnation)
    }

    /// What leads to an address.
    fn flow(&self, addr: &Addr) -> Result<Flow, NetError> {
        let Addr::Sim { host, thread } = *addr else {
            return Err(NetError::WrongKind { addr: addr.clone(), transport: "a simulated network" });
        };
        let to = self.shared.world.borrow_mut().thread_index(host, thread);
        let to = to.map_err(|_| NetError::NotFound { addr: addr.clone() })?;
        let Addr::Sim { host: from_host, thread: from_thread } = self.addr else {
            unreachable!("the address of a simulated thread is one of the simulation");
        };
        let ends = [from_host, from_thread.into(), host, thread.into()];
        let hash = ends.iter().fold(0, |hash, end| Random::new(hash ^ u64::from(*end)).next());
        Ok(Flow { from: self.thread, to, to_host: host as u16, hash: hash as u32 })
    }

    fn live_entry(&mut self, route: Route) -> Option<&mut RouteEntry> {
        self.routes.get_mut(route.0 as usize).filter(|entry| entry.users > 0)
    }

    /// Sends one packet, or counts why not.
    #[inline]
    fn send(&mut self, world: &mut World, flow: Option<Flow>, header: &[u8], payload: &[u8]) {
        let len = header.len() + payload.len();
        let Some(flow) = flow.filter(|_| len <= self.mtu) else {
            self.counters.tx_dropped_error += 1;
            return;
        };
        self.clock.charge_picos(world.cost.tx_packet_ns * 1000 + world.cost.tx_byte_ps * len as u64);
        world.send(flow, header, payload);
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

    fn rx_queue_len(&self) -> usize {
        self.rx_queue_len
    }

    fn local_addr(&self) -> Addr {
        self.addr.clone()
    }

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        let flow = self.flow(addr)?;
        if let Some(&Some(route)) = self.route_to.get(flow.to as usize) {
            self.routes[route.0 as usize].users += 1;
            return Ok(route);
        }
        let entry = RouteEntry { flow, users: 1 };
        let route = match self.free_routes.pop() {
            Some(route) => {
                self.routes[route.0 as usize] = entry;
                route
            }
            None if self.routes.len() == ROUTES_MAX => {
                return Err(NetError::Full { what: "a simulated transport's table of routes", limit: ROUTES_MAX });
            }
            None => {
                self.routes.push(entry);
                Route(self.routes.len() as u32 - 1)
            }
        };
        if self.route_to.len() <= flow.to as usize {
            self.route_to.resize(flow.to as usize + 1, None);
        }
        self.route_to[flow.to as usize] = Some(route);
        Ok(route)
    }

    fn release(&mut self, route: Route) {
        let Some(entry) = self.live_entry(route) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            let to = entry.flow.to;
            self.route_to[to as usize] = None;
            self.free_routes.push(route);
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
            let flow = self.live_entry(packet.route).map(|entry| entry.flow);
            self.send(world, flow, packet.header, packet.payload);
        }
        self.counters.tx_batches += u64::from(self.counters.tx_packets > before);
    }

    /// There is nothing to do: packets were copied, and the NIC has them.
    fn tx_flush(&mut self) {}

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        let flow = self.flow(addr)?;
        let shared = self.shared.clone();
        let world = &mut *shared.world.borrow_mut();
        if !self.is_alive(world) {
            self.counters.tx_dropped_error += 1;
            return Ok(());
        }
        self.clock.charge(world.cost.tx_burst_ns);
        let before = self.counters.tx_packets;
        self.send(world, Some(flow), packet, &[]);
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
        while let Some(arrived) = rx.front().filter(|arrived| arrived.visible <= now && !self.burst.is_full()) {
            let packet = world.packets.remove(arrived.packet);
            rx.pop_front();
            bytes += u64::from(packet.len);
            self.burst.push(Received { buffer: packet.buffer, len: packet.len, marked: packet.marked, from: packet.from });
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
        let route = self.route_to.get(received.from as usize).copied().flatten();
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

    fn wait(&mut self, _timeout: Duration) {
        self.counters.waits += 1;
    }

    fn waker(&self) -> Waker {
        let (wakes, thread) = (self.shared.wakes.clone(), self.thread);
        Waker::new(move || wakes.wake(thread))
    }

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
