//! Datagrams between endpoints of one thread, over queues in memory and with a clock that the test moves.
//!
//! Everything is deterministic: nothing reads the time of day, nothing sleeps, and packets to one destination arrive in
//! the order they were sent. So a test of a protocol can run hours of its time in milliseconds and repeat any failure
//! exactly. To make the network worse than this, wrap its transports in a
//! [`FaultInjector`](crate::fault::FaultInjector).
//!
//! ```
//! use std::time::Duration;
//! use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
//! use dunlin_net::{Addr, Transport, TxPacket};
//!
//! let net = LoopbackNetwork::new(LoopbackConfig { delay: Duration::from_micros(5), ..LoopbackConfig::default() });
//! let (mut a, mut b) = (net.endpoint(1)?, net.endpoint(2)?);
//! let route = a.resolve(&Addr::Node(2))?;
//! a.tx_burst(&[TxPacket { route, header: b"hello ", payload: b"world" }]);
//! assert_eq!(b.rx_burst(), 0);
//! net.advance(Duration::from_micros(5));
//! assert_eq!(b.rx_burst(), 1);
//! assert_eq!(b.rx_packet(0).bytes(), Some(&b"hello world"[..]));
//! # Ok::<(), dunlin_net::NetError>(())
//! ```
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use arrayvec::ArrayVec;

use crate::addr::Addr;
use crate::clock::BootClock;
use crate::clock::nanos;
use crate::error::NetError;
use crate::transport::{Arm, PeerHealth, RX_BURST, Route, RxPacket, Transport, TransportCounters, TxPacket, Waker};
use crate::wake::Event;

/// Most node numbers that one network ever knows, whether in use or not.
pub const NODES_MAX: usize = 1 << 16;

/// What every endpoint of a [`LoopbackNetwork`] has in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopbackConfig {
    /// Largest packet, in bytes.
    pub mtu: usize,
    /// Packets to one node, whether in flight or waiting to be received; beyond this limit packets are dropped.
    pub queue_len: usize,
    /// Time from sending a packet to its arrival.
    pub delay: Duration,
}

impl Default for LoopbackConfig {
    /// The payload of a UDP packet over Ethernet, a queue of 4,096 packets and a delay of 1 us.
    fn default() -> Self {
        LoopbackConfig { mtu: 1472, queue_len: 4096, delay: Duration::from_micros(1) }
    }
}

/// A network inside one thread, with its clock. Clones are handles on the same network.
#[derive(Debug, Clone)]
pub struct LoopbackNetwork {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: LoopbackConfig,
    delay: u64,
    now: Cell<u64>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    nodes: Vec<Node>,
    /// Longest packets that get through, by the indices of sender and receiver, where there is a limit.
    path_mtu: HashMap<(usize, usize), usize>,
    /// Whether transports report that paths may carry less than they should.
    is_mtu_uncertain: bool,
    /// From a node's number to its index in `nodes`, which never changes.
    index: HashMap<u32, usize>,
    health: HashMap<u32, PeerHealth>,
    /// Buffers of packets that were received, each with room for `mtu` bytes. At its peak load the network allocates no
    /// more.
    free: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Node {
    number: u32,
    live: bool,
    /// In order of arrival, since the delay is the same for all.
    queue: VecDeque<Packet>,
}

#[derive(Debug)]
struct Packet {
    arrives_at: u64,
    from: usize,
    bytes: Vec<u8>,
}

impl State {
    /// The index of a node, which is added if the network does not know it.
    fn node(&mut self, number: u32) -> Result<usize, NetError> {
        if let Some(&index) = self.index.get(&number) {
            return Ok(index);
        }
        if self.nodes.len() == NODES_MAX {
            return Err(NetError::Full { what: "the loopback network's table of nodes", limit: NODES_MAX });
        }
        self.nodes.push(Node { number, live: false, queue: VecDeque::new() });
        self.index.insert(number, self.nodes.len() - 1);
        Ok(self.nodes.len() - 1)
    }

    /// Discards packets that have arrived at a node without a transport. Packets in flight stay: they will reach the
    /// next transport with this number.
    fn discard_arrived(&mut self, node: usize, now: u64) {
        let queue = &mut self.nodes[node].queue;
        let arrived = queue.partition_point(|p| p.arrives_at <= now);
        self.free.extend(queue.drain(..arrived).map(|p| p.bytes));
    }
}

impl LoopbackNetwork {
    /// An empty network whose clock stands at zero.
    pub fn new(config: LoopbackConfig) -> Self {
        let delay = nanos(config.delay);
        LoopbackNetwork { shared: Rc::new(Shared { config, delay, now: Cell::new(0), state: RefCell::default() }) }
    }

    /// A transport at `Addr::Node(node)`.
    ///
    /// The number of a transport that was dropped may be reused, as by a process that restarts. Packets in flight to
    /// the old transport then reach the new one; those that had arrived are gone.
    ///
    /// # Errors
    /// [`NetError::InUse`] if a live transport holds the number, [`NetError::Full`] beyond [`NODES_MAX`].
    pub fn endpoint(&self, node: u32) -> Result<LoopbackTransport, NetError> {
        let mut state = self.shared.state.borrow_mut();
        let index = state.node(node)?;
        if state.nodes[index].live {
            return Err(NetError::InUse { addr: Addr::Node(node) });
        }
        state.discard_arrived(index, self.now());
        state.nodes[index].live = true;
        drop(state);
        Ok(LoopbackTransport {
            shared: Rc::clone(&self.shared),
            node: index,
            number: node,
            routes: Vec::new(),
            free_routes: Vec::new(),
            route_to: Vec::new(),
            burst: ArrayVec::new(),
            fresh_routes: Vec::new(),
            counters: TransportCounters::default(),
        })
    }

    /// Nanoseconds on the network's clock, which is that of all its transports.
    pub fn now(&self) -> u64 {
        self.shared.now.get()
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.advance_to(self.now().saturating_add(nanos(by)));
    }

    /// Moves the clock to `time`, in nanoseconds; it stays where it is if it is already there or beyond.
    pub fn advance_to(&self, time: u64) {
        self.shared.now.set(self.now().max(time));
    }

    /// When the next packet for a live transport arrives, so that a driver can move the clock there. Not later than
    /// [`LoopbackNetwork::now`] if a packet is waiting to be received; `None` if there are no packets.
    pub fn next_arrival(&self) -> Option<u64> {
        let state = self.shared.state.borrow();
        state.nodes.iter().filter(|n| n.live).filter_map(|n| n.queue.front()).map(|p| p.arrives_at).min()
    }

    /// From now on silently drops packets from one node to another that are longer than `mtu`; [`usize::MAX`] ends
    /// this. The sender counts them as sent, like a host whose packets a distant hop drops.
    ///
    /// # Errors
    /// As [`LoopbackNetwork::endpoint`].
    pub fn set_path_mtu(&self, from: u32, to: u32, mtu: usize) -> Result<(), NetError> {
        let mut state = self.shared.state.borrow_mut();
        let ends = (state.node(from)?, state.node(to)?);
        state.path_mtu.insert(ends, mtu);
        Ok(())
    }

    /// Makes all transports report from now on that their paths may carry less than they should
    /// ([`Transport::is_mtu_certain`]).
    pub fn make_mtu_uncertain(&self) {
        self.shared.state.borrow_mut().is_mtu_uncertain = true;
    }

    /// Sets what [`Transport::peer_health`] returns for a node from now on. The default is [`PeerHealth::Unknown`].
    pub fn set_health(&self, node: u32, health: PeerHealth) {
        self.shared.state.borrow_mut().health.insert(node, health);
    }
}

/// One endpoint of a [`LoopbackNetwork`].
///
/// Packets to a node without a transport are lost and counted in [`TransportCounters::tx_dropped_error`], as are
/// packets that are too long or whose route was not resolved; their sender counts packets beyond the receiver's queue
/// in [`TransportCounters::tx_dropped_full`]. [`Transport::wait`] never sleeps: only the test moves the clock.
#[derive(Debug)]
pub struct LoopbackTransport {
    shared: Rc<Shared>,
    node: usize,
    number: u32,
    /// By route number.
    routes: Vec<RouteEntry>,
    free_routes: Vec<Route>,
    /// By node index.
    route_to: Vec<Option<Route>>,
    burst: ArrayVec<Packet, RX_BURST>,
    /// Routes created since the burst was taken: as over UDP, all packets of a stranger's burst come from a stranger,
    /// including those behind the packet that made it a peer.
    fresh_routes: Vec<Route>,
    counters: TransportCounters,
}

#[derive(Debug, Clone, Copy)]
struct RouteEntry {
    node: usize,
    users: u32,
}

impl LoopbackTransport {
    fn live_entry(&mut self, route: Route) -> Option<&mut RouteEntry> {
        self.routes.get_mut(route.0 as usize).filter(|entry| entry.users > 0)
    }

    /// Sends to the node at index `to`, or counts the reason why it cannot.
    fn send(&mut self, to: Option<usize>, header: &[u8], payload: &[u8]) -> bool {
        let Shared { config, delay, now, state } = &*self.shared;
        let State { nodes, free, path_mtu, .. } = &mut *state.borrow_mut();
        let len = header.len() + payload.len();
        let Some(node) = to.map(|to| &mut nodes[to]).filter(|node| node.live && len <= config.mtu) else {
            self.counters.tx_dropped_error += 1;
            return false;
        };
        if node.queue.len() >= config.queue_len {
            self.counters.tx_dropped_full += 1;
            return false;
        }
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += len as u64;
        let swallows = |to| path_mtu.get(&(self.node, to)).is_some_and(|mtu| len > *mtu);
        if !path_mtu.is_empty() && to.is_some_and(swallows) {
            return true;
        }
        let mut bytes = free.pop().unwrap_or_else(|| Vec::with_capacity(config.mtu));
        bytes.clear();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(payload);
        node.queue.push_back(Packet { arrives_at: now.get().saturating_add(*delay), from: self.node, bytes });
        true
    }
}

impl Transport for LoopbackTransport {
    fn mtu(&self) -> usize {
        self.shared.config.mtu
    }

    fn is_mtu_certain(&self, _route: Route) -> bool {
        !self.shared.state.borrow().is_mtu_uncertain
    }

    fn rx_queue_len(&self) -> usize {
        self.shared.config.queue_len
    }

    fn local_addr(&self) -> Addr {
        Addr::Node(self.number)
    }

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        let Addr::Node(number) = *addr else {
            return Err(NetError::WrongKind { addr: addr.clone(), transport: "loopback" });
        };
        let node = self.shared.state.borrow_mut().node(number)?;
        if let Some(&Some(route)) = self.route_to.get(node) {
            self.routes[route.0 as usize].users += 1;
            return Ok(route);
        }
        let entry = RouteEntry { node, users: 1 };
        let route = match self.free_routes.pop() {
            Some(route) => {
                self.routes[route.0 as usize] = entry;
                route
            }
            None => {
                self.routes.push(entry);
                Route(self.routes.len() as u32 - 1)
            }
        };
        if self.route_to.len() <= node {
            self.route_to.resize(node + 1, None);
        }
        self.route_to[node] = Some(route);
        self.fresh_routes.push(route);
        Ok(route)
    }

    fn release(&mut self, route: Route) {
        let Some(entry) = self.live_entry(route) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            let node = entry.node;
            self.route_to[node] = None;
            self.free_routes.push(route);
        }
    }

    fn peer_health(&mut self, route: Route) -> PeerHealth {
        let Some(&mut RouteEntry { node, .. }) = self.live_entry(route) else { return PeerHealth::Unknown };
        let state = self.shared.state.borrow();
        state.health.get(&state.nodes[node].number).copied().unwrap_or(PeerHealth::Unknown)
    }

    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        let mut sent_any = false;
        for packet in packets {
            let to = self.live_entry(packet.route).map(|entry| entry.node);
            sent_any |= self.send(to, packet.header, packet.payload);
        }
        self.counters.tx_batches += u64::from(sent_any);
    }

    fn tx_flush(&mut self) {}

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        let Addr::Node(number) = addr else {
            return Err(NetError::WrongKind { addr: addr.clone(), transport: "loopback" });
        };
        let to = self.shared.state.borrow().index.get(number).copied();
        let sent = self.send(to, packet, &[]);
        self.counters.tx_batches += u64::from(sent);
        Ok(())
    }

    fn rx_burst(&mut self) -> usize {
        let State { nodes, free, .. } = &mut *self.shared.state.borrow_mut();
        free.extend(self.burst.drain(..).map(|p| p.bytes));
        let now = self.shared.now.get();
        let queue = &mut nodes[self.node].queue;
        let arrived = queue.iter().take(RX_BURST).take_while(|p| p.arrives_at <= now).count();
        self.burst.extend(queue.drain(..arrived));
        self.fresh_routes.clear();
        self.counters.rx_packets += arrived as u64;
        self.counters.rx_bytes += self.burst.iter().map(|p| p.bytes.len() as u64).sum::<u64>();
        self.counters.rx_batches += u64::from(arrived > 0);
        arrived
    }

    fn rx_packet(&self, i: usize) -> RxPacket<'_> {
        let packet = &self.burst[i];
        let route = self.route_to.get(packet.from).copied().flatten();
        let route = route.filter(|route| self.fresh_routes.is_empty() || !self.fresh_routes.contains(route));
        RxPacket::private(route, &packet.bytes)
    }

    fn rx_source(&self, i: usize) -> Option<Addr> {
        let from = self.burst[i].from;
        Some(Addr::Node(self.shared.state.borrow().nodes[from].number))
    }

    fn now(&self) -> u64 {
        self.shared.now.get()
    }

    fn boot_clock(&self) -> BootClock {
        let shared = self.shared.clone();
        BootClock::told_by(move || shared.now.get())
    }

    fn wait(&mut self, _timeout: Duration) {
        self.counters.waits += 1;
    }

    fn waker(&self) -> Waker {
        Waker::new(|| {})
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
        self.counters
    }
}

impl Drop for LoopbackTransport {
    fn drop(&mut self) {
        let mut state = self.shared.state.borrow_mut();
        state.free.extend(self.burst.drain(..).map(|p| p.bytes));
        state.nodes[self.node].live = false;
        state.discard_arrived(self.node, self.shared.now.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(queue_len: usize, delay_ns: u64) -> LoopbackNetwork {
        LoopbackNetwork::new(LoopbackConfig { mtu: 64, queue_len, delay: Duration::from_nanos(delay_ns) })
    }

    fn send(from: &mut LoopbackTransport, route: Route, payload: &[u8]) {
        from.tx_burst(&[TxPacket { route, header: &[], payload }]);
    }

    #[test]
    fn long_packets_vanish_where_a_path_swallows_them() {
        let net = LoopbackNetwork::new(LoopbackConfig { delay: Duration::ZERO, ..LoopbackConfig::default() });
        let (mut a, mut b) = (net.endpoint(1).unwrap(), net.endpoint(2).unwrap());
        let (to_b, to_a) = (a.resolve(&Addr::Node(2)).unwrap(), b.resolve(&Addr::Node(1)).unwrap());
        assert!(a.is_mtu_certain(to_b));
        net.make_mtu_uncertain();
        assert!(!a.is_mtu_certain(to_b));
        let mut send = |mtu| {
            net.set_path_mtu(1, 2, mtu).unwrap();
            let payload = [1; 101];
            for payload in [&payload[..100], &payload] {
                a.tx_burst(&[TxPacket { route: to_b, header: &[], payload }]);
                b.tx_burst(&[TxPacket { route: to_a, header: &[], payload }]);
            }
            (b.rx_burst(), a.rx_burst())
        };
        assert_eq!([send(100), send(99), send(usize::MAX)], [(1, 2), (0, 2), (2, 2)]);
        assert_eq!((a.counters().tx_packets, a.counters().tx_dropped_error), (6, 0), "nobody tells the sender");
    }

    #[test]
    fn a_packet_arrives_after_the_delay_and_not_before() {
        let net = network(4, 100);
        let (mut a, mut b) = (net.endpoint(1).unwrap(), net.endpoint(2).unwrap());
        let route = a.resolve(&Addr::Node(2)).unwrap();
        send(&mut a, route, b"x");
        assert_eq!(net.next_arrival(), Some(100));
        net.advance_to(99);
        assert_eq!(b.rx_burst(), 0);
        net.advance(Duration::from_nanos(1));
        assert_eq!(b.rx_burst(), 1);
        assert_eq!(net.next_arrival(), None);
        net.advance_to(5);
        assert_eq!((net.now(), a.now()), (100, 100), "the clock never goes back");
    }

    #[test]
    fn a_full_queue_drops_and_the_sender_counts() {
        let net = network(4, 0);
        let (mut a, mut b) = (net.endpoint(1).unwrap(), net.endpoint(2).unwrap());
        let route = a.resolve(&Addr::Node(2)).unwrap();
        for i in 0..6 {
            send(&mut a, route, &[i]);
        }
        assert_eq!((a.counters().tx_packets, a.counters().tx_dropped_full), (4, 2));
        assert_eq!(b.rx_burst(), 4);
        assert_eq!(b.rx_packet(3).bytes(), Some(&[3][..]));
    }

    #[test]
    fn nobody_there_bad_route_and_too_long_are_lost_and_counted() {
        let net = network(4, 0);
        let mut a = net.endpoint(1).unwrap();
        let nobody = a.resolve(&Addr::Node(2)).unwrap();
        send(&mut a, nobody, b"x");
        send(&mut a, Route(77), b"x");
        a.tx_to(&Addr::Node(3), b"x").unwrap();
        let _b = net.endpoint(2).unwrap();
        send(&mut a, nobody, &[0; 65]);
        assert_eq!((a.counters().tx_packets, a.counters().tx_dropped_error), (0, 4));
    }

    #[test]
    fn a_restarted_node_gets_what_was_in_flight_only() {
        let net = network(8, 100);
        let (mut a, old) = (net.endpoint(1).unwrap(), net.endpoint(2).unwrap());
        assert!(matches!(net.endpoint(2), Err(NetError::InUse { addr: Addr::Node(2) })));
        let route = a.resolve(&Addr::Node(2)).unwrap();
        send(&mut a, route, b"arrives before the end");
        net.advance_to(100);
        send(&mut a, route, b"arrives while nobody is there");
        net.advance_to(150);
        send(&mut a, route, b"in flight");
        drop(old);
        assert_eq!(net.next_arrival(), None);
        send(&mut a, route, b"sent while nobody is there");
        net.advance_to(200);
        let mut new = net.endpoint(2).unwrap();
        assert_eq!(net.next_arrival(), Some(250));
        net.advance_to(250);
        assert_eq!(new.rx_burst(), 1);
        assert_eq!(new.rx_packet(0).bytes(), Some(&b"in flight"[..]));
    }

    #[test]
    fn health_is_what_the_test_says() {
        let net = network(4, 0);
        let mut a = net.endpoint(1).unwrap();
        let route = a.resolve(&Addr::Node(2)).unwrap();
        assert_eq!(a.peer_health(route), PeerHealth::Unknown);
        net.set_health(2, PeerHealth::Dead);
        assert_eq!(a.peer_health(route), PeerHealth::Dead);
    }

    #[test]
    fn a_steady_state_makes_no_more_buffers() {
        let net = network(64, 10);
        let (mut a, mut b) = (net.endpoint(1).unwrap(), net.endpoint(2).unwrap());
        let route = a.resolve(&Addr::Node(2)).unwrap();
        let buffers = |a: &LoopbackTransport, b: &LoopbackTransport| {
            let state = net.shared.state.borrow();
            state.free.len() + state.nodes.iter().map(|n| n.queue.len()).sum::<usize>() + a.burst.len() + b.burst.len()
        };
        for _ in 0..100 {
            for _ in 0..20 {
                send(&mut a, route, &[7; 64]);
            }
            net.advance(Duration::from_nanos(10));
            assert_eq!(b.rx_burst(), 20);
        }
        assert_eq!(buffers(&a, &b), 40, "20 on the way while the 20 before are lent");
        assert!(net.shared.state.borrow().free.iter().all(|bytes| bytes.capacity() == 64));
    }
}
