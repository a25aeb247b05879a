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
struct Lines {
    /// Where it is reached.
    addr: Addr,
    open: Vec<Line>,
    /// One more is being opened.
    is_opening: bool,
}

impl Lines {
    fn least_busy(&self) -> Option<&Line> {
        self.open.iter().min_by_key(|line| line.in_progress.get())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        for line in self.open.drain(..) {
            // It ends at once; nobody need wait until the other side knows.
            drop(line.session.close());
        }
    }
}

/// The lines to all replicas.
#[derive(Clone, Default)]
pub(super) struct Switchboard(Rc<RefCell<HashMap<u64, Lines>>>);

/// The right to open the first line to a replica, while nobody else does.
pub(super) struct Opening {
    board: Switchboard,
    id: u64,
    addr: Addr,
}

impl Opening {
    /// A place on the line that was opened.
    pub fn done(self, session: Session) -> Place {
        let line = Line::new(session);
        let place = line.take();
        self.board.add(self.id, &self.addr, Some(line));
        place
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.board.add(self.id, &self.addr, None);
    }
}

impl Switchboard {
    /// A place on the line to a replica that has the fewest requests. If all are busy, one more is opened, for requests that come later.
    pub fn place<T: Transport>(&self, id: u64, endpoint: &Endpoint<T>) -> Option<Place> {
        let mut all = self.0.borrow_mut();
        let lines = all.get_mut(&id)?;
        lines.open.retain(|line| line.session.is_open());
        let place = lines.least_busy()?.take();
        let is_busy = place.in_progress.get() > SLOTS;
        if is_busy && lines.open.len() < LINES_MAX && !std::mem::replace(&mut lines.is_opening, true) {
            let (connecting, board, addr) = (endpoint.connect(&lines.addr), self.clone(), lines.addr.clone());
            endpoint.spawn(async move {
                let line = connecting.await.ok().map(Line::new);
                board.add(id, &addr, line);
            });
        }
        Some(place)
    }

    /// Begins to open the first line to a replica, unless somebody does.
    pub fn begin(&self, id: u64, addr: &Addr) -> Option<Opening> {
        let mut all = self.0.borrow_mut();
        let lines = all.entry(id).or_insert_with(|| Lines { addr: addr.clone(), open: Vec::new(), is_opening: false });
        let is_first = !std::mem::replace(&mut lines.is_opening, true);
        is_first.then(|| Opening { board: self.clone(), id, addr: addr.clone() })
    }

    /// Opening a line has ended.
    fn add(&self, id: u64, addr: &Addr, line: Option<Line>) {
        let mut all = self.0.borrow_mut();
        match all.get_mut(&id).filter(|lines| lines.addr == *addr) {
            Some(lines) => {
                lines.is_opening = false;
                lines.open.extend(line);
            }
            // The replica is reached elsewhere by now.
            None => drop(line.map(|line| line.session.close())),
        }
    }

    /// Ends the lines to a replica.
    pub fn forget(&self, id: u64) {
        let lines = self.0.borrow_mut().remove(&id);
        drop(lines);
    }
}
