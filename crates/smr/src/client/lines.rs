//! Sessions of the RPC layer with replicas. Each has slots for a few requests at a time; a client that has more on their way opens further ones.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, Session};

/// Requests that a session has on their way at once; others wait for them.
const SLOTS: usize = 8;
/// Sessions with one replica: as many as the commands take that a client may have in progress.
const LINES_MAX: usize = crate::sessions::COMMANDS_PER_SESSION_MAX / SLOTS;

/// A session, and how many requests were handed to it and are not answered.
#[derive(Clone)]
pub(super) struct Line {
    session: Session,
    in_progress: Rc<Cell<usize>>,
}

/// A request on a line, while it lives.
pub(super) struct Place {
    pub session: Session,
    in_progress: Rc<Cell<usize>>,
}

impl Line {
    fn new(session: Session) -> Line {
        Line { session, in_progress: Rc::default() }
    }

    fn take(&self) -> Place {
        self.in_progress.set(self.in_progress.get() + 1);
        Place { session: self.session.clone(), in_progress: self.in_progress.clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.in_progress.set(self.in_progress.get() - 1);
    }
}

/// The lines to one replica.
#[derive(Default)]
struct Lines {
    open: Vec<Line>,
    /// One more is being opened.
    is_opening: bool,
}

impl Lines {
    fn least_busy(&self) -> Option<&Line> {
        self.open.iter().min_by_key(|line| line.in_progress.get())
    }
}

/// The lines to all replicas.
#[derive(Clone, Default)]
pub(super) struct Switchboard(Rc<RefCell<HashMap<u64, Lines>>>);

impl Switchboard {
    /// A place on the line to a replica that has the fewest requests. If all are busy, one more is opened, for requests that come later.
    pub fn place<T: Transport>(&self, id: u64, addr: &Addr, endpoint: &Endpoint<T>) -> Option<Place> {
        let mut all = self.0.borrow_mut();
        let lines = all.get_mut(&id)?;
        lines.open.retain(|line| line.session.is_open());
        let place = lines.least_busy()?.take();
        let is_busy = place.in_progress.get() > SLOTS;
        if is_busy && lines.open.len() < LINES_MAX && !std::mem::replace(&mut lines.is_opening, true) {
            let (connecting, board) = (endpoint.connect(addr), self.clone());
            endpoint.spawn(async move {
                let result = connecting.await;
                // Forgotten meanwhile: it was of another address.
                let mut all = board.0.borrow_mut();
                let Some(lines) = all.get_mut(&id) else { return };
                lines.is_opening = false;
                lines.open.extend(result.ok().map(Line::new));
            });
        }
        Some(place)
    }

    /// Adds a line, and takes a place on it.
    pub fn add(&self, id: u64, session: Session) -> Place {
        let line = Line::new(session);
        let place = line.take();
        self.0.borrow_mut().entry(id).or_default().open.push(line);
        place
    }

    /// Forgets the lines to a replica.
    pub fn forget(&self, id: u64) {
        self.0.borrow_mut().remove(&id);
    }
}
