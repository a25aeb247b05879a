//! The clients whose routes a server knows.
//!
//! A packet of a known client carries its route, and the answer goes there, so the usual case needs nothing of this
//! table. A client becomes known with its first request that names the server's incarnation, since strangers do not know
//! it. A client that has asked once does, an epoch can be guessed, and addresses may be forged: so the table has a
//! limit. There, a client that was silent for some seconds makes room. If there is none, unknown clients are answered by
//! a route for one burst, which is slower. The same happens if a route cannot be had, as when the process has no
//! descriptors left.
//!
//! No request reads the clock: each leaves a mark. The next look at a client takes the mark away and notes the time. A
//! client without a mark has been silent since.
//!
//! Over shared memory the transport sees that a client has ended. Such clients are forgotten, since their regions
//! would stay in memory. A client that is started again under its name has another region, and gets other routes.

use std::collections::HashMap;
use std::time::Duration;

use arrayvec::ArrayVec;
use dunlin_net::{Addr, PeerHealth, Route, Transport};

use super::server::QUEUES_MAX;

/// The number of an unknown client.
pub const STRANGER: u32 = u32::MAX;

/// A client that has been silent for so long makes room.
const SILENCE: Duration = Duration::from_secs(10);
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
    /// Whether it has asked since it was last looked at.
    has_asked: bool,
    /// When it was looked at and had asked.
    looked_at: u64,
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

    /// Notes that a client has asked.
    #[inline]
    pub fn has_asked(&mut self, queue: usize, route: Route) {
        let number = self.at(queue, route);
        if let Some(Some(peer)) = self.peers.get_mut(number as usize) {
            peer.has_asked = true;
        }
    }

    /// The client whose packets have a route.
    #[inline]
    fn at(&self, queue: usize, route: Route) -> u32 {
        self.by_route[queue].get(place(route)).copied().unwrap_or(STRANGER)
    }

    /// The route by another queue to the client with this one.
    #[inline]
    pub fn route_by(&self, queue: usize, route: Route, other: usize) -> Option<Route> {
        self.route(self.at(queue, route), other)
    }

    /// The route to a client by a queue.
    #[inline]
    pub fn route(&self, number: u32, queue: usize) -> Option<Route> {
        self.peers.get(number as usize)?.as_ref().map(|peer| peer.routes[queue])
    }

    /// Adds a client, unless there is no room; returns its number.
    pub fn meet<T: Transport>(&mut self, addr: &Addr, queues: &mut [T]) -> u32 {
        let now = queues[0].now();
        if let Some(number) = self.by_addr.get(addr).copied() {
            if !self.has_ended(number, queues) {
                // This packet was taken in before the client was known.
                return number;
            }
            // It was started again.
            self.forget(number, queues);
        }
        for _ in 0..LOOKS_PER_CLIENT {
            self.look(queues, now, false);
        }
        if self.len() >= self.max && !self.look(queues, now, true) {
            return STRANGER;
        }
        let routes = Peers::resolve(addr, queues);
        // Without descriptors, for example, the table is as good as full.
        let routes = routes.or_else(|| if self.look(queues, now, true) { Peers::resolve(addr, queues) } else { None });
        let Some(routes) = routes else { return STRANGER };
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
        self.peers[number as usize] = Some(Peer { addr: addr.clone(), routes, has_asked: true, looked_at: now });
        number
    }

    /// A route by each queue; `None` if there is none.
    fn resolve<T: Transport>(addr: &Addr, queues: &mut [T]) -> Option<ArrayVec<Route, QUEUES_MAX>> {
        let mut routes = ArrayVec::new();
        for queue in queues.iter_mut() {
            let Ok(route) = queue.resolve(addr) else { break };
            routes.push(route);
        }
        if routes.len() < queues.len() || routes.iter().any(|route| place(*route) >= PLACES_MAX) {
            queues.iter_mut().zip(routes).for_each(|(queue, route)| queue.release(route));
            return None;
        }
        Some(routes)
    }

    fn has_ended<T: Transport>(&self, number: u32, queues: &mut [T]) -> bool {
        let route = self.route(number, 0);
        route.is_none_or(|route| queues[0].peer_health(route) == PeerHealth::Dead)
    }

    /// Looks at the next client, and forgets it if it has ended, or if it is silent and room is needed. Looks at one
    /// only, so that a flood of unknown clients costs little.
    fn look<T: Transport>(&mut self, queues: &mut [T], now: u64, is_room_needed: bool) -> bool {
        if self.peers.is_empty() {
            return false;
        }
        self.hand = (self.hand + 1) % self.peers.len();
        let number = self.hand as u32;
        let has_ended = self.has_ended(number, queues);
        let Some(peer) = &mut self.peers[self.hand] else { return false };
        if std::mem::take(&mut peer.has_asked) {
            peer.looked_at = now;
        }
        let is_silent = u128::from(now.saturating_sub(peer.looked_at)) >= SILENCE.as_nanos();
        let is_needless = has_ended || (is_silent && is_room_needed);
        if is_needless {
            self.forget(number, queues);
        }
        is_needless
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
