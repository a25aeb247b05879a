//! The clients whose routes a server knows.
//!
//! A packet of a known client carries its route, so the lookup costs nothing. A client becomes known with its first
//! request that names the server's incarnation, since strangers do not know it. A client that has asked once does, and may
//! forge addresses, so the table has a limit. There, a client that was silent for long makes room. If there is none,
//! unknown clients are answered by address, which is slower.
//!
//! Over shared memory the transport sees that a client has ended. Such clients are forgotten, since their regions
//! would stay in memory. A client that is started again under its name has another region, and gets other routes.

use std::collections::HashMap;

use arrayvec::ArrayVec;
use dunlin_net::{Addr, PeerHealth, Route, Transport};

use super::server::QUEUES_MAX;

/// The number of an unknown client.
pub const STRANGER: u32 = u32::MAX;

/// A client counts as silent after this many turns with requests.
const QUIET_TURNS: u64 = 100_000;
/// Limit of the tables by route. A client with a route beyond is not remembered.
const PLACES_MAX: usize = 1 << 20;
/// Clients that are looked at for each one that comes. With more than one, clients that have ended do not add up.
const LOOKS_PER_CLIENT: usize = 2;

/// The place of a route in its table. Routes are counted from 0, and two transports that are joined mark those of the
/// second by the highest bit, which becomes the lowest here.
#[inline]
fn place(route: Route) -> usize {
    route.0.rotate_left(1) as usize
}

struct Peer {
    addr: Addr,
    /// One for each queue.
    routes: ArrayVec<Route, QUEUES_MAX>,
    /// The turn of its last request.
    heard: u64,
    /// The turn in which its routes were resolved.
    met: u64,
}

pub struct Peers {
    max: usize,
    peers: Vec<Option<Peer>>,
    free: Vec<u32>,
    by_addr: HashMap<Addr, u32>,
    /// By queue and [`place`] of the route: the client's number.
    by_route: ArrayVec<Vec<u32>, QUEUES_MAX>,
    /// The client that was looked at last.
    hand: usize,
}

impl Peers {
    pub fn new(queues: usize, max: usize) -> Peers {
        let by_route = (0..queues).map(|_| Vec::new()).collect();
        Peers { max, peers: Vec::new(), free: Vec::new(), by_addr: HashMap::new(), by_route, hand: 0 }
    }

    /// Clients that are known.
    pub fn len(&self) -> usize {
        self.by_addr.len()
    }

    /// The client that sent a packet.
    #[inline]
    pub fn at(&mut self, queue: usize, route: Route, turn: u64) -> u32 {
        let number = self.by_route[queue].get(place(route)).copied().unwrap_or(STRANGER);
        if let Some(Some(peer)) = self.peers.get_mut(number as usize) {
            peer.heard = turn;
        }
        number
    }

    /// The route to a client by a queue.
    #[inline]
    pub fn route(&self, number: u32, queue: usize) -> Option<Route> {
        self.peers.get(number as usize)?.as_ref().map(|peer| peer.routes[queue])
    }

    /// Adds a client, unless there is no room; returns its number.
    pub fn meet<T: Transport>(&mut self, addr: Addr, queues: &mut [T], turn: u64) -> u32 {
        if let Some(number) = self.by_addr.get(&addr).copied() {
            if self.peers[number as usize].as_ref().is_some_and(|peer| peer.met == turn) {
                return number;
            }
            // Its packets no longer come by its routes: it was started again.
            self.forget(number, queues);
        }
        for _ in 0..LOOKS_PER_CLIENT {
            self.look(queues, |_| false);
        }
        let is_quiet = |peer: &Peer| turn.saturating_sub(peer.heard) > QUIET_TURNS;
        if self.len() >= self.max && !self.look(queues, is_quiet) {
            return STRANGER;
        }
        let mut routes = ArrayVec::new();
        for queue in queues.iter_mut() {
            let Ok(route) = queue.resolve(&addr) else { break };
            routes.push(route);
        }
        if routes.len() < queues.len() || routes.iter().any(|route| place(*route) >= PLACES_MAX) {
            queues.iter_mut().zip(routes).for_each(|(queue, route)| queue.release(route));
            return STRANGER;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() as u32 - 1
        });
        for (table, route) in self.by_route.iter_mut().zip(&routes) {
            let at = place(*route);
            if table.len() <= at {
                table.resize(at + 1, STRANGER);
            }
            table[at] = number;
        }
        self.by_addr.insert(addr.clone(), number);
        self.peers[number as usize] = Some(Peer { addr, routes, heard: turn, met: turn });
        number
    }

    /// Looks at the next client, and forgets it if it has ended or is not needed. Looks at one only, so that a flood of
    /// unknown clients costs little.
    fn look<T: Transport>(&mut self, queues: &mut [T], is_needless: impl Fn(&Peer) -> bool) -> bool {
        if self.peers.is_empty() {
            return false;
        }
        self.hand = (self.hand + 1) % self.peers.len();
        let Some(peer) = &self.peers[self.hand] else { return false };
        if !is_needless(peer) && queues[0].peer_health(peer.routes[0]) != PeerHealth::Dead {
            return false;
        }
        self.forget(self.hand as u32, queues);
        true
    }

    fn forget<T: Transport>(&mut self, number: u32, queues: &mut [T]) {
        let Some(peer) = self.peers[number as usize].take() else { return };
        for ((queue, table), route) in queues.iter_mut().zip(&mut self.by_route).zip(peer.routes) {
            table[place(route)] = STRANGER;
            queue.release(route);
        }
        self.by_addr.remove(&peer.addr);
        self.free.push(number);
    }
}
