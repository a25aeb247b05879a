//! The connections of one core: who they are, and how to reach their tasks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use dunlin_store::UnixSeconds;

use super::limits::SHORT_BYTES;

/// What a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It waits for a command.
    Waiting,
    /// It works.
    Working,
    /// It waits until its answers can be written.
    Writing,
    /// It waits for memory that other connections hold.
    Starved,
}

impl Activity {
    /// memcached's name of it, of those that fit best.
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
    /// The server stops: answer what was read, and what has come where there is memory to read it, then close.
    Stop,
    /// It was idle for too long, or has no more time to end in order.
    Now,
}

/// What a connection shares with its core.
#[derive(Debug)]
pub(super) struct Shared {
    pub number: u64,
    pub peer: String,
    pub activity: Cell<Activity>,
    /// When its last command came.
    pub last_command: Cell<UnixSeconds>,
    pub ending: Cell<Option<Ending>>,
    /// Since when it has held memory of the budget, and its client has not sent and read as many bytes.
    pub holds_since: Cell<Option<UnixSeconds>>,
    /// Bytes that its client sent and read since then.
    progress: Cell<usize>,
    /// Since when it has waited in line for memory.
    in_line_since: Cell<Option<UnixSeconds>>,
    /// Whoever waits for input or for room to write.
    pub waker: RefCell<Option<Waker>>,
}

impl Shared {
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

    /// Asks it to end. A connection that was asked to end at once stays so.
    pub fn end(&self, ending: Ending) {
        if self.ending.get() != Some(Ending::Now) {
            self.ending.set(Some(ending));
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Notes how many bytes of the budget it holds while it waits from now on.
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

    /// Notes that it waits in line for memory from now on.
    pub fn enter_line(&self, now: UnixSeconds) {
        self.activity.set(Activity::Starved);
        self.in_line_since.set(Some(now));
    }

    /// Notes that its turn has come, and what it is at again. Its client has the full time from now on, or what it had left if the connection held
    /// memory before: the time in line does not count.
    pub fn leave_line(&self, activity: Activity, now: UnixSeconds) {
        self.activity.set(activity);
        let Some(entered) = self.in_line_since.take() else { return };
        match self.holds_since.get() {
            Some(since) => self.holds_since.set(Some(since + now.saturating_sub(entered.max(since)))),
            None => self.begin_hold(now),
        }
    }

    /// Notes that its client sent or read so many bytes. One that did so with as many as it holds has the full time
    /// again: small commands do not keep the memory of a long one.
    #[inline]
    pub fn note_progress(&self, bytes: usize, held: usize) {
        if self.holds_since.get().is_some() {
            self.progress.set(self.progress.get() + bytes);
            // Beside a command it holds what may be read behind it.
            if self.progress.get() + SHORT_BYTES >= held {
                self.holds_since.set(None);
            }
        }
    }

    /// Remembers whom to wake.
    pub fn note_waker(&self, waker: &Waker) {
        let mut noted = self.waker.borrow_mut();
        if !noted.as_ref().is_some_and(|noted| noted.will_wake(waker)) {
            *noted = Some(waker.clone());
        }
    }
}

/// One connection, as `stats conns` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionReport {
    /// Its number on its core.
    pub number: u64,
    /// Where it comes from.
    pub peer: String,
    /// What it is at.
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
    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.borrow().len() - self.free.borrow().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds one; the place is for [`Connections::remove`].
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

    /// Asks those to end at once that wait for a command longer than this. Returns how many.
    pub(super) fn end_idle(&self, now: UnixSeconds, idle_seconds_max: UnixSeconds) -> u64 {
        let mut count = 0;
        for shared in self.list.borrow().iter().flatten() {
            if now.saturating_sub(shared.last_command.get()) >= idle_seconds_max && shared.ending.get().is_none() {
                shared.end(Ending::Now);
                count += 1;
            }
        }
        count
    }

    /// Asks those to end at once that have held memory for so long, and wait for their client. Returns how many.
    pub(super) fn end_holders(&self, now: UnixSeconds, seconds: UnixSeconds) -> u64 {
        let mut count = 0;
        for shared in self.list.borrow().iter().flatten() {
            let is_long = shared.holds_since.get().is_some_and(|since| now.saturating_sub(since) >= seconds);
            let waits_for_client = matches!(shared.activity.get(), Activity::Waiting | Activity::Writing);
            if is_long && waits_for_client && shared.ending.get().is_none() {
                shared.end(Ending::Now);
                count += 1;
            }
        }
        count
    }

    /// Places for connections, some of which may be free.
    pub(super) fn places(&self) -> usize {
        self.list.borrow().len()
    }

    /// Each of those in so many places from the first on.
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
