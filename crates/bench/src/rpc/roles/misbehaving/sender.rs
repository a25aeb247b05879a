//! A client over shared memory that is stopped in the middle of sending.

use std::hint;
use std::time::{Duration, Instant};

use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Transport, TxPacket};
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};

/// How long it runs until it is stopped: some bursts. A timer of its own stops it, since a process that shares the core
/// would get its turn only after milliseconds, in which this one would take a share of the core that is not small.
const RUN: Duration = Duration::from_micros(50);
/// Packets in a burst: as many as reserve their places in the queue at once.
const BURST: usize = 64;
/// Maximum pause between two bursts. The pause is as long as the previous burst, so that half of all stops fall within
/// a burst; this limit applies to a burst in which the sender was stopped, which takes longer.
const PAUSE_MAX: Duration = Duration::from_micros(20);
/// Bytes of a packet, which do not belong to the protocol.
const BYTES: usize = 32;

/// Sends bursts of meaningless packets, which cost the server only a glance, and stops itself (SIGSTOP) soon after each
/// time that somebody has let it continue.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sender {
    /// Transport, over shared memory.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
}

impl Role for Sender {
    const NAME: &'static str = "client that stops in the middle of sending";
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
        let notify = SigevNotify::SigevSignal { signal: Signal::SIGSTOP, si_value: 0 };
        let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify)).map_err(cannot)?;
        self.control.ready(());
        while !self.control.stopping() {
            timer.set(Expiration::OneShot(RUN.into()), TimerSetTimeFlags::empty()).map_err(cannot)?;
            self.send(&mut transport, &burst);
        }
        Ok(())
    }
}

impl Send<'_> {
    /// Sends bursts until the timer has stopped this process and another has let it continue.
    fn send<T: Transport>(&self, transport: &mut T, burst: &[TxPacket<'_>]) {
        let stops = Instant::now() + RUN;
        while Instant::now() <= stops {
            let begun = Instant::now();
            transport.tx_burst(burst);
            transport.tx_flush();
            let next = Instant::now() + begun.elapsed().min(PAUSE_MAX);
            while Instant::now() < next {
                hint::spin_loop();
            }
        }
    }
}

fn cannot(error: nix::Error) -> BenchError {
    BenchError::io("stop this process by a timer")(error.into())
}
