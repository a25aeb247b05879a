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

/// For so long the server takes a cookie at least.
const COOKIES_LAST: Duration = Duration::from_secs(5);

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
    /// Sessions that it had at a time, at most.
    pub accepted: u32,
}

impl Role for ConnectBursts {
    const NAME: &'static str = "datagrams of many CONNECTs";
    type Ready = ();
    type Output = Claims;

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
            // A client with a session is told again: these are all that it has.
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
