//! Sessions with one server: as many as its calls need, up to a limit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, Session};

use super::connection::Connected;

/// Calls that a session has in flight at a time; others wait for them.
pub const SLOTS: u32 = 8;

struct Lane {
    session: Session,
    in_flight: Rc<Cell<u32>>,
}

impl Lane {
    fn new(session: Session) -> Lane {
        Lane { session, in_flight: Rc::default() }
    }
}

/// A session for one call, reserved while this lives.
pub(super) struct Place {
    pub session: Session,
    in_flight: Rc<Cell<u32>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }
}

/// The sessions with a server at one address.
pub(super) struct Pool {
    addr: Addr,
    sessions_max: usize,
    lanes: RefCell<Vec<Lane>>,
    /// Whether another session is being opened.
    is_opening: Cell<bool>,
}

impl Pool {
    pub fn new(addr: Addr, first: Session, sessions_max: usize) -> Pool {
        let lanes = RefCell::new(vec![Lane::new(first)]);
        Pool { addr, sessions_max, lanes, is_opening: Cell::new(false) }
    }

    /// How many of its sessions are open.
    pub fn sessions(&self) -> usize {
        self.lanes.borrow().iter().filter(|lane| lane.session.is_open()).count()
    }

    /// The session that was opened first.
    #[cfg(test)]
    pub fn first(&self) -> Session {
        self.lanes.borrow()[0].session.clone()
    }

    /// Whether calls are in progress.
    pub fn has_calls(&self) -> bool {
        self.lanes.borrow().iter().any(|lane| lane.in_flight.get() > 0)
    }

    /// A session for one call: the first with a free slot, so that few sessions stay in the cache and requests leave in
    /// one burst. If all are busy, the one with the fewest calls, and another is opened for later calls. `None` if all
    /// sessions are over.
    pub fn place<T: Transport + 'static>(self: &Rc<Self>, endpoint: &Rc<Endpoint<T>>) -> Option<Place> {
        let mut lanes = self.lanes.borrow_mut();
        lanes.retain(|lane| lane.session.is_open());
        let free = lanes.iter().find(|lane| lane.in_flight.get() < SLOTS);
        let lane = free.or_else(|| lanes.iter().min_by_key(|lane| lane.in_flight.get()))?;
        lane.in_flight.set(lane.in_flight.get() + 1);
        let place = Place { session: lane.session.clone(), in_flight: lane.in_flight.clone() };
        if place.in_flight.get() > SLOTS && lanes.len() < self.sessions_max && !self.is_opening.replace(true) {
            self.grow(endpoint);
        }
        Some(place)
    }

    fn grow<T: Transport>(self: &Rc<Self>, endpoint: &Endpoint<T>) {
        let (connecting, pool) = (endpoint.connect(&self.addr), Rc::downgrade(self));
        endpoint.spawn(async move {
            let session = connecting.await.ok();
            let Some(pool) = pool.upgrade() else { return drop(session.map(|session| session.close())) };
            pool.is_opening.set(false);
            pool.lanes.borrow_mut().extend(session.map(Lane::new));
        });
    }
}

impl Connected for Pool {
    fn close(&self) {
        for lane in self.lanes.take() {
            // It ends at once; there is no need to wait until the other side knows.
            drop(lane.session.close());
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}
