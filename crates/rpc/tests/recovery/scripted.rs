//! A transport that treats each packet as a script says: it loses or repeats it, or delivers it late.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackNetwork, LoopbackTransport};
use dunlin_net::{BootClock, Route, Transport, TxPacket};
use dunlin_rpc::wire::Header;

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    IsLost,
    ComesTwice,
    /// Arrives this many nanoseconds later than others.
    ComesLate(u64),
}

type Decide = Box<dyn FnMut(&Header) -> Fate>;

/// What one endpoint sent, and the script for its packets.
#[derive(Default)]
pub struct Script {
    decide: Option<Decide>,
    /// Headers of what was sent, in order.
    pub sent: Vec<Header>,
    /// How far the clock jumps at the next reading, as if the thread were descheduled just then.
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
    dunlin_net::forward_transport!(inner: mtu, route_mtu, rx_queue_len, local_addr, local_addrs, is_local, is_local_route);
    dunlin_net::forward_transport!(inner: resolve, release, peer_health, tx_flush, tx_to, rx_packet, rx_source, wait, waker, wake_fd, arm, disarm, counters);

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

    fn rx_burst(&mut self) -> usize {
        Scripted::release(self);
        self.inner.rx_burst()
    }

    fn now(&self) -> u64 {
        if let Some(absence) = self.script.borrow_mut().absence.take() {
            self.network.advance(absence);
        }
        self.inner.now()
    }

    fn boot_clock(&self) -> BootClock {
        self.inner.boot_clock()
    }
}
