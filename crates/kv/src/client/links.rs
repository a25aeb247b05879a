//! The sessions with every core of a server, opened by its map.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{CallOptions, Endpoint, MsgBuf, Session};
use dunlin_serve::channel::is_session_over;
use futures::future::join_all;

use super::config::ClientConfig;
use super::error::KvError;
use crate::routing::Core;
use crate::wire::{MAP, ServerMap};

/// Requests that a session has on the way at a time; beyond them it queues.
const SLOTS: u32 = 8;

/// A session, and how many calls this client has on it.
#[derive(Debug)]
pub(super) struct Lane {
    pub session: Session,
    pub in_flight: Cell<u32>,
}

/// The sessions with one core.
#[derive(Debug)]
pub(super) struct CoreLink {
    pub lanes: Vec<Lane>,
    /// The lane used last.
    current: Cell<usize>,
}

impl CoreLink {
    /// The number of the lane for the next call: the same one while it has a free slot, so that few sessions stay in the cache and requests
    /// leave in one burst; else the next.
    #[inline]
    pub fn choose(&self) -> usize {
        let current = self.current.get();
        if self.lanes[current].in_flight.get() < SLOTS {
            return current;
        }
        let next = if current + 1 == self.lanes.len() { 0 } else { current + 1 };
        self.current.set(next);
        next
    }
}

/// A server as of its map.
#[derive(Debug)]
pub(super) struct Links {
    pub map: ServerMap,
    pub cores: Vec<CoreLink>,
}

impl Links {
    /// Asks `server` for its map and opens sessions to every core.
    pub async fn open<T: Transport>(endpoint: &Endpoint<T>, server: &Addr, config: &ClientConfig) -> Result<Links, KvError> {
        let first = endpoint.connect(server).await?;
        let map = match fetch_map(&first, server, config).await {
            Ok(map) => map,
            Err(error) => {
                drop(first.close());
                return Err(error);
            }
        };
        let mut first = Some(first);
        let mut links = Links { map, cores: Vec::new() };
        let result = links.open_all(endpoint, server, config, &mut first).await;
        if let Some(unused) = first {
            drop(unused.close());
        }
        match result {
            Ok(()) => Ok(links),
            Err(error) => {
                links.close();
                Err(error)
            }
        }
    }

    async fn open_all<T: Transport>(
        &mut self,
        endpoint: &Endpoint<T>,
        server: &Addr,
        config: &ClientConfig,
        first: &mut Option<Session>,
    ) -> Result<(), KvError> {
        let count = config.sessions_per_core.clamp(1, ClientConfig::SESSIONS_MAX);
        for core in 0..self.map.routing.cores() {
            let addresses = &self.map.addresses[usize::from(core)];
            let address = addresses.iter().find_map(|text| reachable(text, server));
            let address = address.ok_or_else(|| KvError::NoAddress { server: server.clone(), core })?;
            self.cores.push(CoreLink { lanes: Vec::with_capacity(count), current: Cell::new(0) });
            for _ in 0..count {
                let session = match first.take_if(|_| address == *server) {
                    Some(session) => session,
                    None => endpoint.connect(&address).await?,
                };
                self.cores[usize::from(core)].lanes.push(Lane { session, in_flight: Cell::new(0) });
            }
        }
        Ok(())
    }

    /// Whether a core has given up the sessions with it: each is asked for its map. One that does not answer in time has not.
    pub async fn is_over(&self, config: &ClientConfig) -> bool {
        // A core has given up all sessions with an endpoint, or none.
        let ask = |core: &CoreLink| {
            let options = config.deadline.map(CallOptions::timeout).unwrap_or_default();
            MsgBuf::with_len(0).ok().map(|request| core.lanes[0].session.call_with(MAP, request, options))
        };
        let answers = join_all(self.cores.iter().filter_map(ask)).await;
        answers.iter().any(|answer| answer.as_ref().is_err_and(|failure| is_session_over(&failure.error)))
    }

    /// The sessions with the core that owns `key`.
    #[inline]
    pub fn owner(&self, key: &[u8]) -> &CoreLink {
        &self.cores[usize::from(self.map.routing.owner(key))]
    }

    /// The sessions with a core.
    pub fn core(&self, core: Core) -> &CoreLink {
        &self.cores[usize::from(core)]
    }

    /// Closes every session; it goes on while the endpoint runs.
    pub fn close(&self) {
        for lane in self.cores.iter().flat_map(|core| &core.lanes) {
            drop(lane.session.close());
        }
    }
}

async fn fetch_map(session: &Session, server: &Addr, config: &ClientConfig) -> Result<ServerMap, KvError> {
    let options = config.deadline.map(CallOptions::timeout).unwrap_or_default();
    let reply = session.call_with(MAP, MsgBuf::with_len(0)?, options).await;
    let reply = reply.map_err(|failure| KvError::NoMap { server: server.clone(), error: failure.error })?;
    ServerMap::parse(&reply.response).ok_or_else(|| KvError::NoService { server: server.clone() })
}

/// The address of a map, if it can be reached the way `server` was.
fn reachable(text: &str, server: &Addr) -> Option<Addr> {
    // A map is a server's word, not a user's: no host name is looked up for it.
    let is_same_kind = |prefix: &str| text.starts_with(prefix);
    match server {
        Addr::Udp(server) => {
            let address: SocketAddr = text.strip_prefix("udp://")?.parse().ok()?;
            let unspecified = address.ip().is_unspecified();
            let ip: IpAddr = if unspecified { server.ip() } else { address.ip() };
            (ip.is_ipv4() == server.is_ipv4()).then(|| Addr::Udp(SocketAddr::new(ip, address.port())))
        }
        Addr::Shm(_) => is_same_kind("shm:").then(|| text.parse().ok())?,
        Addr::Node(_) => is_same_kind("node:").then(|| text.parse().ok())?,
        Addr::Sim { .. } => is_same_kind("sim:").then(|| text.parse().ok())?,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_same_kind_are_reachable() {
        let cases = [
            ("udp://10.0.0.1:7700", "udp://10.0.0.1:7701", Some("udp://10.0.0.1:7701")),
            ("udp://10.0.0.1:7700", "udp://0.0.0.0:7701", Some("udp://10.0.0.1:7701")),
            ("udp://[::1]:7700", "udp://[::]:7701", Some("udp://[::1]:7701")),
            ("udp://[::1]:7700", "udp://127.0.0.1:7701", None),
            ("udp://10.0.0.1:7700", "udp://localhost:7701", None),
            ("shm:kv", "udp://127.0.0.1:7700", None),
            ("shm:kv", "shm:kv.1", Some("shm:kv.1")),
            ("sim:3:0", "sim:3:1", Some("sim:3:1")),
            ("node:3", "node:4", Some("node:4")),
        ];
        for (server, text, expected) in cases {
            let found = reachable(text, &server.parse().unwrap());
            assert_eq!(found.map(|address| address.to_string()).as_deref(), expected, "{text} from {server}");
        }
    }
}
