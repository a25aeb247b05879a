//! A server's counters of misbehaving clients.

use dunlin_lab::peer::{Control, Role};
use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, EndpointStats, MsgBuf, Session};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::rpc::roles::COUNTED;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};

/// Counters of a server since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Packets for open sessions with a wrong tag or from a wrong address.
    pub wrong_tags: u64,
    /// Handshakes refused.
    pub refused: u64,
    /// Requests for [`crate::rpc::roles::BULK`] that reached the handler.
    pub bulk: u64,
    /// Bytes currently held for other ends.
    pub held_bytes: u64,
    /// Reports of the network that a client's address is unreachable.
    pub reports: u64,
    /// Places of its shared-memory queue that are currently set aside, because a live sender has yet to write their
    /// packets.
    pub awaited: u64,
}

impl Counted {
    /// For an endpoint whose handler ran `bulk` times.
    pub(super) fn of(stats: &EndpointStats, bulk: u64) -> Self {
        let (counters, transport) = (&stats.counters, &stats.transport);
        Counted {
            wrong_tags: counters.dropped_wrong_tag,
            refused: counters.sessions_refused,
            bulk,
            held_bytes: stats.held_bytes,
            reports: transport.tx_refused,
            awaited: transport.rx_set_aside.saturating_sub(transport.rx_late + transport.rx_reclaimed),
        }
    }

    /// Encodes them as a response.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let Counted { wrong_tags, refused, bulk, held_bytes, reports, awaited } = self;
        let counts = [wrong_tags, refused, bulk, held_bytes, reports, awaited];
        counts.iter().flat_map(|count| count.to_le_bytes()).collect()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let counts: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [wrong_tags, refused, bulk, held_bytes, reports, awaited] = counts[..] else { return None };
        Some(Counted { wrong_tags, refused, bulk, held_bytes, reports, awaited })
    }

    /// Reads them on an open session.
    pub(super) fn ask<T: Transport>(endpoint: &Endpoint<T>, session: &Session) -> Result<Self, BenchError> {
        let call = session.call(COUNTED, MsgBuf::with_len(0)?);
        let response = endpoint.block_on(call).map_err(|failure| failure.error)?.response;
        Counted::parse(&response).ok_or(BenchError::WrongEcho)
    }
}

/// Reads the counters of a server.
#[derive(Debug, Serialize, Deserialize)]
pub struct AskCounted {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
}

impl Role for AskCounted {
    const NAME: &'static str = "question for what a server has counted";
    type Ready = ();
    type Output = Counted;
    type Error = BenchError;

    fn run(self, _control: &Control<Self>) -> Result<Counted, BenchError> {
        self.setup.on_transport(Side::Client, Ask(&self.server))
    }
}

struct Ask<'a>(&'a str);

impl OnTransport for Ask<'_> {
    type Output = Counted;

    fn run<T: Transport>(self, transport: T) -> Result<Counted, BenchError> {
        let endpoint = Endpoint::new(transport, dunlin_rpc::EndpointConfig::default())?;
        let session = endpoint.block_on(endpoint.connect(&self.0.parse()?))?;
        Counted::ask(&endpoint, &session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_arrive_as_they_were_sent() {
        let counted = Counted { wrong_tags: 1, refused: 2, bulk: 4, held_bytes: 5, reports: 6, awaited: 7 };
        assert_eq!(Counted::parse(&counted.to_bytes()), Some(counted));
        assert!(Counted::parse(&[0; 47]).is_none() && Counted::parse(&[0; 56]).is_none());
    }
}
