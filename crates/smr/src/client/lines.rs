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
/// The same, for questions that wait until there is an answer.
const WAITING_LINES_MAX: usize = 1024;

/// What a request does while all lines are busy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sharing {
    /// It waits for those before it, which do not take long.
    #[default]
    Queue,
    /// It needs another line: those before it may take any time.
    Alone,
}

impl Sharing {
    fn lines_max(self) -> usize {
        match self {
            Sharing::Queue => LINES_MAX,
            Sharing::Alone => WAITING_LINES_MAX,
        }
    }
}

/// A session, and how many requests were handed to it and are not answered.
#[derive(Clone)]
pub(super) struct Line {
    session: Session,
    in_progress: Rc<Cell<usize>>,
    /// Requests that it has slots for: at most, as long as it was not found to be fewer.
    slots: Rc<Cell<usize>>,
}

/// A request on a line, while it lives.
pub(super) struct Place {
    pub session: Session,
    in_progress: Rc<Cell<usize>>,
    slots: Rc<Cell<usize>>,
}

impl Line {
    fn new(session: Session) -> Line {
        Line { session, in_progress: Rc::default(), slots: Rc::new(Cell::new(SLOTS)) }
    }

    fn take(&self) -> Place {
        self.in_progress.set(self.in_progress.get() + 1);
        Place { session: self.session.clone(), in_progress: self.in_progress.clone(), slots: self.slots.clone() }
    }
}

impl Place {
    /// Whether a request that was just issued here waits for a slot: the ends have agreed on fewer than was thought, which is noted.
    pub fn must_wait(&self) -> bool {
        let must_wait = self.session.stats().is_some_and(|stats| stats.calls_queued > 0);
        if must_wait {
            self.slots.set(self.in_progress.get().saturating_sub(1).max(1));
        }
        must_wait
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

    /// One with a slot for another request.
    fn with_slot(&self) -> Option<&Line> {
        self.open.iter().rev().find(|line| line.in_progress.get() < line.slots.get())
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
pub(super) struct Switchboard {
    sharing: Sharing,
    lines: Rc<RefCell<HashMap<u64, Lines>>>,
}

/// The right to open a line to a replica, while nobody else does.
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
    pub fn new(sharing: Sharing) -> Switchboard {
        Switchboard { sharing, lines: Rc::default() }
    }

    /// A place on the line to a replica that has the fewest requests. If all are busy, one more is opened, for requests that come later; there is no place if a
    /// request must not wait.
    pub fn place<T: Transport>(&self, id: u64, endpoint: &Endpoint<T>) -> Option<Place> {
        let mut all = self.lines.borrow_mut();
        let lines = all.get_mut(&id)?;
        lines.open.retain(|line| line.session.is_open());
        let line = match self.sharing {
            Sharing::Queue => lines.least_busy(),
            Sharing::Alone => lines.with_slot(),
        };
        let place = line?.take();
        let is_busy = place.in_progress.get() > SLOTS;
        if is_busy && lines.open.len() < self.sharing.lines_max() && !std::mem::replace(&mut lines.is_opening, true) {
            let (connecting, board, addr) = (endpoint.connect(&lines.addr), self.clone(), lines.addr.clone());
            endpoint.spawn(async move {
                let line = connecting.await.ok().map(Line::new);
                board.add(id, &addr, line);
            });
        }
        Some(place)
    }

    /// Begins to open a line to a replica, unless somebody does, or there are as many as there may be.
    pub fn begin(&self, id: u64, addr: &Addr) -> Option<Opening> {
        let mut all = self.lines.borrow_mut();
        let lines = all.entry(id).or_insert_with(|| Lines { addr: addr.clone(), open: Vec::new(), is_opening: false });
        let is_first = lines.open.len() < self.sharing.lines_max() && !std::mem::replace(&mut lines.is_opening, true);
        is_first.then(|| Opening { board: self.clone(), id, addr: addr.clone() })
    }

    /// Opening a line has ended.
    fn add(&self, id: u64, addr: &Addr, line: Option<Line>) {
        let mut all = self.lines.borrow_mut();
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
        let lines = self.lines.borrow_mut().remove(&id);
        drop(lines);
    }
}
