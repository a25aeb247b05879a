//! Many handshake packets of one host at once.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use dunlin_lab::peer::{Control, Role};
use dunlin_rpc::wire::Kind;
use serde::{Deserialize, Serialize};

use super::raw::{RawPeer, connect_packet};
use crate::BenchError;

/// Pause between two datagrams. Each costs the server real work; this rate is enough to keep all sessions it grants.
const PAUSE: Duration = Duration::from_millis(100);

/// Minimum time for which the server accepts a cookie.
const COOKIES_LAST: Duration = Duration::from_secs(5);

/// Sends datagrams of CONNECTs, each for its own session and with the required cookie.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConnectBursts {
    /// Address of the server, over UDP.
    pub server: String,
    /// CONNECTs in a datagram: at most 799 fit.
    pub connects: u32,
}

/// What a client obtained.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Claims {
    /// Maximum number of concurrent sessions.
    pub accepted: u32,
}

impl Role for ConnectBursts {
    const NAME: &'static str = "datagrams of many CONNECTs";
    type Ready = ();
    type Output = Claims;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Claims, BenchError> {
        let mut peer = RawPeer::open(&self.server.parse()?)?;
        let mut burst = self.burst(&mut peer)?;
        let mut renewed = Instant::now();
        let mut most = 0;
        control.ready(());
        while most == 0 || !control.stopping() {
            if renewed.elapsed() > COOKIES_LAST {
                (burst, renewed) = (self.burst(&mut peer)?, Instant::now());
            }
            peer.send(&burst)?;
            // The server repeats its answer for an existing session, so these are all of the client's sessions.
            let mut accepted = HashSet::new();
            let until = Instant::now() + PAUSE;
            while Instant::now() < until {
                peer.receive(|header, _| {
                    if header.kind == Kind::Accept {
                        accepted.insert(header.session);
                    }
                })?;
            }
            most = most.max(accepted.len() as u32);
        }
        Ok(Claims { accepted: most })
    }
}

impl ConnectBursts {
    fn burst(&self, peer: &mut RawPeer) -> Result<Vec<Vec<u8>>, BenchError> {
        let connects = 0..self.connects;
        connects.map(|number| Ok(connect_packet(&peer.cookie(&peer.connect(number))?))).collect()
    }
}
