//! RPC sessions with replicas, called lines. Each has slots for a few requests at a time; a client with more requests
//! in flight opens further lines.
//!
//! A line belongs to an address, not to the id of a replica: clients that share lines need not agree on where a replica
//! is, and a replica that goes by many ids at one address has no more lines than others.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{ConnectOptions, Endpoint, Session};

use super::queue::Queue;
use crate::wire::members::MEMBERS_MAX;

/// Requests in flight on one session; others wait for them.
const SLOTS: usize = 8;
/// Sessions with one replica: enough for all commands that a client may have in progress.
const LINES_MAX: usize = crate::sessions::COMMANDS_PER_SESSION_MAX / SLOTS;
/// The same limit, for queries that wait until there is an answer.
const WAITING_LINES_MAX: usize = 1024;
/// Addresses with lines: enough for all members of a cluster, and for as many addresses that they have left. Beyond
/// that, the lines to the address that was not used for longest are given up.
const ADDRESSES_MAX: usize = 2 * MEMBERS_MAX;

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

/// A session, and what it is used for. It ends with the last of its requests once it is not offered to others.
struct Line {
    session: Session,
    /// Those to the same address, unless they were given up.
    lines: Weak<Lines>,
    /// Requests that were handed to it and are not answered.
    in_progress: Cell<usize>,
    /// Requests that it has slots and credits for: at most, unless it was found to be fewer since it had none. Credits
    /// come and go.
    slots: Cell<usize>,
    /// It is in [`Lines::offered`].
    is_offered: Cell<bool>,
}

impl Line {
    fn new(session: Session, lines: Weak<Lines>) -> Rc<Line> {
        let (in_progress, slots) = (Cell::new(0), Cell::new(SLOTS));
        Rc::new(Line { session, lines, in_progress, slots, is_offered: Cell::new(true) })
    }

    fn free_slots(&self) -> usize {
        self.slots.get().saturating_sub(self.in_progress.get())
    }

    fn take(self: &Rc<Self>) -> Place {
        self.in_progress.set(self.in_progress.get() + 1);
        Place { session: self.session.clone(), line: self.clone() }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.session.is_open() {
            // Nobody need wait until the other side knows.
            drop(self.session.close());
        }
        if let Some(lines) = self.lines.upgrade() {
            lines.count.set(lines.count.get() - 1);
        }
    }
}

/// A request on a line, while it is in flight.
pub(super) struct Place {
    pub session: Session,
    line: Rc<Line>,
}

impl Place {
    /// Returns where its line leads, unless that was given up.
    pub fn addr(&self) -> Option<Addr> {
        self.line.lines.upgrade().map(|lines| lines.addr.clone())
    }

    /// Whether a request that was just issued here waits for a slot or a credit held by long-waiting queries. If so,
    /// the session has fewer than assumed, and its number of slots is reduced.
    pub fn must_wait(&self) -> bool {
        let must_wait = self
            .session
            .stats()
            .is_some_and(|stats| stats.calls_queued > 0 || stats.calls_in_progress > u32::from(stats.credits_max));
        if must_wait {
            self.line.slots.set(self.line.in_progress.get().saturating_sub(1).max(1));
        }
        must_wait
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Line { in_progress, slots, lines, .. } = &*self.line;
        in_progress.set(in_progress.get() - 1);
        if in_progress.get() == 0 {
            slots.set(SLOTS);
        }
        if let Some(lines) = lines.upgrade() {
            lines.ended(&self.line);
        }
    }
}

/// The lines to one address.
struct Lines {
    addr: Addr,
    sharing: Sharing,
    /// Lines for further requests: with [`Sharing::Queue`] all of them; with [`Sharing::Alone`] all that have a free
    /// slot, and some that have none any more. A line that is not among them is kept by its requests alone, so finding
    /// a slot does not take longer the more lines there are.
    offered: RefCell<Vec<Rc<Line>>>,
    /// How many lines there are.
    count: Cell<usize>,
    /// The session that was opened last.
    newest: RefCell<Option<Session>>,
    /// Another line is being opened.
    is_opening: Cell<bool>,
    /// How often that was in vain.
    failures: Cell<u64>,
    /// Requests that wait for a slot.
    waiting: RefCell<Queue>,
}

impl Lines {
    fn to(addr: &Addr, sharing: Sharing) -> Lines {
        Lines {
            addr: addr.clone(),
            sharing,
            offered: RefCell::default(),
            count: Cell::new(0),
            newest: RefCell::default(),
            is_opening: Cell::new(false),
            failures: Cell::new(0),
            waiting: RefCell::default(),
        }
    }

    /// Takes a place on a line, if there is one.
    fn take(&self) -> Option<Place> {
        match self.sharing {
            Sharing::Queue => {
                let mut offered = self.offered.borrow_mut();
                offered.retain(|line| line.session.is_open());
                let with_room = offered.iter().filter(|line| line.session.room() > 0);
                with_room.min_by_key(|line| line.in_progress.get()).map(Line::take)
            }
            Sharing::Alone => loop {
                let line = self.offered.borrow().last()?.clone();
                if line.session.is_open() && line.free_slots() > 0 {
                    return Some(line.take());
                }
                line.is_offered.set(false);
                self.offered.borrow_mut().pop();
            },
        }
    }

    /// A request on this line has ended.
    fn ended(&self, line: &Rc<Line>) {
        let is_useful = self.sharing == Sharing::Alone && line.free_slots() > 0 && line.session.is_open();
        if is_useful && !line.is_offered.replace(true) {
            self.offered.borrow_mut().push(line.clone());
        }
        self.wake();
    }

    /// Wakes as many requests as the next line has slots for, and one more, which opens another line. Those that get a
    /// slot wake the next ones.
    fn wake(&self) {
        let slots = match self.sharing {
            Sharing::Queue => SLOTS,
            Sharing::Alone => self.offered.borrow().last().map_or(0, |line| line.free_slots()),
        };
        self.waiting.borrow_mut().wake(slots + 1);
    }

    /// Opens another line in a task of its own, unless that is under way: a request that is abandoned does not end what
    /// others wait for. Returns whether there will be another line, or an error.
    fn open<T: Transport>(self: &Rc<Self>, endpoint: &Endpoint<T>, patience: Duration) -> bool {
        if self.count.get() >= self.sharing.lines_max() {
            return false;
        }
        if !self.is_opening.replace(true) {
            let (lines, connecting) =
                (self.clone(), endpoint.connect_with(&self.addr, ConnectOptions::timeout(patience)));
            endpoint.spawn(async move { lines.opened(connecting.await.ok()) });
        }
        true
    }

    /// Opening a line has ended, with or without one.
    fn opened(self: &Rc<Self>, session: Option<Session>) {
        self.is_opening.set(false);
        let Some(session) = session else {
            self.failures.set(self.failures.get() + 1);
            self.waiting.borrow_mut().wake(usize::MAX);
            return;
        };
        self.count.set(self.count.get() + 1);
        self.newest.replace(Some(session.clone()));
        self.offered.borrow_mut().push(Line::new(session, Rc::downgrade(self)));
        self.wake();
    }

    fn is_open(&self) -> bool {
        let newest = self.newest.borrow();
        newest.iter().chain(self.offered.borrow().iter().map(|line| &line.session)).any(Session::is_open)
    }
}

/// A request that waits for a slot.
struct Waiting<'a> {
    lines: &'a Lines,
    position: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.lines.waiting.borrow_mut().leave(self.position);
        // It may have been woken for a slot that it now leaves to another.
        self.lines.wake();
    }
}

/// The lines to all replicas.
#[derive(Clone, Default)]
pub(super) struct Switchboard {
    sharing: Sharing,
    /// By address; the one that was used last comes first.
    lines: Rc<RefCell<Vec<Rc<Lines>>>>,
}

impl Switchboard {
    pub fn new(sharing: Sharing) -> Switchboard {
        Switchboard { sharing, lines: Rc::default() }
    }

    /// Returns a place on a line to this address. If there is no line, it opens one within `patience`. While all lines
    /// are busy, it opens another one; only a request that must not wait for those before it waits for the new line.
    /// Returns `None` if the address is not reached, or there are as many lines as there may be for such requests.
    pub async fn place<T: Transport>(&self, addr: &Addr, endpoint: &Endpoint<T>, patience: Duration) -> Option<Place> {
        let lines = self.lines_to(addr);
        let take = || {
            let place = lines.take()?;
            if place.line.in_progress.get() > SLOTS {
                lines.open(endpoint, patience);
            }
            Some(place)
        };
        if let Some(place) = take() {
            return Some(place);
        }
        let failures = lines.failures.get();
        let waiting = Waiting { lines: &lines, position: lines.waiting.borrow_mut().join() };
        poll_fn(|context| {
            if let Some(place) = take() {
                return Poll::Ready(Some(place));
            }
            let will_end = lines.sharing == Sharing::Queue && lines.is_open();
            // If one opens a line in vain, the others do not try again, one after the other.
            if !will_end && (lines.failures.get() != failures || !lines.open(endpoint, patience)) {
                return Poll::Ready(None);
            }
            lines.waiting.borrow_mut().wait(waiting.position, context.waker());
            Poll::Pending
        })
        .await
    }

    fn lines_to(&self, addr: &Addr) -> Rc<Lines> {
        let mut all = self.lines.borrow_mut();
        let place = all.iter().position(|lines| lines.addr == *addr).unwrap_or_else(|| {
            all.truncate(ADDRESSES_MAX - 1);
            all.push(Rc::new(Lines::to(addr, self.sharing)));
            all.len() - 1
        });
        all[..=place].rotate_right(1);
        all[0].clone()
    }

    /// Whether a replica is reached at this address.
    pub fn reaches(&self, addr: &Addr) -> bool {
        self.lines.borrow().iter().any(|lines| lines.addr == *addr && lines.is_open())
    }

    /// Gives up the lines to an address. What was asked there is still answered there.
    pub fn forget(&self, addr: &Addr) {
        self.lines.borrow_mut().retain(|lines| lines.addr != *addr);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
    use dunlin_rpc::{CallOptions, EndpointConfig, MsgBuf};

    use super::*;
    use crate::wire::CLIENT;

    /// A replica may go by any number of addresses.
    #[test]
    fn lines_to_the_addresses_that_were_used_last_are_kept() {
        let board = Switchboard::default();
        let first = Rc::downgrade(&board.lines_to(&Addr::Node(0)));
        for node in 1..10_000 {
            board.lines_to(&Addr::Node(node));
            if node < 5_000 {
                assert!(Rc::ptr_eq(&board.lines_to(&Addr::Node(0)), &first.upgrade().unwrap()));
            }
        }
        assert!(first.upgrade().is_none(), "it was not used any more");
        assert_eq!(board.lines.borrow().len(), ADDRESSES_MAX);
        board.forget(&Addr::Node(9_999));
        assert_eq!(board.lines.borrow().len(), ADDRESSES_MAX - 1);
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
        let line = Line::new(session, Weak::new());
        let ask = || {
            let place = line.take();
            let call = place.session.call_with(CLIENT, MsgBuf::with_len(8).unwrap(), CallOptions::default());
            (place.must_wait(), place, call)
        };
        let asked = [ask(), ask(), ask()];
        assert_eq!((asked.each_ref().map(|(must_wait, ..)| *must_wait), line.slots.get()), ([false, false, true], 2));
        drop(asked);
        assert_eq!(line.slots.get(), SLOTS);
    }
}
