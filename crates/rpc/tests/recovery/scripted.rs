//! A transport that does to each packet what a script says: lose it, repeat it, or let it come late.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackNetwork, LoopbackTransport};
use dunlin_net::transport::{Arm, PeerHealth, Route, RxPacket, Transport, TransportCounters, TxPacket, Waker};
use dunlin_net::{Addr, NetError};
use dunlin_rpc::wire::Header;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    IsLost,
    ComesTwice,
    /// After so many nanoseconds more than others.
    ComesLate(u64),
}

type Decide = Box<dyn FnMut(&Header) -> Fate>;

/// What one endpoint sent, and what becomes of it.
#[derive(Default)]
pub struct Script {
    decide: Option<Decide>,
    /// Headers of what was sent, in order.
    pub sent: Vec<Header>,
    /// How far the clock jumps at the next look at it, as if the thread were away just then.
    pub absence: Option<Duration>,
    held: Vec<(u64, Route, Vec<u8>)>,
}

pub type SharedScript = Rc<RefCell<Script>>;

impl Script {
    pub fn set(&mut self, decide: impl FnMut(&Header) -> Fate + 'static) {
        self.decide = Some(Box::new(decide));
    }
}

pub struct Scripted {
    pub inner: LoopbackTransport,
    pub network: LoopbackNetwork,
    pub script: SharedScript,
}

impl Scripted {
    fn send(&mut self, route: Route, bytes: &[u8]) {
        self.inner.tx_burst(&[TxPacket { route, header: bytes, payload: &[] }]);
    }

    fn release(&mut self) {
        let now = self.network.now();
        let mut held = std::mem::take(&mut self.script.borrow_mut().held);
        held.sort_by_key(|(at, ..)| *at);
        held.retain(|(at, route, bytes)| {
            if *at <= now {
                self.send(*route, bytes);
            }
            *at > now
        });
        self.script.borrow_mut().held = held;
    }
}

impl Transport for Scripted {
    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn rx_queue_len(&self) -> usize {
        self.inner.rx_queue_len()
    }

    fn local_addr(&self) -> Addr {
        self.inner.local_addr()
    }

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        self.inner.resolve(addr)
    }

    fn release(&mut self, route: Route) {
        self.inner.release(route)
    }

    fn peer_health(&mut self, route: Route) -> PeerHealth {
        self.inner.peer_health(route)
    }

    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        for packet in packets {
            let bytes = [packet.header, packet.payload].concat();
            let header = Header::parse(&bytes, bytes.len()).unwrap();
            let fate = {
                let mut script = self.script.borrow_mut();
                script.sent.push(header);
                script.decide.as_mut().map_or(Fate::Arrives, |decide| decide(&header))
            };
            match fate {
                Fate::Arrives => self.send(packet.route, &bytes),
                Fate::IsLost => {}
                Fate::ComesTwice => (0..2).for_each(|_| self.send(packet.route, &bytes)),
                Fate::ComesLate(nanos) => {
                    let at = self.network.now() + nanos;
                    self.script.borrow_mut().held.push((at, packet.route, bytes));
                }
            }
        }
    }

    fn tx_flush(&mut self) {
        self.inner.tx_flush()
    }

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        self.inner.tx_to(addr, packet)
    }

    fn rx_burst(&mut self) -> usize {
        Scripted::release(self);
        self.inner.rx_burst()
    }

    fn rx_packet(&self, i: usize) -> RxPacket<'_> {
        self.inner.rx_packet(i)
    }

    fn rx_source(&self, i: usize) -> Option<Addr> {
        self.inner.rx_source(i)
    }

    fn now(&self) -> u64 {
        if let Some(absence) = self.script.borrow_mut().absence.take() {
            self.network.advance(absence);
        }
        self.inner.now()
    }

    fn wait(&mut self, timeout: Duration) {
        self.inner.wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn wake_fd(&mut self) -> Result<OwnedFd, NetError> {
        self.inner.wake_fd()
    }

    fn arm(&mut self, timeout: Duration) -> Arm {
        self.inner.arm(timeout)
    }

    fn disarm(&mut self) {
        self.inner.disarm()
    }

    fn counters(&self) -> TransportCounters {
        self.inner.counters()
    }
}
