//! The sessions with every core of a server, opened according to its map.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{CallOptions, Endpoint, MsgBuf, Session};
use dunlin_serve::channel::connection::Connected;
use dunlin_serve::channel::is_session_over;
use futures::future::join_all;

use super::config::ClientConfig;
use super::error::KvError;
use crate::routing::Core;
use crate::wire::{MAP, ServerMap};

/// Requests of a session in flight; further ones are queued.
const SLOTS: u32 = 8;

/// A session, and the number of this client's calls on it.
#[derive(Debug)]
pub(super) struct Lane {
    pub session: Session,
    pub in_flight: Cell<u32>,
}

/// The sessions with one core.
#[derive(Debug)]
pub(super) struct CoreLink {
    pub lanes: Vec<Lane>,
    /// The lane that was used last.
    current: Cell<usize>,
}

impl CoreLink {
    /// Returns the lane for the next call: the same one while it has a free slot, so that few sessions stay in the
    /// cache and requests leave in one burst; otherwise the next.
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

/// The sessions of a server, according to its map. Dropping this closes them, so calls in progress keep it alive.
#[derive(Debug)]
pub(super) struct Links {
    pub map: ServerMap,
    pub cores: Vec<CoreLink>,
}

/// A session that is closed unless somebody takes it: dropping its handle would not close it.
struct Unused(Option<Session>);

impl Drop for Unused {
    fn drop(&mut self) {
        if let Some(session) = &self.0 {
            drop(session.close());
        }
    }
}

impl Links {
    /// Asks `server` for its map, and opens sessions to every core.
    pub async fn open<T: Transport>(
        endpoint: &Endpoint<T>,
        server: &Addr,
        config: &ClientConfig,
    ) -> Result<Links, KvError> {
        let first = endpoint.connect(server).await?;
        let mut unused = Unused(Some(first.clone()));
        let map = fetch_map(&first, server, config).await?;
        let mut links = Links { map, cores: Vec::new() };
        // If this fails, or nobody waits for it any more, the links close what is open already.
        links.open_all(endpoint, server, config, &mut unused.0).await?;
        Ok(links)
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

    /// Whether a core has given up its sessions: each core is asked for its map. A core that does not answer in time
    /// has not.
    pub async fn is_over(&self, config: &ClientConfig) -> bool {
        // A core gives up all sessions with an endpoint, or none.
        let ask = |core: &CoreLink| {
            let options = config.deadline.map(CallOptions::timeout).unwrap_or_default();
            MsgBuf::with_len(0).ok().map(|request| core.lanes[0].session.call_with(MAP, request, options))
        };
        let answers = join_all(self.cores.iter().filter_map(ask)).await;
        answers.iter().any(|answer| answer.as_ref().is_err_and(|failure| is_session_over(&failure.error)))
    }

    /// Returns the sessions with the core that owns `key`.
    #[inline]
    pub fn owner(&self, key: &[u8]) -> &CoreLink {
        &self.cores[usize::from(self.map.routing.owner(key))]
    }

    /// Returns the sessions with a core.
    pub fn core(&self, core: Core) -> &CoreLink {
        &self.cores[usize::from(core)]
    }
}

impl Connected for Links {
    fn close(&self) {
        for lane in self.cores.iter().flat_map(|core| &core.lanes) {
            drop(lane.session.close());
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.close();
    }
}

async fn fetch_map(session: &Session, server: &Addr, config: &ClientConfig) -> Result<ServerMap, KvError> {
    let options = config.deadline.map(CallOptions::timeout).unwrap_or_default();
    let reply = session.call_with(MAP, MsgBuf::with_len(0)?, options).await;
    let reply = reply.map_err(|failure| KvError::NoMap { server: server.clone(), error: failure.error })?;
    ServerMap::parse(&reply.response).ok_or_else(|| KvError::NoService { server: server.clone() })
}

/// Returns an address of a map, if it can be reached the same way as `server`.
fn reachable(text: &str, server: &Addr) -> Option<Addr> {
    // A map comes from a server, not from the user: host names in it are not looked up.
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
