//! What a transport carries without a sequencer: packets of the size of Spec-S0's that are sent back as they came.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::transport::RX_BURST;
use dunlin_net::{Route, Transport, TxPacket};
use serde::{Deserialize, Serialize};

use super::window::Window;
use crate::BenchError;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};

/// Bytes of a packet: those of a request of Spec-S0, and of its answer.
const BYTES: usize = 20;
/// Turns between two looks at the clock.
const TURNS_PER_LOOK: u32 = 64;
/// If nothing comes for so long, the packets in flight count as lost.
const LOST_AFTER: Duration = Duration::from_millis(20);

type Packet = [u8; BYTES];

/// Sends packets back until it is stopped.
#[derive(Debug, Serialize, Deserialize)]
pub struct PacketServer {
    /// The transport.
    pub setup: Setup,
}

impl Role for PacketServer {
    const NAME: &'static str = "server that sends packets back";
    /// Its address.
    type Ready = String;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        self.setup.on_transport(Side::Server, SendBack(control))
    }
}

struct SendBack<'a>(&'a Control<PacketServer>);

impl OnTransport for SendBack<'_> {
    type Output = ();

    fn run<T: Transport>(self, mut transport: T) -> Result<(), BenchError> {
        self.0.ready(transport.local_addr().to_string());
        let mut turns = 0u32;
        loop {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_PER_LOOK) && self.0.stopping() {
                return Ok(());
            }
            let mut came = ArrayVec::<(Route, Packet), RX_BURST>::new();
            for at in 0..transport.rx_burst().min(RX_BURST) {
                let packet = transport.rx_packet(at);
                if let (Some(route), Ok(bytes)) = (packet.route(), packet.head().try_into()) {
                    came.push((route, bytes));
                } else if let Some(addr) = transport.rx_source(at) {
                    // The client's first packets. From now on its packets have a route.
                    transport.resolve(&addr)?;
                }
            }
            send(&mut transport, &came);
        }
    }
}

/// Packets per second of one client with some in flight.
#[derive(Debug, Serialize, Deserialize)]
pub struct PacketClient {
    /// The transport.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Packets in flight.
    pub in_flight: usize,
    /// Length of the measured run.
    pub run: Duration,
}

impl Role for PacketClient {
    const NAME: &'static str = "client that gets packets back";
    type Ready = ();
    /// Packets per second.
    type Output = f64;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<f64, BenchError> {
        self.setup.on_transport(Side::Client, Exchange { client: &self, control })
    }
}

struct Exchange<'a> {
    client: &'a PacketClient,
    control: &'a Control<PacketClient>,
}

impl OnTransport for Exchange<'_> {
    type Output = f64;

    fn run<T: Transport>(self, mut transport: T) -> Result<f64, BenchError> {
        let route = transport.resolve(&self.client.server.parse()?)?;
        let (mut window, mut came) = (Window::new(self.client.run), 0u64);
        let (mut away, mut last_came) = (0, (0, Instant::now()));
        loop {
            for _ in 0..TURNS_PER_LOOK {
                while away < self.client.in_flight {
                    let mut burst = ArrayVec::<(Route, Packet), RX_BURST>::new();
                    for number in 0..(self.client.in_flight - away).min(RX_BURST) {
                        let mut packet = [0; BYTES];
                        packet[..8].copy_from_slice(&(came + number as u64).to_le_bytes());
                        burst.push((route, packet));
                    }
                    send(&mut transport, &burst);
                    away += burst.len();
                }
                let count = transport.rx_burst();
                came += count as u64;
                away = away.saturating_sub(count);
            }
            if window.look(came, |rate| self.control.live(Metric::Operations, rate)) || self.control.stopping() {
                return window.rate();
            }
            if last_came.0 != came {
                last_came = (came, Instant::now());
            } else if last_came.1.elapsed() > LOST_AFTER {
                (away, last_came) = (0, (came, Instant::now()));
            }
        }
    }
}

/// Sends a burst, as Spec-S0 does.
fn send<T: Transport>(transport: &mut T, packets: &[(Route, Packet)]) {
    if packets.is_empty() {
        return;
    }
    let burst: ArrayVec<TxPacket<'_>, RX_BURST> =
        packets.iter().map(|(route, bytes)| TxPacket { route: *route, header: bytes, payload: &[] }).collect();
    transport.tx_burst(&burst);
    transport.tx_flush();
}
