//! Sessions whose only purpose is to make a server keep responses.

use std::thread;
use std::time::Duration;

use dunlin_lab::peer::{Control, Role};
use dunlin_rpc::wire::control::Presence;
use dunlin_rpc::wire::{Header, Kind};
use serde::{Deserialize, Serialize};

use super::raw::{Opened, RawPeer, packet};
use crate::BenchError;

/// Slots of a session; each can keep a response.
const SLOTS: u64 = 8;
/// Pause between two PINGs of each session, which keep it alive.
const PING_PAUSE: Duration = Duration::from_millis(100);

/// Requests a large response in each slot of its sessions, fetches only its first packet, and pings.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hoarder {
    /// Address of the server, over UDP.
    pub server: String,
    /// Sessions.
    pub sessions: u32,
    /// The request type: [`crate::rpc::roles::BULK`] or [`crate::rpc::roles::BULK_IN_BUFFERS`].
    pub request: u8,
}

impl Role for Hoarder {
    const NAME: &'static str = "sessions that make a server keep responses";
    type Ready = ();
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let mut peer = RawPeer::open(&self.server.parse()?)?;
        let mut sessions = Vec::new();
        for number in 0..self.sessions {
            sessions.push(peer.open_session(number)?);
        }
        for session in &sessions {
            peer.send(&requests(session, self.request))?;
            peer.drain()?;
        }
        control.ready(());
        let presence = Presence { incarnation: peer.incarnation(), token: 1 };
        while !control.stopping() {
            for session in &sessions {
                peer.send(&[super::raw::control(&session.header(Kind::Ping, 0, 0), &presence)])?;
            }
            thread::sleep(PING_PAUSE);
            peer.drain()?;
        }
        Ok(())
    }
}

/// A request for each slot, the first of the slot.
fn requests(session: &Opened, request: u8) -> Vec<Vec<u8>> {
    let in_slot = |slot| packet(&session.header(Kind::Request, Header::data_aux(request, 0), SLOTS + slot), &[]);
    (0..SLOTS).map(in_slot).collect()
}
