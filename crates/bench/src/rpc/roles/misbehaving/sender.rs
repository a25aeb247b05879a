//! A client over shared memory that other processes stop in the middle of sending.

use std::hint;
use std::time::{Duration, Instant};

use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Transport, TxPacket};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};

/// Packets in a burst: as many as reserve their places in the queue at once.
const BURST: usize = 64;
/// Maximum pause between two bursts. The pause is as long as the previous burst, so that half of all stops fall within
/// a burst; this limit applies to a burst in which the sender was stopped, which takes longer.
const PAUSE_MAX: Duration = Duration::from_micros(20);
/// Bytes of a packet, which do not belong to the protocol.
const BYTES: usize = 32;

/// Sends bursts of meaningless packets, which cost the server only a glance.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sender {
    /// Transport, over shared memory.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
}

impl Role for Sender {
    const NAME: &'static str = "client that is stopped now and then";
    type Ready = ();
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        self.setup.on_transport(Side::Client, Send { sender: &self, control })
    }
}

struct Send<'a> {
    sender: &'a Sender,
    control: &'a Control<Sender>,
}

impl OnTransport for Send<'_> {
    type Output = ();

    fn run<T: Transport>(self, mut transport: T) -> Result<(), BenchError> {
        let route = transport.resolve(&self.sender.server.parse()?)?;
        let burst = [TxPacket { route, header: &[0; BYTES], payload: &[] }; BURST];
        self.control.ready(());
        while !self.control.stopping() {
            let begun = Instant::now();
            transport.tx_burst(&burst);
            transport.tx_flush();
            let next = Instant::now() + begun.elapsed().min(PAUSE_MAX);
            while Instant::now() < next {
                hint::spin_loop();
            }
        }
        Ok(())
    }
}
