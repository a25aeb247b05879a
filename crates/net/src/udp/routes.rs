//! The table of peers: the address behind each route, and the route back to the source of a datagram.
//!
//! Only [`Routes::resolve`] makes it grow; arriving datagrams never do.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::error::NetError;
use crate::transport::Route;

use super::sockaddr::SockAddr;

/// Entries of the cache from source address to route: 1 KiB.
const CACHE_LEN: usize = 256;

/// What is known about a destination.
pub(super) struct Peer {
    /// The address, ready for the kernel.
    pub(super) raw: SockAddr,
    pub(super) addr: SocketAddr,
    /// Users of the route; none means that its number is free.
    users: u32,
    /// The peer's host reported that nobody listens at the port, and nothing has come from there since.
    pub(super) refused: bool,
    /// The path to this peer does not support segmentation offload.
    pub(super) gso_refused: bool,
    /// Most bytes of a datagram that holds several packets, and of each datagram of a train.
    pub(super) joined_bytes: usize,
}

/// All peers of one transport.
pub(super) struct Routes {
    peers: Vec<Peer>,
    free: Vec<u32>,
    by_addr: HashMap<SocketAddr, u32>,
    /// Routes of recent sources, by a cheap hash of the address. An entry is a guess, checked against `peers`.
    cache: Box<[u32; CACHE_LEN]>,
    last: u32,
    routes_max: usize,
}

impl Routes {
    pub(super) fn new(routes_max: usize) -> Self {
        Routes {
            peers: Vec::new(),
            free: Vec::new(),
            by_addr: HashMap::new(),
            cache: Box::new([0; CACHE_LEN]),
            last: 0,
            routes_max,
        }
    }

    /// Returns the route to `addr`, with one more user.
    pub(super) fn resolve(&mut self, addr: SocketAddr) -> Result<Route, NetError> {
        let addr = canonical(addr);
        if let Some(&index) = self.by_addr.get(&addr) {
            self.peers[index as usize].users += 1;
            return Ok(Route(index));
        }
        if self.by_addr.len() >= self.routes_max {
            return Err(NetError::Full { what: "the table of UDP routes", limit: self.routes_max });
        }
        let peer =
            Peer { raw: addr.into(), addr, users: 1, refused: false, gso_refused: false, joined_bytes: usize::MAX };
        let index = match self.free.pop() {
            Some(index) => {
                self.peers[index as usize] = peer;
                index
            }
            None => {
                self.peers.push(peer);
                (self.peers.len() - 1) as u32
            }
        };
        self.by_addr.insert(addr, index);
        Ok(Route(index))
    }

    /// Removes one user from a route. A route without users is left alone.
    pub(super) fn release(&mut self, route: Route) {
        let Some(peer) = self.get_mut(route) else { return };
        peer.users -= 1;
        if peer.users == 0 {
            let addr = peer.addr;
            self.by_addr.remove(&addr);
            self.free.push(route.0);
        }
    }

    /// The peer of a route in use.
    #[inline]
    pub(super) fn get(&self, route: Route) -> Option<&Peer> {
        self.peers.get(route.0 as usize).filter(|p| p.users > 0)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, route: Route) -> Option<&mut Peer> {
        self.peers.get_mut(route.0 as usize).filter(|p| p.users > 0)
    }

    /// The route back to the source of a datagram that has just arrived, if it was resolved. The peer no longer counts
    /// as refusing.
    #[inline]
    pub(super) fn of_source(&mut self, addr: SocketAddr) -> Option<Route> {
        if !self.leads_to(self.last, addr) {
            let place = cache_place(addr);
            let mut index = self.cache[place];
            if !self.leads_to(index, addr) {
                index = *self.by_addr.get(&addr)?;
                self.cache[place] = index;
            }
            self.last = index;
        }
        self.peers[self.last as usize].refused = false;
        Some(Route(self.last))
    }

    /// Notes that nobody listens at `addr`, and returns whether that is a peer: strangers are not noted.
    pub(super) fn on_refused(&mut self, addr: SocketAddr) -> bool {
        let peer = self.by_addr.get(&canonical(addr)).map(|&index| &mut self.peers[index as usize]);
        peer.map(|peer| peer.refused = true).is_some()
    }

    /// Notes that the path to this peer does not support segmentation offload.
    pub(super) fn on_gso_refused(&mut self, route: Route) {
        if let Some(peer) = self.get_mut(route) {
            peer.gso_refused = true;
        }
    }

    /// Limits how long datagrams to this peer may get by joining packets.
    pub(super) fn limit_joining(&mut self, route: Route, bytes: usize) {
        if let Some(peer) = self.get_mut(route) {
            peer.joined_bytes = bytes;
        }
    }

    /// How long datagrams on a route may get by joining packets.
    #[inline]
    pub(super) fn joined_bytes(&self, route: Route) -> usize {
        self.get(route).map_or(usize::MAX, |peer| peer.joined_bytes)
    }

    #[inline]
    fn leads_to(&self, index: u32, addr: SocketAddr) -> bool {
        self.get(Route(index)).is_some_and(|p| p.addr == addr)
    }

    /// Number of routes in use, and of table entries ever allocated.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.by_addr.len(), self.peers.len())
    }
}

/// The form in which addresses are compared: the flow label of IPv6 does not identify a peer.
fn canonical(mut addr: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut addr {
        v6.set_flowinfo(0);
    }
    addr
}

/// The cache entry for `addr`. Peers of a datacenter differ in port and in the last bytes of the address.
#[inline]
fn cache_place(addr: SocketAddr) -> usize {
    let low = match addr.ip() {
        IpAddr::V4(ip) => u32::from(ip),
        IpAddr::V6(ip) => u128::from(ip) as u32,
    };
    let mixed = (low ^ (u32::from(addr.port()) << 16 | u32::from(addr.port()))).wrapping_mul(0x9e37_79b9);
    (mixed >> 24) as usize % CACHE_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn routes_are_counted_and_reused() {
        let mut routes = Routes::new(2);
        let one = routes.resolve(addr(1)).unwrap();
        let two = routes.resolve(addr(2)).unwrap();
        assert_eq!(routes.resolve(addr(1)).unwrap(), one);
        assert!(matches!(routes.resolve(addr(3)), Err(NetError::Full { limit: 2, .. })));

        routes.release(one);
        assert_eq!(routes.of_source(addr(1)), Some(one), "one user is left");
        routes.release(one);
        routes.release(one);
        assert_eq!(routes.of_source(addr(1)), None);
        assert!(routes.get(one).is_none());

        let three = routes.resolve(addr(3)).unwrap();
        assert_eq!(three, one, "its number is given again");
        assert_eq!(routes.of_source(addr(3)), Some(three));
        assert_eq!(routes.of_source(addr(2)), Some(two));
        assert_eq!(routes.of_source(addr(1)), None);
    }

    #[test]
    fn every_source_is_found_and_strangers_leave_no_trace() {
        let mut routes = Routes::new(10_000);
        let known: Vec<_> = (0..5_000).map(|p| (p, routes.resolve(addr(p)).unwrap())).collect();
        let sizes = routes.sizes();
        for &(port, route) in known.iter().chain(known.iter().rev()) {
            assert_eq!(routes.of_source(addr(port)), Some(route));
            assert_eq!(routes.of_source(addr(port + 20_000)), None);
        }
        assert_eq!(routes.sizes(), sizes);
    }

    #[test]
    fn a_packet_clears_a_refusal() {
        let mut routes = Routes::new(4);
        let route = routes.resolve(addr(1)).unwrap();
        assert!(!routes.on_refused(addr(2)));
        assert!(!routes.get(route).unwrap().refused);
        assert!(routes.on_refused(addr(1)));
        assert!(routes.get(route).unwrap().refused);
        routes.of_source(addr(1));
        assert!(!routes.get(route).unwrap().refused);
    }
}
