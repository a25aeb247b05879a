//! The connections of one core: a list of them, and access to their tasks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use dunlin_store::UnixSeconds;

use super::limits::SHORT_BYTES;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It waits for a command.
    Waiting,
    /// It executes commands.
    Working,
    /// It waits until its answers can be written.
    Writing,
    /// It waits for memory that other connections hold.
    Starved,
}

impl Activity {
    /// Returns the closest of memcached's names for it.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Waiting => "conn_read",
            Activity::Working | Activity::Starved => "conn_parse_cmd",
            Activity::Writing => "conn_mwrite",
        }
    }
}

/// Why a connection is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The server stops: answer what was read, and what has arrived as far as there is memory to read it, then close.
    Stop,
    /// It was idle for too long, or has no time left to end cleanly.
    Now,
}

/// State that a connection shares with its core.
#[derive(Debug)]
pub(super) struct Shared {
    pub number: u64,
    pub peer: String,
    pub activity: Cell<Activity>,
    /// When its last command arrived.
    pub last_command: Cell<UnixSeconds>,
    pub ending: Cell<Option<Ending>>,
    /// Since when it has held memory of the budget while its client has not sent and read as many bytes.
    pub holds_since: Cell<Option<UnixSeconds>>,
    /// Bytes that its client has sent and read since then.
    progress: Cell<usize>,
    /// Since when it has waited in line for memory.
    in_line_since: Cell<Option<UnixSeconds>>,
    /// The task that waits for input or for room to write.
    pub waker: RefCell<Option<Waker>>,
}

impl Shared {
    /// Whether the client is the one to act, not this server.
    fn waits_for_client(&self) -> bool {
        matches!(self.activity.get(), Activity::Waiting | Activity::Writing)
    }

    pub fn new(number: u64, peer: String, now: UnixSeconds) -> Shared {
        Shared {
            number,
            peer,
            activity: Cell::new(Activity::Waiting),
            last_command: Cell::new(now),
            ending: Cell::new(None),
            holds_since: Cell::new(None),
            progress: Cell::new(0),
            in_line_since: Cell::new(None),
            waker: RefCell::new(None),
        }
    }

    /// Asks it to end. [`Ending::Now`] is never downgraded.
    pub fn end(&self, ending: Ending) {
        if self.ending.get() != Some(Ending::Now) {
            self.ending.set(Some(ending));
        }
        let waker = self.waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Records how many bytes of the budget it holds while it waits.
    pub fn note_held(&self, bytes: usize, now: UnixSeconds) {
        self.note_progress(0, bytes);
        if bytes == 0 {
            self.holds_since.set(None);
        } else if self.holds_since.get().is_none() {
            self.begin_hold(now);
        }
    }

    fn begin_hold(&self, now: UnixSeconds) {
        self.holds_since.set(Some(now));
        self.progress.set(0);
    }

    /// Records that it begins to wait in line for memory.
    pub fn enter_line(&self, now: UnixSeconds) {
        self.activity.set(Activity::Starved);
        self.in_line_since.set(Some(now));
    }

    /// Records that its turn has come, and its next activity. Its client has the full time from now on, or the time
    /// that it had left if the connection held memory before: waiting in line does not count.
    pub fn leave_line(&self, activity: Activity, now: UnixSeconds) {
        self.activity.set(activity);
        let Some(entered) = self.in_line_since.take() else { return };
        match self.holds_since.get() {
            Some(since) => self.holds_since.set(Some(since + now.saturating_sub(entered.max(since)))),
            None => self.begin_hold(now),
        }
    }

    /// Records that its client sent or read this many bytes. When that amounts to what it holds, the client has the
    /// full time again: small commands do not keep the memory of a long one.
    #[inline]
    pub fn note_progress(&self, bytes: usize, held: usize) {
        if self.holds_since.get().is_some() {
            self.progress.set(self.progress.get() + bytes);
            // Besides a command, it also holds what may be read after it.
            if self.progress.get() + SHORT_BYTES >= held {
                self.holds_since.set(None);
            }
        }
    }

    /// Sets the task to wake.
    pub fn note_waker(&self, waker: &Waker) {
        let is_noted = self.waker.borrow().as_ref().is_some_and(|noted| noted.will_wake(waker));
        if !is_noted {
            // The replaced waker is dropped when nothing is borrowed.
            let _ = self.waker.replace(Some(waker.clone()));
        }
    }
}

/// One connection, as `stats conns` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionReport {
    /// Its number on its core.
    pub number: u64,
    /// The address of its client.
    pub peer: String,
    /// Its activity.
    pub activity: Activity,
    /// Seconds since its last command.
    pub idle_seconds: UnixSeconds,
}

/// The connections of one core.
#[derive(Debug, Default)]
pub struct Connections {
    list: RefCell<Vec<Option<Rc<Shared>>>>,
    free: RefCell<Vec<usize>>,
    next_number: Cell<u64>,
}

impl Connections {
    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.list.borrow().len() - self.free.borrow().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a connection; the returned slot is for [`Connections::remove`].
    pub(super) fn add(&self, peer: String, now: UnixSeconds) -> (usize, Rc<Shared>) {
        let number = self.next_number.replace(self.next_number.get() + 1);
        let shared = Rc::new(Shared::new(number, peer, now));
        let mut list = self.list.borrow_mut();
        let place = self.free.borrow_mut().pop().unwrap_or_else(|| {
            list.push(None);
            list.len() - 1
        });
        list[place] = Some(shared.clone());
        (place, shared)
    }

    pub(super) fn remove(&self, place: usize) {
        self.list.borrow_mut()[place] = None;
        self.free.borrow_mut().push(place);
    }

    /// Asks every connection to end.
    pub(super) fn end_all(&self, ending: Ending) {
        self.list.borrow().iter().flatten().for_each(|shared| shared.end(ending));
    }

    /// Ends the connections that have waited longer than this for their client. Returns how many.
    pub(super) fn end_idle(&self, now: UnixSeconds, idle_seconds_max: UnixSeconds) -> u64 {
        let mut count = 0;
        for shared in self.list.borrow().iter().flatten() {
            let is_idle = now.saturating_sub(shared.last_command.get()) >= idle_seconds_max;
            if is_idle && shared.waits_for_client() && shared.ending.get().is_none() {
                shared.end(Ending::Now);
                count += 1;
            }
        }
        count
    }

    /// Ends the connections that have held memory for this long while waiting for their client. Returns how many.
    pub(super) fn end_holders(&self, now: UnixSeconds, seconds: UnixSeconds) -> u64 {
        let mut count = 0;
        for shared in self.list.borrow().iter().flatten() {
            let is_long = shared.holds_since.get().is_some_and(|since| now.saturating_sub(since) >= seconds);
            if is_long && shared.waits_for_client() && shared.ending.get().is_none() {
                shared.end(Ending::Now);
                count += 1;
            }
        }
        count
    }

    /// Returns the number of slots, including free ones.
    pub(super) fn places(&self) -> usize {
        self.list.borrow().len()
    }

    /// Reports each connection in `count` slots from `first` on.
    pub(super) fn report(&self, first: usize, count: usize, now: UnixSeconds) -> Vec<ConnectionReport> {
        let report = |shared: &Rc<Shared>| ConnectionReport {
            number: shared.number,
            peer: shared.peer.clone(),
            activity: shared.activity.get(),
            idle_seconds: now.saturating_sub(shared.last_command.get()),
        };
        self.list.borrow().iter().skip(first).take(count).flatten().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_whose_command_waits_is_not_idle() {
        let connections = Connections::default();
        let (_, shared) = connections.add(String::new(), 0);
        for activity in [Activity::Working, Activity::Starved] {
            shared.activity.set(activity);
            assert_eq!(connections.end_idle(100, 10), 0, "{activity:?}");
        }
        shared.activity.set(Activity::Waiting);
        assert_eq!((connections.end_idle(9, 10), connections.end_idle(10, 10)), (0, 1));
        assert_eq!(shared.ending.get(), Some(Ending::Now));
    }

    #[test]
    fn the_time_in_line_does_not_count_and_no_line_gives_more() {
        let shared = Shared::new(1, String::new(), 0);
        let in_line = |from, until| {
            shared.enter_line(from);
            assert_eq!(shared.activity.get(), Activity::Starved);
            shared.leave_line(Activity::Working, until);
            shared.holds_since.get()
        };
        assert_eq!(in_line(5, 100), Some(100), "it held nothing before");
        shared.note_progress(10_000, 1 << 20);
        assert_eq!(in_line(120, 220), Some(200), "it had 20 seconds before");
        shared.note_progress((1 << 20) - 10_000, 1 << 20);
        assert_eq!(shared.holds_since.get(), None, "its client made progress before and behind the line");
        shared.note_held(1 << 20, 300);
        assert_eq!(in_line(300, 300), Some(300));
    }
}
