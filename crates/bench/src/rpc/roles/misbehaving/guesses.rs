//! Packets for the sessions of other clients, with guessed tags.

use std::thread;
use std::time::Duration;

use dunlin_lab::peer::{Control, Role};
use dunlin_rpc::wire::{Header, Kind, MASK_24};
use serde::{Deserialize, Serialize};

use super::raw::{RawPeer, packet};
use crate::BenchError;
use crate::rpc::roles::BULK;

/// Packets in a datagram.
const GUESSES: u32 = 100;
/// Session numbers to try, from zero on: they include those of the working client.
pub(super) const SESSIONS: u32 = 16;
/// Pause between two datagrams: 10,000 guesses a second.
const PAUSE: Duration = Duration::from_millis(10);

/// Sends requests on sessions of other clients from its own address. The server rejects all of them whatever their
/// tags, since they do not come from the session's address. A guesser can only waste the server's time for each packet.
#[derive(Debug, Serialize, Deserialize)]
pub struct Guesses {
    /// Address of the server, over UDP.
    pub server: String,
}

impl Role for Guesses {
    const NAME: &'static str = "guesses of tags";
    type Ready = ();
    /// Number of packets sent.
    type Output = u64;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<u64, BenchError> {
        let mut peer = RawPeer::open(&self.server.parse()?)?;
        let mut sent = 0;
        control.ready(());
        while !control.stopping() {
            let guesses = (0..GUESSES).map(|number| guess(sent + u64::from(number)));
            peer.send(&guesses.collect::<Vec<_>>())?;
            sent += u64::from(GUESSES);
            thread::sleep(PAUSE);
            peer.drain()?;
        }
        Ok(sent)
    }
}

/// A request, the first of its slot: consecutive ones have different tags, and no tag is zero, which is invalid.
pub(super) fn guess(number: u64) -> Vec<u8> {
    /// Odd, so that all tags occur before one repeats.
    const STEP: u64 = 0x9e_3779;
    let tag = (number.wrapping_mul(STEP) as u32 & MASK_24).max(1);
    packet(&Header::new(Kind::Request, Header::data_aux(BULK, 0), number as u32 % SESSIONS, 8, tag), &[])
}
