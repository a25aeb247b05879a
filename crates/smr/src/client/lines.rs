//! RPC sessions with replicas, called lines. Each has slots for a few requests at a time; a client with more requests
//! in flight opens further lines.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, Session};

/// Requests in flight on one session; others wait for them.
const SLOTS: usize = 8;
/// Sessions with one replica: enough for all commands that a client may have in progress.
const LINES_MAX: usize = crate::sessions::COMMANDS_PER_SESSION_MAX / SLOTS;
/// The same limit, for queries that wait until there is an answer.
const WAITING_LINES_MAX: usize = 1024;

/// What a request does while all lines are busy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sharing {
    /// It waits for the requests before it, which do not take long.
    #[default]
    Queue,
    /// It needs another line: the requests before it may take any time.
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

/// A session, and what it is used for.
struct Line {
    session: Session,
    load: Rc<Load>,
}

/// What a line is used for.
struct Load {
    /// Requests that were handed to it and are not answered.
    in_progress: Cell<usize>,
    /// Requests that it has slots and credits for: at most, unless it was found to be fewer since it had none. Credits
    /// come and go.
    slots: Cell<usize>,
    /// Its session ends with the last of its requests.
    is_given_up: Cell<bool>,
}

/// A request on a line, while it is in flight.
pub(super) struct Place {
    pub session: Session,
    load: Rc<Load>,
}

impl Line {
    fn new(session: Session) -> Line {
        let load = Load { in_progress: Cell::new(0), slots: Cell::new(SLOTS), is_given_up: Cell::new(false) };
        Line { session, load: Rc::new(load) }
    }

    fn take(&self) -> Place {
        self.load.in_progress.set(self.load.in_progress.get() + 1);
        Place { session: self.session.clone(), load: self.load.clone() }
    }

    /// Ends its session, when no request is on its way on it any more: whoever gives it up knows nothing of those.
    fn give_up(self) {
        if self.load.in_progress.get() == 0 {
            // At once; nobody need wait until the other side knows.
            drop(self.session.close());
        }
        self.load.is_given_up.set(true);
    }
}

impl Place {
    /// Whether a request that was just issued here waits for a slot or a credit held by long-waiting queries. If so,
    /// the session has fewer than assumed, and its number of slots is reduced.
    pub fn must_wait(&self) -> bool {
        let must_wait = self
            .session
            .stats()
            .is_some_and(|stats| stats.calls_queued > 0 || stats.calls_in_progress > u32::from(stats.credits_max));
        if must_wait {
            self.load.slots.set(self.load.in_progress.get().saturating_sub(1).max(1));
        }
        must_wait
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Load { in_progress, slots, is_given_up } = &*self.load;
        in_progress.set(in_progress.get() - 1);
        if in_progress.get() == 0 {
            slots.set(SLOTS);
            if is_given_up.get() {
                drop(self.session.close());
            }
        }
    }
}

/// The lines to one replica.
struct Lines {
    /// The address of the replica.
    addr: Addr,
    open: Vec<Line>,
    /// Another line is being opened.
    is_opening: bool,
}

impl Lines {
    fn to(addr: &Addr) -> Lines {
        Lines { addr: addr.clone(), open: Vec::new(), is_opening: false }
    }

    fn least_busy(&self) -> Option<&Line> {
        self.open.iter().min_by_key(|line| line.load.in_progress.get())
    }

    /// Returns a line with a slot for another request.
    fn with_slot(&self) -> Option<&Line> {
        self.open.iter().rev().find(|line| line.load.in_progress.get() < line.load.slots.get())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.open.drain(..).for_each(Line::give_up);
    }
}

/// The lines to all replicas.
#[derive(Clone, Default)]
pub(super) struct Switchboard {
    sharing: Sharing,
    lines: Rc<RefCell<HashMap<u64, Lines>>>,
}

/// The exclusive right to open a line to a replica.
pub(super) struct Opening {
    board: Switchboard,
    id: u64,
    addr: Addr,
}

impl Opening {
    /// Where it is to lead.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

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

    /// Returns a place on the line to a replica with the fewest requests. If all lines are busy, it opens another one
    /// for later requests; a request that must not wait gets no place then.
    pub fn place<T: Transport>(&self, id: u64, endpoint: &Endpoint<T>) -> Option<Place> {
        let mut all = self.lines.borrow_mut();
        let lines = all.get_mut(&id)?;
        lines.open.retain(|line| line.session.is_open());
        let line = match self.sharing {
            Sharing::Queue => lines.least_busy(),
            Sharing::Alone => lines.with_slot(),
        };
        let place = line?.take();
        let is_busy = place.load.in_progress.get() > SLOTS;
        if is_busy && lines.open.len() < self.sharing.lines_max() && !std::mem::replace(&mut lines.is_opening, true) {
            let (connecting, board, addr) = (endpoint.connect(&lines.addr), self.clone(), lines.addr.clone());
            endpoint.spawn(async move {
                let line = connecting.await.ok().map(Line::new);
                board.add(id, &addr, line);
            });
        }
        Some(place)
    }

    /// Begins to open a line to a replica, unless somebody does, or there are as many as there may be. It leads where
    /// those lead that are open, if there are any: clients that share their lines need not agree on where that is.
    pub fn begin(&self, id: u64, addr: &Addr) -> Option<Opening> {
        let mut all = self.lines.borrow_mut();
        let lines = all.entry(id).or_insert_with(|| Lines::to(addr));
        if lines.open.is_empty() && lines.addr != *addr {
            *lines = Lines::to(addr);
        }
        let is_first = lines.open.len() < self.sharing.lines_max() && !std::mem::replace(&mut lines.is_opening, true);
        is_first.then(|| Opening { board: self.clone(), id, addr: lines.addr.clone() })
    }

    /// Opening a line has ended, with or without one.
    fn add(&self, id: u64, addr: &Addr, line: Option<Line>) {
        let mut all = self.lines.borrow_mut();
        match all.get_mut(&id).filter(|lines| lines.addr == *addr) {
            Some(lines) => {
                lines.is_opening = false;
                lines.open.extend(line);
            }
            // The replica is reached elsewhere by now.
            None => _ = line.map(Line::give_up),
        }
    }

    /// Whether a replica is reached.
    pub fn reaches(&self, id: u64) -> bool {
        self.lines.borrow().get(&id).is_some_and(|lines| lines.open.iter().any(|line| line.session.is_open()))
    }

    /// Gives up the lines to a replica that do not lead to this address.
    pub fn forget(&self, id: u64, unless: Option<&Addr>) {
        let mut all = self.lines.borrow_mut();
        let lines = all.get(&id).is_some_and(|lines| Some(&lines.addr) != unless).then(|| all.remove(&id));
        drop(all);
        drop(lines);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
    use dunlin_rpc::{CallOptions, EndpointConfig, MsgBuf};

    use super::*;
    use crate::wire::CLIENT;

    /// Clients that share their lines do not agree on where a replica is, and those that were open have ended.
    #[test]
    fn a_line_is_opened_wherever_a_replica_was_looked_for_before() {
        let board = Switchboard::default();
        for node in [2, 1, 2, 2] {
            assert!(board.begin(1, &Addr::Node(node)).is_some(), "node {node}");
        }
        let opening = board.begin(1, &Addr::Node(2));
        assert!(opening.is_some() && board.begin(1, &Addr::Node(2)).is_none(), "somebody opens one");
    }

    /// A line is narrow while requests wait on it for which it has no credits, and not for ever.
    #[test]
    fn a_line_that_was_narrow_has_all_its_slots_when_it_is_empty() {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let config = EndpointConfig { credits: 2, ..EndpointConfig::default() };
        let [own, other] = [1, 2].map(|node| Endpoint::new(network.endpoint(node).unwrap(), config.clone()).unwrap());
        // The server keeps the requests unanswered.
        let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
        let all = kept.clone();
        other.register(CLIENT, move |request| all.borrow_mut().extend(request.defer().ok())).unwrap();
        let mut connecting = std::pin::pin!(own.connect(&Addr::Node(2)));
        let session = loop {
            network.advance(Duration::from_micros(50));
            other.run_once();
            if let Some(session) = own.poll_once(connecting.as_mut()) {
                break session.unwrap();
            }
        };
        let line = Line::new(session);
        let ask = || {
            let place = line.take();
            let call = place.session.call_with(CLIENT, MsgBuf::with_len(8).unwrap(), CallOptions::default());
            (place.must_wait(), place, call)
        };
        let asked = [ask(), ask(), ask()];
        assert_eq!(
            (asked.each_ref().map(|(must_wait, ..)| *must_wait), line.load.slots.get()),
            ([false, false, true], 2)
        );
        drop(asked);
        assert_eq!(line.load.slots.get(), SLOTS);
    }
}
