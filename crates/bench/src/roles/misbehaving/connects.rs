//! Many first packets of one host at once.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use dunlin_rpc::wire::Kind;
use serde::{Deserialize, Serialize};

use super::raw::{RawPeer, connect_packet};
use crate::BenchError;
use crate::peer::{Control, Role};

/// Time between two datagrams. Judging one takes the server real work; this is often enough to keep all that it gives.
const PAUSE: Duration = Duration::from_millis(100);

/// Sends datagrams of CONNECTs, each for a session of its own and with the cookie it needs.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConnectBursts {
    /// Address of the server, over UDP.
    pub server: String,
    /// CONNECTs in a datagram: 799 at most fit.
    pub connects: u32,
}

/// What a client was given.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Claims {
    /// Sessions that the server accepted.
    pub accepted: u32,
}

impl Role for ConnectBursts {
    const NAME: &'static str = "datagrams of many CONNECTs";
    type Ready = ();
    type Output = Claims;

    fn run(self, control: &Control<Self>) -> Result<Claims, BenchError> {
        let mut peer = RawPeer::open(&self.server.parse()?)?;
        let mut burst = Vec::new();
        for number in 0..self.connects {
            burst.push(connect_packet(&peer.cookie(&peer.connect(number))?));
        }
        let mut accepted = HashSet::new();
        let mut first = true;
        while first || !control.stopping() {
            peer.send(&burst)?;
            let until = Instant::now() + PAUSE;
            while Instant::now() < until {
                peer.receive(|header, _| {
                    if header.kind == Kind::Accept {
                        accepted.insert(header.session);
                    }
                })?;
            }
            if std::mem::take(&mut first) {
                control.ready(());
            }
        }
        Ok(Claims { accepted: accepted.len() as u32 })
    }
}
