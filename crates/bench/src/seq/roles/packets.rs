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
/// Packets that the client gathers before it sends as many: as many as one poll of shared memory gives.
const GATHERED: usize = 32;
/// A run in which nothing comes for so long fails: packets were lost, and fewer are in flight than it says.
const SILENCE_MAX: Duration = Duration::from_secs(2);

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
                let Ok(bytes) = packet.head().try_into() else { continue };
                let route = match packet.route() {
                    Some(route) => route,
                    // The first packet. From now on those of the client have a route.
                    None => match transport.rx_source(at) {
                        Some(addr) => transport.resolve(&addr)?,
                        None => continue,
                    },
                };
                came.push((route, bytes));
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
        let packets = |count: usize, from: u64| {
            let mut packets = ArrayVec::<(Route, Packet), RX_BURST>::new();
            packets.extend((from..).take(count).map(|number| {
                let mut packet = [0; BYTES];
                packet[..8].copy_from_slice(&number.to_le_bytes());
                (route, packet)
            }));
            packets
        };
        let (mut window, mut came, mut sent) = (Window::new(self.client.run), 0u64, 1u64);
        let mut last_came = (0, Instant::now());
        send(&mut transport, &packets(1, 0));
        loop {
            for _ in 0..TURNS_PER_LOOK {
                came += gather(&mut transport) as u64;
                // Until the first is back, the server does not know the way to this client.
                let to_send = if came > 0 { self.client.in_flight - (sent - came) as usize } else { 0 };
                for begun in (0..to_send).step_by(RX_BURST) {
                    send(&mut transport, &packets((to_send - begun).min(RX_BURST), sent + begun as u64));
                }
                sent += to_send as u64;
            }
            if window.look(came, |rate| self.control.live(Metric::Operations, rate)) || self.control.stopping() {
                return window.rate();
            }
            if last_came.0 != came {
                last_came = (came, Instant::now());
            } else if last_came.1.elapsed() > SILENCE_MAX {
                return Err(BenchError::no_samples("a packet that came back"));
            }
        }
    }
}

/// Receives until a burst is full or nothing comes, as the client of Spec-S0 does: bursts that are too small cost both ends
/// more.
fn gather<T: Transport>(transport: &mut T) -> usize {
    let mut gathered = 0;
    while gathered < GATHERED {
        match transport.rx_burst() {
            0 => break,
            count => gathered += count,
        }
    }
    gathered
}

/// Sends a burst, as Spec-S0 does.
fn send<T: Transport>(transport: &mut T, packets: &[(Route, Packet)]) {
    let packets = packets.iter().map(|(route, bytes)| TxPacket { route: *route, header: bytes, payload: &[] });
    if packets.len() > 1 {
        // Extended in place: what is collected is copied, with all its empty room.
        let mut burst = ArrayVec::<TxPacket<'_>, RX_BURST>::new();
        burst.extend(packets);
        transport.tx_burst(&burst);
    } else {
        packets.for_each(|packet| transport.tx_burst(&[packet]));
    }
    transport.tx_flush();
}
